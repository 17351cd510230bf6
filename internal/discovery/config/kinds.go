package config

import (
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// kinds has the validation of each kind of object; init panics for a kind without a row.
var kinds = map[object.Kind]func(*check, object.Object){
	object.Service:       func(c *check, o object.Object) { specRules(c, o, func(s *object.ServiceSpec) { c.service(s, o.Meta) }) },
	object.EndpointSlice: func(c *check, o object.Object) { specRules(c, o, c.endpointSlice) },
	object.Pod:           func(c *check, o object.Object) { specRules(c, o, c.pod) },
	object.ConfigMap:     func(c *check, o object.Object) { specRules(c, o, c.configMap) },
	object.ServiceEntry: func(c *check, o object.Object) {
		specRules(c, o, c.serviceEntry)
		c.distribution(o.Meta)
		c.sessions(o.Meta)
	},
	object.WorkloadEntry: func(c *check, o object.Object) {
		specRules(c, o, func(s *networking.WorkloadEntry) { c.workload("spec", s, nil) })
	},
	object.VirtualService:  func(c *check, o object.Object) { specRules(c, o, c.virtualService) },
	object.DestinationRule: func(c *check, o object.Object) { specRules(c, o, c.destinationRule) },
	object.PeerAuthentication: func(c *check, o object.Object) {
		specRules(c, o, func(s *security.PeerAuthentication) {
			c.policy = object.BrokenPolicy(o.Key, s.GetSelector() != nil, object.LabelText(s.GetSelector().GetMatchLabels()), nil)
			c.peerAuthentication(s)
		})
	},
	object.RequestAuthentication: func(c *check, o object.Object) {
		specRules(c, o, func(s *security.RequestAuthentication) { c.requestAuthentication(o, s) })
	},
	object.AuthorizationPolicy: func(c *check, o object.Object) {
		specRules(c, o, func(s *security.AuthorizationPolicy) { c.authorizationPolicy(o, s) })
	},
	object.Sidecar: func(c *check, o object.Object) { specRules(c, o, c.sidecar) },
	object.Gateway: func(c *check, o object.Object) { specRules(c, o, c.gateway) },
	object.EnvoyFilter: func(c *check, o object.Object) {
		specRules(c, o, func(s *networking.EnvoyFilter) { c.envoyFilter(o.Namespace, s) })
	},
	object.ProxyConfig: func(c *check, o object.Object) { specRules(c, o, c.proxyConfig) },
	object.Telemetry: func(c *check, o object.Object) {
		specRules(c, o, func(s *telemetry.Telemetry) { c.telemetry(o.Namespace, s) })
	},
	object.WasmPlugin: func(c *check, o object.Object) {
		specRules(c, o, func(s *extensions.WasmPlugin) { c.wasmPlugin(o, s) })
	},
	object.TrafficExtension: func(c *check, o object.Object) {
		specRules(c, o, func(s *extensions.TrafficExtension) { c.trafficExtension(o, s) })
	},
	object.WorkloadGroup: func(c *check, o object.Object) { specRules(c, o, c.workloadGroup) },

	object.GatewayClass:      func(c *check, o object.Object) { specRules(c, o, c.gatewayClass) },
	object.KubernetesGateway: func(c *check, o object.Object) { specRules(c, o, c.kubernetesGateway) },
	object.HTTPRoute:         func(c *check, o object.Object) { specRules(c, o, c.kubernetesHTTPRoute) },
	object.GRPCRoute:         func(c *check, o object.Object) { specRules(c, o, c.grpcRoute) },
	object.TLSRoute:          func(c *check, o object.Object) { specRules(c, o, c.kubernetesTLSRoute) },
	object.ListenerSet:       func(c *check, o object.Object) { specRules(c, o, c.listenerSet) },
	object.TCPRoute:          func(c *check, o object.Object) { specRules(c, o, c.kubernetesTCPRoute) },
	object.UDPRoute:          func(c *check, o object.Object) { specRules(c, o, c.kubernetesUDPRoute) },
	object.ReferenceGrant:    func(c *check, o object.Object) { specRules(c, o, c.referenceGrant) },
	object.BackendTLSPolicy:  func(c *check, o object.Object) { specRules(c, o, c.backendTLSPolicy) },

	object.IngressClass: noRules,
	object.Ingress:      func(c *check, o object.Object) { specRules(c, o, c.ingress) },

	object.Namespace:      noRules,
	object.Node:           noRules,
	object.ServiceAccount: noRules,
	object.Secret:         func(c *check, o object.Object) { specRules(c, o, c.secret) },
}

func init() {
	for _, k := range object.Kinds() {
		if kinds[k] == nil {
			panic("config: no row in kinds for " + string(k))
		}
	}
}

// noRules is for kinds of whose objects no field is used.
func noRules(*check, object.Object) {}

// specRules applies rules to the object's spec. A spec of another type, which only a faulty source
// can make, is an error.
func specRules[S any](c *check, o object.Object, rules func(S)) {
	if spec, ok := o.Spec.(S); ok {
		rules(spec)
		return
	}
	c.fail("spec", "invalid spec of type %T: want that of kind %s", o.Spec, o.Kind)
}
