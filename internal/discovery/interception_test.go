package discovery

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Sidecars without capture are one line, once each however many streams they have.
func TestProxiesWithoutCaptureAreAProblem(t *testing.T) {
	one := func(id string, role mesh.Role, mode, generator string) xds.Connection {
		return xds.Connection{Node: mesh.Node{NodeID: mesh.NodeID{ID: id, Role: role}, Metadata: mesh.Metadata{Interception: mode, Generator: generator}}}
	}
	others := []xds.Connection{
		one("a.shop", mesh.Sidecar, "REDIRECT", ""), one("b.shop", mesh.Sidecar, "", ""), one("gw.edge", mesh.Router, mesh.InterceptionNone, ""), one("g.shop", mesh.Sidecar, mesh.InterceptionNone, "grpc"),
	}
	if got := uncaptured(others); got != "" {
		t.Errorf("got %q", got)
	}
	got := uncaptured(append(others, one("d.shop", mesh.Sidecar, mesh.InterceptionNone, ""), one("c.shop", mesh.Sidecar, mesh.InterceptionNone, ""), one("d.shop", mesh.Sidecar, mesh.InterceptionNone, "")))
	if !strings.HasPrefix(got, "2 proxies with INTERCEPTION_MODE NONE, such as c.shop: nothing captures their traffic") {
		t.Errorf("got %q", got)
	}
}
