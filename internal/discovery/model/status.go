package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/deploy"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Features are the names of the Gateway API's features that are supported, sorted. [control-plane 1.11.9]
var Features = []string{
	"BackendTLSPolicy", "BackendTLSPolicySANValidation", "GRPCRoute", "GRPCRouteNamedRouteRule", "Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate", "GatewayFrontendClientCertificateValidation", "GatewayHTTPListenerIsolation", "GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayInfrastructure",
	"GatewayPort8080", "GatewayStaticAddresses", "HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode", "HTTPRoute308RedirectStatusCode", "HTTPRouteBackendProtocolH2C",
	"HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification", "HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite",
	"HTTPRouteMethodMatching", "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect", "HTTPRoutePathRewrite", "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching",
	"HTTPRouteRequestMirror", "HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout", "HTTPRouteResponseHeaderModification", "HTTPRouteRetry",
	"HTTPRouteRetryBackendTimeout", "HTTPRouteRetryConnectionError", "HTTPRouteSchemeRedirect", "ListenerSet", "Mesh", "MeshConsumerRoute", "MeshHTTPRouteBackendRequestHeaderModification",
	"MeshHTTPRouteNamedRouteRule", "MeshHTTPRouteQueryParamMatching", "MeshHTTPRouteRedirectPath", "MeshHTTPRouteRedirectPort", "MeshHTTPRouteRewritePath", "MeshHTTPRouteSchemeRedirect",
	"ReferenceGrant", "TCPRoute", "TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate", "UDPRoute",
}

