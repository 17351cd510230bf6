// Cast records what a program shows on a terminal, as a file that asciinema plays.
//
//	cast -o docs/demo.cast -columns 100 -rows 32 bin/pilotctl demo
//
// The program's output is on this terminal, too. The file is written only if the program ends with code 0. Its format is
// asciicast v2: a header, then an event with its time for each piece of output, each as JSON on a line of its own
// (https://docs.asciinema.org/manual/asciicast/v2/).
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/pilothouse/pilothouse/internal/lab/pty"
)

// header is the first line of the file.
type header struct {
	Version   int               `json:"version"`
	Width     uint16            `json:"width"`
	Height    uint16            `json:"height"`
	Timestamp int64             `json:"timestamp"` // when it began, in seconds of Unix time
	Title     string            `json:"title,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
}

// event is a piece of output, after so many seconds.
type event struct {
	after float64
	text  string
}

// MarshalJSON implements json.Marshaler: "o" is for output.
func (e event) MarshalJSON() ([]byte, error) { return json.Marshal([]any{e.after, "o", e.text}) }

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cast:", err)
		os.Exit(1)
	}
}

func run(args []string, echo io.Writer) error {
	flags := flag.NewFlagSet("cast", flag.ContinueOnError)
	out := flags.String("o", "", "`file` to write")
	title := flags.String("title", "", "title of the recording")
	columns := flags.Uint("columns", 100, "width of the terminal, in characters")
	rows := flags.Uint("rows", 32, "height of the terminal, in characters")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() == 0 {
		return errors.New("want -o FILE COMMAND [ARGUMENT…]")
	}
	if *columns < 1 || *columns > 500 || *rows < 1 || *rows > 500 {
		return fmt.Errorf("invalid size %d×%d: want 1–500 columns and rows", *columns, *rows)
	}
	cmd := exec.Command(flags.Arg(0), flags.Args()[1:]...)
	h := header{Version: 2, Width: uint16(*columns), Height: uint16(*rows), Title: *title, Env: map[string]string{"TERM": "xterm-256color"}}
	text, err := record(cmd, h, echo)
	if err != nil {
		return err
	}
	// Whoever plays the old recording meanwhile has all of it.
	if err := os.WriteFile(*out+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(*out+".new", *out)
}

// record runs a command on a terminal and returns the recording.
func record(cmd *exec.Cmd, h header, echo io.Writer) ([]byte, error) {
	cmd.Env = cmd.Environ()
	for name, value := range h.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	term, err := pty.Start(cmd, h.Width, h.Height)
	if err != nil {
		return nil, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-interrupted:
				_ = cmd.Process.Signal(s) // an error: it has ended
			case <-ended:
				return
			}
		}
	}()
	began := time.Now()
	h.Timestamp = began.Unix()
	events, err := read(io.TeeReader(term, echo), func() time.Duration { return time.Since(began) })
	err = errors.Join(err, cmd.Wait(), term.Close())
	signal.Stop(interrupted)
	close(ended)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", strings.Join(cmd.Args, " "), err)
	}
	return encode(h, events)
}

// read reads the output to its end. No event ends within a character.
func read(from io.Reader, now func() time.Duration) ([]event, error) {
	var events []event
	var rest []byte
	for buffer := make([]byte, 64<<10); ; {
		n, err := from.Read(buffer)
		rest = append(rest, buffer[:n]...)
		whole := len(rest)
		if err == nil {
			whole = complete(rest)
		}
		if whole > 0 {
			events = append(events, event{float64(now().Microseconds()) / 1e6, string(rest[:whole])})
			rest = rest[whole:]
		}
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
	}
}

// complete is the length of text without a character at its end of which bytes are missing.
func complete(text []byte) int {
	for i := 1; i <= min(utf8.UTFMax, len(text)); i++ {
		if first := text[len(text)-i]; utf8.RuneStart(first) {
			if !utf8.FullRune(text[len(text)-i:]) {
				return len(text) - i
			}
			break
		}
	}
	return len(text)
}

// encode is the text of the file.
func encode(h header, events []event) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(h); err != nil {
		return nil, err
	}
	for _, ev := range events {
		if err := e.Encode(ev); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
