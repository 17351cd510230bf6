package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pilothouse/pilothouse/test/tty"
)

// play checks a file against the description of the format, and returns what is on the screen at its end.
func play(t *testing.T, text []byte) (*tty.Terminal, float64) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	var h struct {
		Version, Width, Height int
		Timestamp              int64
		Env                    map[string]string
	}
	if err := json.Unmarshal([]byte(lines[0]), &h); err != nil {
		t.Fatal(err)
	}
	if h.Version != 2 || h.Width < 1 || h.Height < 1 || h.Timestamp < 1e9 {
		t.Fatalf("header %s", lines[0])
	}
	on, last := tty.New(h.Width, h.Height), 0.0
	for i, l := range lines[1:] {
		var e []any
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatalf("line %d: %v", i+2, err)
		}
		if len(e) != 3 || e[1] != "o" {
			t.Fatalf("line %d: want [seconds, \"o\", text], have %.60s", i+2, l)
		}
		after, number := e[0].(float64)
		data, isText := e[2].(string)
		if !number || !isText || after < last || strings.ContainsRune(data, '\ufffd') {
			t.Fatalf("line %d: seconds after %v, whole characters: %.60s", i+2, last, l)
		}
		last = after
		if _, err := on.Write([]byte(data)); err != nil {
			t.Fatalf("line %d: %v", i+2, err)
		}
	}
	return on, last
}

// The recording in docs is that of a demo whose checks have all passed, and small.
func TestRecordingInDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/demo.cast")
	if err != nil {
		t.Fatal(err)
	}
	on, seconds := play(t, text)
	seen := on.Seen()
	var passed, all int
	if _, err := fmt.Sscanf(seen[len(seen)-1], "%d of %d checks passed", &passed, &all); err != nil || passed != all || passed < 30 {
		t.Errorf("it ends with %q", seen[len(seen)-1])
	}
	if on.Wrapped > 0 || len(text) > 300_000 || seconds < 10 || seconds > 120 {
		t.Errorf("%d rows too long, %d bytes, %.0f s: want none, at most 300 kB, 10–120 s", on.Wrapped, len(text), seconds)
	}
	for _, l := range seen {
		if strings.Contains(l, " /") {
			t.Errorf("a path of the machine that it was recorded on: %q", l)
		}
	}
}

func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.cast")
	var echo bytes.Buffer
	args := []string{"-o", file, "-columns", "40", "-rows", "5", "bash", "-c", `stty size; printf 'ä\033[32m語\033[0m %s\n' $TERM`}
	if err := run(args, &echo); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	on, _ := play(t, text)
	if got := strings.Join(on.Seen(), "|"); got != "5 40|ä語 xterm-256color" || on.Styles()["32"] != "語" {
		t.Errorf("%q, styles %v", got, on.Styles())
	}
	if !strings.Contains(echo.String(), "5 40") {
		t.Errorf("echo %q", echo.String())
	}
	if err := run([]string{"-o", file, "bash", "-c", "echo other; exit 1"}, io.Discard); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("a program that fails: %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, text) {
		t.Errorf("a program that fails replaces the recording: %v", err)
	}
	for _, bad := range [][]string{{}, {"-o", file}, {"-o", file, "-columns", "0", "true"}, {"true"}} {
		if err := run(bad, io.Discard); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Output may be cut within a character.
func TestCharactersAreWhole(t *testing.T) {
	n := 0
	events, err := read(iotest.OneByteReader(strings.NewReader("aä語🚢\xff")), func() time.Duration { n++; return time.Duration(n) * time.Second })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%v %s", e.after, e.text))
	}
	if want := "1 a|2 ä|3 語|4 🚢|5 \xff"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
}
