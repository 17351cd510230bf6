package compile_test

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/object"
)

func to[T any](v T) *T { return &v }

// gatewayAPI is a spec of a kind of the Gateway API.
func (d *dice) gatewayAPI(kind object.Kind) any {
	switch kind {
	case object.GatewayClass:
		return &gatewayv1.GatewayClassSpec{ControllerName: pick(d, gatewayv1.GatewayController("istio.io/gateway-controller"), "example.com/other")}
	case object.KubernetesGateway:
		s := &gatewayv1.GatewaySpec{GatewayClassName: pick(d, gatewayv1.ObjectName("istio"), "istio", "other")}
		if !d.oneIn(3) {
			s.Addresses = []gatewayv1.GatewaySpecAddress{{Type: to(gatewayv1.HostnameAddressType), Value: pick(d, names...)}}
		}
		for i := range 1 + d.roll(3) {
			s.Listeners = append(s.Listeners, d.listener(i))
		}
		if !d.oneIn(3) {
			from := pick(d, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSame, gatewayv1.NamespacesFromNone, gatewayv1.NamespacesFromSelector)
			s.AllowedListeners = &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &from, Selector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"topology.istio.io/network": "net-1"},
			}}}
		}
		if d.oneIn(3) {
			s.TLS = d.gatewayTLS()
		}
		return s
	case object.ListenerSet:
		s := &gatewayv1.ListenerSetSpec{ParentRef: gatewayv1.ParentGatewayReference{Name: gatewayv1.ObjectName(pick(d, names...)), Namespace: pick(d, nil, to(gatewayv1.Namespace(pick(d, spaces...))))}}
		for i := range 1 + d.roll(3) {
			s.Listeners = append(s.Listeners, gatewayv1.ListenerEntry(d.listener(i)))
		}
		return s
	case object.HTTPRoute:
		s := &gatewayv1.HTTPRouteSpec{CommonRouteSpec: d.parents(), Hostnames: d.hostnames()}
		for range 1 + d.roll(2) {
			s.Rules = append(s.Rules, d.httpRule())
		}
		return s
	case object.GRPCRoute:
		r := gatewayv1.GRPCRouteRule{BackendRefs: []gatewayv1.GRPCBackendRef{{BackendRef: d.backendRef()}}}
		if d.oneIn(2) {
			r.Matches = []gatewayv1.GRPCRouteMatch{{Method: &gatewayv1.GRPCMethodMatch{Service: pick(d, nil, to("a.B")), Method: pick(d, nil, to("C"))}}}
		}
		return &gatewayv1.GRPCRouteSpec{CommonRouteSpec: d.parents(), Hostnames: d.hostnames(), Rules: []gatewayv1.GRPCRouteRule{r}}
	case object.TLSRoute:
		return &gatewayv1.TLSRouteSpec{CommonRouteSpec: d.parents(), Hostnames: d.hostnames(), Rules: []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{d.backendRef(), d.backendRef()}}}}
	case object.TCPRoute:
		return &gatewayv1.TCPRouteSpec{CommonRouteSpec: d.parents(), Rules: []gatewayv1.TCPRouteRule{{BackendRefs: []gatewayv1.BackendRef{d.backendRef()}}}}
	case object.UDPRoute:
		r := gatewayv1.UDPRouteRule{}
		for range 1 + d.roll(3) {
			b := d.backendRef()
			b.Port = to[gatewayv1.PortNumber](53)
			r.BackendRefs = append(r.BackendRefs, b)
		}
		return &gatewayv1.UDPRouteSpec{CommonRouteSpec: d.parents(), Rules: []gatewayv1.UDPRouteRule{r}}
	case object.ReferenceGrant:
		return &gatewayv1.ReferenceGrantSpec{
			From: []gatewayv1.ReferenceGrantFrom{{Group: gatewayv1.GroupName, Kind: pick(d, gatewayv1.Kind("HTTPRoute"), "TCPRoute", "UDPRoute", "Gateway", "ListenerSet"), Namespace: gatewayv1.Namespace(pick(d, spaces...))}},
			To:   []gatewayv1.ReferenceGrantTo{{Kind: pick(d, gatewayv1.Kind("Service"), "Secret", "ConfigMap"), Name: pick(d, nil, to(gatewayv1.ObjectName(pick(d, names...))))}},
		}
	}
	if kind == object.BackendTLSPolicy {
		return d.backendTLSPolicy()
	}
	panic("no spec of kind " + string(kind))
}

