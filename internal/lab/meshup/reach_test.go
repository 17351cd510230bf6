package meshup

import (
	"net"
	"strings"
	"testing"
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
	if err := (&Mesh{}).PrometheusError(t.Context()); err != nil {
		t.Errorf("without a server: %v", err)
	}
}
