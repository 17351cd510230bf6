package discovery

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

func panicOf(f func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

// A kind of resource that nobody has given a type is not served as a cluster.
func TestAKindWithoutATypePanics(t *testing.T) {
	unknown := compile.Kinds()[len(compile.Kinds())-1] + 1
	p := newTestPublisher()
	if got := panicOf(func() { p.layers.resource(compile.Key{Kind: unknown, Name: "a"}, compile.Body{Bytes: []byte{}}) }); !strings.Contains(got, "unknown kind") {
		t.Errorf("panic %q", got)
	}
	if got := panicOf(func() { _ = unknown.TypeURL() }); !strings.Contains(got, "no row in kinds") {
		t.Errorf("panic %q", got)
	}
	url := func(compile.Kind) string { return "type.googleapis.com/not.served" }
	if got := panicOf(func() { xdsTypes(compile.Kinds(), url) }); !strings.Contains(got, "type.googleapis.com/not.served, which is not served") {
		t.Errorf("panic %q", got)
	}
}

func TestEveryKindHasItsType(t *testing.T) {
	p := newTestPublisher()
	want := map[compile.Kind]xds.Type{
		compile.Cluster: xds.CDS, compile.ClusterInline: xds.CDS, compile.ClusterInbound: xds.CDS, compile.Endpoints: xds.EDS, compile.EndpointsOwn: xds.EDS,
		compile.Listener: xds.LDS, compile.ListenerInbound: xds.LDS, compile.Route: xds.RDS,
		compile.ListenerAPI: xds.LDS, compile.ListenerServer: xds.LDS, compile.RouteAPI: xds.RDS,
		compile.VirtualHost:    xds.VHDS,
		compile.ClusterPatched: xds.CDS, compile.ClusterInlinePatched: xds.CDS, compile.ClusterInboundPatched: xds.CDS,
		compile.ListenerPatched: xds.LDS, compile.ListenerInboundPatched: xds.LDS, compile.RoutePatched: xds.RDS, compile.VirtualHostPatched: xds.VHDS,
		compile.ExtensionPatched: xds.ECDS, compile.ExtensionInboundPatched: xds.ECDS,
	}
	for _, k := range compile.Kinds() {
		if got := p.layers.typeOf(k); got != want[k] {
			t.Errorf("kind %d is %s, want %s", k, got, want[k])
		}
	}
}

// What was handed out stays as it is; what is asked for later is new only where something changed.
func TestSnapshotsDoNotChange(t *testing.T) {
	p := newTestPublisher()
	p.begin()
	join := func(id string) {
		p.join(id, model.KeyOf(mesh.Node{NodeID: mesh.NodeID{Role: mesh.Sidecar, ID: id, Domain: "shop.svc.cluster.local", IP: netip.MustParseAddr("10.0.0.1")}}, ""))
	}
	join("a")
	first := p.snapshot()
	if again := p.snapshot(); len(first.proxies) != 1 || len(first.classes) != 1 || first.proxies["a"].view != again.proxies["a"].view {
		t.Fatalf("snapshots %+v and %+v", first, again)
	}
	join("b")
	second := p.snapshot()
	p.leave("a")
	if len(first.proxies) != 1 || len(second.proxies) != 2 || len(p.snapshot().proxies) != 1 {
		t.Errorf("%d, %d and %d proxies", len(first.proxies), len(second.proxies), len(p.snapshot().proxies))
	}
	for class, c := range second.classes {
		if strings.Join(c.proxies, " ") != "a b" || c.resources == 0 || second.proxies["b"].class != class {
			t.Errorf("class %s has %+v", className(class), c)
		}
	}
	if second.generation != 1 || second.resources == 0 {
		t.Errorf("generation %d, %d resources; want generation 1", second.generation, second.resources)
	}
}

func newTestPublisher() *publisher { return newPublished().publisher }
