package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/spf13/cobra"
)

func TestWatchPrintsWhatHasChanged(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	looks := []struct {
		text string
		err  error
	}{{"a\n", nil}, {"a\n", errSaid}, {"", errors.New("is gone\x1b[2J")}, {"b\n", nil}}
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetContext(ctx)
	c.SetOut(&out)
	n := 0
	err := (&flags{output: "table"}).watch(c, func(w io.Writer) error {
		if n == len(looks) {
			end()
			return nil
		}
		look := looks[n]
		n++
		_, _ = io.WriteString(w, look.text)
		return look.err
	})
	if want := "a\n\npilotctl: is gone\\x1b[2J\n\nb\n"; err != nil || out.String() != want {
		t.Errorf("%v, printed %q, want %q", err, out.String(), want)
	}
	if err := (&flags{output: "json"}).watch(c, nil); !errors.As(err, new(misuse)) {
		t.Errorf("-o json: %v", err)
	}
}

func TestWhatFitsOnATerminal(t *testing.T) {
	size := func() (int, int) { return 5, 4 }
	for text, want := range map[string]string{
		"a\nb\n":                 "a\nb\n",
		"123456789\n✓✓✓✓✓✓\nc\n": "12345\n✓✓✓✓✓\nc\n",
		"a\nb\nc\nd\ne\n":        "a\nb\nand 3\n",
	} {
		if got := fit(text, size); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	var b bytes.Buffer
	if err := draw(&b, size, "a\n", false); err != nil || b.String() != clearScreen+"a\n" {
		t.Errorf("%v %q", err, b.String())
	}
}
