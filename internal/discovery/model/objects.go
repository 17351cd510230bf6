package model

import (
	"iter"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

// tableKinds are the kinds of the objects whose rows a table has, one row for each object; "" for tables
// whose rows say themselves, or come from no object.
var tableKinds = map[string]object.Kind{
	"pods": object.Pod, "nodes": object.Node, "workload entries": object.WorkloadEntry, "endpoint slices": object.EndpointSlice,
	"virtual services": object.VirtualService, "destination rules": object.DestinationRule,
	"peer authentications": object.PeerAuthentication, "authorization policies": object.AuthorizationPolicy, "request authentications": object.RequestAuthentication, "sidecars": object.Sidecar, "envoy filters": object.EnvoyFilter, "telemetries": object.Telemetry, "gateways": object.Gateway,
	"namespaces": object.Namespace, "gateway services": object.Service,
	"gateway classes": object.GatewayClass, "kubernetes gateways": object.KubernetesGateway, "listener sets": object.ListenerSet, "reference grants": object.ReferenceGrant, "namespace labels": object.Namespace,
	"backend TLS policies": object.BackendTLSPolicy, "CA bundles": object.ConfigMap, "faults of Secrets": "",
	"ingress classes": object.IngressClass, "ingresses": object.Ingress,
	"services": "", "kubernetes routes": "", "extensions": "", "mesh": "", "networks": "", "fetched keys": "",
}

// ObjectOf returns the object that a row comes from; false for a bucket, for a row that does not exist,
// and for rows without an object: the mesh configuration and denials.
func ObjectOf(read incr.Read) (object.Key, bool) {
	if read.Bucket || !read.Present {
		return object.Key{}, false
	}
	kind, known := tableKinds[read.Table]
	if !known {
		panic("model: no row in tableKinds for table " + read.Table)
	}
	key := read.Key
	if read.Table == "extensions" {
		return ExtensionObject(key)
	}
	if read.Table == "services" || read.Table == "kubernetes routes" {
		prefix, rest, _ := strings.Cut(key, "/")
		kind, key = object.Kind(prefix), rest
	}
	if kind == object.Node || kind == object.Namespace || kind == object.GatewayClass || kind == object.IngressClass {
		name, cluster, _ := strings.Cut(key, "/")
		return object.Key{Kind: kind, Name: name, Cluster: cluster}, true
	}
	ns, name, ok := strings.Cut(key, "/")
	if kind == "" || !ok || strings.HasPrefix(key, denialPrefix) {
		return object.Key{}, false
	}
	name, rest, _ := strings.Cut(name, "/")
	if kind == object.ServiceEntry {
		rest = "" // the host
	}
	return object.Key{Kind: kind, Namespace: ns, Name: name, Cluster: rest}, true
}

// Dependents yields the wanted values that were made from an object's rows, not those that have read them
// through an index only. A value may come once for each row. It yields nothing for kinds that no rule reads.
func (m *Model) Dependents(k object.Key) iter.Seq[incr.Dependent] {
	return func(yield func(incr.Dependent) bool) {
		for _, dependents := range m.dependents(k) {
			for d := range dependents {
				if d.Indirect {
					break
				}
				if !yield(d) {
					return
				}
			}
		}
	}
}

// dependents returns the dependents of each row of an object.
func (m *Model) dependents(k object.Key) []iter.Seq[incr.Dependent] {
	t := &m.tables
	switch k.Kind {
	case object.Service, object.ServiceEntry:
		var out []iter.Seq[incr.Dependent]
		for _, key := range m.owned(k) {
			out = append(out, t.services.Dependents(key))
		}
		if k.Kind == object.Service {
			out = append(out, t.gateways.Dependents(rowKey(k)))
		}
		return out
	case object.Pod:
		return []iter.Seq[incr.Dependent]{t.pods.Dependents(rowKey(k))}
	case object.Node:
		return []iter.Seq[incr.Dependent]{t.nodes.Dependents(nameKey(k))}
	case object.Namespace:
		return []iter.Seq[incr.Dependent]{t.namespaces.Dependents(nameKey(k)), t.spaces.Dependents(nameKey(k))}
	case object.GatewayClass:
		return []iter.Seq[incr.Dependent]{t.classes.Dependents(nameKey(k))}
	case object.KubernetesGateway:
		return []iter.Seq[incr.Dependent]{t.kubernetes.Dependents(rowKey(k))}
	case object.ListenerSet:
		return []iter.Seq[incr.Dependent]{t.sets.Dependents(rowKey(k))}
	case object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute:
		return []iter.Seq[incr.Dependent]{t.routes.Dependents(routeKey(k))}
	case object.IngressClass:
		return []iter.Seq[incr.Dependent]{t.ingressClasses.Dependents(nameKey(k))}
	case object.Ingress:
		return []iter.Seq[incr.Dependent]{t.ingresses.Dependents(rowKey(k))}
	case object.ReferenceGrant:
		return []iter.Seq[incr.Dependent]{t.grants.Dependents(rowKey(k))}
	case object.BackendTLSPolicy:
		return []iter.Seq[incr.Dependent]{t.policies.Dependents(rowKey(k))}
	case object.ConfigMap:
		return []iter.Seq[incr.Dependent]{t.bundles.Dependents(rowKey(k))}
	case object.WorkloadEntry:
		return []iter.Seq[incr.Dependent]{t.entries.Dependents(rowKey(k))}
	case object.EndpointSlice:
		return []iter.Seq[incr.Dependent]{t.slices.Dependents(rowKey(k))}
	case object.VirtualService:
		return []iter.Seq[incr.Dependent]{t.virtuals.Dependents(rowKey(k))}
	case object.DestinationRule:
		return []iter.Seq[incr.Dependent]{t.dests.Dependents(rowKey(k))}
	case object.PeerAuthentication:
		return []iter.Seq[incr.Dependent]{t.peers.Dependents(rowKey(k))}
	case object.AuthorizationPolicy:
		return []iter.Seq[incr.Dependent]{t.authz.Dependents(rowKey(k))}
	case object.RequestAuthentication:
		return []iter.Seq[incr.Dependent]{t.tokens.Dependents(rowKey(k))}
	case object.Gateway:
		return []iter.Seq[incr.Dependent]{t.routers.Dependents(rowKey(k))}
	case object.EnvoyFilter:
		return []iter.Seq[incr.Dependent]{t.filters.Dependents(rowKey(k))}
	case object.WasmPlugin, object.TrafficExtension:
		return []iter.Seq[incr.Dependent]{t.extensions.Dependents(extensionKey(k))}
	case object.Telemetry:
		return []iter.Seq[incr.Dependent]{t.telemetry.Dependents(rowKey(k))}
	case object.Sidecar:
		return []iter.Seq[incr.Dependent]{t.sidecars.Dependents(rowKey(k))}
	}
	return nil
}
