package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
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
	Behind      *behindProxy        `json:"behind"`
	NotApplied  []string            `json:"proxy_config_not_applied"`
	Quarantined []string            `json:"quarantined"`
}

// progress is the state of one resource type on one proxy.
type progress struct {
	Resources int    `json:"resources"`
	Asked     bool   `json:"asked"`
	Sent      string `json:"sent"`
	Acked     string `json:"acked"`
	Synced    bool   `json:"synced"`
	Stuck     string `json:"stuck"`
	Nack      string `json:"nack"`
}

// String is the state as the table shows it.
func (p progress) String() string {
	switch {
	case p.Nack != "":
		return "REFUSED"
	case p.Stuck != "":
		return strconv.Itoa(p.Resources) + " STUCK"
	case !p.Asked:
		return "not asked"
	case p.Synced:
		return strconv.Itoa(p.Resources) + " synced"
	case p.Sent == "" || p.Sent == p.Acked:
		return strconv.Itoa(p.Resources) + " waiting"
	}
	return strconv.Itoa(p.Resources) + " sent"
}

var proxyTypes = []string{"CDS", "EDS", "LDS", "RDS", "VHDS"}

func newProxies(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "proxies",
		Short: "List the connected proxies and what they have acknowledged",
		Long: `List the connected proxies and what they have acknowledged.

For each resource type: the number of resources, and whether the proxy has all that it shall
have of it (synced; what it had before it connected counts), is to be sent something (waiting),
has not acknowledged the last response (sent), has not for 10 seconds or more (STUCK), or has
rejected a resource (REFUSED; the error is below the table); not asked: there are resources of
the type, and the proxy has not subscribed to them.

GENERATION is applied/current. A generation is a commit of configuration, counted since
pilot-discovery started. A proxy is at the current one if it has applied everything that is for
it, else at the one before the first change that it lacks; BEHIND says since when. With --behind only the proxies that
lack something are listed, with what they lack and since when.

Fields of a proxy's ProxyConfig that the control plane does not apply are named below the
table; -o json has them for each proxy.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if readProxies(cli.Read(c.Flags(), nil, settings.PilotctlProxies)) {
				return printBehind(c, f)
			}
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
			for _, line := range quarantined(all) {
				fmt.Fprintf(c.OutOrStdout(), "\n%s\n", printable.Escape(line))
			}
			for _, line := range notApplied(all) {
				fmt.Fprintf(c.OutOrStdout(), "\n%s\n", line)
			}
			return nil
		},
	}
	cli.Add(c, settings.PilotctlProxies)
	return c
}

// readProxies reads settings.PilotctlProxies: whether only the proxies that are behind are listed.
func readProxies(v *settings.Values) bool { return v.Bool("behind") }

// printBehind prints the proxies that have not applied everything.
func printBehind(c *cobra.Command, f *flags) error {
	var all []json.RawMessage
	if _, err := fetchInto(c.Context(), f.discovery, syncPage, nil, &all); err != nil {
		return err
	}
	behind := []json.RawMessage{}
	var rows [][]string
	for _, text := range all {
		var p proxy
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("decode the response of %s/%s: %w", f.discovery, syncPage, err)
		}
		if p.Behind == nil {
			continue
		}
		behind = append(behind, text)
		rows = append(rows, []string{p.Proxy, fmt.Sprintf("%d/%d", p.Applied, p.Generation), p.Behind.Since, p.Behind.reason()})
	}
	if f.output != "table" {
		return printValue(c.OutOrStdout(), f.output, behind)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(c.OutOrStdout(), "all %d connected proxies have applied everything\n", len(all))
		return err
	}
	slices.SortFunc(rows, slices.Compare[[]string])
	return printTable(c.OutOrStdout(), []string{"PROXY", "GENERATION", "SINCE", "LACKS"}, rows)
}

// quarantined says which resources proxies do not get in their newest version, a line for each set of them.
func quarantined(all []proxy) []string {
	byNames := map[string][]string{}
	for _, p := range all {
		if len(p.Quarantined) > 0 {
			names := strings.Join(p.Quarantined, ", ")
			byNames[names] = append(byNames[names], p.Proxy)
		}
	}
	var out []string
	for _, names := range slices.Sorted(maps.Keys(byNames)) {
		who := byNames[names][0]
		if n := len(byNames[names]); n > 1 {
			who += fmt.Sprintf(" and %d more", n-1)
		}
		out = append(out, fmt.Sprintf("%s: in quarantine, since proxies refused them: %s", who, names))
	}
	return out
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
	return append(append([]string{"PROXY", "TYPE"}, proxyTypes...), "GENERATION", "BEHIND", "IDENTITY", "CONNECTED")
}

func proxyRows(all []proxy) [][]string {
	var rows [][]string
	for _, p := range all {
		row := []string{p.Proxy, p.ProxyType}
		for _, typ := range proxyTypes {
			shown := ""
			if state, ok := p.Types[typ]; ok {
				shown = state.String()
			}
			row = append(row, shown)
		}
		since := ""
		if !p.ConnectedAt.IsZero() {
			since = p.ConnectedAt.UTC().Format(time.RFC3339)
		}
		behind := ""
		if p.Behind != nil {
			behind = "since " + p.Behind.Since
		}
		rows = append(rows, append(row, fmt.Sprintf("%d/%d", p.Applied, p.Generation), behind, p.Identity, since))
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
