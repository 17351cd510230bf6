package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/demo"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// watchEvery is the pause between two looks of --watch.
const watchEvery = 2 * time.Second

// clearScreen erases a terminal and goes to its first line.
const clearScreen = "\x1b[2J\x1b[H"

// watch prints what show writes whenever it has changed, until Ctrl-C: on a terminal in place, with what fits,
// else below each other. What goes wrong meanwhile is printed, too, and is no end; misuse is.
func (f *flags) watch(c *cobra.Command, show func(out io.Writer) error) error {
	if f.output != "table" {
		return misuse{fmt.Errorf("flag --watch: want it without -o %s, whose result is one document", f.output)}
	}
	size := demo.Terminal(c.OutOrStdout(), f.env["TERM"])
	last := ""
	for {
		var b bytes.Buffer
		if err := show(&b); errors.As(err, new(misuse)) {
			return err
		} else if err != nil && !errors.Is(err, errSaid) {
			fmt.Fprintln(&b, "pilotctl:", printable.EscapeLines(err.Error(), "  "))
		}
		if c.Context().Err() != nil {
			return nil
		}
		if text := b.String(); text != last {
			if err := draw(c.OutOrStdout(), size, text, last == ""); err != nil {
				return err
			}
			last = text
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

// draw prints a text in place of the one before, or below it where size is nil.
func draw(w io.Writer, size func() (columns, rows int), text string, first bool) error {
	switch {
	case size != nil:
		text = clearScreen + fit(text, size)
	case !first:
		text = "\n" + text
	}
	_, err := io.WriteString(w, text)
	return err
}

// fit is what of a text fits on a terminal; the last line says what does not.
func fit(text string, size func() (columns, rows int)) string {
	columns, rows := size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if more := len(lines) - (rows - 1); more > 0 && rows > 2 {
		lines = append(lines[:rows-2], fmt.Sprintf("and %d more lines", more+1))
	}
	for i, line := range lines {
		if utf8.RuneCountInString(line) > columns {
			lines[i] = string([]rune(line)[:columns])
		}
	}
	return strings.Join(lines, "\n") + "\n"
}
