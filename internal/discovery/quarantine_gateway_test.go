package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/wait"
)

// Two gateways refuse a change of their listener, so that their class has it in quarantine and goes on with what was accepted. A policy that comes
// then is never left out: the listener is closed, also for a gateway that starts after that, until one with the policy is accepted.
func TestQuarantineAtGatewaysIsClosedByANewerPolicy(t *testing.T) {
	const (
		name    = "0.0.0.0_8080"
		refused = "/dev/stdout"
		gateway = `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec: {selector: {app: gateway}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: door, namespace: shop}
spec: {hosts: ["*"], gateways: [door], http: [{route: [{destination: {host: reviews}}]}]}
`
		logs = `apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: logs, namespace: shop}
spec: {accessLogging: [{providers: [{name: envoy}], disabled: DISABLED}]}
`
		deny = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: shop}
spec: {selector: {matchLabels: {app: gateway}}, action: DENY, rules: [{to: [{operation: {paths: [/denied]}}]}]}
`
	)
	p := start(t)
	p.emit(shop+gateway, true)
	connect := func() *client {
		c := p.connectAs("gateway", p.addr.GRPC, insecure.NewCredentials(), "")
		c.refuses = func(r *discoveryv3.DeltaDiscoveryResponse) string {
			for _, res := range r.Resources {
				if res.Name == name && strings.Contains(string(res.Resource.Value), refused) {
					return name + ": cannot open " + refused
				}
			}
			return ""
		}
		return c.open()
	}
	closed := func(c *client) func() bool {
		return func() bool {
			var l listenerv3.Listener
			if c.have[name] == "" || proto.Unmarshal([]byte(c.have[name]), &l) != nil {
				return false
			}
			return len(l.FilterChains) == 1 && !strings.Contains(c.have[name], "http_connection_manager")
		}
	}
	quarantined := func(n int) {
		t.Helper()
		wait.NoError(t, "the number of quarantines", func() error {
			if _, body := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(body, fmt.Sprintf("pilothouse_quarantined_resources{type=\"lds\"} %d", n)) {
				return fmt.Errorf("it is not %d", n)
			}
			return nil
		})
	}
	a, b := connect(), connect()
	all := []*client{a, b}
	for _, c := range all {
		c.until(name, "http_connection_manager")
	}
	p.emit(strings.Replace(logs, "DISABLED", "false", 1), false)
	for _, c := range all {
		c.wait("a refusal", func() bool { return c.refused > 0 })
	}
	quarantined(1)
	third := connect()
	third.until(name, "http_connection_manager") // what the others have accepted
	all = append(all, third)
	if third.refused > 0 || slices.ContainsFunc(all, func(c *client) bool { return closed(c)() }) {
		t.Fatal("without a policy, what was accepted does not stay")
	}
	p.emit(deny, false)
	for _, c := range all {
		c.wait("a listener that accepts nothing", closed(c))
	}
	fourth := connect()
	fourth.wait("a listener that accepts nothing", closed(fourth))
	for _, c := range append(all, fourth) {
		if text := c.have[name]; strings.Contains(text, "http_connection_manager") {
			t.Error("a gateway goes on without the policy")
		}
	}
	p.emit(strings.Replace(logs, "DISABLED", "true", 1), false)
	for _, c := range append(all, fourth) {
		c.until(name, "policy[deny]")
	}
	quarantined(0)
}
