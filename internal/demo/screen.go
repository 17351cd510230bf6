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

	// mu guards out and painter: scenarios print lines, a timer draws the table.
	mu      sync.Mutex
	out     io.Writer
	painter painter
}

// line prints one line.
func (s *screen) line(format string, args ...any) {
	s.print(fmt.Sprintf(format+"\n", args...), false)
}

// keep prints text in the place of the live table, which is hidden until it is drawn again.
func (s *screen) keep(text string) { s.print(text, true) }

func (s *screen) print(text string, drop bool) {
	s.write(func(now size) string { return s.painter.print(text, drop, now) }, text)
}

// draw replaces the live table; without a terminal it does nothing.
func (s *screen) draw(text string) {
	s.write(func(now size) string { return s.painter.draw(text, now) }, "")
}

// redraw fits the live table to the terminal's new size.
func (s *screen) redraw() { s.write(s.painter.redraw, "") }

// write prints what paint returns, or, without a terminal, the text.
func (s *screen) write(paint func(size) string, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size != nil {
		var now size
		now.columns, now.rows = s.size()
		text = paint(now)
	}
	if text == "" {
		return
	}
	if _, err := io.Copy(s.out, strings.NewReader(text)); err != nil && s.broken != nil {
		s.broken(err)
	}
}
