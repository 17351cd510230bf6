package tty

import (
	"strings"
	"testing"
)

func TestTerminal(t *testing.T) {
	term := New(4, 2)
	for _, step := range []struct{ write, want string }{
		{"ab", "ab|"},
		{"cd", "abcd|"},
		{"e", "abcd|e"},
		{"\x1b[", "abcd|e"},
		{"1A\rx\x1b[K", "x|e"},
		{"\n\n\x1b[1;31mr\x1b[0m", "e|r"},
		{"\xe4\xb8", "e|r"},
		{"\xad語", "r中|語"}, // the second one does not fit, and scrolls
	} {
		if _, err := term.Write([]byte(step.write)); err != nil {
			t.Fatalf("%q: %v", step.write, err)
		}
		if got := strings.Join(term.Screen(), "|"); got != step.want {
			t.Errorf("after %q: %q, want %q", step.write, got, step.want)
		}
	}
	if term.Wrapped != 2 || term.Styles()["1;31"] != "r" || len(term.Styles()) != 1 {
		t.Errorf("wrapped %d, styles %v", term.Wrapped, term.Styles())
	}
	if got := strings.Join(term.Seen(), "|"); got != "x|e|r中|語" {
		t.Errorf("seen %q", got)
	}
	for _, bad := range []string{"\a", "\x1b[2J", "\x1bM", "\x1b[9A"} {
		if _, err := term.Write([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestResize(t *testing.T) {
	for wraps, want := range map[bool]string{true: "abc|def|", false: "abc||"} {
		term := New(8, 4)
		if _, err := term.Write([]byte("abcdef\n")); err != nil {
			t.Fatal(err)
		}
		term.Resize(3, 3, wraps)
		if got := strings.Join(term.Screen(), "|"); got != want {
			t.Errorf("wraps %v: %q, want %q", wraps, got, want)
		}
	}
}
