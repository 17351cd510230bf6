package demo

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// style is how text looks on a terminal with colors. Nothing is said by color alone.
type style int

const (
	plain style = iota
	good
	bad
	pending
	strong
	faint
)

// codes are the parameters of the styles in "Select Graphic Rendition" (ECMA-48, 8.3.117): only those of which every terminal
// has its own readable shade, on a dark and on a light background.
var codes = map[style]string{good: "32", bad: "1;31", pending: "33", strong: "1", faint: "2"}

// span is text of one style, without control characters.
type span struct {
	text  string
	style style
}

// line is a line of text, of any length.
type line []span

// say is a span with the text of others in it, which may contain anything: what could move the cursor is shown by its escape.
func say(s style, format string, args ...any) span {
	return span{printable.Escape(fmt.Sprintf(format, args...)), s}
}

// String is the text without its styles.
func (l line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return b.String()
}

// encode is the text for a terminal.
func (l line) encode(color bool) string {
	if !color {
		return l.String()
	}
	var b strings.Builder
	for _, s := range l {
		if code := codes[s.style]; code != "" && s.text != "" {
			b.WriteString("\x1b[" + code + "m" + s.text + "\x1b[0m")
		} else {
			b.WriteString(s.text)
		}
	}
	return b.String()
}

// width is the number of columns that the line takes.
func (l line) width() int {
	n := 0
	for _, s := range l {
		n += textWidth(s.text)
	}
	return n
}

// textWidth is the number of columns that a text without control characters takes.
func textWidth(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// runeWidth is the number of columns of a character, 0–2. Where terminals differ it is the greater one: a row that is too
// short can be overwritten, one that is too long cannot.
func runeWidth(r rune) int {
	if r < 0x300 {
		return 1
	}
	if r != '\ufe0f' && unicode.In(r, unicode.Mn, unicode.Me) { // that one asks for the emoji, which is wide
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// cell is a character of a line.
type cell struct {
	r     rune
	style style
}

func (l line) cells() []cell {
	var out []cell
	for _, s := range l {
		for _, r := range s.text {
			out = append(out, cell{r, s.style})
		}
	}
	return out
}

func fromCells(cells []cell) line {
	var out line
	for _, c := range cells {
		if last := len(out) - 1; last >= 0 && out[last].style == c.style {
			out[last].text += string(c.r)
		} else {
			out = append(out, span{string(c.r), c.style})
		}
	}
	return out
}

// fitting is how many of the cells fit into some columns.
func fitting(cells []cell, columns int) int {
	used := 0
	for i, c := range cells {
		if used += runeWidth(c.r); used > columns {
			return i
		}
	}
	return len(cells)
}

// clip cuts a line to some columns. An ellipsis says that something is missing.
func (l line) clip(columns int) line {
	if l.width() <= columns {
		return l
	}
	if columns < 1 {
		return nil
	}
	cells := l.cells()
	cells = cells[:fitting(cells, columns-1)]
	return fromCells(append(cells, cell{'…', plain}))
}

// wrap breaks a line between words into rows of some columns, and words that are longer. All rows but the first are indented
// as the first is, and by two columns more.
func (l line) wrap(columns int) []line {
	if l.width() <= columns {
		return []line{l}
	}
	cells := l.cells()
	indent := 2
	for indent-2 < len(cells) && cells[indent-2].r == ' ' {
		indent++
	}
	if indent > columns/2 {
		indent = 0
	}
	var out []line
	var before []cell
	for len(cells) > 0 {
		room := columns - len(before)
		n := fitting(cells, room)
		if n == 0 {
			n = 1 // wider than the screen
		}
		end := n
		if n < len(cells) {
			for i := n; i > 0; i-- {
				if cells[i].r == ' ' && blankBefore(cells[:i]) < i {
					end = i
					break
				}
			}
		}
		out = append(out, fromCells(append(append([]cell(nil), before...), cells[:end]...)))
		cells = cells[end:]
		for len(cells) > 0 && cells[0].r == ' ' {
			cells = cells[1:]
		}
		before = []cell(nil)
		for range indent {
			before = append(before, cell{' ', plain})
		}
	}
	return out
}

// blankBefore is the number of blanks that cells begin with.
func blankBefore(cells []cell) int {
	n := 0
	for n < len(cells) && cells[n].r == ' ' {
		n++
	}
	return n
}

// block is a part of what is shown. It has rows for every width of a screen.
type block interface {
	// rows are the rows of a screen of so many columns, at least 1; none is longer.
	rows(columns int) []line
}

// unlimited is the width of an output that is not a screen.
const unlimited = 1 << 30

// lines are lines that are wrapped.
type lines []line

func (b lines) rows(columns int) []line {
	var out []line
	for _, l := range b {
		out = append(out, l.wrap(columns)...)
	}
	return out
}

// paragraph are the lines of a text in one style.
func paragraph(s style, text string) lines {
	var out lines
	for l := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		out = append(out, line{say(s, "%s", l)})
	}
	return out
}
