package agent

import (
	"context"
	"slices"
	"testing"
	"time"
)

// What was wrong with capture is reported when it changes, and nothing while all is well.
func TestReportsOnCapture(t *testing.T) {
	states := []CaptureReport{
		{}, {}, {Restored: 1, Last: time.Unix(0, 0), Found: "table mesh is missing"}, {Restored: 1, Last: time.Unix(0, 0), Found: "table mesh is missing"},
		{Restored: 1, Problem: "not permitted"}, {},
	}
	ctx, end := context.WithCancel(t.Context())
	var got []string
	n := 0
	look := func() CaptureReport {
		if n++; n >= len(states) {
			end()
			return states[len(states)-1]
		}
		return states[n-1]
	}
	if err := reportCapture(ctx, time.Millisecond, look, func(text string) { got = append(got, text) }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"another program changed the rules of capture, which were restored 1 times, last at 1970-01-01T00:00:00Z: table mesh is missing",
		"the rules of capture cannot be checked: not permitted", "",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
