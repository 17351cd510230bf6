package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	Replica     string              `json:"replica"` // only if there are several
	Proxy       string              `json:"proxy"`
	ProxyType   string              `json:"proxy_type"`
	Identity    string              `json:"identity"`
	Version     string              `json:"proxy_version"`
	ConnectedAt time.Time           `json:"connected_at"`
	Older       bool                `json:"older"`
	Epoch       json.Number         `json:"epoch"`
	LastRefusal *lastRefusal        `json:"last_refusal"`
	Generation  int64               `json:"generation"`
	Applied     int64               `json:"applied"`
	Types       map[string]progress `json:"types"`
	Behind      *behindProxy        `json:"behind"`
	NotApplied  []string            `json:"proxy_config_not_applied"`
	Quarantined []string            `json:"quarantined"`
}

// lastRefusal is the newest response that a proxy has refused.
type lastRefusal struct {
	Type    string `json:"type"`
	At      string `json:"at"`
	Message string `json:"message"`
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

var proxyTypes = []string{"CDS", "EDS", "ECDS", "LDS", "RDS", "VHDS"}

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

LAST REFUSAL is when the proxy last rejected something on this connection, even if it has accepted
a later version since; -o json has the error. A connection marked "(older)" is that of an Envoy that is
drained after a hot restart, or one that is gone: the same proxy has connected again since. EPOCH counts the hot restarts of the agent's Envoy, 0 for its first one; agents of
Istio do not say it. ENVOY is the version.

On a terminal that is too narrow, all types are in one column, identities are NAMESPACE/ACCOUNT and times those of the
day; -o wide prints everything. With --watch the list is printed again whenever it has changed, until Ctrl-C.

With several replicas of pilot-discovery the list is that of all, and REPLICA is the one that the
proxy is connected to; each counts generations of its own.

Fields of a proxy's ProxyConfig that the control plane does not apply are named below the
table; -o json has them for each proxy.`,
		Example: `  pilotctl proxies
  pilotctl proxies --watch
  pilotctl proxies --behind -o json`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			behind, watched := readProxies(cli.Read(c.Flags(), nil, settings.PilotctlProxies))
			r, err := f.connect(c)
			if err != nil {
				return err
			}
			defer r.Close()
			show := func(out, errs io.Writer) error {
				texts, lost, err := connected(c.Context(), r)
				if err != nil {
					return err
				}
				if behind {
					err = printBehind(out, f.output, texts, r.several(), f.columns(c))
				} else {
					err = printProxies(out, f.output, texts, r.several(), f.columns(c))
				}
				if err != nil {
					return err
				}
				return lost.report(errs)
			}
			if !watched {
				return show(c.OutOrStdout(), c.ErrOrStderr())
			}
			return f.watch(c, func(out io.Writer) error {
				if err := r.find(c.Context()); err != nil {
					return err
				}
				return show(out, out)
			})
		},
	}
	asking(c, settings.PilotctlProxies)
	return c
}

// connected are the connected proxies of all replicas.
func connected(ctx context.Context, r *replicas) ([]json.RawMessage, missing, error) {
	got, lost, err := answered(r.ask(ctx, syncPage, nil, nil))
	if err != nil {
		return nil, nil, err
	}
	lists, err := decoded[[]json.RawMessage](got, syncPage)
	if err != nil {
		return nil, nil, err
	}
	all, err := joinLists(lists)
	return all, lost, err
}

// decodeProxies decodes entries of the page of proxies.
func decodeProxies(texts []json.RawMessage) ([]proxy, error) {
	all := make([]proxy, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, fmt.Errorf("decode the response of %s: %w", syncPage, err)
		}
	}
	return all, nil
}

// printProxies prints proxies, with their replicas if there are several, in a narrow table if the usual one has more than columns.
func printProxies(w io.Writer, form string, texts []json.RawMessage, several bool, columns int) error {
	if form != "table" {
		return printValue(w, form, texts)
	}
	all, err := decodeProxies(texts)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no proxy is connected")
		return err
	}
	slices.SortFunc(all, func(a, b proxy) int {
		return cmp.Or(cmp.Compare(a.Proxy, b.Proxy), cmp.Compare(a.Replica, b.Replica))
	})
	now := time.Now()
	if err := printFitting(w, columns,
		func(w io.Writer) error { return wholeTable(w, proxyHeader(all, several), proxyRows(all, several)) },
		func(w io.Writer) error { return narrowProxies(w, columns, all, several, now) }); err != nil {
		return err
	}
	tell := func(text string) {
		if columns > 0 {
			text = wrapLines(text, columns-2, "  ")
		}
		fmt.Fprintf(w, "\n%s\n", text)
	}
	for _, p := range all {
		for _, typ := range proxyTypes {
			if nack := p.Types[typ].Nack; nack != "" {
				tell(fmt.Sprintf("%s rejected %s: %s", printable.Escape(p.Proxy), typ, printable.EscapeLines(nack, "    ")))
			}
			if since := p.Types[typ].Stuck; since != "" {
				tell(fmt.Sprintf("%s has not acknowledged %s, sent at %s", printable.Escape(p.Proxy), typ, printable.Escape(since)))
			}
		}
	}
	for _, line := range quarantined(all) {
		tell(printable.Escape(line))
	}
	for _, line := range notApplied(all) {
		tell(line)
	}
	return nil
}

// readProxies reads settings.PilotctlProxies: whether only the proxies that are behind are listed, and whether again and
// again.
func readProxies(v *settings.Values) (behind, watched bool) { return v.Bool("behind"), v.Bool("watch") }

// printBehind prints the proxies that have not applied everything.
func printBehind(w io.Writer, form string, texts []json.RawMessage, several bool, columns int) error {
	all, err := decodeProxies(texts)
	if err != nil {
		return err
	}
	behind := []json.RawMessage{}
	var rows [][]string
	for i, p := range all {
		if p.Behind == nil {
			continue
		}
		behind = append(behind, texts[i])
		row := []string{p.Proxy, fmt.Sprintf("%d/%d", p.Applied, p.Generation), p.Behind.Since, p.Behind.reason()}
		if several {
			row = slices.Insert(row, 1, p.Replica)
		}
		rows = append(rows, row)
	}
	if form != "table" {
		return printValue(w, form, behind)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(w, "all %d connected proxies have applied everything\n", len(all))
		return err
	}
	slices.SortFunc(rows, slices.Compare[[]string])
	header := []string{"PROXY", "GENERATION", "SINCE", "LACKS"}
	if several {
		header = slices.Insert(header, 1, "REPLICA")
	}
	return printTable(w, columns, header, rows)
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

// name is that of the proxy, marked if it has connected again since.
func (p proxy) name() string {
	if p.Older {
		return p.Proxy + " (older)"
	}
	return p.Proxy
}

// progress is the generation that it has applied, and the current one.
func (p proxy) progress() string { return fmt.Sprintf("%d/%d", p.Applied, p.Generation) }

// typeColumns are the types with a column. Few meshes have extension configurations.
func typeColumns(all []proxy) []string {
	if slices.ContainsFunc(all, func(p proxy) bool { _, ok := p.Types["ECDS"]; return ok }) {
		return proxyTypes
	}
	return slices.DeleteFunc(slices.Clone(proxyTypes), func(typ string) bool { return typ == "ECDS" })
}

func proxyHeader(all []proxy, several bool) []string {
	header := append(append([]string{"PROXY", "TYPE"}, typeColumns(all)...), "GENERATION", "BEHIND", "LAST REFUSAL", "EPOCH", "ENVOY", "IDENTITY", "CONNECTED")
	if several {
		header = slices.Insert(header, 1, "REPLICA")
	}
	return header
}

func proxyRows(all []proxy, several bool) [][]string {
	var rows [][]string
	for _, p := range all {
		row := []string{p.name(), p.ProxyType}
		for _, typ := range typeColumns(all) {
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
		refused := ""
		if p.LastRefusal != nil {
			refused = p.LastRefusal.Type + " " + p.LastRefusal.At
		}
		row = append(row, p.progress(), behind, refused, p.Epoch.String(), p.Version, p.Identity, since)
		if several {
			row = slices.Insert(row, 1, p.Replica)
		}
		rows = append(rows, row)
	}
	return rows
}
