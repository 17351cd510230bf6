package main

import (
	"errors"
	"flag"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/tools/txtar"

	"github.com/pilothouse/pilothouse/internal/lab/pty"
)

var update = flag.Bool("update", false, "rewrite the screens in testdata/terminal")

// onTerminal runs pilotctl on a terminal of so many columns and returns what it prints.
func onTerminal(t *testing.T, dir string, columns int, args ...string) string {
	t.Helper()
	c := exec.Command("pilotctl", args...)
	c.Dir, c.Env = dir, []string{"TERM=xterm", "PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	term, err := pty.Start(c, uint16(columns), 24)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(term)
	var code *exec.ExitError
	if waited := c.Wait(); err != nil || waited != nil && !errors.As(waited, &code) {
		t.Fatal(err, waited)
	}
	if err := term.Close(); err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

func TestShortValues(t *testing.T) {
	now := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2026-11-28T09:30:01Z":                 "09:30:01",
		"2026-11-27T09:30:01Z":                 "2026-11-27",
		"2026-11-29T01:47:19Z":                 "2026-11-29 01:47",
		"ends at 2036-11-25T01:47:19Z":         "ends at 2036-11-25",
		"spiffe://cluster.local/ns/shop/sa/a":  "shop/a",
		"90 outbound|80|v1|a.b.svc.x.example":  "90 a.b.svc.x.example:80 v1",
		"outbound|80||a.b.svc.cluster.local":   "a.b:80",
		"inbound|8080||":                       "inbound|8080||",
		"https://accounts.example/ns/a/sa/b/x": "https://accounts.example/ns/a/sa/b/x",
	} {
		if got := short(text, now); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// On a terminal of 80 columns no line of a result is longer, but a path or a name that cannot be broken; what is written
// elsewhere, or with -o wide, is whole.
func TestTablesFitTheTerminal(t *testing.T) {
	const file = "testdata/terminal/files.txtar"
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir, screens := t.TempDir(), map[string]int{}
	for i, f := range a.Files {
		if name, ok := strings.CutPrefix(f.Name, "screen: "); ok {
			screens[name] = i
			continue
		}
		path := filepath.Join(dir, f.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.Data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(pages(dir))
	defer server.Close()
	if len(screens) < 6 {
		t.Fatalf("%d screens", len(screens))
	}
	for command, i := range screens {
		args := strings.Fields(command)
		if args[0] != "validate" {
			args = append(args, "--discovery", server.URL)
		}
		got := onTerminal(t, dir, 80, args...)
		if *update {
			a.Files[i].Data = []byte(got)
		} else if want := string(a.Files[i].Data); got != want {
			t.Errorf("pilotctl %s on a terminal prints\n%s\nwant\n%s", command, got, want)
		}
		for line := range strings.Lines(got) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("pilotctl %s: a line of %d characters: %s", command, n, line)
			}
		}
		c := exec.Command("pilotctl", args...)
		c.Dir, c.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		elsewhere, err := c.CombinedOutput()
		if code := (*exec.ExitError)(nil); err != nil && !errors.As(err, &code) {
			t.Fatal(err)
		}
		if wide := onTerminal(t, dir, 80, append(args, "-o", "wide")...); string(elsewhere) != wide || wide == got {
			t.Errorf("pilotctl %s: with -o wide\n%s\nelsewhere\n%s\nwant them to be the same, and wider than\n%s", command, wide, elsewhere, got)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
