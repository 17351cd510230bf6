package status_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/status"
)

// While a child that is not live holds the admin interface, readiness is its parent's.
func TestReadinessInAHandover(t *testing.T) {
	starts := map[string]uint64{"server.state": 2, "listener_manager.workers_started": 0}
	for name, c := range map[string]struct {
		envoy status.Envoy
		stats map[string]uint64
		err   error
		want  int
	}{
		"a child answers":               {status.Envoy{Running: true, Live: true, Handover: true}, starts, nil, 200},
		"nobody answers":                {status.Envoy{Running: true, Live: true, Handover: true}, nil, errors.New("connection refused"), 200},
		"the first one starts":          {status.Envoy{Running: true}, starts, nil, 503},
		"the agent ends meanwhile":      {status.Envoy{Running: true, Live: true, Handover: true, Ending: true}, starts, nil, 503},
		"a child is live":               {status.Envoy{Running: true, Live: true, Epoch: 1}, map[string]uint64{"server.state": 0, "listener_manager.workers_started": 1}, nil, 200},
		"a live one without a handover": {status.Envoy{Running: true, Live: true}, nil, errors.New("connection refused"), 503},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "127.0.0.1:0", nil)
			f := *s.facts.Load()
			f.Envoy = c.envoy
			s.facts.Store(&f)
			s.proxy.stats, s.proxy.err = c.stats, c.err
			if code, body := s.ask(http.MethodGet, "/healthz/ready"); code != c.want {
				t.Errorf("%d %s, want %d", code, body, c.want)
			}
		})
	}
}

func TestARestartByOrder(t *testing.T) {
	asked := 0
	s := serve(t, "127.0.0.1:0", func(o *status.Options) { o.Restart = func() { asked++ } })
	if code, _ := s.ask(http.MethodGet, "/restart"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	if code, body := s.ask(http.MethodPost, "/restart"); code != http.StatusOK || body != "OK" || asked != 1 {
		t.Errorf("POST: %d %q, asked %d times", code, body, asked)
	}
}
