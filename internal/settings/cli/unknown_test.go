package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestUnknownFlagsAreNamed(t *testing.T) {
	f := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f.String("concurrency", "", "")
	f.String("domain", "", "")
	got := UnknownFlags([]string{"--concurency=2", "--domain", "x", "--nothing-like-it", "-q", "--help", "--" + strings.Repeat("x", 200), "--", "--after"}, f)
	want := []string{
		"unknown flag --concurency has no effect; did you mean --concurrency?", "unknown flag --nothing-like-it has no effect",
	}
	if len(got) != 3 || !slices.Equal(got[:2], want) || len(got[2]) > 200 {
		t.Errorf("%q, want %q and a short one", got, want)
	}
}
