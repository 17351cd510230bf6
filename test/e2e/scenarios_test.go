package e2e_test

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/pilothouse/pilothouse/internal/demo"
)

// demonstrate runs one scenario of the demo on a mesh of its own, and fails if one of its checks does.
func demonstrate(t *testing.T, scenario string) {
	t.Helper()
	out := &lines{t: t}
	err := demo.Run(t.Context(), demo.Options{
		Start: demo.OnThisMachine(programs, issue), ConfigDir: filepath.Join(root, "samples", "bookshop"), Out: out, Scenarios: []string{scenario},
	})
	if err != nil {
		t.Error(err)
	}
}

// lines writes to the log of a test.
type lines struct{ t *testing.T }

var _ io.Writer = (*lines)(nil)

// Write implements io.Writer; the demo writes whole lines.
func (l *lines) Write(text []byte) (int, error) {
	l.t.Logf("%s", text)
	return len(text), nil
}

func TestCallsHaveTheCallersIdentity(t *testing.T)      { demonstrate(t, "calls") }
func TestHeaderSelectsTheCanary(t *testing.T)           { demonstrate(t, "canary") }
func TestWeightsChangeWithoutFailures(t *testing.T)     { demonstrate(t, "weights") }
func TestStrictRejectsPlaintextOnly(t *testing.T)       { demonstrate(t, "strict") }
func TestTrafficContinuesWithoutDiscovery(t *testing.T) { demonstrate(t, "discovery") }
func TestKilledEnvoyIsReplaced(t *testing.T)            { demonstrate(t, "envoy") }
