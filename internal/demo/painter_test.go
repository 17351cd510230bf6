package demo

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tty plays a terminal: rows that scroll into a history, which a person can look at afterwards.
type tty struct {
	size
	history []string
	screen  []string
	row     int
	column  int // == columns: the next character begins another row
}

func newTTY(columns, rows int) *tty {
	return &tty{size: size{columns, rows}, screen: make([]string, rows)}
}

func (t *tty) newRow() {
	if t.row++; t.row == t.rows {
		t.history, t.screen = append(t.history, t.screen[0]), append(t.screen[1:], "")
		t.row--
	}
}

// Write interprets what a painter writes; anything else ends the test.
func (t *tty) Write(p []byte) (int, error) {
	r := []rune(string(p))
	for i := 0; i < len(r); i++ {
		switch {
		case r[i] == '\n':
			t.newRow()
			t.column = 0
		case r[i] == '\r':
			t.column = 0
		case r[i] == 0x1b:
			end := i + 2
			for r[end] >= '0' && r[end] <= '9' {
				end++
			}
			n := 1
			if end > i+2 {
				if _, err := fmt.Sscan(string(r[i+2:end]), &n); err != nil {
					return 0, err
				}
			}
			switch r[end] {
			case 'A':
				if t.row -= n; t.row < 0 {
					return 0, errors.New("up beyond the first row")
				}
			case 'H':
				t.row, t.column = 0, 0
			case 'K':
				line := []rune(t.screen[t.row])
				t.screen[t.row] = string(line[:min(len(line), min(t.column, t.columns-1))])
			default:
				return 0, fmt.Errorf("sequence %q", string(r[i:end+1]))
			}
			i = end
		default:
			if t.column == t.columns {
				t.newRow()
				t.column = 0
			}
			line := []rune(t.screen[t.row] + strings.Repeat(" ", max(0, t.column-len([]rune(t.screen[t.row])))))
			line = append(line[:t.column:t.column], append([]rune{r[i]}, line[min(len(line), t.column+1):]...)...)
			t.screen[t.row] = string(line)
			t.column++
		}
	}
	return len(p), nil
}

// resize is what a terminal does that wraps its lines anew: what is too long for a row takes several.
// One that cuts them instead leaves fewer rows.
func (t *tty) resize(columns, rows int, wraps bool) {
	var all []string
	for _, l := range append(t.history, t.screen[:t.row+1]...) {
		r := []rune(strings.TrimRight(l, " "))
		for wraps && len(r) > columns {
			all, r = append(all, string(r[:columns])), r[columns:]
		}
		all = append(all, string(r[:min(len(r), columns)]))
	}
	first := max(0, len(all)-rows)
	*t = tty{size: size{columns, rows}, history: all[:first], screen: append(all[first:], make([]string, rows-len(all[first:]))...), row: len(all) - first - 1}
}

