package envoy_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// TestASecondAndAThirdRequest: the second ends the drain, whatever it waits for, the third the time for SIGTERM.
func TestASecondAndAThirdRequest(t *testing.T) {
	r := run(t, fakeenvoy.Script{IgnoreTerm: true}, func(o *envoy.Options) {
		o.Policy.Drain, o.Policy.Grace = 10*patience, 10*patience
	})
	r.awaitLive()
	noted := func(what string) func(*envoy.State) bool {
		return func(*envoy.State) bool { return slices.Contains(fakeenvoy.Record(t, r.script), what) }
	}
	r.cancel()
	r.await("the drain", func(s *envoy.State) bool { return s.Draining && s.Ending })
	r.Again()
	r.await("SIGTERM", noted("signal terminated"))
	r.Again()
	if err := r.end(); err != nil || r.State().Last != (supervise.Status{Signal: supervise.SIGKILL}) {
		t.Errorf("error %v, state %+v; want nil, and Envoy killed", err, r.State())
	}
}

// TestNothingIsStartedAfterTheEnd: the end came while the agent was being prepared.
func TestNothingIsStartedAfterTheEnd(t *testing.T) {
	script := fakeenvoy.Write(t, fakeenvoy.Script{Admin: fakeenvoy.FreeAddress(t)})
	r := envoy.New(envoy.Options{Admin: fakeenvoy.FreeAddress(t), Log: slog.New(slog.DiscardHandler), Launch: envoy.Launch{
		Binary: fakeenvoy.Install(t), Args: spec.Arguments{Bootstrap: script}.List(),
	}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil || !r.State().Over || len(fakeenvoy.Record(t, script)) > 0 {
		t.Errorf("error %v, state %+v, record %v", err, r.State(), fakeenvoy.Record(t, script))
	}
	r.Again() // nobody takes it, and nobody waits
}
