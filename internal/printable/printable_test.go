package printable

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		`a "b" \c ü 世`:        `a "b" \c ü 世`,
		"red \x1b[31m":        `red \x1b[31m`,
		"two\nlines\t":        `two\nlines\t`,
		"c1 \u009b31m":        `c1 \u009b31m`,
		"reversed \u202etxt":  `reversed \u202etxt`,
		"not UTF-8 \xff\xfe.": `not UTF-8 \xff\xfe.`,
		"delete \x7f":         `delete \x7f`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
		if Is(in) != (in == want) {
			t.Errorf("Is(%q) = %v", in, Is(in))
		}
	}
	if got, want := EscapeLines("a\x1b\nb\n\n", "  "), "a\\x1b\n  b"; got != want {
		t.Errorf("EscapeLines: %q, want %q", got, want)
	}
	if got, want := EscapeOutput("a:\n\tb\x1b\n"), "a:\n\tb\\x1b\n"; got != want {
		t.Errorf("EscapeOutput: %q, want %q", got, want)
	}
}

func TestEscapeJSONMeansTheSame(t *testing.T) {
	const text = "a\u009b\u202e\x7f\U000e0001 ü"
	encoded, err := json.MarshalIndent([]string{text}, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	escaped := EscapeJSON(string(encoded))
	if !Is(strings.NewReplacer("\n", "", "\t", "").Replace(escaped)) {
		t.Errorf("%q has characters that are not printable", escaped)
	}
	var back []string
	if err := json.Unmarshal([]byte(escaped), &back); err != nil || back[0] != text {
		t.Errorf("%q means %q (%v)", escaped, back, err)
	}
}

func TestClipAndQuoteKeepWholeCharacters(t *testing.T) {
	for _, c := range []struct {
		in          string
		most        int
		clip, quote string
	}{
		{"short", 5, "short", `"short"`},
		{"longer", 5, "longe… (6 bytes)", `"longe"… (6 bytes)`},
		{"grün", 3, "gr… (5 bytes)", `"gr"… (5 bytes)`},
		{"\x1b\n", 9, "\x1b\n", `"\x1b\n"`},
		{"\xff\xff\xff", 1, "\xff… (3 bytes)", `"\xff"… (3 bytes)`},
	} {
		if got := Clip(c.in, c.most); got != c.clip {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.in, c.most, got, c.clip)
		}
		if got := Quote(c.in, c.most); got != c.quote {
			t.Errorf("Quote(%q, %d) = %s, want %s", c.in, c.most, got, c.quote)
		}
	}
}

// Both handlers: the one for JSON does not escape all that a terminal executes.
func TestLogsAreBoundedAndPrintable(t *testing.T) {
	var out strings.Builder
	options := &slog.HandlerOptions{ReplaceAttr: Attr}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, options), slog.NewJSONHandler(&out, options)} {
		out.Reset()
		long := strings.Repeat("x", 3<<20)
		slog.New(h).Info("line", "text", "a\u009b31m\x1b\n"+long, "error", errors.New("b\u202e"+long), "number", 7)
		line := out.String()
		if len(line) > 3*MaxLogged || strings.Count(line, "\n") != 1 || !Is(strings.TrimSuffix(line, "\n")) {
			t.Errorf("%T: %d bytes: %.300q", h, len(line), line)
		}
	}
}

// What fails again on another connection has the same text.
func TestReasonsHaveNoLocalAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"get x: read tcp 10.0.0.1:35160->10.96.0.1:443: read: connection reset by peer":          "get x: read tcp 10.96.0.1:443: read: connection reset by peer",
		"late - error from a previous attempt: write udp6 [::1]:5->[::1]:53: connection refused": "late - error from a previous attempt: write udp6 [::1]:53: connection refused",
		"dial tcp 10.96.0.1:443: connect: connection refused":                                    "dial tcp 10.96.0.1:443: connect: connection refused",
	} {
		if got := Reason(errors.New(in)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
