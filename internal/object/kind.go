package object

import (
	"fmt"
	"slices"
	"strings"
)

// shortNames are kubectl's short names of kinds.
var shortNames = map[string]Kind{
	"ns": Namespace, "svc": Service, "po": Pod, "sa": ServiceAccount, "cm": ConfigMap, "se": ServiceEntry, "we": WorkloadEntry, "wg": WorkloadGroup,
	"vs": VirtualService, "dr": DestinationRule, "pa": PeerAuthentication, "ra": RequestAuthentication, "ap": AuthorizationPolicy, "gw": Gateway, "gc": GatewayClass, "lset": ListenerSet, "refgrant": ReferenceGrant, "btlspolicy": BackendTLSPolicy, "ing": Ingress,
	"telemetry": Telemetry,
}

// ParseKind finds the kind that a user means: by its name, the plural of that or kubectl's short name, in
// any case, and with or without the API group, as in "virtualservices.networking.istio.io".
func ParseKind(text string) (Kind, error) {
	name, group, _ := strings.Cut(strings.ToLower(text), ".")
	if strings.HasSuffix("."+group, ".gateway.networking.k8s.io") && slices.Contains([]string{"gateway", "gateways", "gtw"}, name) {
		return KubernetesGateway, nil
	}
	if k, ok := shortNames[name]; ok {
		return k, nil
	}
	var all []string
	for _, k := range Kinds() {
		lower := strings.ToLower(string(k))
		plural := lower + "s"
		if strings.HasSuffix(lower, "ss") {
			plural = lower + "es"
		}
		if strings.HasSuffix(lower, "ry") || strings.HasSuffix(lower, "cy") {
			plural = strings.TrimSuffix(lower, "y") + "ies"
		}
		if name == lower || name == plural {
			return k, nil
		}
		all = append(all, string(k))
	}
	return "", fmt.Errorf("invalid kind %q: want one of %s", text, strings.Join(all, ", "))
}
