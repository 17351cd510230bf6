package ca

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// While the store cannot be used, each reason is logged once, whichever way they alternate, and the end once.
func TestReasonsAreLoggedOnce(t *testing.T) {
	var log wait.Output
	r := &Rotator{options: RotatorOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	for range 2 {
		for range 3 {
			r.tell(errors.New("read tcp 10.0.0.1:35160->10.96.0.1:443: connection reset"))
			r.tell(errors.New("EOF"))
			r.tell(errors.New("read tcp 10.0.0.1:35161->10.96.0.1:443: connection reset"))
		}
		r.tell(nil)
		r.tell(nil)
	}
	for text, n := range map[string]int{"connection reset": 2, "reason=EOF": 2, "can be rotated again": 2, "\n": 6} {
		if got := strings.Count(log.String(), text); got != n {
			t.Errorf("%d lines with %q, want %d:\n%s", got, text, n, log.String())
		}
	}
}
