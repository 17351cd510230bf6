package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// lacking has an object for each of the gaps.
const lacking = `
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: none}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: slow, namespace: shop}
spec: {clusterIP: 10.96.0.3, ports: [{name: http, port: 9080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slow-1, namespace: shop, labels: {kubernetes.io/service-name: slow}}
addressType: IPv4
ports: [{name: http, port: 9080}]
endpoints: [{addresses: [10.99.0.7], conditions: {ready: false}}, {addresses: [10.99.0.8], conditions: {ready: true}, targetRef: {kind: Pod, name: gone, namespace: shop}}]
---
apiVersion: v1
kind: Pod
metadata: {name: starting, namespace: shop}
status: {phase: Pending}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: one, namespace: shop}
spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: two, namespace: shop}
spec: {host: reviews.shop.svc.cluster.local, subsets: [{name: v1, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: shop}
spec: {hosts: [empty], http: [{route: [{destination: {host: empty}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: two, namespace: shop}
spec: {hosts: [empty.shop.svc.cluster.local], exportTo: [.], http: [{route: [{destination: {host: reviews}}]}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: extensions, namespace: shop}
spec:
  configPatches:
  - {applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: limited, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 77}}}}
---
apiVersion: v1
kind: Service
metadata: {name: east-west, namespace: istio-system, labels: {topology.istio.io/network: west}}
spec: {clusterIP: 10.96.0.4, ports: [{name: tls, port: 15443}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: private, namespace: shop}
stringData: {key: hidden-text}
`

