package model

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/deploy"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Names of the Gateway API. [control-plane 1.11.7]
const (
	gatewayAPI = "gateway.networking.k8s.io"
	// gatewayClass is the class that exists without an object.
	gatewayClass = "istio"
	// gatewayNameLabel is the label of the Pods of a Gateway.
	gatewayNameLabel = deploy.NameLabel
	// kubernetesPrefix is that of the Gateways of the Gateway API in a scope.
	kubernetesPrefix = "k8s:"
)

// KubernetesGateway is the row of a Gateway of the Gateway API.
type KubernetesGateway struct {
	Row
	Spec    *gatewayv1.GatewaySpec
	servers []Server
	// deployed is the name of the Service that is made for it; empty if its addresses name that of its user's Pods.
	deployed string
}

// KubernetesRoute is the row of a route of the Gateway API.
type KubernetesRoute struct {
	Row
	Kind object.Kind
	// Parents and Hostnames are those of the spec, which is HTTP or GRPC. TLS, TCP and UDP routes have Backends only.
	Parents   []gatewayv1.ParentReference
	Hostnames []string
	HTTP      *gatewayv1.HTTPRouteSpec
	GRPC      *gatewayv1.GRPCRouteSpec
	Backends  []gatewayv1.BackendRef
	// services are the hosts of the parents that are Services.
	services []string
}

// gatewayListener is what the server of a listener of the Gateway API has besides: which routes may attach to it, and its certificates.
type gatewayListener struct {
	section string
	// object is the name of the Gateway that has it, or of the ListenerSet if set.
	object       string
	set          bool
	allowed      *gatewayv1.AllowedRoutes
	certificates []gatewayv1.SecretObjectReference
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// kubernetesGateway returns the row of a Gateway. Its listeners are servers of a router, as those of Istio's Gateways are.
func kubernetesGateway(o *object.Object, spec *gatewayv1.GatewaySpec) *KubernetesGateway {
	g := &KubernetesGateway{Row: rowOf(o), Spec: spec}
	if deploy.Managed(spec) {
		g.deployed = deploy.Name(o.Name, o.Meta.Annotations, spec)
	}
	for i, l := range spec.Listeners {
		g.servers = append(g.servers, listenerServer(g.Row, i, l, false))
	}
	return g
}

// listenerTLS returns how a listener's TLS is ended or forwarded. Whether a certificate of another namespace may be used is decided
// when it is served, by CertificateReferences.
func listenerTLS(namespace string, t *gatewayv1.ListenerTLSConfig) *networking.ServerTLSSettings {
	if t != nil && value(t.Mode) == gatewayv1.TLSModePassthrough {
		return &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_PASSTHROUGH}
	}
	out := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE}
	if t != nil {
		for _, ref := range t.CertificateRefs {
			if isSecret(ref) {
				out.CredentialNames = append(out.CredentialNames, credentials.GatewayPrefix+cmp.Or(string(value(ref.Namespace)), namespace)+"/"+string(ref.Name))
			}
		}
	}
	if len(out.CredentialNames) == 0 {
		out.CredentialNames = []string{credentials.GatewayPrefix + namespace + "/"} // none: the listener is not served
	}
	return out
}

func isSecret(ref gatewayv1.SecretObjectReference) bool {
	return value(ref.Group) == "" && (ref.Kind == nil || *ref.Kind == "Secret")
}

// CertificateReferences returns the Secrets that Gateways of the Gateway API, their listeners and those of their ListenerSets name and may use:
// those of the object's namespace, and those that a ReferenceGrant in the Secret's permits. [control-plane 1.11.7]
func (m *Model) CertificateReferences(r *incr.Reader) map[credentials.Reference]bool {
	out := map[credentials.Reference]bool{}
	for _, g := range incr.In(r, m.tables.kubernetes, all) {
		if !m.OurClass(r, string(g.Spec.GatewayClassName)) {
			continue
		}
		if ref := g.clientCertificate(); ref != nil {
			if of, _, why := m.clientSecret(r, g, ref); why == "" {
				out[of] = true
			}
		}
		for _, l := range m.listenersOf(r, g) {
			for _, ref := range l.listener.certificates {
				if isSecret(ref) && m.permittedTo(r, l.Server, ref) {
					out[credentials.Reference{From: g.Namespace, Namespace: cmp.Or(string(value(ref.Namespace)), l.Gateway.Namespace), Secret: string(ref.Name)}] = true
				}
			}
		}
	}
	return out
}

