package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

const filtered = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: f, namespace: shop}
spec:
  workloadSelector: {labels: {app: APP}}
  configPatches:
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: a.shop.svc.cluster.local}}
    patch: {operation: MERGE, value: {connect_timeout: 3s}}
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: none.shop.svc.cluster.local}}
    patch: {operation: MERGE, value: {connect_timeout: 3s}}
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {portNumber: 8080}}
    patch: {operation: MERGE, value: {connect_timeout: -3s}}
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: none}}}}}
    patch: {operation: REMOVE}
  - applyTo: LISTENER
    match: {context: SIDECAR_INBOUND}
    patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 9}}
`

// What patches do is known of connected proxies: those that match nothing of any of them, and those that are left out.
func TestPatchesThatDoNothing(t *testing.T) {
	p := newPublished()
	p.apply(t, twoWorkloads)
	p.apply(t, strings.Replace(filtered, "APP", "a", 1))
	effects := func() string {
		var out []string
		for id, e := range p.layers.patchEffects() {
			out = append(out, fmt.Sprint(id.filter, " ", id.index, ": ", e.applied, " ", e.refused, " ", e.example, " ", e.why))
		}
		slices.Sort(out)
		return strings.Join(out, "\n")
	}
	if got := effects(); got != "" {
		t.Errorf("without proxies: %s", got)
	}
	p.connect("b", "shop", "10.1.0.2")
	if got := effects(); got != "" {
		t.Errorf("of a proxy that it does not select: %s", got)
	}
	p.connect("a", "shop", "10.1.0.1")
	const want = `shop/f 0: 1 0  
shop/f 1: 0 0  
shop/f 2: 0 1 CDS outbound|8080||a.shop.svc.cluster.local invalid Cluster.ConnectTimeout: value must be greater than 0s
shop/f 3: 0 0  
shop/f 4: 1 0  `
	if got := effects(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	p.leave("a")
	if got := effects(); got != "" {
		t.Errorf("after the proxy: %s", got)
	}
}

// pilotctl objects shows both, with the patch.
func TestProblemsOfPatches(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+strings.NewReplacer("APP", "reviews", "8080", "9080", "a.shop", "reviews.shop").Replace(filtered), true)
	p.dial("", "").open().expect("CDS", "outbound|9080||reviews.shop.svc.cluster.local")
	shown := func(field, text string) func() bool {
		return func() bool {
			return slices.ContainsFunc(p.objects(), func(e objectEntry) bool {
				return e.Object == "EnvoyFilter shop/f" && e.Field == field && e.Severity == "warning" && strings.Contains(e.Text, text) && e.Origin != ""
			})
		}
	}
	wait.Until(t, "a patch matches nothing", shown("spec.configPatches[1]", "matches nothing"))
	wait.Until(t, "a patch is left out", shown("spec.configPatches[2]", "left out at 1 resources, such as CDS outbound|9080||reviews.shop.svc.cluster.local: invalid Cluster.ConnectTimeout"))
	for _, e := range p.objects() {
		if e.Field == "spec.configPatches[0]" || e.Field == "spec.configPatches[4]" {
			t.Errorf("a patch that is applied has a problem: %+v", e)
		}
	}
}
