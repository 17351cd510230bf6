package compile_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// byName is every resource of a class by its layer, type and name.
func byName(w *world, c mesh.Class) map[string][]byte {
	out := map[string][]byte{}
	for k, value := range w.bytes(c) {
		out[fmt.Sprintf("layer %d %s %s (EDS %v)", k.Layer().Kind, k.Kind.TypeURL(), k.Name, k.EDS)] = value
	}
	return out
}

// sumsByName is what identifies each joined resource of a class, by its name.
func sumsByName(t *testing.T, w *world, c mesh.Class) map[string][16]byte {
	t.Helper()
	out := map[string][16]byte{}
	for k, sum := range w.sums(t, c) {
		out[k.Name] = sum
	}
	return out
}

// sameAsWhole fails the test where any byte that any proxy would get differs from a compile in which no
// scope is derived from another.
func (h *history) sameAsWhole(t *testing.T, w *world, step int) {
	t.Helper()
	whole := newWholeWorld()
	h.fill(whole)
	for _, n := range h.proxies {
		class, _ := w.model.Classify().Value(model.KeyOf(n, ""))
		got, want := byName(w, class), byName(whole, whole.join(n))
		for name := range want {
			if value, ok := got[name]; !ok || !bytes.Equal(value, want[name]) {
				t.Fatalf("step %d: %s: %s differs from a whole compile (there %v):\n%q\n%q", step, n.ID, name, ok, value, want[name])
			}
		}
		for name := range got {
			if _, ok := want[name]; !ok {
				t.Fatalf("step %d: %s: %s is not in a whole compile", step, n.ID, name)
			}
		}
		if got, want := sumsByName(t, w, class), sumsByName(t, whole, whole.join(n)); !maps.Equal(got, want) {
			t.Fatalf("step %d: %s: joined resources are identified by\n%x, in a whole compile by\n%x", step, n.ID, got, want)
		}
	}
}

// meshConfig is a random mesh configuration; its default exports decide what is private.
func (d *dice) meshConfig() *meshv1.MeshConfig {
	m := mesh.DefaultMeshConfig()
	m.OutboundTrafficPolicy.Mode = pick(d, meshv1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY, meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY, meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS)
	m.RootNamespace = pick(d, "istio-system", "x")
	m.DefaultConfig.GatewayTopology = pick(d, nil, &meshv1.Topology{NumTrustedProxies: 1, ProxyProtocol: &meshv1.Topology_ProxyProtocolConfiguration{}})
	m.DefaultServiceExportTo = d.exportTo()
	m.DefaultVirtualServiceExportTo = d.exportTo()
	m.DefaultDestinationRuleExportTo = d.exportTo()
	m.AccessLogFile = pick(d, "", "/dev/stdout")
	m.ExtensionProviders = d.extensionProviders()
	if d.oneIn(3) {
		m.DefaultProviders = &meshv1.MeshConfig_DefaultProviders{AccessLogging: []string{pick(d, providers...)}}
	}
	if d.oneIn(2) {
		m.ExtensionProviders = append(m.ExtensionProviders, []*meshv1.MeshConfig_ExtensionProvider{
			{Name: "grpc", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{EnvoyExtAuthzGrpc: &meshv1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{
				Service: pick(d, "a.x.svc.cluster.local", "x/a.x.svc.cluster.local", "y/out.example.com"), Port: 80, FailOpen: d.oneIn(2),
			}}},
			{Name: "http", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{EnvoyExtAuthzHttp: &meshv1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider{
				Service: pick(d, "out.example.com", "b.y.svc.cluster.local"), Port: 80, HeadersToUpstreamOnAllow: []string{pick(d, "a", "b*", "*c")},
			}}},
		}...)
	}
	return m
}

// TestDerivedScopesAreAsWholeOnes plays random histories and compares with a compile in which every scope
// is compiled on its own.
func TestDerivedScopesAreAsWholeOnes(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 13)))
			data := make([]byte, 2500)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			playHistory(t, data, 7, (*history).sameAsWhole)
		})
	}
}

