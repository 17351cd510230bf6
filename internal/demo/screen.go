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

	// mu guards out and drawn: lines come from the acts, tables from the clock.
	mu    sync.Mutex
	out   io.Writer
	drawn int
}

// Control sequences: up a line, and clear to the end of the screen.
const (
	lineUp    = "\x1b[1A"
	clearDown = "\r\x1b[J"
)

// line prints one line that stays.
func (s *screen) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// keep prints a table that stays.
func (s *screen) keep(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	fmt.Fprint(s.out, text)
}

// draw replaces the live table; without a terminal it does nothing.
func (s *screen) draw(text string) {
	if s.size == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	text = fit(text, s.size)
	fmt.Fprint(s.out, text)
	s.drawn = strings.Count(text, "\n")
}

// fit cuts text to a terminal: a line that wraps, or one that scrolls away, could not be
// taken back.
func fit(text string, size func() (columns, rows int)) string {
	columns, rows := size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:max(0, min(len(lines), rows-1))]
	var b strings.Builder
	for _, l := range lines {
		if r := []rune(l); len(r) >= columns {
			l = string(r[:max(0, columns-1)])
		}
		b.WriteString(l + "\n")
	}
	return b.String()
}

// wipe takes the live table away.
func (s *screen) wipe() {
	if s.drawn > 0 {
		fmt.Fprint(s.out, strings.Repeat(lineUp, s.drawn)+clearDown)
		s.drawn = 0
	}
}
