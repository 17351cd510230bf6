package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
)

const syncPage = "debug/syncz"

// proxy is one connected proxy in /debug/syncz; only what the table shows.
type proxy struct {
	Proxy       string              `json:"proxy"`
	ProxyType   string              `json:"proxy_type"`
	Identity    string              `json:"identity"`
	ConnectedAt time.Time           `json:"connected_at"`
	Generation  int64               `json:"generation"`
	Applied     int64               `json:"applied"`
	Types       map[string]progress `json:"types"`
	NotApplied  []string            `json:"proxy_config_not_applied"`
}

// progress is the state of one resource type on one proxy.
type progress struct {
	Resources int    `json:"resources"`
	Asked     bool   `json:"asked"`
	Sent      string `json:"sent"`
	Acked     string `json:"acked"`
	Stuck     string `json:"stuck"`
	Nack      string `json:"nack"`
}

// String is the state as the table shows it; it is empty if there is nothing to show.
func (p progress) String() string {
	switch {
	case p.Nack != "":
		return "REFUSED"
	case p.Stuck != "":
		return strconv.Itoa(p.Resources) + " STUCK"
	case !p.Asked:
		return "not asked"
	case p.Sent == "":
		return ""
	case p.Sent == p.Acked:
		return strconv.Itoa(p.Resources) + " synced"
	}
	return strconv.Itoa(p.Resources) + " sent"
}

var proxyTypes = []string{"CDS", "EDS", "LDS", "RDS"}

func newProxies(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "proxies",
		Short: "List the connected proxies and what they have acknowledged",
		Long: `List the connected proxies and what they have acknowledged.

For each resource type: the number of resources, and whether the proxy has acknowledged the
last response (synced), has not yet (sent), has not for 10 seconds or more (STUCK), or has
rejected a resource (REFUSED; the error is below the table); unchanged: nothing had to be sent
since it connected; not asked: there are resources of the type, and the proxy has not
subscribed to them. GENERATION is applied/current: how far the proxy is behind the
configuration. A generation is applied when the proxy has subscribed to every type of which
there are resources, and has acknowledged all of them.

Fields of a proxy's ProxyConfig that the control plane does not apply are named below the
table; -o json has them for each proxy.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			var all []proxy
			text, err := fetchInto(c.Context(), f.discovery, syncPage, nil, &all)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(c.OutOrStdout(), f.output, text)
			}
			slices.SortFunc(all, func(a, b proxy) int { return cmp.Compare(a.Proxy, b.Proxy) })
			if err := printTable(c.OutOrStdout(), proxyHeader(), proxyRows(all)); err != nil {
				return err
			}
			for _, p := range all {
				for _, typ := range proxyTypes {
					if nack := p.Types[typ].Nack; nack != "" {
						fmt.Fprintf(c.OutOrStdout(), "\n%s rejected %s: %s\n", printable.Escape(p.Proxy), typ, printable.EscapeLines(nack, "    "))
					}
					if since := p.Types[typ].Stuck; since != "" {
						fmt.Fprintf(c.OutOrStdout(), "\n%s has not acknowledged %s, sent at %s\n", printable.Escape(p.Proxy), typ, printable.Escape(since))
					}
				}
			}
			for _, line := range notApplied(all) {
				fmt.Fprintf(c.OutOrStdout(), "\n%s\n", line)
			}
			return nil
		},
	}
}

// notApplied says which fields of their ProxyConfig proxies do not get: a line for each set of fields,
// since most often all proxies have the same ones from the mesh's configuration.
func notApplied(all []proxy) []string {
	byFields := map[string][]string{}
	for _, p := range all {
		if len(p.NotApplied) > 0 {
			fields := strings.Join(p.NotApplied, ", ")
			byFields[fields] = append(byFields[fields], p.Proxy)
		}
	}
	var out []string
	for _, fields := range slices.Sorted(maps.Keys(byFields)) {
		names := byFields[fields]
		who := names[0]
		if len(names) > 1 {
			who += fmt.Sprintf(" and %d more", len(names)-1)
		}
		out = append(out, fmt.Sprintf("%s: not applied of the ProxyConfig: %s", who, fields))
	}
	return out
}

func proxyHeader() []string {
	return append(append([]string{"PROXY", "TYPE"}, proxyTypes...), "GENERATION", "IDENTITY", "CONNECTED")
}

func proxyRows(all []proxy) [][]string {
	var rows [][]string
	for _, p := range all {
		row := []string{p.Proxy, p.ProxyType}
		for _, typ := range proxyTypes {
			shown := ""
			if state, ok := p.Types[typ]; ok {
				shown = state.String()
				if shown == "" && p.Generation > 0 && p.Applied >= p.Generation {
					shown = "unchanged"
				}
			}
			row = append(row, shown)
		}
		since := ""
		if !p.ConnectedAt.IsZero() {
			since = p.ConnectedAt.UTC().Format(time.RFC3339)
		}
		rows = append(rows, append(row, fmt.Sprintf("%d/%d", p.Applied, p.Generation), p.Identity, since))
	}
	return rows
}

// completeProxies offers the names of the connected proxies to the shell.
func completeProxies(c *cobra.Command, f *flags, prefix string) ([]string, cobra.ShellCompDirective) {
	var all []proxy
	if err := f.read(c); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	if _, err := fetchInto(c.Context(), f.discovery, syncPage, nil, &all); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, p := range all {
		// A shell would print escape codes while it completes.
		if strings.HasPrefix(p.Proxy, prefix) && printable.Is(p.Proxy) {
			names = append(names, p.Proxy)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
