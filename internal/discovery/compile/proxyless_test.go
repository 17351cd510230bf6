package compile_test

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// proxylessClient is a gRPC library in place of a proxy.
func proxylessClient(n mesh.Node) mesh.Node {
	n.Metadata.Generator, n.Metadata.ProxylessCertificates = mesh.GeneratorGRPC, true
	return n
}

// A gRPC client's cluster uses mutual TLS of itself only where every endpoint accepts it from a library: with the label, a port that is
// declared as HTTP or mode STRICT, and a library that has certificates.
func TestProxylessMutualTLS(t *testing.T) {
	const world = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: PORT, port: 80, targetPort: 7070}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, security.istio.io/tlsMode: istio}}
status: {phase: Running, podIP: 10.99.1.1}
`
	const strict = `
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`
	rule := func(tls string) string {
		return `
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, trafficPolicy: {tls: ` + tls + `}}
`
	}
	const other = `
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.99.1.2}
`
	for _, c := range []struct {
		name, port, more string
		bare             bool   // no certificates
		want             string // "mutual", "plain", or "none" for no cluster
	}{
		{"declared", "grpc", "", false, "mutual"},
		{"without certificates", "grpc", "", true, "plain"},
		{"not declared", "unknown", "", false, "plain"},
		{"not declared, strict", "unknown", strict, false, "mutual"},
		{"one endpoint without", "grpc", other, false, "plain"},
		{"one endpoint without, and a rule", "grpc", other + rule("{mode: ISTIO_MUTUAL}"), true, "mutual"},
		{"rule: off", "grpc", rule("{mode: DISABLE}"), false, "plain"},
		{"rule: TLS that no library has", "grpc", rule("{mode: SIMPLE}"), false, "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			w.apply(t, strings.ReplaceAll(world, "PORT", c.port)+c.more)
			n := proxylessClient(proxy(t, "sidecar~10.99.0.2~client-1.shop~shop.svc.cluster.local", "app=client"))
			n.Metadata.ProxylessCertificates = !c.bare
			got := "missing"
			for k, value := range w.bytes(w.join(n)) {
				if k.Name != "outbound|80||web.shop.svc.cluster.local" || !strings.HasSuffix(k.Kind.TypeURL(), ".Cluster") {
					continue
				}
				switch {
				case value == nil:
					got = "none"
				case strings.Contains(string(value), "UpstreamTlsContext"):
					got = "mutual"
				default:
					got = "plain"
				}
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestProxylessServersWithPoliciesAreClosed: a library evaluates no AuthorizationPolicy, so that its server has no route if there
// is one that may deny.
func TestProxylessServersWithPoliciesAreClosed(t *testing.T) {
	for spec, closed := range map[string]bool{"{}": true, "{action: DENY, rules: [{}]}": true, "{action: AUDIT, rules: [{}]}": false} {
		w := newWorld()
		w.apply(t, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: grpc, port: 80, targetPort: 7070}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.99.1.1}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: a, namespace: shop}
spec: `+spec)
		servers := 0
		for k, value := range w.bytes(w.join(proxylessClient(proxy(t, "sidecar~10.99.1.1~web-1.shop~shop.svc.cluster.local", "app=web")))) {
			if k.Kind != compile.ListenerServer {
				continue
			}
			servers++
			chain := message(t, k.Kind, value).(*listenerv3.Listener).FilterChains[0]
			hcm := &hcmv3.HttpConnectionManager{}
			if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(hcm); err != nil {
				t.Fatal(err)
			}
			if got := len(hcm.GetRouteConfig().VirtualHosts[0].Routes) == 0; got != closed {
				t.Errorf("%s: closed %v, want %v", spec, got, closed)
			}
		}
		if servers == 0 {
			t.Error("there is no server")
		}
	}
}

// A service that only one namespace sees may have the name that is short for another service. Clients in that namespace get the
// listeners of the former alone, though all others have those of the latter under that name.
func TestProxylessNameThatOneNamespaceSees(t *testing.T) {
	const world = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: x}
spec: {clusterIP: 10.96.0.1, selector: {app: a}, ports: [{name: grpc, port: 80}, {name: grpc-more, port: 90}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: private, namespace: y}
spec: {hosts: [NAME], exportTo: ["."], resolution: STATIC, ports: [{name: grpc, number: 80, protocol: GRPC}], endpoints: [{address: 10.1.1.1}]}
`
	for _, name := range []string{"a.x", "a.x.svc", "a", "other.x"} {
		t.Run(name, func(t *testing.T) {
			w, h := newWorld(), &history{standing: map[object.Key]*object.Object{}, proxies: []mesh.Node{
				proxylessClient(proxy(t, "sidecar~10.9.0.5~p1.x~x.svc.cluster.local", "app=a")),
				proxylessClient(proxy(t, "sidecar~10.9.0.6~p2.y~y.svc.cluster.local", "app=b")),
			}}
			for _, n := range h.proxies {
				w.join(n)
			}
			for _, c := range objects(t, strings.ReplaceAll(world, "NAME", name)) {
				h.note(c)
				w.model.Apply([]object.Change{c})
			}
			w.graph.Run()
			h.reclass(w)
			h.sameAsWhole(t, w, 0)
		})
	}
}