// A host that is a service to all, and another name of one to clients that see an ExternalName: these get the routes of its
// VirtualService, which is public, at port 80 only.
func TestANameThatIsAnotherServicesForSomeClients(t *testing.T) {
	w, h := newWorld(), &history{standing: map[object.Key]*object.Object{}, proxies: []mesh.Node{
		proxy(t, "sidecar~10.9.0.5~p1.x~x.svc.cluster.local", "app=a"),
		proxy(t, "sidecar~10.9.0.6~p2.y~y.svc.cluster.local", "app=b"),
	}}
	for _, n := range h.proxies {
		w.join(n)
	}
	for _, c := range objects(t, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: x}
spec: {clusterIP: 10.96.1.1, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: all, namespace: x}
spec: {hosts: [e.y.svc.cluster.local], resolution: STATIC, ports: [{name: http, number: 8000, protocol: HTTP}], endpoints: [{address: 10.1.1.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: e, namespace: y, annotations: {networking.istio.io/exportTo: "."}}
spec: {type: ExternalName, externalName: web.x.svc.cluster.local, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: e, namespace: x}
spec: {hosts: [e.y.svc.cluster.local], http: [{timeout: 7s, route: [{destination: {host: web.x.svc.cluster.local}}]}]}
`) {
		h.note(c)
		w.model.Apply([]object.Change{c})
	}
	w.graph.Run()
	h.reclass(w)
	h.sameAsWhole(t, w, 0)
	class, _ := w.model.Classify().Value(model.KeyOf(h.proxies[1], ""))
	if name := "layer 0 type.googleapis.com/envoy.config.route.v3.RouteConfiguration 80 (EDS false)"; !bytes.Contains(byName(w, class)[name], []byte("e.y.svc.cluster.local:80")) {
		t.Errorf("the proxy of y has %q: want routes of e.y.svc.cluster.local", byName(w, class)[name])
	}
}

func FuzzDerivedScopesAreAsWholeOnes(f *testing.F) {
	f.Add([]byte("any bytes make a history of changes to a small mesh"))
	r := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 600)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1500 {
			data = data[:1500]
		}
		playHistory(t, data, 3, (*history).sameAsWhole)
	})
}

// manyNamespaces is a mesh of public services, two for each namespace, on shared ports.
func manyNamespaces(namespaces int) string {
	var out strings.Builder
	for i := range namespaces {
		for j := range 2 {
			fmt.Fprintf(&out, `
apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: n%d}
spec: {clusterIP: 10.96.%d.%d, selector: {app: s%[1]d}, ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p%[1]d, namespace: n%[2]d, labels: {app: s%[1]d, version: v1}}
status: {phase: Running, podIP: 10.1.%[3]d.%[4]d}
---`, j, i, i, j+1)
		}
	}
	return out.String()
}

func namespaceProxy(t testing.TB, i int) mesh.Node {
	return proxy(t, fmt.Sprintf("sidecar~10.1.%d.1~p0.n%d~n%[2]d.svc.cluster.local", i, i), "")
}

// runsSince is how often each rule has run since before.
func (w *world) runsSince(before map[string]int) map[string]int {
	out := map[string]int{}
	for rule, stats := range w.graph.Stats() {
		if n := int(stats.Runs) - before[rule]; n != 0 {
			out[rule] = n
		}
	}
	return out
}

func (w *world) runs() map[string]int { return w.runsSince(nil) }

// What is exported to all is compiled once for any number of namespaces, and a further namespace costs
// what is its own.
func TestScopesShareABase(t *testing.T) {
	const namespaces = 20
	w := newWorld()
	w.apply(t, manyNamespaces(namespaces+1))
	for i := range namespaces {
		w.join(namespaceProxy(t, i))
	}
	w.run()
	steps := []struct {
		what, yaml string
		// exactly are rules with how often they run.
		exactly map[string]int
		moved   int
	}{
		{
			what: "a DestinationRule for all",
			yaml: "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: n20}\nspec: {host: s0, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}\n",
			exactly: map[string]int{
				"cluster": 2, "endpoints": 2, "listener": 1, "virtual host": 1, "scope difference": 0, "destination rule": 1,
				"names": 0, "derived names": 0, "derived routes": 0, "derived domains": 0, "service": 0, "listener plan": 0, "route": 0,
			},
			moved: 2,
		},
		{
			what: "a VirtualService for all",
			yaml: "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: n20}\nspec: {hosts: [s0], http: [{timeout: 3s, route: [{destination: {host: s0}}]}]}\n",
			// The joined route configuration has the short names of each namespace.
			exactly: map[string]int{
				"cluster": 0, "endpoints": 0, "listener": 0, "virtual host": 1, "scope difference": 0, "virtual service": 1, "route": namespaces,
				"names": 0, "derived names": 0, "derived routes": 0, "derived domains": 0, "extra hosts": 1, "joined virtual hosts": 1,
			},
			moved: namespaces,
		},
		{
			what: "a service for all",
			yaml: "apiVersion: v1\nkind: Service\nmetadata: {name: more, namespace: n20}\nspec: {clusterIP: 10.96.20.9, selector: {app: s0}, ports: [{name: http, port: 8080}]}\n",
			exactly: map[string]int{
				"scope difference": 0, "derived names": 0, "derived routes": 0, "names": 2, "visible services": 1, "listener index": 1,
				"scope names": 1, "route hosts": 1, "route domains": 1, "virtual host": 1, "listener": 0,
			},
			moved: 2 + namespaces, // the names of the base's layers, and joined route configurations
		},
		{
			what: "an endpoint",
			yaml: "apiVersion: v1\nkind: Pod\nmetadata: {name: more, namespace: n20, labels: {app: s0}}\nstatus: {phase: Running, podIP: 10.1.200.9}\n",
			exactly: map[string]int{
				"assignment": 3, "endpoints": 3, "cluster": 0, "scope difference": 0, "names": 0, "virtual host": 0, "listener": 0,
			},
			moved: 3,
		},
		{
			what: "a DestinationRule of one namespace for a service of another",
			yaml: "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: n3}\nspec: {host: s0.n20.svc.cluster.local, exportTo: [.], trafficPolicy: {connectionPool: {tcp: {maxConnections: 9}}}}\n",
			exactly: map[string]int{
				"scope difference": 1, "derived names": 1, "cluster": 2, "listener": 1, "virtual host": 1, "route": 1, "scope names": 0,
			},
			moved: 2, // the names of two layers; the bytes of the route configuration stay the same
		},
		{
			what: "a service of one namespace for itself",
			yaml: "apiVersion: v1\nkind: Service\nmetadata: {name: own, namespace: n3, annotations: {networking.istio.io/exportTo: .}}\nspec: {clusterIP: 10.96.9.9, ports: [{name: http, port: 8080}]}\n",
			exactly: map[string]int{
				"scope difference": 1, "derived names": 1, "scope names": 0, "route": 1,
			},
			moved: 3,
		},
	}
	for _, s := range steps {
		before := w.runs()
		w.apply(t, s.yaml)
		moved := w.graph.Run()
		w.sync()
		ran := w.runsSince(before)
		for rule, n := range s.exactly {
			if ran[rule] != n {
				t.Errorf("%s: rule %q ran %d times, want %d (all: %v)", s.what, rule, ran[rule], n, ran)
			}
		}
		if len(moved) != s.moved {
			t.Errorf("%s: moved %v, want %d", s.what, moved, s.moved)
		}
	}
	base := w.joined(w.join(namespaceProxy(t, 0)))
	before := w.runs()
	class := w.join(namespaceProxy(t, namespaces))
	ran := w.runsSince(before)
	for rule, n := range map[string]int{"cluster": 0, "inline cluster": 0, "assignment": 0, "listener": 0, "virtual host": 3, "route": 1, "service": 0, "destination rule": 0, "visible services": 0} {
		if ran[rule] != n {
			t.Errorf("a new namespace: rule %q ran %d times, want %d (all: %v)", rule, ran[rule], n, ran)
		}
	}
	for k, j := range w.joined(class) {
		for other, o := range base {
			if other.Name == k.Name && (&j.Common[0][0] != &o.Common[0][0] || j.OwnSize() > j.Size()/8) {
				t.Errorf("%s: %d of %d bytes are the namespace's own: want only its two services'", k.Name, j.OwnSize(), j.Size())
			}
		}
	}
	var own []string
	for _, l := range compile.Layers(class) {
		names, _ := w.compiler.Names().Value(l)
		for _, k := range names.Keys {
			if l.Kind != compile.WorkloadLayer {
				own = append(own, k.Name)
			}
		}
	}
	if want := []string{"8080"}; !slices.Equal(own, want) {
		t.Errorf("a new namespace has %q of its own, want %q", own, want)
	}
}

// A host that is literally a name of another one has it, also where only one namespace sees that host.
func TestPrivateHostTakesADomain(t *testing.T) {
	const yaml = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: all, namespace: y}
spec: {hosts: ["*.example.com"], addresses: [10.96.0.1], ports: [{number: 80, name: http, protocol: HTTP}], resolution: NONE}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own, namespace: x}
spec: {hosts: ["10.96.0.1"], exportTo: ["."], ports: [{number: 80, name: http, protocol: HTTP}], resolution: NONE}
`
	w, whole := newWorld(), newWholeWorld()
	w.apply(t, yaml)
	whole.apply(t, yaml)
	n := proxy(t, "sidecar~10.9.0.1~p1.x~x.svc.cluster.local", "")
	got, want := byName(w, w.join(n)), byName(whole, whole.join(n))
	if len(got) != len(want) {
		t.Fatalf("%d resources, want %d", len(got), len(want))
	}
	for name := range want {
		if !bytes.Equal(got[name], want[name]) {
			t.Errorf("%s differs from a whole compile:\n%q\n%q", name, got[name], want[name])
		}
	}
}