func (d *dice) listener(i int) gatewayv1.Listener {
	l := gatewayv1.Listener{Name: gatewayv1.SectionName(fmt.Sprintf("l%d", i)), Port: pick[gatewayv1.PortNumber](d, 80, 81, 443)}
	l.Protocol = pick(d, gatewayv1.HTTPProtocolType, gatewayv1.HTTPProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType)
	if l.Protocol == gatewayv1.TLSProtocolType {
		l.TLS = &gatewayv1.ListenerTLSConfig{Mode: to(gatewayv1.TLSModePassthrough)}
	}
	if l.Port == 443 && d.oneIn(2) {
		l.Protocol = pick(d, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType)
		l.TLS = &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: gatewayv1.ObjectName(pick(d, names...)), Namespace: pick(d, nil, to(gatewayv1.Namespace(pick(d, spaces...))))}}}
	}
	if d.oneIn(2) {
		l.Hostname = to(pick(d, gatewayv1.Hostname("*.example.com"), "out.example.com"))
	}
	if !d.oneIn(3) {
		from := pick(d, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSame, gatewayv1.NamespacesFromSelector)
		l.AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &from, Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"topology.istio.io/network": "net-1"},
		}}}
		if d.oneIn(4) {
			l.AllowedRoutes.Kinds = []gatewayv1.RouteGroupKind{{Kind: pick(d, gatewayv1.Kind("HTTPRoute"), "GRPCRoute", "TLSRoute")}}
		}
	}
	return l
}

func (d *dice) parents() (out gatewayv1.CommonRouteSpec) {
	p := gatewayv1.ParentReference{Name: gatewayv1.ObjectName(pick(d, names...))}
	if !d.oneIn(3) {
		p.Namespace = to(gatewayv1.Namespace(pick(d, spaces...)))
	}
	if d.oneIn(3) {
		p.SectionName = to(pick(d, gatewayv1.SectionName("l0"), "l1"))
	}
	if d.oneIn(4) {
		p.Port = to[gatewayv1.PortNumber](80)
	}
	if d.oneIn(4) {
		p.Group, p.Kind = to(gatewayv1.Group("")), to(gatewayv1.Kind("Service"))
		p.SectionName = nil
	}
	if p.Kind == nil && d.oneIn(3) {
		p.Kind = to(gatewayv1.Kind("ListenerSet"))
	}
	out.ParentRefs = []gatewayv1.ParentReference{p}
	return out
}

func (d *dice) hostnames() []gatewayv1.Hostname {
	return pick(d, nil, nil, []gatewayv1.Hostname{"out.example.com"}, []gatewayv1.Hostname{"*.example.com", "a.example.com"})
}

func (d *dice) backendRef() gatewayv1.BackendRef {
	b := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
		Name: gatewayv1.ObjectName(pick(d, names...)), Port: pick(d, to[gatewayv1.PortNumber](80), to[gatewayv1.PortNumber](90), nil),
	}}
	if d.oneIn(3) {
		b.Namespace = to(gatewayv1.Namespace(pick(d, spaces...)))
	}
	if d.oneIn(3) {
		b.Weight = to(int32(d.roll(3)))
	}
	return b
}

