package e2e_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
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
func TestRequestsEnterByAGateway(t *testing.T)          { demonstrate(t, "ingress") }
func TestRequestsLeaveByAGateway(t *testing.T)          { demonstrate(t, "egress") }

// TestChecksOfGatewaysCanFail has samples in which requests do not pass the egress gateway, and in which the Pods of both
// gateways are missing.
func TestChecksOfGatewaysCanFail(t *testing.T) {
	run := func(change func(dir string), scenarios ...string) (string, error) {
		t.Helper()
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "samples", "bookshop"))); err != nil {
			t.Fatal(err)
		}
		change(dir)
		var out bytes.Buffer
		err := demo.Run(t.Context(), demo.Options{Start: demo.OnThisMachine(programs, issue), ConfigDir: dir, Out: &out, Scenarios: scenarios})
		return out.String(), err
	}
	out, err := run(func(dir string) {
		editFile(t, filepath.Join(dir, "61-egress.yaml"), "gateways: [egress, mesh]", "gateways: [egress]")
	}, "egress")
	for _, want := range []string{
		"FAILED: each passed the egress gateway: 0 of 200 did", "FAILED: the gateway knew the shopper",
		"FAILED: productpage, which no policy allows to, gets no request out: status 403: it is answered",
	} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v; want %q in\n%s", err, want, out)
		}
	}
	out, err = run(func(dir string) {
		editFile(t, filepath.Join(dir, "30-pods.yaml"), "name: ingress-1", "name: entry-1", "name: egress-1", "name: exit-1")
	}, "ingress", "egress")
	if err == nil || !strings.Contains(out, "left out: this mesh has no Pod of ingress") || !strings.Contains(out, "left out: this mesh has no Pod of egress") {
		t.Errorf("%v; want two scenarios to be left out in\n%s", err, out)
	}
}
