package xds

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestRateLimit(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		perSecond float64
		// waits are those of streams that begin at one moment; -1 s is a refusal.
		waits []time.Duration
	}{
		{0, []time.Duration{0, 0, 0, 0, 0, 0}},
		{2, []time.Duration{0, 0, 500 * time.Millisecond, time.Second, -time.Second, -time.Second}},
		{1, []time.Duration{0, time.Second, -time.Second}},
		{0.25, []time.Duration{0, -time.Second}},
	} {
		r := rateLimit{perSecond: c.perSecond}
		for i, want := range c.waits {
			wait, ok := r.reserve(now, time.Second)
			if !ok {
				wait = -time.Second
			}
			if wait != want {
				t.Errorf("%g a second, stream %d: waits %s, want %s", c.perSecond, i, wait, want)
			}
		}
		if wait, ok := r.reserve(now.Add(time.Minute), time.Second); !ok || wait != 0 {
			t.Errorf("%g a second, after a pause: waits %s, %v", c.perSecond, wait, ok)
		}
	}
}

func TestStreamsPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log wait.Output
		reg := prometheus.NewRegistry()
		s := New(&oneClass{latest: NewLatestView(&View{})}, textLog(&log), reg)
		s.Limit(Limits{StreamsPerSecond: 10})
		c := dial(t, s, nil)
		const all = 40
		ended := make(chan error, all)
		began := time.Now()
		for range all {
			g := open(t, c)
			_ = g.Send(first(node(nil))) // Recv returns the error
			go func() { _, err := g.Recv(); ended <- err }()
		}
		served, refused := 0, 0
		for range all {
			switch err := <-ended; status.Code(err) {
			case codes.OK:
				served++
			case codes.ResourceExhausted:
				refused++
				if !strings.Contains(err.Error(), "PILOT_MAX_REQUESTS_PER_SECOND") {
					t.Errorf("refused with %v, want the name of the limit", err)
				}
			default:
				t.Error(err)
			}
		}
		// Ten at once, and ten more within the second that they wait.
		if served != 20 || refused != 20 {
			t.Errorf("%d streams served, %d refused, want 20 and 20", served, refused)
		}
		if d := time.Since(began); d > maxRateWait {
			t.Errorf("it took %s, want at most %s", d, maxRateWait)
		}
		if n := strings.Count(log.String(), "reason=rate"); n != 1 {
			t.Errorf("logged %d times, want once:\n%s", n, log.String())
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counted := 0.0
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "pilothouse_xds_refused_total" && m.GetLabel()[0].GetValue() == reasonRate {
					counted = m.GetCounter().GetValue()
				}
			}
		}
		if counted != 20 {
			t.Errorf("%v refusals counted, want 20", counted)
		}
	})
}
