package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// screen prints lines and, on a terminal, a live table below them. Its methods may be called from
// several goroutines.
type screen struct {
	// size is the terminal's columns and rows; nil if the output is not a terminal.
	size func() (columns, rows int)
	// broken, if not nil, is called with each error of out.
	broken func(error)

	// mu guards out, painter and live: scenarios print lines, a timer draws the table.
	mu      sync.Mutex
	out     io.Writer
	painter painter
	live    bool // whether the table may be drawn
}

// line prints text, a line for each of its lines.
func (s *screen) line(format string, args ...any) {
	s.print(paragraph(plain, fmt.Sprintf(format, args...)))
}

// print prints a block above the live table.
func (s *screen) print(b block) {
	s.write(func(now size) string { return s.painter.print(b, false, now) }, b)
}

// keep prints a block in the place of the live table, which is hidden until begin.
func (s *screen) keep(b block) {
	s.write(func(now size) string { s.live = false; return s.painter.print(b, true, now) }, b)
}

// begin lets the live table be drawn.
func (s *screen) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = true
}

// draw replaces the live table; without a terminal, and after keep, it does nothing.
func (s *screen) draw(b block) {
	s.write(func(now size) string {
		if !s.live {
			return ""
		}
		return s.painter.draw(b, now)
	}, nil)
}

// ask shows a line below everything, until it is called with nil. Without a terminal it prints the line.
func (s *screen) ask(prompt line) {
	var b block
	if prompt != nil {
		b = lines{prompt}
	}
	s.write(func(now size) string { return s.painter.ask(prompt, now) }, b)
}

// redraw fits the live table to the terminal's new size.
func (s *screen) redraw() { s.write(s.painter.redraw, nil) }

// write prints what paint returns, or, without a terminal, the block as it is.
func (s *screen) write(paint func(size) string, b block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if s.size != nil {
		var now size
		now.columns, now.rows = s.size()
		text = paint(now)
	} else if b != nil {
		for _, l := range b.rows(unlimited) {
			text += strings.TrimRight(l.String(), " ") + "\n"
		}
	}
	if text == "" {
		return
	}
	if _, err := io.Copy(s.out, strings.NewReader(text)); err != nil && s.broken != nil {
		s.broken(err)
	}
}
