// Package tty plays a terminal: it shows what a person would see.
//
// A [Terminal] takes the few control sequences that the demo uses, and refuses all others. It keeps rows that scroll away, and
// which rows were longer than the screen, so that a program that believes to overwrite them does not.
package tty

import (
	"fmt"
	"strings"

	"golang.org/x/text/width"
)

// cell is a place on the screen: a character with its marks, empty for nothing or for the second half of a wide character.
type cell struct {
	text  string
	style string
	half  bool // the second half
}

// Terminal is a terminal. Its fields are for reading; it is not for concurrent use.
type Terminal struct {
	// Columns and Rows are its size.
	Columns, Rows int
	// Wrapped counts the rows that were longer than the screen.
	Wrapped int
	history [][]cell
	screen  [][]cell
	row     int
	column  int // == Columns: the next character begins another row
	style   string
	pending string // of a control sequence or a character
}

// New returns an empty terminal.
func New(columns, rows int) *Terminal {
	return &Terminal{Columns: columns, Rows: rows, screen: make([][]cell, rows)}
}

func (t *Terminal) newRow() {
	if t.row++; t.row == t.Rows {
		t.history, t.screen = append(t.history, t.screen[0]), append(t.screen[1:], nil)
		t.row--
	}
}

// Write interprets output. A sequence that it does not know is an error.
func (t *Terminal) Write(p []byte) (int, error) {
	text := t.pending + string(p)
	t.pending = ""
	for len(text) > 0 {
		n, err := t.next(text)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			t.pending = text
			break
		}
		text = text[n:]
	}
	return len(p), nil
}

// next interprets one character or sequence, and returns its length in bytes, 0 if it is not complete.
func (t *Terminal) next(text string) (int, error) {
	switch text[0] {
	case '\n':
		t.newRow()
		t.column = 0
		return 1, nil
	case '\r':
		t.column = 0
		return 1, nil
	case 0x1b:
		return t.sequence(text)
	}
	for i, r := range text {
		if i > 0 {
			return i, nil
		}
		if r == '\ufffd' && len(text) < 4 {
			return 0, nil
		}
		if r < ' ' || r == 0x7f {
			return 0, fmt.Errorf("control character %q", r)
		}
		t.put(r)
	}
	return len(text), nil
}

// sequence interprets a control sequence.
func (t *Terminal) sequence(text string) (int, error) {
	if len(text) > 1 && text[1] != '[' {
		return 0, fmt.Errorf("sequence %q", text[:2])
	}
	end := 2
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || text[end] == ';') {
		end++
	}
	if end >= len(text) {
		return 0, nil
	}
	arguments := text[2:end]
	n := 1
	if _, err := fmt.Sscan(arguments, &n); err != nil {
		n = 1
	}
	switch {
	case text[end] == 'A':
		if t.row -= n; t.row < 0 {
			return 0, fmt.Errorf("%d rows up, beyond the first row", n)
		}
	case text[end] == 'H' && arguments == "":
		t.row, t.column = 0, 0
	case text[end] == 'K' && arguments == "":
		line := t.screen[t.row]
		t.screen[t.row] = line[:min(len(line), min(t.column, t.Columns-1))]
	case text[end] == 'm':
		if t.style = arguments; arguments == "0" {
			t.style = ""
		}
	default:
		return 0, fmt.Errorf("sequence %q", text[:end+1])
	}
	return end + 1, nil
}

// put writes a character at the cursor.
func (t *Terminal) put(r rune) {
	columns := 1
	if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
		columns = 2
	}
	if t.column+columns > t.Columns {
		t.Wrapped++
		t.newRow()
		t.column = 0
	}
	line := append([]cell(nil), t.screen[t.row]...)
	for len(line) < t.column+columns {
		line = append(line, cell{text: " "})
	}
	line[t.column] = cell{text: string(r), style: t.style}
	if columns == 2 {
		line[t.column+1] = cell{half: true}
	}
	t.screen[t.row] = line
	t.column += columns
}

// Resize changes the size. With wraps, lines that are too long for a row take several afterwards, else they are cut; terminals
// do either.
func (t *Terminal) Resize(columns, rows int, wraps bool) {
	var all [][]cell
	for _, l := range append(t.history, t.screen[:t.row+1]...) {
		for len(l) > 0 && l[len(l)-1].text == " " {
			l = l[:len(l)-1]
		}
		for wraps && len(l) > columns {
			all, l = append(all, l[:columns]), l[columns:]
		}
		all = append(all, l[:min(len(l), columns)])
	}
	first := max(0, len(all)-rows)
	*t = Terminal{
		Columns: columns, Rows: rows, Wrapped: t.Wrapped, style: t.style, pending: t.pending,
		history: all[:first], screen: append(all[first:], make([][]cell, rows-len(all[first:]))...), row: len(all) - first - 1,
	}
}

func text(l []cell) string {
	var b strings.Builder
	for _, c := range l {
		b.WriteString(c.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// Screen is what is on the screen, row by row, without blanks at the ends.
func (t *Terminal) Screen() []string {
	var out []string
	for _, l := range t.screen {
		out = append(out, text(l))
	}
	return out
}

// Seen is all that a person finds in the terminal, what has scrolled away first, without empty rows.
func (t *Terminal) Seen() []string {
	var out []string
	for _, l := range append(append([][]cell{}, t.history...), t.screen...) {
		if s := text(l); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Styles are the styles of characters on the screen and before, by the parameters of "Select Graphic Rendition", with one text that
// has it.
func (t *Terminal) Styles() map[string]string {
	out := map[string]string{}
	for _, l := range append(append([][]cell{}, t.history...), t.screen...) {
		for i := 0; i < len(l); {
			j, word := i, ""
			for ; j < len(l) && l[j].style == l[i].style; j++ {
				word += l[j].text
			}
			if l[i].style != "" {
				out[l[i].style] = word
			}
			i = j
		}
	}
	return out
}
