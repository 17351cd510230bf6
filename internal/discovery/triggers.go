package discovery

import "github.com/pilothouse/pilothouse/internal/object"

// triggerEffect classifies a change of an object as Istio's metrics do.
type triggerEffect struct {
	// update is the type of pilot_inbound_updates, trigger that of pilot_push_triggers; empty for objects
	// of which no proxy gets anything.
	update, trigger string
}

// triggerOf returns how a change counts; ofMesh says that it is one of mesh configuration. It panics for an
// unknown kind. [control-plane 1.13]
func triggerOf(c object.Change, ofMesh bool) triggerEffect {
	switch c.Key.Kind {
	case object.Service, object.ServiceEntry:
		if c.Object == nil {
			return triggerEffect{"svcdelete", "service"}
		}
		return triggerEffect{"svc", "service"}
	case object.EndpointSlice, object.Pod, object.Node, object.WorkloadEntry:
		return triggerEffect{"eds", "endpoint"}
	case object.VirtualService, object.DestinationRule, object.PeerAuthentication, object.RequestAuthentication, object.AuthorizationPolicy, object.Sidecar, object.EnvoyFilter, object.WasmPlugin, object.TrafficExtension, object.Gateway, object.Telemetry,
		object.GatewayClass, object.KubernetesGateway, object.ListenerSet, object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute, object.ReferenceGrant, object.BackendTLSPolicy, object.IngressClass, object.Ingress:
		return triggerEffect{"config", "config"}
	case object.ConfigMap:
		if ofMesh {
			return triggerEffect{"config", "global"}
		}
		return triggerEffect{}
	case object.Namespace, object.ServiceAccount, object.Secret, object.ProxyConfig, object.WorkloadGroup:
		return triggerEffect{}
	}
	panic("discovery: unknown kind of object: " + c.Key.String())
}

// triggers are the kinds of changes that a commit applies.
type triggers map[string]bool

// countUpdate counts a change.
func (l *loop) countUpdate(c object.Change) {
	e := triggerOf(c, l.store.IsMeshConfig(c.Key))
	if e.update == "" {
		return
	}
	l.counts.updates[e.update]++
	l.triggers[e.trigger] = true
}

// countTriggers counts what has led a commit to send something to proxies of some class, and forgets it.
func (l *loop) countTriggers(classes int) {
	if classes > 0 {
		for t := range l.triggers {
			l.counts.triggers[t]++
		}
	}
	clear(l.triggers)
}
