package demo

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/tty"
)

// live is a screen on a terminal, and one step of the demo for each call.
func live(t *testing.T, columns, rows int) (*tty.Terminal, *screen) {
	term := tty.New(columns, rows)
	s := &screen{out: term, size: func() (int, int) { return term.Columns, term.Rows }, painter: painter{color: true}}
	s.broken = func(err error) { t.Errorf("the terminal does not understand: %v", err) }
	s.begin()
	return term, s
}

// cut is a block whose lines are cut, as those of tables are.
type cut lines

func (b cut) rows(columns int) []line {
	var out []line
	for _, l := range b {
		out = append(out, l.clip(columns))
	}
	return out
}

// someTable is a table of so many rows, wider than most screens, that says which it is.
func someTable(n, rows int) block {
	var out cut
	for i := range rows {
		out = append(out, line{{fmt.Sprintf("t%d.%d ", n, i), plain}, {strings.Repeat("=", 30), good}, {strings.Repeat("語=", 20), faint}})
	}
	return out
}

// However many tables are drawn, between lines that stay and lines that wrap, on terminals that are
// too small: each line is there once, in order, and of the tables only the last.
func TestTableIsRedrawnInPlace(t *testing.T) {
	for _, s := range []size{{60, 14}, {80, 24}, {200, 50}, {10, 3}, {20, 2}, {5, 1}} {
		t.Run(fmt.Sprintf("%dx%d", s.columns, s.rows), func(t *testing.T) {
			term, screen := live(t, s.columns, s.rows)
			var want string
			for n := range 40 {
				screen.draw(someTable(n, []int{21, 3, 30}[n%3]))
				if n%4 == 0 {
					text := fmt.Sprintf("line%d%s", n, strings.Repeat("語-", n*5%70/2))
					screen.line("%s", text)
					want += text
				}
			}
			all := strings.ReplaceAll(strings.Join(term.Seen(), ""), " ", "")
			var tables []string
			for _, l := range term.Seen() {
				if strings.HasPrefix(l, "t") {
					tables = append(tables, l)
				}
			}
			if !strings.HasPrefix(all, want) || strings.Contains(all[len(want):], "line") {
				t.Errorf("lines are missing, doubled, or out of order:\n%s\nwant %s", strings.Join(term.Seen(), "\n"), want)
			}
			for _, l := range tables {
				if !strings.HasPrefix(l, "t39.") {
					t.Errorf("a table of before is still there: %s", l)
				}
			}
			if most := max(0, min(21, s.rows-1)); len(tables) > most {
				t.Errorf("%d rows of tables, want %d at most", len(tables), most)
			}
			if term.Wrapped > 0 {
				t.Errorf("%d rows are longer than the terminal is wide", term.Wrapped)
			}
		})
	}
}

// A terminal shows the table once at its new size, whether it wraps what it held or cuts it.
func TestTableIsResized(t *testing.T) {
	for _, wraps := range []bool{true, false} {
		term, screen := live(t, 80, 24)
		check := func(n int, what string) {
			t.Helper()
			var rows, lines []string
			for _, l := range term.Screen() {
				if strings.HasPrefix(l, "t") || strings.HasPrefix(l, "=") {
					rows = append(rows, l)
				}
				if strings.HasPrefix(l, "line") {
					lines = append(lines, l)
				}
			}
			if len(rows) != 5 || !strings.HasPrefix(rows[0], fmt.Sprintf("t%d.0", n)) || !strings.HasPrefix(rows[4], fmt.Sprintf("t%d.4", n)) {
				t.Errorf("wraps %v, %s: the screen shows\n%s", wraps, what, strings.Join(term.Screen(), "\n"))
			}
			for i := 1; i < len(lines); i++ {
				if lines[i] == lines[i-1] {
					t.Errorf("wraps %v, %s: %q is shown twice", wraps, what, lines[i])
				}
			}
		}
		for n := range 9 {
			screen.line("line %d", n)
			screen.draw(someTable(n, 5))
		}
		check(8, "before")
		for i, s := range []size{{60, 14}, {30, 10}, {200, 50}, {80, 24}, {80, 12}, {79, 24}} {
			term.Resize(s.columns, s.rows, wraps)
			switch i % 3 {
			case 0:
				screen.redraw()
			case 1:
				screen.draw(someTable(8, 5))
			case 2:
				screen.line("line after %d", i)
			}
			check(8, fmt.Sprintf("at %dx%d", s.columns, s.rows))
		}
		screen.keep(lines{{{"the end", plain}}})
		screen.draw(someTable(9, 5))
		if all := strings.Join(term.Screen(), "\n"); strings.Contains(all, "t8.") || strings.Contains(all, "t9.") || !strings.Contains(all, "the end") {
			t.Errorf("the live table stays behind the last one:\n%s", all)
		}
	}
}