// kubernetesGatewaysFor returns the Gateways of the Gateway API that a router serves, with their prefix: those of its
// namespace whose name is in the Pod's label, and those whose addresses name a Service of the Pod. [control-plane 1.11.7]
func (m *Model) kubernetesGatewaysFor(r *incr.Reader, k ProxyKey, labels map[string]string, services string) (out []string) {
	for key, g := range incr.In(r, m.tables.kubernetes, namespaceBucket(k.Namespace)) {
		if m.OurClass(r, string(g.Spec.GatewayClassName)) && m.deployed(g, labels, services) {
			out = append(out, kubernetesPrefix+key)
		}
	}
	return out
}

// ServesGateway reports whether routers of a scope serve the Gateway of the Gateway API with a key.
func ServesGateway(s mesh.Scope, k object.Key) bool {
	return slices.Contains(strings.Fields(s.Gateways), kubernetesPrefix+rowKey(k))
}

// deployed reports whether a router with these labels and services is one of a Gateway of its namespace.
func (m *Model) deployed(g *KubernetesGateway, labels map[string]string, services string) bool {
	if g.deployed != "" {
		return labels[gatewayNameLabel] == g.Name
	}
	if _, has := g.unsupportedAddress(); has {
		return false
	}
	for _, a := range g.Spec.Addresses {
		if a.Type == nil || *a.Type != gatewayv1.HostnameAddressType {
			continue
		}
		host := mesh.FullHost(a.Value, g.Namespace, m.domain)
		for _, field := range strings.Fields(services) {
			key, _, _ := strings.Cut(field, "@")
			parts := strings.Split(key, "/")
			if len(parts) >= 3 && parts[0] == string(object.Service) && host == parts[2]+"."+parts[1]+".svc."+m.domain {
				return true
			}
		}
	}
	return false
}

// OurClass reports whether a GatewayClass is one that is served: istio, unless an object of that name says otherwise, and those
// with the controller's name.
func (m *Model) OurClass(r *incr.Reader, name string) bool {
	controller, exists := incr.Get(r, m.tables.classes, name)
	if !exists {
		return name == gatewayClass
	}
	return controller == mesh.GatewayController
}

// routeKey returns the key of a route's row: "kind/namespace/name".
func routeKey(k object.Key) string { return string(k.Kind) + "/" + rowKey(k) }

func removeRoute(m *Model, k object.Key) { m.tables.routes.Delete(routeKey(k)) }

func (m *Model) putRoute(o *object.Object, row *KubernetesRoute, common gatewayv1.CommonRouteSpec, hostnames []gatewayv1.Hostname) {
	row.Row, row.Kind, row.Parents = rowOf(o), o.Kind, common.ParentRefs
	for _, h := range hostnames {
		row.Hostnames = append(row.Hostnames, mesh.HostName(string(h)))
	}
	var buckets []string
	for _, p := range common.ParentRefs {
		switch ns := cmp.Or(string(value(p.Namespace)), o.Namespace); {
		case isGateway(p):
			buckets = append(buckets, gatewayBucket(ns+"/"+string(p.Name)))
		case isListenerSet(p):
			buckets = append(buckets, setBucket(ns+"/"+string(p.Name)))
		case isService(p):
			row.services = append(row.services, m.serviceHost(ns, string(p.Name)))
		}
	}
	for _, b := range append(row.backends(), row.plainBackends()...) {
		host := m.serviceHost(cmp.Or(string(value(b.Namespace)), o.Namespace), string(b.Name))
		buckets = append(buckets, backendBucket(host))
		if row.GRPC != nil {
			buckets = append(buckets, grpcBucket(host))
		}
	}
	if len(row.services) > 0 {
		buckets = append(buckets, namespaceBucket(o.Namespace))
		for _, h := range row.services {
			buckets = append(buckets, parentBucket(h))
		}
		for _, b := range row.backends() {
			buckets = append(buckets, destinationBucket(m.serviceHost(cmp.Or(string(value(b.Namespace)), o.Namespace), string(b.Name))))
		}
	}
	if row.keepsSessions() {
		buckets = append(buckets, sessionBucket)
	}
	m.tables.routes.Put(routeKey(o.Key), row, buckets...)
}

