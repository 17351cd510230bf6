package compile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

const ingress = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec: {selector: {app: gw}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*.example.com"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80}, {name: grpc, port: 81}]}
---
apiVersion: v1
kind: Service
metadata: {name: mirror, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: mirror}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: unused, namespace: shop}
spec: {clusterIP: 10.96.0.3, selector: {app: unused}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.99.0.1}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: shop}
spec: {hosts: [far.example.org], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}, {number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: b, namespace: shop}
spec: {gateways: [gw], hosts: [b.example.com], http: [{route: [{destination: {host: far.example.org, port: {number: 80}}}]}]}
---
` + ingressA

const ingressA = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec:
  gateways: [gw]
  hosts: [a.example.com]
  http:
  - match: [{uri: {prefix: /one}}]
    route: [{destination: {host: web, port: {number: 81}, subset: v1}}]
    mirrors: [{destination: {host: mirror}}]
  - route: [{destination: {host: web, port: {number: 80}}, weight: 30}, {destination: {host: nosuch}, weight: 70}]
`

// names are the resources of a proxy, as "TYPE name".
func (w *world) names(c mesh.Class) (out []string) {
	for k, b := range w.bytes(c) {
		if b != nil {
			out = append(out, typeName(k.Kind)+" "+k.Name)
		}
	}
	slices.Sort(out)
	return out
}

// A router has the clusters and endpoints that its routes name, mirrors and subsets included, and no others.
func TestRouterHasWhatItsRoutesName(t *testing.T) {
	w := newWorld()
	w.apply(t, ingress)
	class := w.join(proxy(t, "router~10.99.0.9~gw-1.shop~shop.svc.cluster.local", "app=gw"))
	want := []string{
		"CDS BlackHoleCluster", "CDS outbound|80||far.example.org", "CDS outbound|80||mirror.shop.svc.cluster.local",
		"CDS outbound|80||web.shop.svc.cluster.local", "CDS outbound|81|v1|web.shop.svc.cluster.local",
		"EDS outbound|80||mirror.shop.svc.cluster.local", "EDS outbound|80||web.shop.svc.cluster.local", "EDS outbound|81|v1|web.shop.svc.cluster.local",
		"LDS 0.0.0.0_80", "RDS http.80",
	}
	if got := w.names(class); !slices.Equal(got, want) {
		t.Errorf("the router has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	other := w.join(proxy(t, "router~10.99.0.8~gw-2.shop~shop.svc.cluster.local", "app=other"))
	if got := w.names(other); !slices.Equal(got, []string{"CDS BlackHoleCluster"}) {
		t.Errorf("a router that no Gateway selects has %q", got)
	}
}

// An edit reruns what reads it and moves what it changes, at a router too.
func TestOnlyAffectedRulesOfRoutersRun(t *testing.T) {
	w := newWorld()
	w.apply(t, ingress)
	w.join(proxy(t, "router~10.99.0.9~gw-1.shop~shop.svc.cluster.local", "app=gw"))
	w.run()
	for _, s := range []struct {
		what, yaml string
		must       map[string]int
		never      []string
		moved      []string
	}{
		{
			what: "a weight changes", yaml: strings.NewReplacer("weight: 30", "weight: 40", "weight: 70", "weight: 60").Replace(ingressA),
			must:  map[string]int{"gateway host": 1, "route": 1, "clusters of a gateway host": 1},
			never: []string{"gateway routes", "router names", "names", "listener", "cluster", "endpoints"},
			moved: []string{"route http.80"},
		},
		{
			what: "a route names another cluster", yaml: strings.NewReplacer("subset: v1", "subset: v2").Replace(ingressA),
			must:  map[string]int{"gateway host": 1, "router names": 1},
			never: []string{"gateway routes", "listener"},
			moved: []string{"route http.80"},
		},
		{
			what:  "a Pod joins a service that a route names",
			yaml:  "apiVersion: v1\nkind: Pod\nmetadata: {name: web-2, namespace: shop, labels: {app: web, version: v2}}\nstatus: {phase: Running, podIP: 10.99.0.2}\n",
			never: []string{"gateway routes", "gateway host", "route", "listener", "cluster", "router names"},
			moved: []string{"endpoints outbound|80||web.shop.svc.cluster.local", "endpoints outbound|81|v2|web.shop.svc.cluster.local"},
		},
		{
			what:  "a Gateway that does not select the router",
			yaml:  "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: other, namespace: shop}\nspec: {selector: {app: other}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n",
			never: []string{"servers of a router", "gateway routes", "gateway host", "route", "listener"},
		},
	} {
		before := w.graph.Stats()
		w.apply(t, s.yaml)
		if moved := w.run(); !slices.Equal(moved, s.moved) {
			t.Errorf("%s: moved %q, want %q", s.what, moved, s.moved)
		}
		ran := map[string]int{}
		for rule, stats := range w.graph.Stats() {
			ran[rule] = int(stats.Runs - before[rule].Runs)
		}
		for rule, n := range s.must {
			if ran[rule] != n {
				t.Errorf("%s: rule %q ran %d times, want %d (all: %v)", s.what, rule, ran[rule], n, ran)
			}
		}
		for _, rule := range s.never {
			if ran[rule] != 0 {
				t.Errorf("%s: rule %q ran %d times, and must not", s.what, rule, ran[rule])
			}
		}
	}
}

// A destination that is no service has no DestinationRule, whoever wrote one for its host.
func TestTCPRouteOfARouterToNoService(t *testing.T) {
	w, h := newWorld(), &history{standing: map[object.Key]*object.Object{}, proxies: []mesh.Node{proxy(t, "router~10.9.0.4~gw.edge~edge.svc.cluster.local", "app=gw")}}
	w.join(h.proxies[0])
	for _, c := range objects(t, `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: tcp, namespace: edge}
spec: {selector: {app: gw}, servers: [{hosts: ["*"], port: {number: 9000, name: tcp, protocol: TCP}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tcp, namespace: edge}
spec: {hosts: ["*"], gateways: [tcp], tcp: [{route: [{destination: {host: gone.shop.svc.cluster.local, port: {number: 9000}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: own, namespace: edge}
spec: {host: gone.shop.svc.cluster.local}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: all, namespace: istio-system}
spec: {host: "*.shop.svc.cluster.local", trafficPolicy: {connectionPool: {tcp: {idleTimeout: 180s}}}}
`) {
		h.note(c)
		w.model.Apply([]object.Change{c})
	}
	w.graph.Run()
	h.reclass(w)
	h.sameAsWhole(t, w, 0)
}