// A table that was kept is laid out anew for another size, too, since the screen is written again.
func TestKeptTablesAreResized(t *testing.T) {
	term, screen := live(t, 160, 30)
	screen.keep(someFrame())
	screen.begin()
	screen.draw(lines{{{"below", plain}}})
	if all := strings.Join(term.Screen(), "\n"); !strings.Contains(all, sa+"shopper") {
		t.Errorf("at 160 columns:\n%s", all)
	}
	term.Resize(80, 30, true)
	screen.redraw()
	if all := strings.Join(term.Screen(), "\n"); strings.Contains(all, sa) || !strings.Contains(all, " bookshop/shopper\n") || strings.Contains(all, "…") {
		t.Errorf("at 80 columns:\n%s", all)
	}
}

// The question stays below the table, however small the terminal is, until it is answered.
func TestQuestionIsBelowTheTable(t *testing.T) {
	for _, s := range []size{{80, 24}, {80, 5}, {12, 2}} {
		term, screen := live(t, s.columns, s.rows)
		screen.draw(someTable(1, 10))
		screen.ask(line{{"Press Enter.", strong}})
		screen.draw(someTable(2, 10))
		screen.line("a line")
		seen := term.Seen()
		if last := seen[len(seen)-1]; !strings.HasPrefix(last, "Press Ente") || strings.Count(strings.Join(seen, "\n"), "Press") != 1 {
			t.Errorf("%v: it is not the last row, once:\n%s", s, strings.Join(seen, "\n"))
		}
		screen.ask(nil)
		if all := strings.Join(term.Seen(), "\n"); strings.Contains(all, "Press") {
			t.Errorf("%v: it stays:\n%s", s, all)
		}
	}
	var out bytes.Buffer
	s := &screen{out: &out}
	s.ask(line{{"Press Enter.", strong}})
	s.ask(nil)
	if out.String() != "Press Enter.\n" {
		t.Errorf("without a terminal: %q", out.String())
	}
}

// The very bytes, for those who have another terminal before them.
func TestTerminalOutput(t *testing.T) {
	var out bytes.Buffer
	columns := 9
	s := &screen{out: &out, live: true, size: func() (int, int) { return columns, 4 }}
	draw := func(rows ...string) {
		var b cut
		for _, r := range rows {
			b = append(b, line{{r, good}})
		}
		s.draw(b)
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { s.line("line %d", 1) }, "line 1\x1b[K\n"},
		{func() { draw("a", "b") }, "a\x1b[K\nb\x1b[K\n"},
		{func() { draw("a", "b") }, ""},
		{func() { draw("a", "x") }, "\x1b[2A\nx\x1b[K\n"},
		{func() { draw("c") }, "\x1b[2Ac\x1b[K\n\x1b[K\n\x1b[1A"},
		{func() { s.line("12345678") }, "\x1b[1A12345678\x1b[K\nc\x1b[K\n"},
		{func() { s.line("123456789") }, "\x1b[1A12345678\x1b[K\n  9\x1b[K\nc\x1b[K\n"},
		{func() { s.line("\x1b[1m\a") }, "\x1b[1A\\x1b[1m\\\x1b[K\n  a\x1b[K\nc\x1b[K\n"},
		{func() { columns = 8; s.redraw() }, "\x1b[H\\x1b[1m\x1b[K\n  \\a\x1b[K\nc\x1b[K\n\x1b[K\r"},
		{s.redraw, ""},
		{func() { s.keep(lines{{{"d", plain}}}) }, "\x1b[1Ad\x1b[K\n"},
		{func() { draw("e") }, ""},
		{func() { s.painter.color = true; s.begin(); draw("e") }, "\x1b[32me\x1b[0m\x1b[K\n"},
	} {
		out.Reset()
		if step.do(); out.String() != step.want {
			t.Errorf("step %d: %q, want %q", i, out.String(), step.want)
		}
	}
	out.Reset()
	s = &screen{out: &out, live: true, painter: painter{color: true}}
	s.draw(lines{{{"a", good}}})
	s.redraw()
	s.line("line\x1b ")
	s.keep(lines{nil, {{"b", bad}}})
	if out.String() != "line\\x1b\n\nb\n" {
		t.Errorf("plain: %q", out.String())
	}
}

func TestWriteErrorsAreReported(t *testing.T) {
	var told error
	s := &screen{out: brokenPipe{}, broken: func(err error) { told = err }}
	s.line("line")
	if !errors.Is(told, errBroken) {
		t.Errorf("told %v", told)
	}
}

var errBroken = errors.New("broken pipe")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

func TestWeights(t *testing.T) {
	const route = `{"configs": [{"weighted_clusters": {"clusters": [
		{"name": "outbound|9080|v1|reviews.bookshop.svc.cluster.local", "weight": 50},
		{"name": "outbound|9080|v2|reviews.bookshop.svc.cluster.local", "weight": 500},
		{"name": "outbound|9080|v1|ratings.bookshop.svc.cluster.local", "weight": 1}]}}]}`
	for text, want := range map[string]split{route: {50, 500}, "{}": {}, "": {}} {
		if got, err := weights([]byte(text)); got != want || (err == nil) != (want != split{}) {
			t.Errorf("%.20s: %v, %v; want %v", text, got, err, want)
		}
	}
}
