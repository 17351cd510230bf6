package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// proxyState is one line of the table of proxies.
type proxyState struct {
	Name string
	// Applied is the generation that the proxy has applied, Generation the current one.
	Applied, Generation int64
	Refused             string
	Connected           bool
	Ends                time.Time // zero where not known
}

// state is the text for the column STATE.
func (p proxyState) state() string {
	switch {
	case p.Refused != "":
		return "refused: " + p.Refused
	case !p.Connected:
		return "serving, not connected"
	case p.Applied < p.Generation:
		return "applying"
	}
	return "in sync"
}

// tables renders the calls and the state of the proxies.
func tables(t *counters, proxies []proxyState, now time.Time) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  CALLER\tCALLEE\tVERSION\tREQUESTS\tSHARE\tIDENTITY")
	for _, e := range t.sortedEdges() {
		share := ""
		if len(t.versions(e.To)) > 1 {
			share = fmt.Sprintf("%.0f %%", 100*t.share(e.To, e.Version))
		}
		as := e.As
		if as == "" {
			as = "none (plaintext)"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%s\t%s\n", e.From, e.To, e.Version, t.Edges[e], share, as)
	}
	_ = w.Flush()
	fmt.Fprintf(&b, "  %d requests, %d failed\n", t.Sent, t.failed())
	if len(proxies) == 0 {
		return b.String()
	}
	fmt.Fprintln(&b)
	w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  PROXY\tGENERATION\tSTATE\tCERTIFICATE EXPIRES")
	for _, p := range proxies {
		gen := "-"
		if p.Connected {
			gen = fmt.Sprintf("%d of %d", p.Applied, p.Generation)
		}
		ends := "-"
		if !p.Ends.IsZero() {
			ends = fmt.Sprintf("%s (in %s)", p.Ends.UTC().Format("2006-01-02 15:04:05"), p.Ends.Sub(now).Round(time.Minute))
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", p.Name, gen, p.state(), ends)
	}
	_ = w.Flush()
	return b.String()
}

// result is the result of one check. Err is nil if it passed.
type result struct {
	Scenario, What string
	Err            error
}

// summary renders the results and reports whether all checks passed, of which there must be one.
func summary(results []result) (string, bool) {
	var b strings.Builder
	passed := 0
	for _, c := range results {
		mark := "ok    "
		if c.Err != nil {
			mark = "FAILED"
		} else {
			passed++
		}
		fmt.Fprintf(&b, "  %s  %s: %s\n", mark, c.Scenario, c.What)
		if c.Err != nil {
			fmt.Fprintf(&b, "          %v\n", c.Err)
		}
	}
	fmt.Fprintf(&b, "%d of %d checks passed\n", passed, len(results))
	return b.String(), passed == len(results) && passed > 0
}