// seen is all that a person finds in the terminal.
func (t *tty) seen() []string {
	var out []string
	for _, l := range append(append([]string{}, t.history...), t.screen...) {
		if l = strings.TrimRight(l, " "); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// live is a screen on a terminal, and one step of the demo for each call.
func live(t *testing.T, columns, rows int) (*tty, *screen) {
	term := newTTY(columns, rows)
	s := &screen{out: term, size: func() (int, int) { return term.columns, term.rows }}
	s.broken = func(err error) { t.Errorf("the terminal does not understand: %v", err) }
	return term, s
}

// frame is a table of so many rows, of some width, that says which it is.
func frame(n, rows int) string {
	var b strings.Builder
	for i := range rows {
		fmt.Fprintf(&b, "t%d.%d %s\n", n, i, strings.Repeat("=", 70))
	}
	return b.String()
}

// However many tables are drawn, between lines that stay and lines that wrap, on terminals that are
// too small: each line is there once, in order, and of the tables only the last.
func TestTableIsRedrawnInPlace(t *testing.T) {
	for _, s := range []size{{60, 14}, {80, 24}, {200, 50}, {10, 3}, {20, 2}, {5, 1}} {
		t.Run(fmt.Sprintf("%dx%d", s.columns, s.rows), func(t *testing.T) {
			term, screen := live(t, s.columns, s.rows)
			var want string
			for n := range 40 {
				screen.draw(frame(n, []int{21, 3, 30}[n%3]))
				if n%4 == 0 {
					line := fmt.Sprintf("line%d%s", n, strings.Repeat("-", n*5%70))
					screen.line("%s", line)
					want += line
				}
			}
			all := strings.Join(term.seen(), "")
			var tables []string
			for _, l := range term.seen() {
				if strings.HasPrefix(l, "t") {
					tables = append(tables, l)
				}
			}
			if !strings.HasPrefix(all, want) || strings.Contains(all[len(want):], "line") {
				t.Errorf("lines are missing, doubled, or out of order:\n%s", strings.Join(term.seen(), "\n"))
			}
			for _, l := range tables {
				if !strings.HasPrefix(l, "t39.") {
					t.Errorf("a table of before is still there: %s", l)
				}
			}
			if most := max(0, min(21, s.rows-1)); len(tables) > most {
				t.Errorf("%d rows of tables, want %d at most", len(tables), most)
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
			for _, l := range term.screen {
				if strings.HasPrefix(l, "t") || strings.HasPrefix(l, "=") {
					rows = append(rows, l)
				}
				if strings.HasPrefix(l, "line") {
					lines = append(lines, l)
				}
			}
			if len(rows) != 5 || !strings.HasPrefix(rows[0], fmt.Sprintf("t%d.0", n)) || !strings.HasPrefix(rows[4], fmt.Sprintf("t%d.4", n)) {
				t.Errorf("wraps %v, %s: the screen shows\n%s", wraps, what, strings.Join(term.screen, "\n"))
			}
			for i := 1; i < len(lines); i++ {
				if lines[i] == lines[i-1] {
					t.Errorf("wraps %v, %s: %q is shown twice", wraps, what, lines[i])
				}
			}
		}
		for n := range 9 {
			screen.line("line %d", n)
			screen.draw(frame(n, 5))
		}
		check(8, "before")
		for i, s := range []size{{60, 14}, {30, 10}, {200, 50}, {80, 24}, {80, 12}, {79, 24}} {
			term.resize(s.columns, s.rows, wraps)
			switch i % 3 {
			case 0:
				screen.redraw()
			case 1:
				screen.draw(frame(8, 5))
			case 2:
				screen.line("line after %d", i)
			}
			check(8, fmt.Sprintf("at %dx%d", s.columns, s.rows))
		}
		screen.keep("the end\n")
		if all := strings.Join(term.screen, "\n"); strings.Contains(all, "t8.") || !strings.Contains(all, "the end") {
			t.Errorf("the live table stays behind the last one:\n%s", all)
		}
	}
}

func TestFit(t *testing.T) {
	for _, tt := range []struct {
		size
		want []string
	}{
		{size{60, 14}, []string{"12345", "äöüß", "3", "4"}},
		{size{4, 14}, []string{"123", "äöü", "3", "4"}},
		{size{60, 4}, []string{"12345", "äöüß", "  … 2 more rows: the window is too small"}},
		{size{12, 2}, []string{"  … 4 more "}},
		{size{12, 1}, nil},
		{size{0, 0}, nil},
	} {
		if diff := cmp.Diff(tt.want, fit("12345\näöüß\n3\n4\n", tt.size), cmp.Transformer("", func(s []string) string { return strings.Join(s, "|") })); diff != "" {
			t.Errorf("%v: -want +got:\n%s", tt.size, diff)
		}
	}
}

// The very bytes, for those who have another terminal before them.
func TestTerminalOutput(t *testing.T) {
	var out bytes.Buffer
	columns := 9
	s := &screen{out: &out, size: func() (int, int) { return columns, 4 }}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { s.line("line %d", 1) }, "line 1\x1b[K\n"},
		{func() { s.draw("a\nb\n") }, "a\x1b[K\nb\x1b[K\n"},
		{func() { s.draw("c\n") }, "\x1b[2Ac\x1b[K\n\x1b[K\n\x1b[1A"},
		{func() { s.line("123456789") }, "\x1b[1A123456789\nc\x1b[K\n"},
		{func() { s.line("\x1b[31m\a") }, "\x1b[1A?[31m?\x1b[K\nc\x1b[K\n"},
		{func() { columns = 8; s.redraw() }, "\x1b[H?[31m?\x1b[K\nc\x1b[K\n\x1b[K\n\x1b[K\x1b[1A\r"},
		{s.redraw, ""},
		{func() { s.keep("d\n") }, "\x1b[1Ad\x1b[K\n"},
	} {
		out.Reset()
		if step.do(); out.String() != step.want {
			t.Errorf("%q, want %q", out.String(), step.want)
		}
	}
	out.Reset()
	s = &screen{out: &out}
	s.draw("a\n")
	s.redraw()
	s.line("line\x1b")
	if out.String() != "line\x1b\n" {
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
