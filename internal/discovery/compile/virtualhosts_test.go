package compile_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// withVirtualHosts is the node of a proxy that takes virtual hosts by VHDS.
func withVirtualHosts(n mesh.Node) mesh.Node {
	n.Metadata.VirtualHosts = true
	return n
}

// A route configuration with its virtual hosts is, but for their names, the same as a whole one; all other resources
// are equal.
func TestVirtualHostsAreThoseOfWholeRoutes(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, wait.Seed(t, 13)))
		data := make([]byte, 4000)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		w, d := newWorld(), &dice{data: data}
		for range 80 {
			w.model.Apply([]object.Change{d.change()})
		}
		w.graph.Run()
		for _, n := range newHistory(t).proxies {
			n.Metadata.VirtualHosts = false
			whole := w.named(t, n)
			separate := w.named(t, withVirtualHosts(n))
			for name, b := range whole {
				got := separate[name]
				if routes, shared := strings.CutPrefix(name, "RDS "); shared && !strings.ContainsAny(routes, ":_/") && n.Role == mesh.Sidecar {
					got, b = joined(t, separate, got), encodeAgain(t, message(t, compile.Route, b))
				}
				if !bytes.Equal(got, b) {
					t.Fatalf("seed %d: %s: %s:\n%q\nwhole\n%q", seed, n.ID, name, got, b)
				}
				delete(separate, name)
			}
			for name := range separate {
				t.Errorf("seed %d: %s: %s is in no route configuration", seed, n.ID, name)
			}
		}
	}
}

// named is every resource of a proxy by type and name, with patches or without, except those that have no value.
func (w *world) named(t *testing.T, n mesh.Node) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for k, b := range w.bytes(w.join(n)) {
		if b != nil {
			typ := typeName(k.Kind)
			if k.Kind == compile.RouteAPI {
				typ = "API"
			}
			out[typ+" "+k.Name] = b
		}
	}
	return out
}

// joined is a route configuration with its virtual hosts in it, which it takes out of all.
func joined(t *testing.T, all map[string][]byte, encoded []byte) []byte {
	t.Helper()
	config := message(t, compile.Route, encoded).(*routev3.RouteConfiguration)
	if config.Vhds == nil || len(config.VirtualHosts) != 1 {
		t.Fatalf("route configuration %s: want vhds and a catch-all only: %v", config.Name, config)
	}
	config.Vhds = nil
	var hosts []*routev3.VirtualHost
	for name, b := range all {
		resource, ok := strings.CutPrefix(name, "VHDS "+config.Name+"/")
		if !ok {
			continue
		}
		h := message(t, compile.VirtualHost, b).(*routev3.VirtualHost)
		if h.Name != config.Name+"/"+resource {
			t.Errorf("resource %s/%s is virtual host %s", config.Name, resource, h.Name)
		}
		h.Name = resource
		hosts = append(hosts, h)
		delete(all, name)
	}
	slices.SortFunc(hosts, func(a, b *routev3.VirtualHost) int {
		return strings.Compare(strings.TrimSuffix(a.Name, ":"+config.Name), strings.TrimSuffix(b.Name, ":"+config.Name))
	})
	config.VirtualHosts = append(hosts, config.VirtualHosts...)
	return encodeAgain(t, config)
}

// encodeAgain is a message with its fields in the order of their numbers.
func encodeAgain(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A change moves the virtual hosts that it is about, and no route configuration.
func TestAChangeMovesOneVirtualHost(t *testing.T) {
	w := newWorld()
	w.apply(t, bookshop)
	w.join(withVirtualHosts(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client")))
	w.run()
	const more = `
apiVersion: v1
kind: Service
metadata: {name: more, namespace: shop}
spec: {clusterIP: 10.96.0.3, selector: {app: more}, ports: [{name: http, port: 9080}]}
`
	const rule = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: more, namespace: shop}
spec: {hosts: [more], http: [{timeout: 3s, route: [{destination: {host: more}}]}]}
`
	for _, s := range []struct {
		what, yaml string
		gone       bool
		ran        map[string]int
		moved      []string
	}{
		{
			what: "a weight", yaml: strings.NewReplacer("90}", "50}", "10}", "50}").Replace(virtual90),
			ran:   map[string]int{"virtual host": 1, "virtual host resource": 1},
			moved: []string{"virtual host resource 9080/reviews.shop.svc.cluster.local:9080"},
		},
		{
			what: "a service", yaml: more,
			ran: map[string]int{"virtual host": 1, "virtual host resource": 1},
		},
		{
			what: "its VirtualService", yaml: rule,
			ran:   map[string]int{"virtual host": 1, "virtual host resource": 1},
			moved: []string{"virtual host resource 9080/more.shop.svc.cluster.local:9080"},
		},
		{
			what: "the end of both", yaml: more + "---" + rule, gone: true,
			ran:   map[string]int{"virtual host": 1, "virtual host resource": 1},
			moved: []string{"virtual host resource 9080/more.shop.svc.cluster.local:9080"},
		},
	} {
		before := w.graph.Stats()
		changes := objects(t, s.yaml)
		if s.gone {
			for i := range changes {
				changes[i].Object = nil
			}
		}
		w.model.Apply(changes)
		var moved []string
		for _, m := range w.run() {
			if strings.HasPrefix(m, "route ") || strings.HasPrefix(m, "virtual host ") {
				moved = append(moved, m)
			}
		}
		if !slices.Equal(moved, s.moved) {
			t.Errorf("%s: moved %q, want %q", s.what, moved, s.moved)
		}
		for _, rule := range []string{"route", "virtual host", "virtual host resource"} {
			if n := int(w.graph.Stats()[rule].Runs - before[rule].Runs); n != s.ran[rule] {
				t.Errorf("%s: rule %q ran %d times, want %d", s.what, rule, n, s.ran[rule])
			}
		}
	}
}
