package objectstatus

import (
	"maps"
	"slices"

	"github.com/pilothouse/pilothouse/internal/object"
)

// mergeIngress is Merge for an Ingress: status.loadBalancer.ingress has the addresses of the gateways that serve it. Those that somebody
// else has written are replaced, and never only removed: another controller may serve the Ingress now, or may have served it while this
// one knows no address yet. [control-plane 1.11.11]
func mergeIngress(out map[string]any, want Status) (map[string]any, Change) {
	before, _ := out["loadBalancer"].(map[string]any)
	stored, _ := before["ingress"].([]any)
	addresses := want.Gateway.Addresses
	if want.Gateway.Foreign {
		addresses = nil
	}
	if len(addresses) == 0 && !want.Written {
		return out, Unchanged
	}
	same := slices.EqualFunc(stored, addresses, func(x any, a object.GatewayAddress) bool {
		return text(x, ingressField(a)) == a.Value && text(x, "ip")+text(x, "hostname") == a.Value
	})
	if same {
		return out, Unchanged
	}
	balancer := maps.Clone(before)
	if balancer == nil {
		balancer = map[string]any{}
	}
	balancer["ingress"] = nil // which removes the field, in a merge patch
	if len(addresses) > 0 {
		var all []any
		for _, a := range addresses {
			all = append(all, map[string]any{ingressField(a): a.Value})
		}
		balancer["ingress"] = all
	}
	out["loadBalancer"] = balancer
	return out, VersionChange
}

// ingressField is the field of an address in the status of an Ingress.
func ingressField(a object.GatewayAddress) string {
	if a.Type == "Hostname" {
		return "hostname"
	}
	return "ip"
}
