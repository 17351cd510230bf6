package demo

import (
	"fmt"
	"strings"
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
func (p proxyState) state() span {
	switch {
	case p.Refused != "":
		return say(bad, "refused: %s", p.Refused)
	case !p.Connected:
		return span{"serving, not connected", pending}
	case p.Applied < p.Generation:
		return span{"applying", pending}
	}
	return span{"in sync", good}
}

// frame is the calls and the proxies at one time. It is a block: the narrower the screen, the shorter are identities and times.
type frame struct {
	calls   *counters
	proxies []proxyState
	now     time.Time
}

func (f frame) rows(columns int) []line {
	out := fitTable(columns, f.callsTable(false), f.callsTable(true))
	failed := plain
	if f.calls.failed() > 0 {
		failed = bad
	}
	out = append(out, line{
		{fmt.Sprintf("  %d requests, ", f.calls.Sent), plain}, {fmt.Sprintf("%d failed", f.calls.failed()), failed},
	}.clip(columns))
	if len(f.proxies) > 0 {
		out = append(out, nil)
		out = append(out, fitTable(columns, f.proxiesTable(false), f.proxiesTable(true))...)
	}
	return out
}

// callsTable has a row for each pair of a caller and a callee.
func (f frame) callsTable(short bool) table {
	t := table{{{"CALLER", faint}, {"CALLEE", faint}, {"VERSION", faint}, {"REQUESTS", faint}, {"SHARE", faint}, {"IDENTITY", faint}}}
	for _, e := range f.calls.sortedEdges() {
		share := ""
		if len(f.calls.versions(e.To)) > 1 {
			share = fmt.Sprintf("%.0f %%", 100*f.calls.share(e.To, e.Version))
		}
		as := say(plain, "%s", e.As)
		switch {
		case e.As == "":
			as = span{"none (plaintext)", pending}
		case short:
			as.text = account(as.text)
		}
		t = append(t, []span{
			say(plain, "%s", e.From), say(plain, "%s", e.To), say(plain, "%s", e.Version),
			{fmt.Sprint(f.calls.Edges[e]), plain}, {share, plain}, as,
		})
	}
	return t
}

// account is the short form namespace/account of an identity in the mesh, and any other text as it is.
func account(identity string) string {
	_, path, found := strings.Cut(strings.TrimPrefix(identity, "spiffe://"), "/")
	if parts := strings.Split(path, "/"); found && len(parts) == 4 && parts[0] == "ns" && parts[2] == "sa" {
		return parts[1] + "/" + parts[3]
	}
	return identity
}

// proxiesTable has a row for each proxy.
func (f frame) proxiesTable(short bool) table {
	expires := map[bool]string{false: "CERTIFICATE EXPIRES", true: "CERTIFICATE"}
	t := table{{{"PROXY", faint}, {"GENERATION", faint}, {"STATE", faint}, {expires[short], faint}}}
	for _, p := range f.proxies {
		generation := "-"
		if p.Connected {
			generation = fmt.Sprintf("%d of %d", p.Applied, p.Generation)
		}
		ends := "-"
		if !p.Ends.IsZero() {
			ends = "in " + strings.TrimSuffix(p.Ends.Sub(f.now).Round(time.Minute).String(), "0s")
			if short {
				ends = "expires " + ends
			} else {
				ends = fmt.Sprintf("%s (%s)", p.Ends.UTC().Format("2006-01-02 15:04:05"), ends)
			}
		}
		t = append(t, []span{say(plain, "%s", p.Name), {generation, plain}, p.state(), {ends, plain}})
	}
	return t
}

// table is rows of cells; the first row is the heading.
type table [][]span

// fitTable is the first of some tables that a screen has the columns for, or else the last one, cut.
func fitTable(columns int, tables ...table) []line {
	var out []line
	for _, t := range tables {
		if out = t.lines(); widest(out) <= columns {
			return out
		}
	}
	for i := range out {
		out[i] = out[i].clip(columns)
	}
	return out
}

func widest(all []line) int {
	most := 0
	for _, l := range all {
		most = max(most, l.width())
	}
	return most
}

// lines aligns the cells.
func (t table) lines() []line {
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, c := range row {
			widths[i] = max(widths[i], textWidth(c.text))
		}
	}
	var out []line
	for _, row := range t {
		l := line{{"  ", plain}}
		for i, c := range row {
			l = append(l, c)
			if i < len(row)-1 {
				l = append(l, span{strings.Repeat(" ", widths[i]-textWidth(c.text)+2), plain})
			}
		}
		out = append(out, l)
	}
	return out
}

// result is the result of one check. Err is nil if it passed.
type result struct {
	Scenario, What string
	Err            error
}

// lines are what is printed when the check has been made.
func (r result) lines() lines {
	if r.Err != nil {
		return append(lines{}, failure("  ", r.What, r.Err)...)
	}
	return lines{{{"  ", plain}, {"ok", good}, say(plain, ": %s", r.What)}}
}

// failure is a failed check and why it failed, with each further line of the reason indented.
func failure(indent, what string, err error) lines {
	var out lines
	for i, text := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		if i == 0 {
			out = append(out, line{{indent, plain}, {"FAILED", bad}, say(plain, ": %s: %s", what, text)})
		} else {
			out = append(out, line{{indent + "    ", plain}, say(plain, "%s", text)})
		}
	}
	return out
}

// summary is the failures again and the number of checks that passed, and whether these are all, of which there must be one:
// what passed has been said.
func summary(results []result) (lines, bool) {
	var out lines
	passed := 0
	for _, r := range results {
		if r.Err == nil {
			passed++
			continue
		}
		out = append(out, failure("  ", r.Scenario+": "+r.What, r.Err)...)
	}
	ok := passed == len(results) && passed > 0
	look := good
	if !ok {
		look = bad
	}
	return append(out, line{{fmt.Sprintf("%d of %d checks passed", passed, len(results)), look}}), ok
}
