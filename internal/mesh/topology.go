package mesh

import (
	"math"

	meshv1 "istio.io/api/mesh/v1alpha1"
)

// Topology is what a ProxyConfig's gatewayTopology says of the proxies in front of a router. [control-plane 1.4.30]
type Topology struct {
	// Set is false if a node says nothing, so that the mesh's default applies.
	Set bool
	// TrustedProxies is how many proxies in front are trusted to append addresses to x-forwarded-for.
	TrustedProxies uint32
	// ClientCert is what becomes of x-forwarded-client-cert.
	ClientCert meshv1.ForwardClientCertDetails
	// ProxyProtocol is set if every connection begins with the header of the PROXY protocol.
	ProxyProtocol bool
}

// TopologyOf returns the topology of a mesh configuration's defaultConfig.
func TopologyOf(t *meshv1.Topology) Topology {
	if t == nil {
		return Topology{}
	}
	return Topology{Set: true, TrustedProxies: t.NumTrustedProxies, ClientCert: t.ForwardClientCertDetails, ProxyProtocol: t.ProxyProtocol != nil}
}

// topologyKey is the JSON name of the field of ProxyConfig.
const topologyKey = "gatewayTopology"

// IsTopology reports whether the field of ProxyConfig with the JSON name is the topology.
func IsTopology(name string) bool { return name == topologyKey }

// DecodeTopology returns the topology in a node's metadata, in the form of JSON. What cannot be read of it is as if it were not there: then
// no proxy in front is trusted, and what clients say of their certificates is replaced.
func DecodeTopology(v any) (t Topology) {
	fields, ok := v.(map[string]any)
	if !ok {
		return t
	}
	t.Set = true
	if n, ok := fields["numTrustedProxies"].(float64); ok && n >= 0 && n <= math.MaxUint32 && n == math.Trunc(n) {
		t.TrustedProxies = uint32(n)
	}
	if name, ok := fields["forwardClientCertDetails"].(string); ok {
		t.ClientCert = meshv1.ForwardClientCertDetails(meshv1.ForwardClientCertDetails_value[name])
	}
	_, t.ProxyProtocol = fields["proxyProtocol"].(map[string]any)
	return t
}

func topology(config any) Topology {
	fields, _ := config.(map[string]any)
	return DecodeTopology(fields[topologyKey])
}
