package model

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/delegate"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// kindRow says how the model stores objects of one kind.
type kindRow struct {
	put    func(*Model, *object.Object)
	remove func(*Model, object.Key)
}

// kinds has a row for each kind of object; init panics for a kind without one.
var kinds = map[object.Kind]kindRow{
	object.Service:      stored(putService, removeServices),
	object.ServiceEntry: stored(putServiceEntry, removeServices),
	object.Pod: stored(func(m *Model, o *object.Object, spec *object.PodSpec) {
		buckets := labelBuckets(o.Namespace, o.Meta.Labels)
		for _, ip := range spec.IPs {
			buckets = append(buckets, "ip:"+ip.String())
		}
		m.tables.pods.Put(rowKey(o.Key), &Pod{Row: rowOf(o), Labels: o.Meta.Labels, Spec: spec}, buckets...)
	}, func(m *Model, k object.Key) { m.tables.pods.Delete(rowKey(k)) }),
	object.Node: stored(func(m *Model, o *object.Object, spec *object.NodeSpec) {
		m.tables.nodes.Put(nameKey(o.Key), mesh.Locality{Region: spec.Region, Zone: spec.Zone, Subzone: spec.Subzone})
	}, func(m *Model, k object.Key) { m.tables.nodes.Delete(nameKey(k)) }),
	object.WorkloadEntry: stored(func(m *Model, o *object.Object, spec *networking.WorkloadEntry) {
		e := &WorkloadEntry{Row: rowOf(o), Labels: o.Meta.Labels, Spec: spec}
		e.Unhealthy = mesh.Bool(o.Meta.Annotations[mesh.HealthChecksEnabled]) && (o.Healthy == nil || !o.Healthy.Is)
		m.tables.entries.Put(rowKey(o.Key), e, append(labelBuckets(o.Namespace, e.labels()), "ip:"+spec.Address)...)
	}, func(m *Model, k object.Key) { m.tables.entries.Delete(rowKey(k)) }),
	object.EndpointSlice: stored(func(m *Model, o *object.Object, spec *object.EndpointSliceSpec) {
		m.tables.slices.Put(rowKey(o.Key), &Slice{Row: rowOf(o), Spec: spec}, o.Namespace+"/"+spec.Service)
	}, func(m *Model, k object.Key) { m.tables.slices.Delete(rowKey(k)) }),
	object.VirtualService: stored(putVirtual, func(m *Model, k object.Key) { m.tables.virtuals.Delete(rowKey(k)) }),
	object.DestinationRule: stored(func(m *Model, o *object.Object, spec *networking.DestinationRule) {
		d := &DestinationRule{Row: rowOf(o), Host: mesh.FullHost(spec.Host, o.Namespace, m.domain), Spec: spec}
		buckets := append(exportBuckets(spec.ExportTo, o.Namespace), namespaceBucket(o.Namespace))
		if ranksByLabels(spec) {
			buckets = append(buckets, failoverPriority)
		}
		labels := spec.GetWorkloadSelector().GetMatchLabels()
		if len(labels) > 0 {
			of := clientBucket(o.Namespace, canonical(labels))
			buckets = append(buckets, of, of+" "+hostBucket(d.Host))
		} else {
			buckets = append(buckets, hostBucket(d.Host))
		}
		m.tables.dests.Put(rowKey(o.Key), d, append(buckets, selectorBucket(labels))...)
	}, func(m *Model, k object.Key) { m.tables.dests.Delete(rowKey(k)) }),
	object.PeerAuthentication: stored(func(m *Model, o *object.Object, spec *security.PeerAuthentication) {
		m.tables.peers.Put(rowKey(o.Key), &PeerAuthentication{Row: rowOf(o), Spec: spec}, "ns:"+o.Namespace)
	}, func(m *Model, k object.Key) { m.tables.peers.Delete(rowKey(k)) }),
	object.RequestAuthentication: stored(func(m *Model, o *object.Object, spec *security.RequestAuthentication) {
		m.tables.tokens.Put(rowKey(o.Key), &RequestAuthentication{Row: rowOf(o), Spec: spec}, policyBucket(o.Namespace, spec))
	}, func(m *Model, k object.Key) { m.tables.tokens.Delete(rowKey(k)) }),
	object.AuthorizationPolicy: stored(putAuthorization, func(m *Model, k object.Key) { m.tables.authz.Delete(rowKey(k)) }),
	object.Sidecar: stored(func(m *Model, o *object.Object, spec *networking.Sidecar) {
		m.tables.sidecars.Put(rowKey(o.Key), &Sidecar{Row: rowOf(o), Spec: spec}, "ns:"+o.Namespace)
	}, func(m *Model, k object.Key) { m.tables.sidecars.Delete(rowKey(k)) }),
	object.EnvoyFilter: stored(putEnvoyFilter, func(m *Model, k object.Key) { m.tables.filters.Delete(rowKey(k)) }),

	object.Telemetry: stored(func(m *Model, o *object.Object, spec *telemetry.Telemetry) {
		m.tables.telemetry.Put(rowKey(o.Key), &Telemetry{Row: rowOf(o), Spec: spec}, telemetryIndexes(o.Namespace, spec)...)
	}, func(m *Model, k object.Key) { m.tables.telemetry.Delete(rowKey(k)) }),

	object.Gateway: stored(func(m *Model, o *object.Object, spec *networking.Gateway) {
		m.tables.routers.Put(rowKey(o.Key), &Gateway{Row: rowOf(o), Spec: spec}, all)
	}, func(m *Model, k object.Key) { m.tables.routers.Delete(rowKey(k)) }),

	object.WorkloadGroup: notStored, // package register reads it

	// Mesh configuration is set by SetMesh.
	object.ConfigMap: stored(putBundle, func(m *Model, k object.Key) { m.tables.bundles.Delete(rowKey(k)) }),
	object.Namespace: {
		put: func(m *Model, o *object.Object) {
			m.tables.namespaces.Put(nameKey(o.Key), o.Meta.Labels[networkLabel], clusterBucket(o.Cluster))
			m.tables.spaces.Put(nameKey(o.Key), o.Meta.Labels)
		},
		remove: func(m *Model, k object.Key) {
			m.tables.namespaces.Delete(nameKey(k))
			m.tables.spaces.Delete(nameKey(k))
		},
	},

	object.GatewayClass: stored(func(m *Model, o *object.Object, spec *gatewayv1.GatewayClassSpec) {
		m.tables.classes.Put(nameKey(o.Key), string(spec.ControllerName))
	}, func(m *Model, k object.Key) { m.tables.classes.Delete(nameKey(k)) }),
	object.KubernetesGateway: stored(func(m *Model, o *object.Object, spec *gatewayv1.GatewaySpec) {
		m.tables.kubernetes.Put(rowKey(o.Key), kubernetesGateway(o, spec), all, namespaceBucket(o.Namespace))
	}, func(m *Model, k object.Key) { m.tables.kubernetes.Delete(rowKey(k)) }),
	object.ListenerSet: stored(putListenerSet, func(m *Model, k object.Key) { m.tables.sets.Delete(rowKey(k)) }),
	object.HTTPRoute: stored(func(m *Model, o *object.Object, spec *gatewayv1.HTTPRouteSpec) {
		m.putRoute(o, &KubernetesRoute{HTTP: spec}, spec.CommonRouteSpec, spec.Hostnames)
	}, removeRoute),
	object.GRPCRoute: stored(func(m *Model, o *object.Object, spec *gatewayv1.GRPCRouteSpec) {
		m.putRoute(o, &KubernetesRoute{GRPC: spec}, spec.CommonRouteSpec, spec.Hostnames)
	}, removeRoute),
	object.TLSRoute: stored(func(m *Model, o *object.Object, spec *gatewayv1.TLSRouteSpec) {
		var to []gatewayv1.BackendRef
		for _, r := range spec.Rules {
			to = append(to, r.BackendRefs...)
		}
		m.putRoute(o, &KubernetesRoute{Backends: to}, spec.CommonRouteSpec, spec.Hostnames)
	}, removeRoute),
	object.TCPRoute: stored(func(m *Model, o *object.Object, spec *gatewayv1.TCPRouteSpec) {
		var to []gatewayv1.BackendRef
		for _, r := range spec.Rules {
			to = append(to, r.BackendRefs...)
		}
		m.putRoute(o, &KubernetesRoute{Backends: to}, spec.CommonRouteSpec, nil)
	}, removeRoute),
	object.UDPRoute: stored(func(m *Model, o *object.Object, spec *gatewayv1.UDPRouteSpec) {
		var to []gatewayv1.BackendRef
		for _, r := range spec.Rules {
			to = append(to, r.BackendRefs...)
		}
		m.putRoute(o, &KubernetesRoute{Backends: to}, spec.CommonRouteSpec, nil)
	}, removeRoute),
	object.ReferenceGrant: stored(func(m *Model, o *object.Object, spec *gatewayv1.ReferenceGrantSpec) {
		m.tables.grants.Put(rowKey(o.Key), spec, namespaceBucket(o.Namespace))
	}, func(m *Model, k object.Key) { m.tables.grants.Delete(rowKey(k)) }),
	object.BackendTLSPolicy: stored(putBackendTLS, func(m *Model, k object.Key) { m.tables.policies.Delete(rowKey(k)) }),

	object.IngressClass: stored(func(m *Model, o *object.Object, spec *object.IngressClassSpec) {
		m.tables.ingressClasses.Put(nameKey(o.Key), spec.Controller)
	}, func(m *Model, k object.Key) { m.tables.ingressClasses.Delete(nameKey(k)) }),
	object.Ingress: stored(putIngress, func(m *Model, k object.Key) { m.tables.ingresses.Delete(rowKey(k)) }),

	object.ServiceAccount: notStored,
	object.Secret:         notStored,
	object.ProxyConfig:    notStored, // the injector reads it

	object.WasmPlugin:       stored(putWasmPlugin, removeExtension),
	object.TrafficExtension: stored(putTrafficExtension, removeExtension),
}