func isGateway(p gatewayv1.ParentReference) bool {
	return (p.Group == nil || *p.Group == gatewayAPI) && (p.Kind == nil || *p.Kind == "Gateway")
}

func isService(p gatewayv1.ParentReference) bool {
	return p.Group != nil && *p.Group == "" && p.Kind != nil && *p.Kind == "Service"
}

// parentBucket is the bucket of the routes whose parent is the Service of a host.
func parentBucket(host string) string { return "svc:" + host }

func (m *Model) serviceHost(namespace, name string) string {
	return mesh.HostName(name + "." + namespace + ".svc." + m.domain)
}

// backends returns what the rules of an HTTPRoute or a GRPCRoute refer to.
func (k *KubernetesRoute) backends() (out []gatewayv1.BackendObjectReference) {
	if k.HTTP != nil {
		for _, rule := range k.HTTP.Rules {
			for _, b := range rule.BackendRefs {
				out = append(out, b.BackendObjectReference)
			}
			for _, f := range rule.Filters {
				if f.RequestMirror != nil {
					out = append(out, f.RequestMirror.BackendRef)
				}
			}
		}
	}
	if k.GRPC != nil {
		for _, rule := range k.GRPC.Rules {
			for _, b := range rule.BackendRefs {
				out = append(out, b.BackendObjectReference)
			}
			for _, f := range rule.Filters {
				if f.RequestMirror != nil {
					out = append(out, f.RequestMirror.BackendRef)
				}
			}
		}
	}
	return out
}

// grpcBucket is the bucket of the GRPCRoutes to the Service of a host.
func grpcBucket(host string) string { return "grpc:" + mesh.HostName(host) }

// SpeaksGRPC reports whether a GRPCRoute names a port of a service as a backend, and may do so. [control-plane 1.8.8]
func (m *Model) SpeaksGRPC(r *incr.Reader, s *Service, port uint32) bool {
	if !s.Source.Kubernetes {
		return false
	}
	for _, route := range incr.In(r, m.tables.routes, grpcBucket(s.Host)) {
		for _, b := range route.backends() {
			ns := cmp.Or(string(value(b.Namespace)), route.Namespace)
			service := value(b.Group) == "" && (b.Kind == nil || *b.Kind == "Service")
			if service && uint32(value(b.Port)) == port && m.serviceHost(ns, string(b.Name)) == s.Host && m.Permitted(r, route.Kind, route.Namespace, ns, "", "Service", string(b.Name)) {
				return true
			}
		}
	}
	return false
}

// sessionBucket is the bucket of the routes that keep the requests of a session at one endpoint.
const sessionBucket = "sessions"

// keepsSessions reports whether a rule of an HTTPRoute or a GRPCRoute has session persistence.
func (k *KubernetesRoute) keepsSessions() bool {
	return k.HTTP != nil && slices.ContainsFunc(k.HTTP.Rules, func(r gatewayv1.HTTPRouteRule) bool { return r.SessionPersistence != nil }) ||
		k.GRPC != nil && slices.ContainsFunc(k.GRPC.Rules, func(r gatewayv1.GRPCRouteRule) bool { return r.SessionPersistence != nil })
}

// KeepsSessions reports whether a route at a listener of a router's port keeps the requests of a session at one endpoint.
func (m *Model) KeepsSessions(r *incr.Reader, p RouterPort) bool {
	for _, route := range incr.In(r, m.tables.routes, sessionBucket) {
		if slices.ContainsFunc(p.Servers, func(s Server) bool { return s.listener != nil && m.attaches(r, s, route) }) {
			return true
		}
	}
	return false
}

