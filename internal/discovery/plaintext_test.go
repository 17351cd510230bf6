package discovery

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// TestAPlaintextPortForOthersIsAWarning: whoever reaches it is served as whom it claims to be.
func TestAPlaintextPortForOthersIsAWarning(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:0": false, "localhost:0": false, ":0": true, "": false} {
		var out wait.Output
		start(t, func(o *Options) {
			o.Ports.GRPC = addr
			o.Log = slog.New(slog.NewTextHandler(&out, nil))
		})
		wait.Until(t, "the server says that it serves", func() bool { return strings.Contains(out.String(), "msg=serving") })
		if got := strings.Contains(out.String(), "level=WARN"); got != want {
			t.Errorf("%q: warned %v, want %v:\n%s", addr, got, want, out.String())
		}
	}
}
