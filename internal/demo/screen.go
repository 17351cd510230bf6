package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// screen prints lines that stay and, on a terminal, a table below them that is drawn
// anew. Its methods may be called from several goroutines.
type screen struct {
	// size is the terminal's columns and rows; nil where the output is none.
	size func() (columns, rows int)
	// broken, unless nil, is called with each error of out.
	broken func(error)

	// mu guards out and painter: lines come from the acts, tables from the clock.
	mu      sync.Mutex
	out     io.Writer
	painter painter
}

// line prints one line that stays.
func (s *screen) line(format string, args ...any) {
	s.stay(fmt.Sprintf(format+"\n", args...), false)
}

// keep prints a table that stays; the live table goes until it is drawn again.
func (s *screen) keep(text string) { s.stay(text, true) }

func (s *screen) stay(text string, drop bool) {
	s.write(func(now size) string { return s.painter.stay(text, drop, now) }, text)
}

// draw replaces the live table; without a terminal it does nothing.
func (s *screen) draw(text string) {
	s.write(func(now size) string { return s.painter.draw(text, now) }, "")
}

// redraw fits the live table to the terminal's new size.
func (s *screen) redraw() { s.write(s.painter.redraw, "") }

// write prints what a painter says, or, without a terminal, the text.
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
