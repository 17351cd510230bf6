package discovery

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// seen has what the pages of policies, telemetry and Sidecars show.
const seen = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: younger, namespace: shop, creationTimestamp: "2026-02-01T00:00:00Z"}
spec: {selector: {matchLabels: {app: reviews}}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: z-older, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {action: DENY, rules: [{from: [{source: {namespaces: [other]}}]}]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: all, namespace: istio-system}
spec: {accessLogging: [{providers: [{name: envoy}]}]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: others, namespace: shop}
spec: {selector: {matchLabels: {app: other}}, accessLogging: [{disabled: true}]}
---
apiVersion: v1
kind: Service
metadata: {name: mine, namespace: third, annotations: {networking.istio.io/exportTo: .}}
spec: {clusterIP: 10.96.0.5, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: own, namespace: shop, annotations: {networking.istio.io/exportTo: .}}
spec: {clusterIP: 10.96.0.7, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: open, namespace: third}
spec: {clusterIP: 10.96.0.6, ports: [{name: http, port: 80}]}
`

const restricting = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: few, namespace: shop}
spec: {workloadSelector: {labels: {app: reviews}}, egress: [{hosts: [third/*]}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
`

// page parses the answer of a page.
func (p *plane) page(path string, to any) {
	p.t.Helper()
	code, body := p.get(p.addr.HTTP, "/debug/"+path)
	if err := json.Unmarshal([]byte(body), to); code != http.StatusOK || err != nil {
		p.t.Fatalf("%s: %d, %v: %.500s", path, code, err, body)
	}
}

func TestPagesOfPoliciesAndTelemetry(t *testing.T) {
	p := synced(t)
	p.emit(seen, false)
	type entry struct {
		Name, Namespace string
		Spec            map[string]any
	}
	names := func(list []entry) (out string) {
		for _, e := range list {
			out += " " + e.Namespace + "/" + e.Name
		}
		return strings.TrimSpace(out)
	}
	var policies struct {
		Policies struct {
			All  map[string][]entry `json:"namespace_to_policies"`
			Root string             `json:"root_namespace"`
		} `json:"authorization_policies"`
	}
	p.page("authorizationz", &policies)
	shop := policies.Policies.All["shop"]
	if got, want := names(shop), "shop/z-older shop/younger"; got != want || len(policies.Policies.All) != 1 || policies.Policies.Root != "istio-system" || shop[0].Spec["action"] != "DENY" {
		t.Errorf("policies %q, want %q: %+v", got, want, policies)
	}
	wait.Until(t, "the proxy has the telemetry", func() bool {
		_, body := p.get(p.addr.HTTP, "/debug/telemetryz?proxyID=reviews-1.shop")
		return strings.Contains(body, `"all"`)
	})
	for path, want := range map[string]string{"telemetryz": "istio-system/all shop/others", "telemetryz?proxyID=reviews-1.shop": "istio-system/all"} {
		var objects struct {
			Telemetries struct {
				All  map[string][]entry `json:"namespace_to_telemetries"`
				Root string             `json:"root_namespace"`
			}
		}
		p.page(path, &objects)
		if got := names(slices.Concat(objects.Telemetries.All["istio-system"], objects.Telemetries.All["shop"])); got != want || objects.Telemetries.Root != "istio-system" {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]int{"telemetryz?proxyID=nobody.shop": http.StatusNotFound, "sidecarz": http.StatusBadRequest, "sidecarz?proxyID=nobody.shop": http.StatusNotFound} {
		if code, body := p.get(p.addr.HTTP, "/debug/"+path); code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, body)
		}
	}
}

// What a proxy sees is what is exported to its namespace, and of that what its Sidecar leaves.
func TestSidecarPage(t *testing.T) {
	p := synced(t)
	p.emit(seen, false)
	type page struct {
		Name, Namespace       string
		OutboundTrafficPolicy map[string]string
		Services              []struct{ Hostname string }
		Sidecar               *struct{ Egress []struct{ Hosts []string } }
	}
	read := func() (out page, hosts string) {
		p.page("sidecarz?proxyID=reviews-1.shop", &out)
		for _, s := range out.Services {
			hosts += " " + s.Hostname
		}
		return out, strings.TrimSpace(hosts)
	}
	const mine = "open.third.svc.cluster.local own.shop.svc.cluster.local reviews.shop.svc.cluster.local"
	if got, hosts := read(); hosts != mine || got.Name != "default-sidecar" || got.Namespace != "shop" || got.Sidecar != nil || got.OutboundTrafficPolicy["mode"] != "ALLOW_ANY" {
		t.Errorf("without a Sidecar: %+v, hosts %q", got, hosts)
	}
	p.emit(restricting, false)
	wait.Until(t, "the Sidecar is in force", func() bool { got, _ := read(); return got.Sidecar != nil })
	if got, hosts := read(); hosts != "open.third.svc.cluster.local" || got.Name != "few" || got.Namespace != "shop" || got.OutboundTrafficPolicy["mode"] != "REGISTRY_ONLY" ||
		!slices.Equal(got.Sidecar.Egress[0].Hosts, []string{"third/*"}) {
		t.Errorf("with a Sidecar: %+v, hosts %q", got, hosts)
	}
}
