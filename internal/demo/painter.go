package demo

import (
	"fmt"
	"strings"
)

// size is a terminal's, in characters.
type size struct{ columns, rows int }

// painter computes what to write to a terminal to print lines above a table that changes in place.
// It overwrites and erases row by row and never clears the whole screen, since terminals add a cleared screen
// to their history. It has no clock and writes nothing itself.
type painter struct {
	now size
	// kept are the last lines, to be printed again when the terminal's size has changed.
	kept []string
	// table is the table as it was given, shown its rows on the screen.
	table string
	shown []string
}

// Control sequences. The cursor is always at the beginning of the row below what was written.
const (
	eraseRow = "\x1b[K" // from the cursor to its end
	goHome   = "\x1b[H"
	maxKept  = 500
)

// up moves the cursor n rows up.
func up(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA", n)
}

// print adds lines above the table. With drop the table is removed until it is drawn again.
func (p *painter) print(text string, drop bool, now size) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, l := range lines {
		lines[i] = printable(l)
	}
	before := p.resized(now)
	if drop {
		p.table = ""
	}
	p.kept = append(p.kept, lines...)
	if over := len(p.kept) - maxKept; over > 0 {
		p.kept = append([]string(nil), p.kept[over:]...)
	}
	return before + p.overwrite(lines)
}

// draw replaces the table.
func (p *painter) draw(table string, now size) string {
	before := p.resized(now)
	p.table = table
	return before + p.overwrite(nil)
}

// redraw fits the table to the new size of the terminal.
func (p *painter) redraw(now size) string { return p.resized(now) }

// overwrite writes lines, and the table below them, over the table that is shown.
func (p *painter) overwrite(lines []string) string {
	var b strings.Builder
	old := len(p.shown)
	b.WriteString(up(old))
	rows := 0
	for _, l := range lines {
		b.WriteString(row(l, p.now))
		rows += height(l, p.now)
	}
	p.shown = fit(p.table, p.now)
	for _, l := range p.shown {
		b.WriteString(row(l, p.now))
	}
	if left := old - rows - len(p.shown); left > 0 {
		b.WriteString(strings.Repeat(eraseRow+"\n", left) + up(left))
	}
	return b.String()
}

// resized writes the whole screen if its size has changed: what becomes of existing rows (cut, wrapped or
// scrolled away) differs between terminals.
func (p *painter) resized(now size) string {
	if now == p.now || len(p.shown) == 0 {
		p.now = now
		return ""
	}
	p.now = now
	p.shown = fit(p.table, now)
	room := now.rows - 1 - len(p.shown)
	first := len(p.kept)
	for first > 0 && height(p.kept[first-1], now) <= room {
		first--
		room -= height(p.kept[first], now)
	}
	var b strings.Builder
	b.WriteString(goHome)
	for _, l := range p.kept[first:] {
		b.WriteString(row(l, now))
	}
	for _, l := range p.shown {
		b.WriteString(row(l, now))
	}
	// The cursor's row and those below it: no line end after the last one, which would scroll.
	b.WriteString(eraseRow + strings.Repeat("\n"+eraseRow, max(0, room)) + up(max(0, room)) + "\r")
	return b.String()
}

// row writes a line and erases the rest of its last row. A line that fills its last row is not followed by an erase:
// the cursor, which has not moved to the next row yet, would erase the last character.
func row(l string, s size) string {
	if n := len([]rune(l)); n > 0 && s.columns > 0 && n%s.columns == 0 {
		return l + "\n"
	}
	return l + eraseRow + "\n"
}

// height is the number of rows of a line, wrapped.
func height(l string, s size) int {
	if s.columns < 1 {
		return 1
	}
	return max(1, (len([]rune(l))+s.columns-1)/s.columns)
}

// fit cuts a table to the size of the terminal, since lines that wrap or scroll away cannot be overwritten.
// The last row is the cursor's; if lines are left out, the row above it says how many.
func fit(table string, s size) []string {
	if table == "" {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	if most := max(0, s.rows-1); len(lines) > most {
		missing := len(lines) - most + 1
		if lines = lines[:most]; most > 0 {
			lines[most-1] = fmt.Sprintf("  … %d more rows: the window is too small", missing)
		}
	}
	for i, l := range lines {
		if r := []rune(printable(l)); len(r) >= s.columns {
			lines[i] = string(r[:max(0, s.columns-1)])
		} else {
			lines[i] = string(r)
		}
	}
	return lines
}

// printable replaces control characters, which could move the cursor: errors may quote any text.
func printable(l string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, l)
}