// plainBackends returns what a TLSRoute, a TCPRoute or a UDPRoute refers to.
func (k *KubernetesRoute) plainBackends() (out []gatewayv1.BackendObjectReference) {
	for _, b := range k.Backends {
		out = append(out, b.BackendObjectReference)
	}
	return out
}

// MeshRoutes returns the keys of the routes whose parent is the Service of a host, at a port, oldest first: those of the
// client's namespace if there are any, else those of the Service's own. [control-plane 1.11.8]
func (m *Model) MeshRoutes(r *incr.Reader, s mesh.ScopeID, host string, port uint32) []string {
	rows := incr.In(r, m.tables.routes, parentBucket(host))
	svc := m.Service(r, s, host)
	if svc == nil || !svc.Source.Kubernetes {
		return nil
	}
	var producer, consumer []*KubernetesRoute
	for _, k := range rows {
		if (k.HTTP == nil && k.GRPC == nil) || !m.parentOf(k, host, port) {
			continue
		}
		switch k.Namespace {
		case svc.Namespace:
			producer = append(producer, k)
		case s.Value().Namespace:
			consumer = append(consumer, k)
		}
	}
	if len(consumer) > 0 {
		producer = consumer
	}
	slices.SortFunc(producer, func(a, b *KubernetesRoute) int {
		switch {
		case a.Row == b.Row:
			return cmp.Compare(a.Kind, b.Kind)
		case a.Older(b.Row):
			return -1
		}
		return 1
	})
	var out []string
	for _, k := range producer {
		out = append(out, k.RowKey())
	}
	return out
}

func (m *Model) parentOf(k *KubernetesRoute, host string, port uint32) bool {
	return slices.ContainsFunc(k.Parents, func(p gatewayv1.ParentReference) bool {
		return isService(p) && m.serviceHost(cmp.Or(string(value(p.Namespace)), k.Namespace), string(p.Name)) == host && (p.Port == nil || uint32(*p.Port) == port)
	})
}

// KubernetesRoute returns a route by the key of its row, nil if there is none.
func (m *Model) KubernetesRoute(r *incr.Reader, key string) *KubernetesRoute {
	v, _ := incr.Get(r, m.tables.routes, key)
	return v
}

// RowKey returns the key of the route's row.
func (k *KubernetesRoute) RowKey() string { return string(k.Kind) + "/" + k.Key() }

// AttachedRoute is a route of the Gateway API at a listener.
type AttachedRoute struct {
	// Key is that of the row.
	Key  string
	Kind object.Kind
	Row  Row
	// Hosts are those of the route that clients reach through the listener.
	Hosts []string
}

// Attached returns the routes of the Gateway API at a listener, oldest first; none for a server of Istio's Gateways. A host
// for which another listener of the port is more specific is that listener's. [control-plane 1.11.7]
func (m *Model) Attached(r *incr.Reader, s Server, port RouterPort) (out []AttachedRoute) {
	if s.listener == nil {
		return nil
	}
	for key, route := range incr.In(r, m.tables.routes, s.routesBucket()) {
		if !m.attaches(r, s, route) {
			continue
		}
		hosts := route.Hostnames
		if len(hosts) == 0 {
			hosts = s.Names()
		}
		hosts = slices.DeleteFunc(s.Hosts("", hosts), func(h string) bool { return !s.mostSpecific(h, port) })
		if len(hosts) > 0 {
			out = append(out, AttachedRoute{Key: key, Kind: route.Kind, Row: route.Row, Hosts: hosts})
		}
	}
	slices.SortFunc(out, func(a, b AttachedRoute) int {
		switch {
		case a.Row == b.Row:
			return cmp.Compare(a.Key, b.Key)
		case a.Row.Older(b.Row):
			return -1
		}
		return 1
	})
	return out
}

// mostSpecific reports whether no other listener of the port has a host that is longer and matches.
func (s Server) mostSpecific(host string, port RouterPort) bool {
	for _, other := range port.Servers {
		for _, h := range other.Names() {
			if other.listener != nil && len(h) > len(s.hosts[0].host) && hostMatches(h, host) {
				return false
			}
		}
	}
	return true
}

