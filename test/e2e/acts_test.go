package e2e_test

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/pilothouse/pilothouse/internal/demo"
)

// play plays one act of the demo on a mesh of its own: what the act checks is the test.
func play(t *testing.T, act string) {
	t.Helper()
	out := &lines{t: t}
	err := demo.Run(t.Context(), demo.Options{
		Programs: programs, ConfigDir: filepath.Join(root, "samples", "bookshop"), Token: issue, Out: out, Acts: []string{act},
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

func TestEveryCallIsMadeWithTheCallersIdentity(t *testing.T)       { play(t, "calls") }
func TestAHeaderTakesTheCanary(t *testing.T)                       { play(t, "canary") }
func TestAnEditOfWeightsFailsNoRequest(t *testing.T)               { play(t, "weights") }
func TestStrictRefusesPlaintextAndNobodyElse(t *testing.T)         { play(t, "strict") }
func TestTrafficGoesOnWithoutDiscoveryAndItTakesOver(t *testing.T) { play(t, "discovery") }
func TestAKilledEnvoyIsServingAgain(t *testing.T)                  { play(t, "envoy") }
