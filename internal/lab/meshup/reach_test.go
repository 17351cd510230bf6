package meshup

import (
	"net"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/podplan"
)

func TestPrometheusError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &Mesh{prometheus: l.Addr().String()}
	if err := m.PrometheusError(t.Context()); err != nil {
		t.Errorf("a server that listens: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.PrometheusError(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a server that does not listen: %v", err)
	}
	// A name without its namespace is no host of the mesh for pilot-discovery.
	m.spec.services = []podplan.Service{{Namespace: "shop", Name: "web"}, {Namespace: "default", Name: "web"}, {Namespace: "shop", Name: "other"}}
	if got := m.spec.namesakes("web"); got != "; for the mesh's own Service want web.default or web.shop" {
		t.Errorf("namesakes of web: %q", got)
	}
	if got := m.spec.namesakes("web.invalid"); got != "" {
		t.Errorf("namesakes of web.invalid: %q", got)
	}
	m.prometheus = "web:80"
	if err := m.PrometheusError(t.Context()); err == nil || !strings.Contains(err.Error(), "want web.default or web.shop") {
		t.Errorf("a name of this machine's network that a Service has: %v", err)
	}
	if err := (&Mesh{}).PrometheusError(t.Context()); err != nil {
		t.Errorf("without a server: %v", err)
	}
}