func (d *dice) httpRule() gatewayv1.HTTPRouteRule {
	r := gatewayv1.HTTPRouteRule{}
	if !d.oneIn(3) {
		m := gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Type: to(pick(d, gatewayv1.PathMatchExact, gatewayv1.PathMatchPathPrefix, gatewayv1.PathMatchRegularExpression)), Value: to(pick(d, "/", "/a", "/a/b"))}}
		if d.oneIn(2) {
			m.Headers = []gatewayv1.HTTPHeaderMatch{{Name: "x-h", Value: pick(d, names...)}}
		}
		r.Matches = append(r.Matches, m)
	}
	switch d.roll(5) {
	case 0:
		r.Filters = []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Scheme: pick(d, nil, to("https"))}}}
		return r
	case 1:
		r.Filters = []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterURLRewrite, URLRewrite: &gatewayv1.HTTPURLRewriteFilter{Path: &gatewayv1.HTTPPathModifier{
			Type: gatewayv1.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: to(pick(d, "/", "/z", "")),
		}}}}
	case 2:
		r.Filters = []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestMirror, RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{BackendRef: d.backendRef().BackendObjectReference}}}
	}
	if d.oneIn(4) {
		r.SessionPersistence = &gatewayv1.SessionPersistence{SessionName: pick(d, nil, to("s")), Type: pick(d, nil, to(gatewayv1.HeaderBasedSessionPersistence))}
	}
	for range d.roll(3) {
		r.BackendRefs = append(r.BackendRefs, gatewayv1.HTTPBackendRef{BackendRef: d.backendRef()})
	}
	return r
}

// gatewayTLS says how the certificates of clients are verified, with ConfigMaps that may not exist, or which one backends get.
func (d *dice) gatewayTLS() *gatewayv1.GatewayTLSConfig {
	out := &gatewayv1.GatewayTLSConfig{}
	if d.oneIn(2) {
		out.Backend = &gatewayv1.GatewayBackendTLS{ClientCertificateRef: &gatewayv1.SecretObjectReference{
			Kind: pick(d, nil, nil, to(gatewayv1.Kind("ConfigMap"))), Name: gatewayv1.ObjectName(pick(d, names...)), Namespace: pick(d, nil, to(gatewayv1.Namespace(pick(d, spaces...)))),
		}}
		if d.oneIn(2) {
			return out
		}
	}
	one := func() (c gatewayv1.TLSConfig) {
		if d.oneIn(4) {
			return c
		}
		c.Validation = &gatewayv1.FrontendTLSValidation{Mode: pick(d, gatewayv1.AllowValidOnly, gatewayv1.AllowInsecureFallback), CACertificateRefs: []gatewayv1.ObjectReference{{
			Kind: "ConfigMap", Name: gatewayv1.ObjectName(pick(d, names...)), Namespace: pick(d, nil, to(gatewayv1.Namespace(pick(d, spaces...)))),
		}}}
		return c
	}
	f := &gatewayv1.FrontendTLSConfig{Default: one()}
	if d.oneIn(2) {
		f.PerPort = []gatewayv1.TLSPortConfig{{Port: pick[gatewayv1.PortNumber](d, 80, 443), TLS: one()}}
	}
	out.Frontend = f
	return out
}

// backendTLSPolicy is valid three times of four. Its ConfigMaps may not exist.
func (d *dice) backendTLSPolicy() *gatewayv1.BackendTLSPolicySpec {
	s := &gatewayv1.BackendTLSPolicySpec{Validation: gatewayv1.BackendTLSPolicyValidation{Hostname: pick(d, gatewayv1.PreciseHostname("out.example.com"), "a.example.com")}}
	for range 1 + d.roll(2) {
		s.TargetRefs = append(s.TargetRefs, gatewayv1.LocalPolicyTargetReferenceWithSectionName{
			LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: gatewayv1.ObjectName(pick(d, names...))},
			SectionName:                pick(d, nil, nil, to(gatewayv1.SectionName("http"))),
		})
	}
	if d.oneIn(4) {
		s.Validation.WellKnownCACertificates = to(pick(d, gatewayv1.WellKnownCACertificatesSystem, "other.example.com/roots"))
		return s
	}
	for range 1 + d.roll(2) {
		s.Validation.CACertificateRefs = append(s.Validation.CACertificateRefs, gatewayv1.LocalObjectReference{
			Kind: pick(d, gatewayv1.Kind("ConfigMap"), "ConfigMap", "ConfigMap", "Secret"), Name: gatewayv1.ObjectName(pick(d, names...)),
		})
	}
	if d.oneIn(3) {
		s.Validation.SubjectAltNames = []gatewayv1.SubjectAltName{
			{Type: gatewayv1.HostnameSubjectAltNameType, Hostname: "b.example.com"}, {Type: gatewayv1.URISubjectAltNameType, URI: "spiffe://a/b"},
		}
	}
	return s
}
