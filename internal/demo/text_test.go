package demo

import (
	"strings"
	"testing"
)

func TestWidths(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "abc": 3, "äöü": 3, "e\u0301": 1, "語": 2, "ｗ": 2, "한글": 4, "🚢": 2, "❤\ufe0f": 2, "…×": 2,
	} {
		if got := textWidth(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		text    string
		columns int
		want    string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"語語", 4, "語語"}, {"語語", 3, "語…"}, {"語語語", 4, "語…"}, {"e\u0301e\u0301e\u0301", 2, "e\u0301…"}, {"ab", 1, "…"}, {"ab", 0, ""},
	} {
		if got := (line{{tt.text, plain}}).clip(tt.columns).String(); got != tt.want {
			t.Errorf("%q in %d columns: %q, want %q", tt.text, tt.columns, got, tt.want)
		}
	}
	// Styles end where the text is cut.
	l := line{{"  ", plain}, {"ok", good}, {": fine", plain}, {"!!", bad}}
	for columns, want := range map[int]string{
		12: "  \x1b[32mok\x1b[0m: fine\x1b[1;31m!!\x1b[0m", 6: "  \x1b[32mok\x1b[0m:…", 4: "  \x1b[32mo\x1b[0m…",
	} {
		if got := l.clip(columns).encode(true); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		text    string
		columns int
		want    string
	}{
		{"one two three", 13, "one two three"},
		{"one two three", 12, "one two|  three"},
		{"  ok: one two", 10, "  ok: one|    two"},
		{"one twothree", 6, "one|  twot|  hree"},
		{"abcdef", 3, "abc|def"},
		{"語語語", 5, "語語|  語"},
		{"語語", 1, "語|語"},
		{"a      b", 4, "a   |  b"},
	} {
		var got []string
		for _, l := range (line{{tt.text, plain}}).wrap(tt.columns) {
			got = append(got, l.String())
		}
		if strings.Join(got, "|") != tt.want {
			t.Errorf("%q in %d columns: %q, want %q", tt.text, tt.columns, strings.Join(got, "|"), tt.want)
		}
	}
	l := line{{"  ", plain}, {"FAILED", bad}, {": one two", plain}}
	if got := l.wrap(13); len(got) != 2 || got[0].encode(true) != "  \x1b[1;31mFAILED\x1b[0m: one" || got[1].encode(true) != "    two" {
		t.Errorf("styles: %q", got)
	}
}

// Text of others cannot move the cursor.
func TestControlCharactersAreShown(t *testing.T) {
	if got := render(paragraph(plain, "a\x1b[2J\r\u202eb\nc"), unlimited); got != "a\\x1b[2J\\r\\u202eb\nc\n" {
		t.Errorf("%q", got)
	}
}