func init() {
	for _, k := range object.Kinds() {
		if row := kinds[k]; row.put == nil || row.remove == nil {
			panic("model: no complete row in kinds for " + string(k))
		}
	}
}

// notStored is the row of kinds that no rule reads.
var notStored = kindRow{put: func(*Model, *object.Object) {}, remove: func(*Model, object.Key) {}}

// stored returns the row of a kind whose objects have a spec of type S.
func stored[S any](put func(*Model, *object.Object, S), remove func(*Model, object.Key)) kindRow {
	return kindRow{remove: remove, put: func(m *Model, o *object.Object) {
		spec, ok := o.Spec.(S)
		if !ok {
			panic(fmt.Sprintf("model: %s has a spec of type %T, want %T", o.Key, o.Spec, spec))
		}
		put(m, o, spec)
	}}
}

// rowKey returns the key of an object's row in the table of its kind: "namespace/name", and the remote cluster after
// another "/".
func rowKey(k object.Key) string { return inCluster(k.Namespace+"/"+k.Name, k.Cluster) }

// nameKey returns the key of the row of an object without a namespace.
func nameKey(k object.Key) string { return inCluster(k.Name, k.Cluster) }

// inCluster returns the key of a row in a remote cluster; "" stands for the control plane's own.
func inCluster(key, cluster string) string {
	if cluster == "" {
		return key
	}
	return key + "/" + cluster
}

