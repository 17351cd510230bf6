package discovery

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/ui"
)

func TestPageShowsServices(t *testing.T) {
	p := start(t)
	p.emit(shop+`---
apiVersion: v1
kind: Pod
metadata: {name: reviews-2, namespace: shop, labels: {app: reviews, version: v2, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: reviews}
status: {phase: Running, podIP: 10.99.0.2}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: reviews, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, rules: [{from: [{source: {namespaces: [shop]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: dry, namespace: shop, annotations: {istio.io/dry-run: "true"}}
spec: {}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec: {hosts: [api.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}
---
`+route("{name: split, match: [{uri: {prefix: /a}}], route: [{destination: {host: reviews}, weight: 30}, {destination: {host: other}, weight: 10}]}, {route: [{destination: {host: reviews}}]}"), true)
	all := p.server.pageState().Services
	i := slices.IndexFunc(all, func(s ui.Service) bool { return s.Host == "reviews.shop.svc.cluster.local" })
	j := slices.IndexFunc(all, func(s ui.Service) bool { return s.Host == "api.example.com" })
	if len(all) != 2 || i < 0 || j < 0 {
		t.Fatalf("services %+v", all)
	}
	s := all[i]
	if s.Endpoints != 2 || len(s.Versions) != 1 || s.Versions[0] != (ui.Version{Name: "v2", Endpoints: 1}) || !slices.Equal(s.MutualTLS, []string{"STRICT", "no proxy"}) || !slices.Equal(s.Ports, []string{"9080 http"}) {
		t.Errorf("service %+v", s)
	}
	if len(s.Routes) != 2 || s.Routes[0].Name != "split" || !s.Routes[0].Conditional || s.Routes[0].To[0] != (ui.Destination{Name: "reviews", Percent: 75}) || s.Routes[1].Conditional || s.Routes[1].To[0].Percent != 100 {
		t.Errorf("routes %+v", s.Routes)
	}
	// One workload has no proxy, so nobody enforces anything there.
	if len(s.Groups) != 2 || len(s.Callers) != 2 {
		t.Errorf("groups %+v, callers %+v", s.Groups, s.Callers)
	}
	row := ui.RowsOf(ui.State{Services: all})["services"][s.Key]
	for _, want := range []string{`"namespace shop"`, `"everybody"`, `"policies":["shop/reviews"]`, `"differs between 2 kinds`} {
		if !strings.Contains(row, want) {
			t.Errorf("row %s lacks %s", row, want)
		}
	}
	if e := all[j]; !e.External || len(e.Callers) != 0 {
		t.Errorf("a service outside: %+v", e)
	}
	if again := p.server.pageState().Services; &again[0] != &all[0] {
		t.Error("services are computed again, though nothing has changed")
	}
	code, body := p.get(p.addr.HTTP, "/ui/neighbours?service="+s.Key)
	if code != 404 { // no page is open
		t.Errorf("%d %s", code, body)
	}
}

// Routes of the Gateway API count where no VirtualService has any, as for proxies.
func TestPageShowsRoutesOfTheGatewayAPI(t *testing.T) {
	p := start(t)
	p.emit(shop+`---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: split, namespace: shop}
spec: {parentRefs: [{group: "", kind: Service, name: reviews}], rules: [{backendRefs: [{name: reviews, port: 9080, weight: 3}, {name: other, port: 9080}]}]}
`, true)
	all := p.server.pageState().Services
	if len(all) != 1 || len(all[0].Routes) != 1 || all[0].Routes[0].Name != "HTTPRoute shop/split" || len(all[0].Routes[0].To) != 2 || all[0].Routes[0].To[0].Percent != 75 {
		t.Fatalf("services %+v", all)
	}
	p.emit(route("{name: ours, route: [{destination: {host: reviews}}]}"), false)
	if r := p.server.pageState().Services[0].Routes; len(r) != 1 || r[0].Name != "ours" {
		t.Errorf("routes %+v, want those of the VirtualService", r)
	}
}

// A gateway is no Pod without a proxy: it has an identity, which STRICT mode accepts, and enforces policies.
func TestPageShowsGateways(t *testing.T) {
	p := start(t)
	pod := func(name, labels, ip string) string {
		return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop, labels: {" + labels + "}}\nspec: {serviceAccountName: " + name + "}\nstatus: {phase: Running, podIP: " + ip + "}\n"
	}
	service := func(name, selector string) string {
		return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: shop}\nspec: {selector: {" + selector + "}, ports: [{name: http, port: 80}]}\n"
	}
	p.emit(service("web", "app: web")+pod("web", "app: web, security.istio.io/tlsMode: istio", "10.99.0.2")+
		service("edge", "app: edge")+pod("edge", "app: edge", "10.99.0.3")+service("door", "app: door")+pod("door", "app: door, gateway.networking.k8s.io/gateway-name: door", "10.99.0.4")+
		service("old", "app: old")+pod("old", "app: old", "10.99.0.5")+`---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: edge, namespace: shop}
spec: {selector: {matchLabels: {app: edge}}}
`, true)
	all := p.server.pageState().Services
	modes := map[string]string{}
	for _, s := range all {
		modes[strings.TrimSuffix(s.Host, ".shop.svc.cluster.local")] = strings.Join(s.MutualTLS, " ")
	}
	if want := map[string]string{"web": "STRICT", "edge": "gateway", "door": "gateway", "old": "no proxy"}; !maps.Equal(modes, want) {
		t.Errorf("modes %v, want %v", modes, want)
	}
	n, _ := ui.NeighboursOf(all, ui.Traffic{}, "Service/shop/web")
	if n.Callers["Service/shop/edge"] != ui.Allowed || n.Callers["Service/shop/door"] != ui.Allowed || n.Callers["Service/shop/old"] != ui.Denied {
		t.Errorf("callers of web: %v", n.Callers)
	}
	if n.Callees["Service/shop/edge"] != ui.Denied || n.Callees["Service/shop/door"] != ui.Allowed {
		t.Errorf("web calls %v", n.Callees)
	}
}
