package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
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
	got := map[string]float64{}
	for name, value := range p.metrics() {
		if strings.HasPrefix(name, "pilot_envoy_filter_status{") {
			got[name] = value
		}
	}
	want := map[string]float64{
		`pilot_envoy_filter_status{name="shop/f",patch="cluster",result="applied"}`: 1, `pilot_envoy_filter_status{name="shop/f",patch="cluster",result="error"}`: 1,
		`pilot_envoy_filter_status{name="shop/f",patch="httpfilter",result="applied"}`: 0, `pilot_envoy_filter_status{name="shop/f",patch="httpfilter",result="error"}`: 0,
		`pilot_envoy_filter_status{name="shop/f",patch="listener",result="applied"}`: 1, `pilot_envoy_filter_status{name="shop/f",patch="listener",result="error"}`: 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}

const extended = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: filters, namespace: shop}
spec:
  configPatches:
  - {applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND}, patch: {operation: INSERT_FIRST, value: {name: there, config_discovery: {config_source: {ads: {}}, type_urls: [T]}}}}
  - {applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND}, patch: {operation: INSERT_FIRST, value: {name: nowhere, config_discovery: {config_source: {ads: {}}, type_urls: [T]}}}}
  - {applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND}, patch: {operation: INSERT_FIRST, value: {name: default, config_discovery: {config_source: {ads: {}}, type_urls: [T], default_config: {"@type": T, max_request_bytes: 1}}}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: configs, namespace: NAMESPACE}
spec:
  workloadSelector: {labels: {app: a}}
  configPatches:
  - {applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: there, typed_config: {"@type": T, max_request_bytes: BYTES}}}}
  - {applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: unnamed, typed_config: {"@type": T, max_request_bytes: 2}}}}
  - {applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: there, typed_config: {"@type": T, max_request_bytes: 3}}}}
`

func extendedBy(namespace, bytes string) string {
	return strings.NewReplacer("T]", "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer]", `"@type": T`,
		`"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer`, "NAMESPACE", namespace, "BYTES", bytes).Replace(extended)
}

// A filter and the configuration that it names may be in different EnvoyFilters, of the proxy's namespace or the root's. What is missing of
// the two is known for the proxies that both select.
func TestExtensionConfigurationsThatAreMissing(t *testing.T) {
	for _, ns := range []string{"shop", "istio-system"} {
		p := newPublished()
		p.apply(t, twoWorkloads)
		p.apply(t, extendedBy(ns, "1"))
		problems := func() string {
			effects := p.layers.patchEffects()
			p.extensionEffects(effects)
			var out []string
			for id, e := range effects {
				if text := cmp.Or(e.why, e.extensionProblem()); text != "" {
					out = append(out, fmt.Sprint(id.filter, " ", id.index, ": ", text))
				}
			}
			slices.Sort(out)
			return strings.Join(out, "\n")
		}
		const missing = ` for its proxies: without one Envoy answers requests with 500, or closes connections, when initial_fetch_timeout is over; add it with applyTo EXTENSION_CONFIG, or set default_config`
		const always = `
shop/filters 1: no patch adds the extension configuration "nowhere"` + missing + `
shop/filters 2: no patch adds the extension configuration "default" for its proxies: default_config is used; add it with applyTo EXTENSION_CONFIG`
		latest := p.connect("a", "shop", "10.1.0.1")
		ofConfigs := ns + `/configs 1: has no effect: no filter at the connected proxies names the extension configuration; add a filter with this name and config_discovery
` + ns + `/configs 2: another patch adds an extension configuration "there"; use another name`
		if got, want := problems(), ofConfigs+always; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		before, _ := latest.Load()
		if got := namesOfType(before, xds.ECDS); got != "there unnamed" {
			t.Errorf("extension configurations %q", got)
		}
		p.connect("b", "shop", "10.1.0.2")
		if got, want := problems(), ofConfigs+"\nshop/filters 0: no patch adds the extension configuration \"there\""+missing+always; got != want {
			t.Errorf("with a proxy that the configurations are not for: got\n%s\nwant\n%s", got, want)
		}
		// A change of the configuration moves it alone.
		p.apply(t, extendedBy(ns, "7"))
		after, _ := latest.Load()
		for _, typ := range xds.Types() {
			want := 0
			if typ == xds.ECDS {
				want = 1
			}
			if moved := after.Moved(before, typ); len(moved) != want {
				t.Errorf("%s: %d moved, want %d", typ, len(moved), want)
			}
		}
	}
}

// namesOfType are the names of a view's resources of a type.
func namesOfType(v *xds.View, of xds.Type) string {
	var out []string
	for r := range v.Of(of).All() {
		out = append(out, r.Name)
	}
	return strings.Join(out, " ")
}

// A client is sent the extension configurations that it asks for by name, and a change; the pages name the type.
func TestExtensionConfigurationsOverAConnection(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+strings.Replace(extendedBy("shop", "1"), "app: a", "app: reviews", 1), true)
	c := p.dial("", "").open()
	c.ask(xds.ECDS, "there")
	c.until("there", "\x08\x01")
	p.emit(strings.Replace(extendedBy("shop", "7"), "app: a", "app: reviews", 1), false)
	c.until("there", "\x08\x07")
	for _, path := range []string{"/debug/syncz", "/debug/config_dump?proxyID=reviews-1.shop&types=ecds", "/debug/config_dump?proxyID=reviews-1.shop"} {
		if _, body := p.get(p.addr.HTTP, path); !strings.Contains(body, map[bool]string{true: "extensionconfig_sent", false: "TypedExtensionConfig"}[path == "/debug/syncz"]) {
			t.Errorf("%s does not have it: %s", path, body)
		}
	}
	if _, body := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(body, `type="ecds"`) {
		t.Error("no metric has the type")
	}
	wait.Until(t, "a filter without its configuration is named", func() bool {
		return slices.ContainsFunc(p.objects(), func(e objectEntry) bool {
			return e.Object == "EnvoyFilter shop/filters" && e.Field == "spec.configPatches[1]" && e.Severity == "warning" && strings.Contains(e.Text, `"nowhere"`)
		})
	})
}
