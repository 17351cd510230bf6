package discovery

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Why a provider cannot be asked is known of connected proxies: by policy, for sidecars and routers.
func TestProvidersThatCannotBeAsked(t *testing.T) {
	const custom = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: NAME, namespace: shop}
spec: {SELECTOR, action: CUSTOM, provider: {name: NAME}, rules: [{}]}
---`
	policy := func(name, selector string) string {
		return strings.NewReplacer("NAME", name, "SELECTOR", selector).Replace(custom)
	}
	const byApp = "selector: {matchLabels: {app: a}}"
	router := policy("port", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]") + `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec: {selector: {app: gw}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gw, namespace: shop, labels: {app: gw, gateway.networking.k8s.io/gateway-name: gw}}
status: {phase: Running, podIP: 10.1.0.9}
---
`
	for name, c := range map[string]struct{ objects, want string }{
		"one that can":        {policy("good", byApp), "map[]"},
		"of nobody":           {policy("none", "selector: {matchLabels: {app: x}}"), "map[]"},
		"none":                {policy("none", byApp), `map[shop/none:there is no provider "none" in extensionProviders of mesh configuration]`},
		"a tracer":            {policy("tracer", byApp), `map[shop/tracer:provider "tracer" is not one of external authorization: want envoyExtAuthzHttp or envoyExtAuthzGrpc]`},
		"no service":          {policy("lost", byApp), `map[shop/lost:provider "lost": namespace shop sees no Service or ServiceEntry with the host "lost.shop.svc.cluster.local"]`},
		"another namespace's": {policy("other", byApp), `map[shop/other:provider "other": in namespace shop the host "b.shop.svc.cluster.local" is that of a service of namespace shop]`},
		"a hidden service":    {policy("hidden", byApp), `map[shop/hidden:provider "hidden": namespace shop sees no Service or ServiceEntry with the host "hidden.else.svc.cluster.local"]`},
		"no port":             {policy("port", byApp), `map[shop/port:provider "port": b.shop.svc.cluster.local has no port 1]`},
		"no address":          {policy("headless", byApp), `map[shop/headless:provider "headless": headless.shop.svc.cluster.local has no addresses of its own, as it is headless or has resolution NONE]`},
		"two of them":         {policy("good", byApp) + policy("port", byApp), `map[shop/good:policies of one workload have the providers good, port: want one shop/port:policies of one workload have the providers good, port: want one]`},
		"of a router":         {router, `map[shop/port:provider "port": b.shop.svc.cluster.local has no port 1]`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPublished()
			m, verdicts := config.MeshConfig(`extensionProviders:
- {name: good, envoyExtAuthzGrpc: {service: b.shop.svc.cluster.local, port: 9090}}
- {name: port, envoyExtAuthzGrpc: {service: shop/b.shop.svc.cluster.local, port: 1}}
- {name: lost, envoyExtAuthzGrpc: {service: lost.shop.svc.cluster.local, port: 1}}
- {name: other, envoyExtAuthzGrpc: {service: other/b.shop.svc.cluster.local, port: 9090}}
- {name: hidden, envoyExtAuthzGrpc: {service: hidden.else.svc.cluster.local, port: 9090}}
- {name: headless, envoyExtAuthzGrpc: {service: headless.shop.svc.cluster.local, port: 9090}}
- {name: tracer, zipkin: {service: b.shop.svc.cluster.local, port: 9090}}
`)
			if config.Rejected(verdicts) {
				t.Fatal(verdicts)
			}
			p.model.SetMesh(m)
			p.apply(t, twoWorkloads+`---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, selector: {app: b}, ports: [{name: http, port: 9090}]}
---
apiVersion: v1
kind: Service
metadata: {name: hidden, namespace: else, annotations: {networking.istio.io/exportTo: "."}}
spec: {clusterIP: 10.96.0.7, selector: {app: b}, ports: [{name: http, port: 9090}]}
---
`+c.objects)
			if got := fmt.Sprint(p.layers.externalFaults()); got != "map[]" {
				t.Errorf("without proxies: %s", got)
			}
			p.connect("a", "shop", "10.1.0.1")
			p.join("gw", model.KeyOf(mesh.Node{NodeID: mesh.NodeID{Role: mesh.Router, ID: "gw", Domain: "shop.svc.cluster.local", IP: netip.MustParseAddr("10.1.0.9")}}, ""))
			if got := fmt.Sprint(p.layers.externalFaults()); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}
