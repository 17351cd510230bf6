package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// selecting has for each kind that selects proxies one object for reviews, and one for a workload that nothing is connected of.
const selecting = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: NAME, namespace: shop, generation: 1}
spec: {selector: {matchLabels: {app: NAME}}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: NAME, namespace: shop, generation: 1}
spec: {selector: {matchLabels: {app: NAME}}, jwtRules: [{issuer: a, jwks: '{"keys": [{"crv":"Ed25519","kid":"1","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: NAME, namespace: shop, generation: 1}
spec:
  workloadSelector: {labels: {app: NAME}}
  configPatches: [{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND}, patch: {operation: INSERT_FIRST, value: {name: NAME, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 7}}}}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: NAME, namespace: shop, generation: 1}
spec: {selector: {matchLabels: {app: NAME}}, accessLogging: [{providers: [{name: envoy}]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: NAME, namespace: shop, generation: 1}
spec: {workloadSelector: {labels: {app: NAME}}, egress: [{hosts: ["*/*"]}]}
---
`

// A proxy that connects after a policy was written is concerned if the policy selects it, not because it was looked at whether it does.
func TestAPolicyConcernsTheProxiesThatItSelects(t *testing.T) {
	p, o := observed(t, func([]object.Key) {})
	p.emit(shop+"---"+strings.ReplaceAll(selecting, "NAME", "reviews")+strings.ReplaceAll(selecting, "NAME", "nobody")[1:]+`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: all, namespace: shop, generation: 1}
spec: {rules: [{}]}
`, true)
	go p.dial("", "").open().takeAll()
	go p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open().takeAll()
	for _, kind := range []object.Kind{object.AuthorizationPolicy, object.RequestAuthentication, object.EnvoyFilter, object.Telemetry, object.Sidecar} {
		for name, want := range map[string]int{"reviews": 1, "nobody": 0, "all": 2} {
			if name == "all" && kind != object.AuthorizationPolicy {
				continue
			}
			key := object.Key{Kind: kind, Namespace: "shop", Name: name}
			wait.NoError(t, fmt.Sprintf("%s concerns %d", key, want), func() error {
				code, body := p.get(p.addr.HTTP, fmt.Sprintf("/debug/applied?kind=%s&namespace=shop&name=%s", kind, name))
				var got appliedAnswer
				if err := json.Unmarshal([]byte(body), &got); code != http.StatusOK || err != nil || len(got.Objects) != 1 {
					return fmt.Errorf("%d %s (%w)", code, body, err)
				}
				if e := got.Objects[0]; e.Proxies != want || e.Applied != want {
					return fmt.Errorf("%d of %d, want %d", e.Applied, e.Proxies, want)
				}
				return nil
			})
			o.until(t, key, 1, objectstatus.Counts{Proxies: want, Applied: want})
		}
	}
}

// selectable has objects that select proxies; SELECT is where what they select them by is.
var selectable = map[object.Kind]string{
	object.AuthorizationPolicy:   "security.istio.io/v1\nspec: {SELECT rules: [{to: [{operation: {ports: ['9080']}}]}]}",
	object.RequestAuthentication: "security.istio.io/v1\nspec: {SELECT jwtRules: [{issuer: a, jwks: '{\"keys\": [{\"crv\":\"Ed25519\",\"kid\":\"1\",\"kty\":\"OKP\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}'}]}",
	object.PeerAuthentication:    "security.istio.io/v1\nspec: {SELECT mtls: {mode: STRICT}}",
	object.EnvoyFilter: `networking.istio.io/v1alpha3
spec: {SELECT configPatches: [{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 7}}}}]}`,
	object.WasmPlugin:       "extensions.istio.io/v1alpha1\nspec: {SELECT url: 'oci://example.com/a:1'}",
	object.TrafficExtension: "extensions.istio.io/v1alpha1\nspec: {SELECT lua: {inlineCode: 'function envoy_on_request(h) end'}}",
	object.Telemetry:        "telemetry.istio.io/v1\nspec: {SELECT accessLogging: [{providers: [{name: envoy}]}]}",
	object.Sidecar:          "networking.istio.io/v1\nspec: {SELECT egress: [{hosts: ['./other.shop.svc.cluster.local']}]}",
	object.DestinationRule:  "networking.istio.io/v1\nspec: {SELECT host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}",
	object.Gateway:          "networking.istio.io/v1\nspec: {SELECT servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
	object.ProxyConfig:      "networking.istio.io/v1beta1\nspec: {SELECT concurrency: 7}",
}

// Whatever an object selects proxies by, it concerns those that it selects and no others of their namespace, whether one counts those whose
// configuration it changed or those that have something that was made from it.
func TestAnObjectConcernsExactlyTheProxiesThatItSelects(t *testing.T) {
	p, o := observed(t, func([]object.Key) {})
	mesh := strings.Replace(shop, "labels: {app: reviews}", "labels: {app: reviews, security.istio.io/tlsMode: istio}", 1)
	p.emit(mesh+strings.ReplaceAll("---"+mesh, "reviews", "other")+"---\n"+strings.Join([]string{
		"{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: front, namespace: shop}, spec: {selector: {app: gateway}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: ['*']}]}}",
		"{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: other, namespace: shop}, spec: {selector: {app: gateway-other}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: ['*']}]}}",
		"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: gateway, namespace: shop}, spec: {gatewayClassName: istio, listeners: [{name: a, port: 82, protocol: HTTP}]}}",
	}, "\n---\n")+"\n", true)
	for _, app := range []string{"reviews", "other", "gateway", "gateway-other"} {
		go p.connectAs(app, p.addr.GRPC, insecure.NewCredentials(), "").open().takeAll()
	}
	wait.Until(t, "all are connected", func() bool {
		views, ok := p.server.loop.viewsSnapshot()
		return ok && len(views.proxies) == 4
	})
	generation := int64(0)
	concerns := func(t *testing.T, kind object.Kind, how, selected string, want int, others ...string) {
		t.Helper()
		generation++
		version, spec, _ := strings.Cut(selectable[kind], "\n")
		spec = strings.NewReplacer(append([]string{"SELECT", selected}, others...)...).Replace(spec)
		key := object.Key{Kind: kind, Namespace: "shop", Name: "one"}
		p.emit(fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: one, namespace: shop, generation: %d}\n%s\n", version, kind, generation, spec), false)
		defer p.batch(object.Batch{Changes: []object.Change{{Key: key}}})
		// Whether they have acknowledged it is another matter: these clients do not ask for extension configurations.
		wait.NoError(t, fmt.Sprintf("%s with %s concerns %d", kind, how, want), func() error {
			got := p.concerned(key)
			observation, _ := o.of(key)
			if got.State != stateInForce || got.Proxies != want || observation.InForce != generation || observation.Counts.Proxies != want {
				return fmt.Errorf("%d (%s %+v), and %d in the status of generation %d; want %d", got.Proxies, got.State, got.Problems, observation.Counts.Proxies, observation.InForce, want)
			}
			return nil
		})
	}
	for kind := range selectable {
		key, targets := "selector: {matchLabels: {app: %s}},", true
		ofWorkload, ofGateway, all := 1, 1, 4
		switch kind {
		case object.EnvoyFilter:
			key = "workloadSelector: {labels: {app: %s}},"
		case object.Sidecar:
			key, targets, ofGateway, all = "workloadSelector: {labels: {app: %s}},", false, 0, 2
		case object.DestinationRule: // these gateways have no route to the host
			key, targets, all = "workloadSelector: {matchLabels: {app: %s}},", false, 2
		case object.Gateway:
			key, targets, ofWorkload, all = "selector: {app: %s},", false, 0, 2
		case object.PeerAuthentication: // gateways have no inbound listeners
			targets, all = false, 2
		case object.ProxyConfig: // is for Pods that are injected
			targets, ofWorkload, ofGateway, all = false, 0, 0, 0
		}
		t.Run(string(kind), func(t *testing.T) {
			concerns(t, kind, "a selector", fmt.Sprintf(key, "reviews"), ofWorkload)
			concerns(t, kind, "a selector of nobody", fmt.Sprintf(key, "nobody"), 0)
			concerns(t, kind, "a selector of a gateway", fmt.Sprintf(key, "gateway"), ofGateway)
			concerns(t, kind, "no selector", "", all)
			if targets {
				concerns(t, kind, "a target", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}],", 1)
			}
		})
	}
	// Clients use mutual TLS unless a policy says that it is not accepted, whether it accepts plaintext as well.
	t.Run("clients", func(t *testing.T) {
		const reviews, ports = "selector: {matchLabels: {app: reviews}},", "mtls: {mode: STRICT}"
		concerns(t, object.PeerAuthentication, "a port", reviews, 1, ports, "portLevelMtls: {9080: {mode: STRICT}}")
		concerns(t, object.PeerAuthentication, "DISABLE", reviews, 2, "STRICT", "DISABLE")
		concerns(t, object.PeerAuthentication, "DISABLE for a port", reviews, 2, ports, "portLevelMtls: {9080: {mode: DISABLE}}")
		concerns(t, object.PeerAuthentication, "DISABLE for a port without a service", reviews, 1, ports, "portLevelMtls: {9: {mode: DISABLE}}")
		p.emit("{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: shop}, spec: {mtls: {mode: DISABLE}}}\n", false)
		concerns(t, object.PeerAuthentication, "STRICT instead of the namespace's DISABLE", reviews, 2)
		concerns(t, object.PeerAuthentication, "DISABLE as in the namespace", reviews, 1, "STRICT", "DISABLE")
	})
}

// concerned returns what /debug/applied says of an object.
func (p *plane) concerned(k object.Key) appliedEntry {
	p.t.Helper()
	code, body := p.get(p.addr.HTTP, fmt.Sprintf("/debug/applied?kind=%s&namespace=%s&name=%s", k.Kind, k.Namespace, k.Name))
	var got appliedAnswer
	if err := json.Unmarshal([]byte(body), &got); code != http.StatusOK || err != nil || len(got.Objects) != 1 {
		p.t.Fatalf("%d %s (%v)", code, body, err)
	}
	return got.Objects[0]
}