func rowOf(o *object.Object) Row {
	row := Row{Namespace: o.Namespace, Name: o.Name, Cluster: o.Cluster}
	if !o.Meta.Created.IsZero() {
		row.Age = o.Meta.Created.UnixNano()
	}
	return row
}

func putService(m *Model, o *object.Object, spec *object.ServiceSpec) {
	m.putGatewayService(o, spec)
	m.putServices(o.Key, []*Service{serviceOf(o, spec, m.domain)})
}

func putServiceEntry(m *Model, o *object.Object, spec *networking.ServiceEntry) {
	m.putServices(o.Key, servicesOfEntry(o, spec))
}

func (m *Model) putServices(owner object.Key, services []*Service) {
	before := m.owned(owner)
	var keys []string
	for _, s := range services {
		keys = append(keys, s.Key)
		buckets := append(exportBuckets(s.ExportTo, s.Namespace), all, "host:"+s.Host, namespaceBucket(s.Namespace), endpointsBucket(s), ownerBucket(owner))
		if s.Prefer == mesh.PreferNode || s.NodeLocal {
			buckets = append(buckets, byNode)
		}
		if s.IsAlias() {
			buckets = append(buckets, aliasBucket(mesh.HostName(s.Source.DNSName)))
		}
		m.tables.services.Put(s.Key, s, buckets...)
	}
	for _, old := range before {
		if !contains(keys, old) {
			m.tables.services.Delete(old)
		}
	}
}

// byNode is the bucket of services whose clients prefer endpoints on their own Node, or use no others.
const byNode = "by:node"

// ownerBucket is the bucket of the service rows of an object.
func ownerBucket(owner object.Key) string { return "of:" + owner.String() }

// owned returns the keys of the service rows of an object.
func (m *Model) owned(owner object.Key) []string {
	return m.tables.services.Members(ownerBucket(owner))
}

func removeServices(m *Model, owner object.Key) {
	if owner.Kind == object.Service {
		m.tables.gateways.Delete(rowKey(owner))
	}
	for _, key := range m.owned(owner) {
		m.tables.services.Delete(key)
	}
}

func putVirtual(m *Model, o *object.Object, spec *networking.VirtualService) {
	v := &VirtualService{Row: rowOf(o), Spec: spec, Destinations: destinations(spec, o.Namespace, m.domain)}
	buckets := []string{all}
	for _, h := range spec.Hosts {
		full := mesh.FullHost(h, o.Namespace, m.domain)
		v.Hosts = append(v.Hosts, full)
		buckets = append(buckets, hostBucket(full))
	}
	if v.routesConnections() {
		buckets = append(buckets, connections)
		for _, h := range v.Hosts {
			buckets = append(buckets, connectionBucket(h))
		}
	}
	for _, g := range spec.Gateways {
		if g != "mesh" {
			buckets = append(buckets, gatewayBucket(gatewayKey(g, o.Namespace)))
		}
	}
	for _, h := range spec.Http {
		if h.GetDelegate() != nil {
			namespace, name := delegate.Named(h.Delegate, o.Namespace)
			buckets = append(buckets, rootBucket(namespace+"/"+name))
		}
	}
	buckets = append(buckets, namespaceBucket(o.Namespace))
	buckets = append(buckets, exportBuckets(spec.ExportTo, o.Namespace)...)
	buckets = append(buckets, clientBuckets(v)...)
	m.tables.virtuals.Put(rowKey(o.Key), v, buckets...)
}
