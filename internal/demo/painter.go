package demo

import (
	"fmt"
	"slices"
	"strings"
)

// size is a terminal's, in characters.
type size struct{ columns, rows int }

// width is how long rows may be. The last column stays free: whether the cursor is in the next row after a character in it
// differs between terminals.
func (s size) width() int { return max(1, s.columns-1) }

// painter computes what to write to a terminal to print lines above a table that changes in place.
// It overwrites what has changed, row by row, and never clears the whole screen, since terminals add a cleared screen
// to their history. It has no clock and writes nothing itself.
type painter struct {
	color bool
	now   size
	// kept are the last blocks above the table, to be printed again when the terminal's size has changed.
	kept []block
	// table and prompt are what is to be seen below, nil for nothing, and shown its rows on the screen.
	table  block
	prompt line
	shown  []string
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

// print adds a block above the table. With drop the table is removed until it is drawn again.
func (p *painter) print(b block, drop bool, now size) string {
	before := p.resized(now)
	if drop {
		p.table = nil
	}
	p.kept = append(p.kept, b)
	if over := len(p.kept) - maxKept; over > 0 {
		p.kept = append([]block(nil), p.kept[over:]...)
	}
	return before + p.overwrite(p.encode(b.rows(now.width())))
}

// draw replaces the table.
func (p *painter) draw(table block, now size) string {
	before := p.resized(now)
	p.table = table
	return before + p.overwrite(nil)
}

// ask replaces the line below the table; nil removes it.
func (p *painter) ask(prompt line, now size) string {
	before := p.resized(now)
	p.prompt = prompt
	return before + p.overwrite(nil)
}

// redraw fits the table to the new size of the terminal.
func (p *painter) redraw(now size) string { return p.resized(now) }

func (p *painter) encode(rows []line) []string {
	out := make([]string, len(rows))
	for i, l := range rows {
		out[i] = l.encode(p.color)
	}
	return out
}

// overwrite writes rows, and the table below them, over the table that is shown. Of the table only rows that have
// changed are written.
func (p *painter) overwrite(above []string) string {
	old := p.shown
	p.shown = p.below()
	rows := append(append([]string(nil), above...), p.shown...)
	if slices.Equal(rows, old) {
		return ""
	}
	var b strings.Builder
	b.WriteString(up(len(old)))
	for i, r := range rows {
		if i >= len(old) || r != old[i] {
			b.WriteString(r + eraseRow)
		}
		b.WriteString("\n")
	}
	if left := len(old) - len(rows); left > 0 {
		b.WriteString(strings.Repeat(eraseRow+"\n", left) + up(left))
	}
	return b.String()
}

// below are the rows of table and prompt for the terminal, since what scrolls away cannot be overwritten. The last row is the cursor's.
func (p *painter) below() []string {
	var prompt []line
	if p.prompt != nil {
		prompt = []line{p.prompt.clip(p.now.width())}
	}
	var rows []line
	if p.table != nil {
		rows = p.table.rows(p.now.width())
	}
	rows = fit(rows, p.now.width(), p.now.rows-1-len(prompt))
	if p.now.rows > len(prompt) {
		rows = append(rows, prompt...)
	}
	return p.encode(rows)
}

// fit cuts a table to some rows; if some are left out, the last one says how many.
func fit(rows []line, columns, most int) []line {
	most = max(0, most)
	if len(rows) <= most {
		return rows
	}
	missing := len(rows) - most + 1
	if rows = rows[:most]; most > 0 {
		rows[most-1] = line{{fmt.Sprintf("  … %d more rows: the window is too small", missing), faint}}.clip(columns)
	}
	return rows
}

// resized writes the whole screen if its size has changed: what becomes of existing rows (cut, wrapped or
// scrolled away) differs between terminals.
func (p *painter) resized(now size) string {
	if now == p.now || len(p.shown) == 0 {
		p.now = now
		return ""
	}
	p.now = now
	p.shown = p.below()
	room := max(0, now.rows-1-len(p.shown))
	var above []string
	for i := len(p.kept) - 1; i >= 0 && len(above) < room; i-- {
		above = append(p.encode(p.kept[i].rows(now.width())), above...)
	}
	above = above[max(0, len(above)-room):]
	room -= len(above)
	var b strings.Builder
	b.WriteString(goHome)
	for _, r := range append(above, p.shown...) {
		b.WriteString(r + eraseRow + "\n")
	}
	// The cursor's row and those below it: no line end after the last one, which would scroll.
	b.WriteString(eraseRow + strings.Repeat("\n"+eraseRow, room) + up(room) + "\r")
	return b.String()
}
