package envoy_test

import (
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// Nothing polls: what the channel tells decides whether the next Envoy starts.
func TestARestartWaitsForTheUpstream(t *testing.T) {
	upstream := make(chan bool, 1)
	r := run(t, fakeenvoy.Script{}, func(o *envoy.Options) { o.Hot.Upstream = upstream })
	r.awaitLive()
	upstream <- false
	next := r.o.Launch
	next.Hash = "next"
	r.Desire(next)
	r.await("the wait for the control plane", func(s *envoy.State) bool { return s.Goal.Waiting == supervise.WaitUpstream })
	upstream <- true
	r.await("the next one", func(s *envoy.State) bool { return s.Live && s.Hash == "next" })
}