func TestEveryDebugPage(t *testing.T) {
	p := synced(t)
	p.emit(lacking, false)
	for path, want := range map[string][]string{
		"":                             {"/debug/syncz\t", "/debug/pprof/profile\t", "Not available:", "/debug/krtz\t", "/debug/inject\t"},
		"/adsz":                        {`"totalClients": 1`, `"connectionId": "reviews-1.shop-`, `"app": "reviews"`, `"NAMESPACE": "shop"`, "envoy.config.route.v3.RouteConfiguration\": [\n          \"9080\"", `"*"`},
		"/adsz?proxyID=reviews-1.shop": {`"totalClients": 1`},
		"/connections":                 {`"totalClients": 1`, `"address": "127.0.0.1:`},
		"/clusterz":                    {`"id": "Kubernetes"`, `"syncStatus": "synced"`},
		"/config_dump?proxyID=reviews-1.shop&types=lds": {"virtualInbound", "envoy.config.listener.v3.Listener"},
		"/configz":                      {`"kind": "DestinationRule"`, `"apiVersion": "networking.istio.io/v1"`, `"name": "one"`, `"host": "reviews"`},
		"/ecdsz?proxyID=reviews-1.shop": {`"limited"`, "buffer.v3.Buffer"},
		"/edsz?proxyID=reviews-1.shop":  {"ClusterLoadAssignment", "10.99.0.1"},
		"/endpointShardz":               {`"reviews.shop.svc.cluster.local"`, `"Kubernetes/Kubernetes"`, `"10.99.0.1"`, `"EndpointPort": 9080`, `"spiffe://cluster.local/ns/shop/sa/default"`},
		"/endpointz":                    {`"10.99.0.1"`},
		"/instancesz":                   {`"reviews-1.shop": [`, `"hostname": "reviews.shop.svc.cluster.local"`, `"TargetPort": 9080`},
		"/factsz":                       {`"expected": 0`, `"proxy": "reviews-1.shop"`, `"sha256"`, `"pages": "127.0.0.1:`},
		"/list":                         {`"syncz"`, `"edsz"`},
		"/mesh":                         {`"rootNamespace"`, `"istio-system"`},
		"/networkz":                     {`"Network": "west"`, `"Addr": "203.0.113.9"`, `"Port": 15443`},
		"/objectz":                      {"["},
		"/classz":                       {`"generation"`},
		"/push_status":                  {`"outbound|9080||empty.shop.svc.cluster.local"`, `"outbound|9080|v1|reviews.shop.svc.cluster.local"`, `"shop/slow 10.99.0.7"`, `"shop/slow 10.99.0.8"`, `"shop/starting"`, `"reviews.shop.svc.cluster.local v1"`, `"empty.shop.svc.cluster.local"`},
		"/registryz":                    {`"hostname": "empty.shop.svc.cluster.local"`, `"defaultAddress": "10.96.0.2"`, `"protocol": "HTTP"`, `"app": "none"`},
		"/resourcesz":                   {`"kind": "VirtualService"`, `"group": "security.istio.io"`},
		"/syncz":                        {`"proxy": "reviews-1.shop"`},
		"/why?proxyID=reviews-1.shop&type=cds&name=outbound|9080|v1|reviews.shop.svc.cluster.local": {`"Service shop/reviews"`, `"DestinationRule shop/one"`},
		"/pprof/":                  {"goroutine"},
		"/pprof/goroutine?debug=1": {"goroutine profile"},
		"/pprof/cmdline":           {"discovery"},
	} {
		// Both ports serve the same pages.
		for _, addr := range []string{p.addr.HTTP, p.addr.Monitoring} {
			code, body := p.get(addr, "/debug"+path)
			for _, part := range want {
				if code != http.StatusOK || !strings.Contains(body, part) {
					t.Errorf("%s: %d, does not contain %s:\n%.2000s", path, code, part, body)
				}
			}
			if strings.Contains(body, "hidden-text") || strings.Contains(body, "aGlkZGVuLXRleHQ") {
				t.Errorf("%s shows a Secret", path)
			}
		}
	}
	for path, want := range map[string]int{
		"/why": http.StatusBadRequest, "/why?proxyID=reviews-1.shop&type=sds&name=x": http.StatusBadRequest, "/why?proxyID=reviews-1.shop&type=cds&name=x": http.StatusNotFound,
		"/why?proxyID=nobody.shop&type=cds&name=x": http.StatusNotFound,
		"/inject": http.StatusNotFound, "/ecdsz": http.StatusBadRequest, "/krtz": http.StatusNotImplemented, "/adsz?push=true": http.StatusNotImplemented, "/edsz": http.StatusBadRequest, "/edsz?proxyID=nobody.shop": http.StatusNotFound,
		"/adsz?proxyID=nobody.shop": http.StatusNotFound, "/config_dump?proxyID=reviews-1.shop&types=sds": http.StatusBadRequest, "/none": http.StatusNotFound,
	} {
		if code, body := p.get(p.addr.HTTP, "/debug"+path); code != want {
			t.Errorf("%s: %d, want %d: %.300s", path, code, want, body)
		}
	}
	var names []string
	if _, body := p.get(p.addr.HTTP, "/debug/list"); json.Unmarshal([]byte(body), &names) != nil || len(names) < 15 {
		t.Errorf("/debug/list: %s", body)
	}
	_, metrics := p.get(p.addr.Monitoring, "/metrics")
	for _, want := range []string{"pilot_eds_no_instances 3", "pilot_endpoint_not_ready 1", "endpoint_no_pod 1", "pilot_no_ip 1", "pilot_destrule_subsets 1", "pilot_vservice_dup_domain 1"} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// Services that conflict in a listener are counted and named, as long as they do.
func TestConflictsOfListeners(t *testing.T) {
	p := synced(t)
	conflicts := func(inbound, outbound string) {
		t.Helper()
		wait.NoError(t, "the metrics count the conflicts", func() error {
			_, metrics := p.get(p.addr.Monitoring, "/metrics")
			for _, want := range []string{gapInbound + " " + inbound, gapOutbound + " " + outbound} {
				if !strings.Contains(metrics, "\n"+want+"\n") {
					return errors.New("metrics lack " + want)
				}
			}
			return nil
		})
	}
	conflicts("0", "0")
	const entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: shop, creationTimestamp: %s}\n" +
		"spec: {hosts: [%[1]s.example.com], addresses: [10.5.5.5], resolution: STATIC, ports: [{number: 3306, name: tcp, protocol: TCP}], endpoints: [{address: 192.0.2.1}]}\n---\n"
	p.emit(fmt.Sprintf(entry, "new", "2026-02-01T00:00:00Z")+fmt.Sprintf(entry, "old", "2026-01-01T00:00:00Z")+
		"apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: shop}\nspec: {clusterIP: 10.96.0.9, selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: 9080}]}\n", false)
	conflicts("1", "1")
	_, page := p.get(p.addr.HTTP, "/debug/push_status")
	for _, want := range []string{`"10.5.5.5_3306 new.example.com"`, `"shop 9080 of Service/shop/other, Service/shop/reviews"`} {
		if !strings.Contains(page, want) {
			t.Errorf("/debug/push_status lacks %s:\n%s", want, page)
		}
	}
	p.batch(object.Batch{Changes: []object.Change{
		{Key: object.Key{Kind: object.ServiceEntry, Namespace: "shop", Name: "old"}},
		{Key: object.Key{Kind: object.Service, Namespace: "shop", Name: "other"}},
	}})
	conflicts("0", "0")
}