// GatewayStatus returns what the status of an object of the Gateway API says, or of an Ingress; nil for one that is not in force, for an
// object of the Gateway API that is another controller's, and for other kinds. It does not depend on proxies. [control-plane 1.11.9]
func (m *Model) GatewayStatus(r *incr.Reader, k object.Key) *object.GatewayStatus {
	switch k.Kind {
	case object.GatewayClass:
		if controller, exists := incr.Get(r, m.tables.classes, nameKey(k)); !exists || controller != mesh.GatewayController {
			return nil
		}
		return &object.GatewayStatus{Kind: k.Kind, Features: Features, Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted", Message: "the class is served"}}}
	case object.KubernetesGateway:
		g, exists := incr.Get(r, m.tables.kubernetes, rowKey(k))
		if !exists || !m.OurClass(r, string(g.Spec.GatewayClassName)) {
			return nil
		}
		return m.gatewayStatus(r, g)
	case object.ListenerSet:
		set, exists := incr.Get(r, m.tables.sets, rowKey(k))
		if !exists {
			return nil
		}
		return m.setStatus(r, set)
	case object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute:
		route, exists := incr.Get(r, m.tables.routes, routeKey(k))
		if !exists {
			return nil
		}
		return m.routeStatus(r, route)
	case object.BackendTLSPolicy:
		p, exists := incr.Get(r, m.tables.policies, rowKey(k))
		if !exists {
			return nil
		}
		return m.backendTLSStatus(r, p)
	case object.Ingress:
		i, exists := incr.Get(r, m.tables.ingresses, rowKey(k))
		if !exists {
			return nil
		}
		if !m.OurIngress(r, i) {
			return &object.GatewayStatus{Kind: k.Kind, Foreign: true}
		}
		return &object.GatewayStatus{Kind: k.Kind, Addresses: m.rules.ingress.Of(r, "")}
	}
	return nil
}

func (m *Model) gatewayStatus(r *incr.Reader, g *KubernetesGateway) *object.GatewayStatus {
	out := &object.GatewayStatus{Kind: object.KubernetesGateway}
	out.Listeners = m.listenerStatuses(r, g, g.Row, false)
	invalid := 0
	for _, l := range out.Listeners {
		for _, c := range l.Conditions {
			if c.Type == "Accepted" && !c.True {
				invalid++
			}
		}
	}
	accepted := object.GatewayCondition{Type: "Accepted", True: true, Reason: "Accepted", Message: "the Gateway is served by its Pods"}
	if invalid > 0 {
		accepted.Reason, accepted.Message, accepted.True = "ListenersNotValid", fmt.Sprintf("%d of %d listeners are not accepted", invalid, len(g.Spec.Listeners)), invalid < len(g.Spec.Listeners)
	}
	if _, err := deploy.Parameters(g.Spec); err != nil && g.deployed != "" {
		accepted = object.GatewayCondition{Type: "Accepted", Reason: "InvalidParameters", Message: err.Error()}
	}
	if a, has := g.unsupportedAddress(); has {
		accepted = object.GatewayCondition{Type: "Accepted", Reason: "UnsupportedAddress", Message: fmt.Sprintf("address %.100q has the type %.100q: want IPAddress, or Hostname with the name of a Service", a.Value, string(*a.Type))}
	}
	out.Conditions = []object.GatewayCondition{accepted}
	if resolved, has := m.referencesResolved(r, g, out.Listeners); has {
		out.Conditions = append(out.Conditions, resolved)
	}
	if fallsBack(g.Spec.TLS) {
		out.Conditions = append(out.Conditions, object.GatewayCondition{
			Type: "InsecureFrontendValidationMode", True: true, Reason: "ConfigurationChanged", Message: "clients without a certificate are let in",
		})
	}
	out.Addresses = m.gatewayAddresses(r, g)
	if fault, has := m.addressFault(r, g, out.Addresses); has && accepted.True {
		out.Conditions = append(out.Conditions, fault)
	}
	out.Sets = m.attachedSets(r, g)
	return out
}

// gatewayAddresses returns where clients reach a Gateway: the Hostnames of its addresses or, of the Service that is made for it, the
// addresses of the load balancer, or else its name.
func (m *Model) gatewayAddresses(r *incr.Reader, g *KubernetesGateway) (out []object.GatewayAddress) {
	if g.deployed == "" {
		for _, a := range g.Spec.Addresses {
			if value(a.Type) == gatewayv1.HostnameAddressType {
				out = append(out, object.GatewayAddress{Type: "Hostname", Value: a.Value})
			}
		}
		return out
	}
	service := m.kubernetesService(r, g.Namespace, g.deployed)
	if service == nil {
		return nil
	}
	if balancer, exists := incr.Get(r, m.tables.gateways, g.Namespace+"/"+g.deployed); exists {
		return balancer.reached()
	}
	return []object.GatewayAddress{{Type: "Hostname", Value: service.Host}}
}

// listenerStatuses are the statuses of the listeners of a Gateway or, if set, of one of its ListenerSets.
func (m *Model) listenerStatuses(r *incr.Reader, g *KubernetesGateway, of Row, set bool) (out []object.ListenerStatus) {
	for _, l := range m.listenersOf(r, g) {
		if l.listener.set == set && l.of(of) {
			out = append(out, m.listenerStatus(r, g, l))
		}
	}
	return out
}

func (m *Model) listenerStatus(r *incr.Reader, g *KubernetesGateway, l listenerOf) object.ListenerStatus {
	out := object.ListenerStatus{Name: l.listener.section}
	var unknown []string
	for _, kind := range []object.Kind{object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute} {
		if l.takes(kind) {
			out.Kinds = append(out.Kinds, string(kind))
		}
	}
	if a := l.listener.allowed; a != nil {
		for _, k := range a.Kinds {
			if value(k.Group) != "" && value(k.Group) != gatewayAPI || !slices.Contains(out.Kinds, string(k.Kind)) {
				unknown = append(unknown, string(k.Kind))
			}
		}
	}
	if l.conflict == "" {
		for _, route := range incr.In(r, m.tables.routes, l.routesBucket()) {
			if m.attaches(r, l.Server, route) && len(l.shared(route)) > 0 {
				out.Attached++
			}
		}
	}
	accepted := object.GatewayCondition{Type: "Accepted", True: true, Reason: "Accepted"}
	conflicted := object.GatewayCondition{Type: "Conflicted", Reason: "NoConflicts"}
	if !slices.Contains([]gatewayv1.ProtocolType{gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType}, l.spec.Protocol) {
		accepted = object.GatewayCondition{Type: "Accepted", Reason: "UnsupportedProtocol", Message: fmt.Sprintf("protocol %.100s is not served", l.spec.Protocol)}
	}
	if l.conflict != "" {
		conflicted = object.GatewayCondition{Type: "Conflicted", True: true, Reason: l.conflict, Message: l.with}
		accepted = object.GatewayCondition{Type: "Accepted", Reason: l.conflict, Message: l.with}
	}
	resolved := m.certificatesResolved(r, l, unknown)
	if v := validationOf(g, l); v != nil {
		found, faults := m.clientRoots(r, g, v)
		if len(faults) > 0 {
			resolved = faults[0]
		}
		if len(found) == 0 && accepted.True {
			accepted = object.GatewayCondition{Type: "Accepted", Reason: "NoValidCACertificate", Message: faults[0].Message}
		}
	}
	out.Conditions = []object.GatewayCondition{accepted, conflicted, resolved}
	return out
}

// certificatesResolved returns the condition ResolvedRefs of a listener; unknown are kinds of routes that it cannot have.
func (m *Model) certificatesResolved(r *incr.Reader, l listenerOf, unknown []string) object.GatewayCondition {
	no := func(reason, text string, args ...any) object.GatewayCondition {
		return object.GatewayCondition{Type: "ResolvedRefs", Reason: reason, Message: fmt.Sprintf(text, args...)}
	}
	if len(unknown) > 0 {
		return no("InvalidRouteKinds", "the listener takes no routes of kind %.200s", strings.Join(unknown, ", "))
	}
	if l.spec.TLS != nil && value(l.spec.TLS.Mode) != gatewayv1.TLSModePassthrough {
		if len(l.spec.TLS.CertificateRefs) == 0 {
			return no("InvalidCertificateRef", "there is no certificate")
		}
		for _, ref := range l.spec.TLS.CertificateRefs {
			ns := cmp.Or(string(value(ref.Namespace)), l.Gateway.Namespace)
			switch {
			case !isSecret(ref):
				return no("InvalidCertificateRef", "%.100s %s: want a Secret", string(value(ref.Kind)), ref.Name)
			case !m.permittedTo(r, l.Server, ref):
				return no("RefNotPermitted", "no ReferenceGrant in namespace %s permits Secret %s", ns, ref.Name)
			}
			if why, bad := incr.Get(r, m.tables.faults, ns+"/"+string(ref.Name)); bad {
				return no("InvalidCertificateRef", "Secret %s in namespace %s: %s", ref.Name, ns, why)
			}
		}
	}
	return object.GatewayCondition{Type: "ResolvedRefs", True: true, Reason: "ResolvedRefs"}
}

// SetSecretFault has the statuses of Gateways say why a Secret cannot be the certificate of a listener; empty for one that can, or of which
// nothing is known.
func (m *Model) SetSecretFault(namespace, name, why string) {
	if why == "" {
		m.tables.faults.Delete(namespace + "/" + name)
		return
	}
	m.tables.faults.Put(namespace+"/"+name, why)
}

// shared are the hosts that clients reach through a listener for a route.
func (s Server) shared(route *KubernetesRoute) []string {
	if len(route.Hostnames) == 0 {
		return s.Names()
	}
	return s.Hosts("", route.Hostnames)
}

func (m *Model) routeStatus(r *incr.Reader, route *KubernetesRoute) *object.GatewayStatus {
	out := &object.GatewayStatus{Kind: route.Kind}
	for _, p := range route.Parents {
		accepted, ours := m.acceptedBy(r, route, p)
		if !ours {
			continue
		}
		one := object.ParentStatus{
			Group: gatewayAPI, Kind: "Gateway", Namespace: string(value(p.Namespace)), Name: string(p.Name), Section: string(value(p.SectionName)), Port: value(p.Port),
			Conditions: []object.GatewayCondition{accepted, m.backendsResolved(r, route, isService(p))},
		}
		switch {
		case isService(p):
			one.Group, one.Kind = "", "Service"
		case isListenerSet(p):
			one.Kind = "ListenerSet"
		}
		out.Parents = append(out.Parents, one)
	}
	if out.Parents == nil {
		return nil
	}
	return out
}

// acceptedBy returns the condition Accepted of a route at a parent; false if the parent is another controller's, or it is not
// known whose it is.
func (m *Model) acceptedBy(r *incr.Reader, route *KubernetesRoute, p gatewayv1.ParentReference) (c object.GatewayCondition, ours bool) {
	ns := cmp.Or(string(value(p.Namespace)), route.Namespace)
	no := func(reason, text string, args ...any) (object.GatewayCondition, bool) {
		return object.GatewayCondition{Type: "Accepted", Reason: reason, Message: fmt.Sprintf(text, args...)}, true
	}
	yes := object.GatewayCondition{Type: "Accepted", True: true, Reason: "Accepted"}
	switch {
	case isService(p):
		switch service := m.kubernetesService(r, ns, string(p.Name)); {
		case route.HTTP == nil && route.GRPC == nil:
			return no("UnsupportedValue", "routes of kind %s are served at Gateways only", route.Kind)
		case service == nil:
			return no("NoMatchingParent", "there is no Service %s in namespace %s", p.Name, ns)
		case p.Port != nil && !service.hasPort(uint32(*p.Port)):
			return no("NoMatchingParent", "Service %s has no port %d", p.Name, *p.Port)
		}
		return yes, true
	case !isGateway(p) && !isListenerSet(p):
		return c, false
	}
	_, listeners, why, ours := m.parentListeners(r, route, p)
	if !ours {
		return c, false
	}
	named, free, taken, hosts := false, false, false, false
	for _, l := range listeners {
		if !l.namedBy(p) {
			continue
		}
		named = true
		if l.conflict != "" {
			continue
		}
		free = true
		if l.takes(route.Kind) && m.namespaceAllowed(r, l.Server, route.Namespace) {
			taken = true
			hosts = hosts || len(l.shared(route)) > 0
		}
	}
	switch {
	case why != "":
		return no("NoMatchingParent", "%s", why)
	case !named:
		return no("NoMatchingParent", "the %s has no listener with this name and port", cmp.Or(string(value(p.Kind)), "Gateway"))
	case !free:
		return no("NoMatchingParent", "the listener is not served: it conflicts with another one")
	case !taken:
		return no("NotAllowedByListeners", "no listener takes routes of kind %s of namespace %s", route.Kind, route.Namespace)
	case !hosts:
		return no("NoMatchingListenerHostname", "no listener has a hostname in common with the route")
	}
	return yes, true
}

// backendsResolved returns the condition ResolvedRefs of a route at a gateway, or between workloads, where nothing has to permit references.
func (m *Model) backendsResolved(r *incr.Reader, route *KubernetesRoute, between bool) object.GatewayCondition {
	refs := append(route.backends(), route.plainBackends()...)
	no := func(reason, text string, args ...any) object.GatewayCondition {
		return object.GatewayCondition{Type: "ResolvedRefs", Reason: reason, Message: fmt.Sprintf(text, args...)}
	}
	for _, b := range refs {
		ns := cmp.Or(string(value(b.Namespace)), route.Namespace)
		if value(b.Group) != "" || b.Kind != nil && *b.Kind != "Service" {
			return no("InvalidKind", "%.100s %s is no Service", string(value(b.Kind)), b.Name)
		}
		if !between && !m.Permitted(r, route.Kind, route.Namespace, ns, "", "Service", string(b.Name)) {
			return no("RefNotPermitted", "no ReferenceGrant in namespace %s permits Service %s", ns, b.Name)
		}
		switch service := m.kubernetesService(r, ns, string(b.Name)); {
		case service == nil:
			return no("BackendNotFound", "there is no Service %s in namespace %s", b.Name, ns)
		case b.Port != nil && route.Kind == object.UDPRoute && !service.hasUDP(uint32(*b.Port)):
			return no("BackendNotFound", "Service %s of namespace %s has no port %d of UDP", b.Name, ns, *b.Port)
		case b.Port != nil && !service.hasPort(uint32(*b.Port)):
			return no("BackendNotFound", "Service %s of namespace %s has no port %d", b.Name, ns, *b.Port)
		}
	}
	return object.GatewayCondition{Type: "ResolvedRefs", True: true, Reason: "ResolvedRefs"}
}

// kubernetesService returns the row of a Service, of whichever cluster; nil if there is none.
func (m *Model) kubernetesService(r *incr.Reader, namespace, name string) (best *Service) {
	for _, s := range incr.In(r, m.tables.services, "host:"+mesh.HostName(m.serviceHost(namespace, name))) {
		if s.Source.Kubernetes && (best == nil || s.Key < best.Key) {
			best = s
		}
	}
	return best
}

func (s *Service) hasUDP(n uint32) bool {
	_, ok := s.UDPPortOf(n)
	return ok
}

func (s *Service) hasPort(n uint32) bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Number == n })
}
