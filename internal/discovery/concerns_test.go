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
