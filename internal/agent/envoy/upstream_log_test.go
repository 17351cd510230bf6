package envoy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Only a control plane that was there can be away: at a start nothing is said.
func TestRestartsWaitIsLoggedWhenItIsNews(t *testing.T) {
	var out bytes.Buffer
	l := &loop{Runner: &Runner{o: Options{Log: slog.New(slog.NewTextHandler(&out, nil))}}, machine: supervise.New(supervise.Policy{})}
	for _, tt := range []struct {
		ok   bool
		want int
	}{{false, 0}, {true, 0}, {false, 1}, {false, 1}, {true, 1}, {false, 2}} {
		l.log(supervise.Upstream{OK: tt.ok})
		if n := strings.Count(out.String(), "restarts of Envoy wait"); n != tt.want {
			t.Errorf("after %v: %d lines, want %d", tt.ok, n, tt.want)
		}
	}
}