// routesBucket is the bucket of the routes that name the Gateway or ListenerSet of a listener.
func (s Server) routesBucket() string {
	key := s.Gateway.Namespace + "/" + s.listener.object
	if s.listener.set {
		return setBucket(key)
	}
	return gatewayBucket(key)
}

// attaches reports whether a route names a listener, and the listener allows it. One that names the Gateway does not name the listeners of its
// ListenerSets.
func (m *Model) attaches(r *incr.Reader, s Server, route *KubernetesRoute) bool {
	named := slices.ContainsFunc(route.Parents, func(p gatewayv1.ParentReference) bool {
		of := isGateway(p)
		if s.listener.set {
			of = isListenerSet(p)
		}
		return of && string(p.Name) == s.listener.object && cmp.Or(string(value(p.Namespace)), route.Namespace) == s.Gateway.Namespace && s.namedBy(p)
	})
	return named && s.takes(route.Kind) && m.namespaceAllowed(r, s, route.Namespace)
}

// namedBy reports whether a reference to the object of a listener is one to this listener.
func (s Server) namedBy(p gatewayv1.ParentReference) bool {
	return (p.SectionName == nil || string(*p.SectionName) == s.listener.section) && (p.Port == nil || uint32(*p.Port) == s.Port)
}

// takes reports whether a listener takes routes of a kind: those of its protocol, of which it may name some.
func (s Server) takes(kind object.Kind) bool {
	fits := false
	switch kind {
	case object.HTTPRoute, object.GRPCRoute:
		fits = s.Kind == mesh.ServesHTTP || s.EndsHTTPS()
	case object.TLSRoute:
		fits = s.Kind == mesh.ServesTLS && !s.EndsHTTPS()
	case object.UDPRoute:
		fits = s.Kind == mesh.ServesUDP
	case object.TCPRoute:
		fits = s.Kind == mesh.ServesTCP || s.Kind == mesh.ServesTLS && !s.EndsHTTPS() && s.Spec.GetTls().GetMode() != networking.ServerTLSSettings_PASSTHROUGH
	}
	if a := s.listener.allowed; fits && a != nil && len(a.Kinds) > 0 {
		return slices.ContainsFunc(a.Kinds, func(k gatewayv1.RouteGroupKind) bool {
			return (k.Group == nil || *k.Group == gatewayAPI) && string(k.Kind) == string(kind)
		})
	}
	return fits
}

// namespaceAllowed reports whether a listener takes routes of a namespace; by default those of its own.
func (m *Model) namespaceAllowed(r *incr.Reader, s Server, namespace string) bool {
	from, selector := gatewayv1.NamespacesFromSame, (*gatewayv1.RouteNamespaces)(nil)
	if a := s.listener.allowed; a != nil && a.Namespaces != nil && a.Namespaces.From != nil {
		from, selector = *a.Namespaces.From, a.Namespaces
	}
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return namespace == s.Gateway.Namespace
	case gatewayv1.NamespacesFromSelector:
		labels, _ := incr.Get(r, m.tables.spaces, namespace)
		return deploy.Selects(selector.Selector, namespace, labels)
	}
	return false
}

// Permitted reports whether an object of a kind and namespace may refer to one of another namespace, by a ReferenceGrant there.
func (m *Model) Permitted(r *incr.Reader, kind object.Kind, from, to, toGroup, toKind, name string) bool {
	if from == to {
		return true
	}
	for _, g := range incr.In(r, m.tables.grants, namespaceBucket(to)) {
		source := slices.ContainsFunc(g.From, func(f gatewayv1.ReferenceGrantFrom) bool {
			return f.Group == gatewayAPI && string(f.Kind) == string(kind) && string(f.Namespace) == from
		})
		if source && slices.ContainsFunc(g.To, func(t gatewayv1.ReferenceGrantTo) bool {
			return string(t.Group) == toGroup && string(t.Kind) == toKind && (t.Name == nil || *t.Name == "" || string(*t.Name) == name)
		}) {
			return true
		}
	}
	return false
}