// Pages have the names of clusters: that of the control plane's own, and those of remote ones.
func TestDebugPagesNameClusters(t *testing.T) {
	p := start(t, func(o *Options) { o.Kubernetes.Cluster = "east" })
	p.emit(shop, true)
	remote := decode.Documents("west.yaml", []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n"+strings.ReplaceAll(shop, "10.99.0.1", "10.88.0.1")+
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: reviews-1, namespace: shop, labels: {kubernetes.io/service-name: reviews}}\naddressType: IPv4\n"+
		"ports: [{name: http, port: 9080}]\nendpoints: [{addresses: [10.88.0.1], conditions: {ready: true}}]\n"))
	var b object.Batch
	for _, o := range remote.Objects {
		o.Key.Cluster = "west"
		b.Changes = append(b.Changes, object.Change{Key: o.Key, Object: &o})
	}
	p.batch(b)
	for path, want := range map[string][]string{
		"/clusterz":       {`"id": "east"`},
		"/registryz":      {`"east": [`},
		"/endpointShardz": {`"Kubernetes/east": [`, `"Kubernetes/west": [`, `"ClusterID": "east"`, `"ClusterID": "west"`, `"10.88.0.1"`},
	} {
		if _, body := p.get(p.addr.HTTP, "/debug"+path); !containsAll(body, want) {
			t.Errorf("%s does not contain all of %s:\n%.3000s", path, want, body)
		} else if path == "/endpointShardz" && strings.Count(body, `"EndpointPort"`) != 2 {
			t.Errorf("want each endpoint once:\n%.3000s", body)
		}
	}
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// The requests come from an address of another host, to both HTTP ports.
func TestEveryDebugPageIsGuardedOnBothPorts(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	ask := func(h http.Handler, path, token string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr = "10.9.9.8:1"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 8080})))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	workload, system := p.token("shop", "default"), p.token("istio-system", "istiod")
	for name, h := range map[string]http.Handler{"HTTP": p.server.debugMux(), "monitoring": p.server.monitoringMux()} {
		paths := []string{"/debug", "/debug/", "/ui"}
		for _, page := range p.server.pages() {
			paths = append(paths, "/debug/"+page.path)
		}
		for _, path := range paths {
			if got := ask(h, path, ""); got != http.StatusUnauthorized {
				t.Errorf("%s %s without a token: %d, want 401", name, path, got)
			}
			if got := ask(h, path, workload); got != http.StatusForbidden {
				t.Errorf("%s %s as a workload: %d, want 403", name, path, got)
			}
		}
		for _, path := range []string{"/debug", "/debug/registryz", "/debug/pprof/heap", "/ui/"} {
			if got := ask(h, path, system); got != http.StatusOK {
				t.Errorf("%s %s as the control plane's namespace: %d, want 200", name, path, got)
			}
		}
	}
}
