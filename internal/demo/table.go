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
	// Applied of Generation: how far the proxy is.
	Applied, Generation int64
	Refused             string
	Connected           bool
	Ends                time.Time // zero where not known
}

// state is the word for it.
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

// tables renders who called whom and how the proxies are.
func tables(t *tally, proxies []proxyState, now time.Time) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  CALLER\tCALLED\tVERSION\tREQUESTS\tSHARE\tAS")
	for _, e := range t.sortedEdges() {
		share := ""
		if len(t.versions(e.To)) > 1 {
			share = fmt.Sprintf("%.0f %%", 100*t.share(e.To, e.Version))
		}
		as := e.As
		if as == "" {
			as = "nobody (plaintext)"
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
	fmt.Fprintln(w, "  PROXY\tGENERATION\tSTATE\tCERTIFICATE ENDS")
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

// check is one thing that the demo claims.
type check struct {
	Act, What string
	Err       error
}

// summary renders the checks and says whether all held.
func summary(checks []check) (string, bool) {
	var b strings.Builder
	held := 0
	for _, c := range checks {
		mark := "held  "
		if c.Err != nil {
			mark = "FAILED"
		} else {
			held++
		}
		fmt.Fprintf(&b, "  %s  %s: %s\n", mark, c.Act, c.What)
		if c.Err != nil {
			fmt.Fprintf(&b, "          %v\n", c.Err)
		}
	}
	fmt.Fprintf(&b, "%d of %d checks held\n", held, len(checks))
	return b.String(), held == len(checks) && held > 0
}
