package config

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/deploy"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The rules of this file are those of the Gateway API's definitions and, with "not applied", what of them has no effect. In a
// cluster the API server has checked the former. [control-plane 1.11.7]

// gatewayDuration is the format of durations of the Gateway API (GEP-2257).
var gatewayDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

func given[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (c *check) gatewayClass(s *gatewayv1.GatewayClassSpec) {
	if s.ControllerName == "" {
		c.fail("spec.controllerName", "is missing: want istio.io/gateway-controller")
	}
	if s.ParametersRef != nil {
		c.warn("spec.parametersRef", "not applied: classes have no parameters")
	}
}

func (c *check) kubernetesGateway(s *gatewayv1.GatewaySpec) {
	if s.GatewayClassName == "" {
		c.fail("spec.gatewayClassName", "is missing: want istio, or the name of another GatewayClass")
	}
	if s.Infrastructure != nil {
		switch _, err := deploy.Parameters(s); {
		case err != nil:
			c.warn("spec.infrastructure.parametersRef", "not applied: want a ConfigMap (group \"\") of the Gateway's namespace; nothing is made for the Gateway")
		case !deploy.Managed(s):
			c.warn("spec.infrastructure", "not applied: the Gateway is served by the Pods of the Service in spec.addresses, so that nothing is made for it")
		default:
			c.report(object.Info, "spec.infrastructure", "applied to what is made for the Gateway in Kubernetes; with a directory nothing is made")
		}
	}
	if s.AllowedListeners != nil && s.AllowedListeners.Namespaces != nil {
		n := s.AllowedListeners.Namespaces
		c.namespacesFrom("spec.allowedListeners.namespaces", n.From, n.Selector)
	}
	if s.TLS != nil {
		if b := s.TLS.Backend; b != nil && b.ClientCertificateRef != nil {
			switch ref, at := b.ClientCertificateRef, "spec.tls.backend.clientCertificateRef"; {
			case given(ref.Group) != "" || ref.Kind != nil && *ref.Kind != "Secret":
				c.warn(at, "not applied: a certificate of kind %.100q is none that is served: want a Secret (group \"\"). Until then requests to Services with a BackendTLSPolicy get 503", string(given(ref.Kind)))
			case ref.Name == "" || strings.Contains(string(ref.Name), "/") || strings.Contains(string(given(ref.Namespace)), "/"):
				c.fail(at, "invalid reference to a Secret: want its name, and its namespace if it is another one")
			}
		}
		if f := s.TLS.Frontend; f != nil {
			c.frontend("spec.tls.frontend", s, f)
		}
	}
	if s.DefaultScope != "" && s.DefaultScope != gatewayv1.GatewayDefaultScopeNone {
		c.warn("spec.defaultScope", "not applied: routes have to name the Gateway in parentRefs")
	}
	for i, a := range s.Addresses {
		of := cmp.Or(given(a.Type), gatewayv1.IPAddressType)
		switch at := item("spec.addresses", i); {
		case of == gatewayv1.HostnameAddressType:
		case of != gatewayv1.IPAddressType:
			c.warn(at, "not applied: unknown type %.100q, and nothing serves the Gateway: want IPAddress, or Hostname with the name of a Service", string(of))
		case !deploy.Managed(s):
			c.warn(at, "not applied: only an address of type Hostname, the name of a Service, says which Pods serve the Gateway")
		case a.Value == "" || a.Value == deploy.Requested(s)[0]:
			c.report(object.Info, at, "asked of the load balancer of the Gateway's Service in Kubernetes")
		default:
			c.warn(at, "not applied: one address can be asked of a load balancer, and %s is; further ones are by annotations of some load balancers, in spec.infrastructure.annotations", deploy.Requested(s)[0])
		}
	}
	c.listeners(len(s.Listeners), func(i int) gatewayv1.Listener { return s.Listeners[i] })
}

// frontend checks how the certificates of clients are verified.
func (c *check) frontend(at string, s *gatewayv1.GatewaySpec, f *gatewayv1.FrontendTLSConfig) {
	c.frontendValidation(at+".default.validation", f.Default.Validation)
	var ports []gatewayv1.PortNumber
	for i, p := range f.PerPort {
		at := item(at+".perPort", i)
		c.kubernetesPort(at+".port", &p.Port)
		c.frontendValidation(at+".tls.validation", p.TLS.Validation)
		ports = append(ports, p.Port)
		if !slices.ContainsFunc(s.Listeners, func(l gatewayv1.Listener) bool { return l.Port == p.Port && l.Protocol == gatewayv1.HTTPSProtocolType }) {
			c.warn(at+".port", "the Gateway has no listener of protocol HTTPS at port %d: only listeners of its ListenerSets can have this", p.Port)
		}
	}
	once(ports, func(i int, p gatewayv1.PortNumber) {
		c.fail(item(at+".perPort", i)+".port", "duplicate port %d; remove one", p)
	})
}

func (c *check) frontendValidation(at string, v *gatewayv1.FrontendTLSValidation) {
	if v == nil {
		return
	}
	switch v.Mode {
	case "", gatewayv1.AllowValidOnly:
	case gatewayv1.AllowInsecureFallback:
		c.warn(at+".mode", "clients without a certificate are let in. In part not applied: those with a certificate that is not valid are refused, since policies could take its names for true ones")
	default:
		c.fail(at+".mode", "invalid mode %.100q: want AllowValidOnly or AllowInsecureFallback", string(v.Mode))
	}
	if len(v.CACertificateRefs) == 0 {
		c.fail(at+".caCertificateRefs", "is missing: want a ConfigMap with certificates under the key ca.crt")
	}
	for i, ref := range v.CACertificateRefs {
		at := item(at+".caCertificateRefs", i)
		switch {
		case ref.Group != "" || ref.Kind != "ConfigMap":
			c.warn(at, "not applied: certificates of kind %.100q are not read: want a ConfigMap (group \"\")", string(ref.Kind))
		case ref.Name == "" || strings.Contains(string(ref.Name), "/") || strings.Contains(string(given(ref.Namespace)), "/"):
			c.fail(at, "invalid reference to a ConfigMap: want its name, and its namespace if it is another one")
		}
	}
}

func (c *check) listener(at string, l gatewayv1.Listener) {
	if l.Name == "" {
		c.fail(at+".name", "is missing")
	}
	c.kubernetesPort(at+".port", &l.Port)
	if l.Hostname != nil {
		c.hostname(at+".hostname", string(*l.Hostname))
	}
	tls := false
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.TCPProtocolType:
	case gatewayv1.UDPProtocolType:
		c.report(object.Info, at+".protocol", "AuthorizationPolicies do not decide about datagrams: where one applies to the gateway, this listener forwards none")
	case gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType:
		tls = true
	default:
		c.warn(at+".protocol", "not applied: unknown protocol %.100q: want HTTP, HTTPS, TLS, TCP or UDP", string(l.Protocol))
	}
	switch {
	case tls && l.TLS == nil:
		c.fail(at+".tls", "is missing: a listener of protocol %s needs it", l.Protocol)
	case !tls && l.TLS != nil:
		c.fail(at+".tls", "a listener of protocol %s has none; remove it", l.Protocol)
	case tls:
		c.listenerTLS(at+".tls", l)
	}
	if a := l.AllowedRoutes; a != nil {
		c.allowedRoutes(at+".allowedRoutes", a)
	}
}

func (c *check) listenerTLS(at string, l gatewayv1.Listener) {
	mode := given(l.TLS.Mode)
	switch {
	case mode == "" || mode == gatewayv1.TLSModeTerminate:
		if len(l.TLS.CertificateRefs) == 0 {
			c.warn(at+".certificateRefs", "not applied: without a certificate the listener is not served")
		}
		for i, ref := range l.TLS.CertificateRefs {
			at := item(at+".certificateRefs", i)
			switch {
			case given(ref.Group) != "" || ref.Kind != nil && *ref.Kind != "Secret":
				c.warn(at, "not applied: a certificate of kind %.100q is none that is served: want a Secret", string(given(ref.Kind)))
			case ref.Name == "" || strings.Contains(string(ref.Name), "/") || strings.Contains(string(given(ref.Namespace)), "/"):
				c.fail(at, "invalid reference to a Secret: want its name, and its namespace if it is another one")
			}
		}
	case mode != gatewayv1.TLSModePassthrough:
		c.fail(at+".mode", "invalid mode %.100q: want Terminate or Passthrough", string(mode))
	case l.Protocol == gatewayv1.HTTPSProtocolType:
		c.fail(at+".mode", "Passthrough is for protocol TLS: with HTTPS the listener ends TLS")
	}
	if len(l.TLS.Options) > 0 {
		c.warn(at+".options", "not applied: there are none")
	}
}

func (c *check) allowedRoutes(at string, a *gatewayv1.AllowedRoutes) {
	for i, k := range a.Kinds {
		if !slices.Contains([]string{"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"}, string(k.Kind)) || k.Group != nil && *k.Group != gatewayv1.GroupName {
			c.warn(item(at+".kinds", i), "not applied: routes of kind %.100q are not served", string(k.Kind))
		}
	}
	if n := a.Namespaces; n != nil {
		c.namespacesFrom(at+".namespaces", n.From, n.Selector)
	}
}

// namespacesFrom checks which namespaces a listener takes routes from, or a Gateway listeners.
func (c *check) namespacesFrom(at string, of *gatewayv1.FromNamespaces, selector *metav1.LabelSelector) {
	from := given(of)
	if !slices.Contains([]gatewayv1.FromNamespaces{"", "All", "Same", "Selector", "None"}, from) {
		c.fail(at+".from", "invalid value %.100q: want All, Same, Selector or None", string(from))
	}
	if from == gatewayv1.NamespacesFromSelector && selector == nil {
		c.fail(at+".selector", "is missing: with from: Selector no namespace would be selected")
	}
	if selector != nil {
		for i, e := range selector.MatchExpressions {
			if !slices.Contains([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}, e.Operator) {
				c.fail(item(at+".selector.matchExpressions", i)+".operator", "invalid operator %.100q: want In, NotIn, Exists or DoesNotExist", string(e.Operator))
			}
		}
	}
}

func (c *check) listenerSet(s *gatewayv1.ListenerSetSpec) {
	p := s.ParentRef
	switch {
	case p.Name == "":
		c.fail("spec.parentRef.name", "is missing: want that of a Gateway")
	case strings.Contains(string(p.Name), "/") || strings.Contains(string(given(p.Namespace)), "/"):
		c.fail("spec.parentRef", "invalid reference to a Gateway: want its name, and its namespace if it is another one")
	case !deploy.OfGateway(s):
		c.warn("spec.parentRef", "not applied: a parent of kind %.100q is none that takes listeners: want Gateway", string(given(p.Kind)))
	}
	if len(s.Listeners) == 0 {
		c.fail("spec.listeners", "is empty: want at least one listener")
	}
	c.listeners(len(s.Listeners), func(i int) gatewayv1.Listener { return gatewayv1.Listener(s.Listeners[i]) })
}

// listeners checks the n listeners of a Gateway or a ListenerSet.
func (c *check) listeners(n int, of func(int) gatewayv1.Listener) {
	var names []gatewayv1.SectionName
	for i := range n {
		l := of(i)
		c.listener(item("spec.listeners", i), l)
		names = append(names, l.Name)
	}
	once(names, func(i int, n gatewayv1.SectionName) {
		c.fail(item("spec.listeners", i)+".name", "duplicate name %q; rename one", n)
	})
}

func (c *check) kubernetesPort(at string, p *gatewayv1.PortNumber) {
	if p != nil && (*p < 1 || *p > 65535) {
		c.fail(at, "invalid port %d: want 1–65535", *p)
	}
}

// hostname checks a name, which may begin with "*.".
func (c *check) hostname(at, name string) {
	if h := strings.TrimPrefix(name, "*."); !isDomain(h) || isIP(h) || strings.Contains(h, "*") {
		c.fail(at, "invalid host name %.300q: want one such as example.com or *.example.com", name)
	}
}

func (c *check) commonRoute(s gatewayv1.CommonRouteSpec, hostnames []gatewayv1.Hostname) {
	if s.UseDefaultGateways != "" && s.UseDefaultGateways != gatewayv1.GatewayDefaultScopeNone {
		c.warn("spec.useDefaultGateways", "not applied: name the Gateways in parentRefs")
	}
	for i, p := range s.ParentRefs {
		at := item("spec.parentRefs", i)
		c.kubernetesPort(at+".port", p.Port)
		group, kind := gatewayv1.GroupName, "Gateway"
		if p.Group != nil {
			group = string(*p.Group)
		}
		if p.Kind != nil {
			kind = string(*p.Kind)
		}
		switch {
		case p.Name == "":
			c.fail(at+".name", "is missing")
		case group == gatewayv1.GroupName && (kind == "Gateway" || kind == "ListenerSet"):
		case group == "" && kind == "Service":
			if c.key.Kind != object.HTTPRoute && c.key.Kind != object.GRPCRoute {
				c.warn(at, "not applied: routes of this kind are served at Gateways only; use a VirtualService for connections between workloads")
			}
		default:
			c.warn(at, "not applied: a parent of kind %.100q is none that is served: want Gateway, ListenerSet or Service", kind)
		}
	}
	for i, h := range hostnames {
		c.hostname(item("spec.hostnames", i), string(h))
	}
}

func (c *check) kubernetesHTTPRoute(s *gatewayv1.HTTPRouteSpec) {
	c.commonRoute(s.CommonRouteSpec, s.Hostnames)
	for i, r := range s.Rules {
		at := item("spec.rules", i)
		for j, m := range r.Matches {
			c.routeMatch(item(at+".matches", j), m)
		}
		prefix := !slices.ContainsFunc(r.Matches, func(m gatewayv1.HTTPRouteMatch) bool {
			return m.Path != nil && m.Path.Type != nil && *m.Path.Type != gatewayv1.PathMatchPathPrefix
		})
		c.filters(at, r.Filters, true)
		for j, f := range r.Filters {
			if f.RequestRedirect != nil && len(r.BackendRefs) > 0 {
				c.fail(item(at+".filters", j), "a rule that redirects has no backendRefs")
			}
			for _, p := range []*gatewayv1.HTTPPathModifier{redirectPath(f), rewritePath(f)} {
				if p != nil && p.Type == gatewayv1.PrefixMatchHTTPPathModifier && !prefix {
					c.fail(item(at+".filters", j), "ReplacePrefixMatch needs matches of type PathPrefix")
				}
			}
		}
		for j, b := range r.BackendRefs {
			c.backend(item(at+".backendRefs", j), b.BackendObjectReference, b.Weight)
			c.filters(item(at+".backendRefs", j), b.Filters, false)
		}
		c.routeTimes(at, r)
		c.session(at, r.SessionPersistence, served(r.BackendRefs, func(b gatewayv1.HTTPBackendRef) *int32 { return b.Weight }), s.ParentRefs)
	}
}

func redirectPath(f gatewayv1.HTTPRouteFilter) *gatewayv1.HTTPPathModifier {
	if f.RequestRedirect == nil {
		return nil
	}
	return f.RequestRedirect.Path
}

func rewritePath(f gatewayv1.HTTPRouteFilter) *gatewayv1.HTTPPathModifier {
	if f.URLRewrite == nil {
		return nil
	}
	return f.URLRewrite.Path
}

// sessionToken is the form of names of cookies and headers (RFC 9110, section 5.6.2).
var sessionToken = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")

// session checks the session persistence of a rule with a number of backends that get requests. [control-plane 1.11.7]
func (c *check) session(at string, s *gatewayv1.SessionPersistence, backends int, parents []gatewayv1.ParentReference) {
	if s == nil {
		return
	}
	at += ".sessionPersistence"
	if slices.ContainsFunc(parents, func(p gatewayv1.ParentReference) bool { return given(p.Kind) == "Service" }) {
		c.warn(at, "not applied between workloads: the requests of a session may go to any endpoint of a parent that is a Service; use consistentHash of a DestinationRule")
	}
	if backends > 1 {
		c.warn(at, "not applied to the choice between the %d backends, which is made by weight for each request: a session is kept within each of them", backends)
	}
	if s.SessionName != nil && !sessionToken.MatchString(*s.SessionName) {
		c.fail(at+".sessionName", "invalid name %.150q of a cookie or header: want 1–128 characters without spaces and separators", *s.SessionName)
	}
	lifetime := gatewayv1.SessionCookieLifetimeType
	switch kind := given(s.Type); {
	case kind != "" && kind != gatewayv1.CookieBasedSessionPersistence && kind != gatewayv1.HeaderBasedSessionPersistence:
		c.fail(at+".type", "invalid type %.100q: want Cookie or Header", string(kind))
	case s.CookieConfig == nil:
	case kind == gatewayv1.HeaderBasedSessionPersistence:
		c.fail(at+".cookieConfig", "is for type Cookie: remove it")
	default:
		if lifetime = given(s.CookieConfig.LifetimeType); !slices.Contains([]gatewayv1.CookieLifetimeType{"", gatewayv1.SessionCookieLifetimeType, gatewayv1.PermanentCookieLifetimeType}, lifetime) {
			c.fail(at+".cookieConfig.lifetimeType", "invalid type %.100q: want Session or Permanent", string(lifetime))
		}
	}
	switch permanent := lifetime == gatewayv1.PermanentCookieLifetimeType; {
	case s.AbsoluteTimeout == nil && permanent:
		c.fail(at+".absoluteTimeout", "is missing: a cookie of type Permanent has one")
	case s.AbsoluteTimeout == nil:
	case !gatewayDuration.MatchString(string(*s.AbsoluteTimeout)):
		c.fail(at+".absoluteTimeout", "invalid duration %.100q: want one such as 500ms or 1m30s", string(*s.AbsoluteTimeout))
	case !permanent:
		c.warn(at+".absoluteTimeout", "not applied: only the age of a cookie with lifetimeType Permanent is limited; a session lasts as long as the client sends its cookie or header")
	}
}

// served is how many backends get requests.
func served[T any](refs []T, weight func(T) *int32) (n int) {
	for _, b := range refs {
		if w := weight(b); w == nil || *w > 0 {
			n++
		}
	}
	return n
}

func (c *check) routeTimes(at string, r gatewayv1.HTTPRouteRule) {
	check := func(path string, d *gatewayv1.Duration) {
		if d != nil && !gatewayDuration.MatchString(string(*d)) {
			c.fail(at+path, "invalid duration %.100q: want one such as 500ms or 1m30s", string(*d))
		}
	}
	if r.Timeouts != nil {
		check(".timeouts.request", r.Timeouts.Request)
		check(".timeouts.backendRequest", r.Timeouts.BackendRequest)
	}
	if r.Retry != nil {
		check(".retry.backoff", r.Retry.Backoff)
		for i, code := range r.Retry.Codes {
			if code < 400 || code > 599 {
				c.fail(item(at+".retry.codes", i), "invalid status %d: want 400–599", code)
			}
		}
	}
}

func (c *check) routeMatch(at string, m gatewayv1.HTTPRouteMatch) {
	if p := m.Path; p != nil {
		switch kind, text := given(p.Type), given(p.Value); kind {
		case "", gatewayv1.PathMatchExact, gatewayv1.PathMatchPathPrefix:
			if p.Value != nil && !strings.HasPrefix(text, "/") {
				c.fail(at+".path.value", "invalid path %.300q: want one that begins with /", text)
			}
		case gatewayv1.PathMatchRegularExpression:
			c.expression(at+".path.value", text)
		default:
			c.fail(at+".path.type", "invalid type %.100q: want Exact, PathPrefix or RegularExpression", string(kind))
		}
	}
	for i, h := range m.Headers {
		c.textMatch(item(at+".headers", i), string(h.Name), h.Value, string(given(h.Type)))
	}
	for i, q := range m.QueryParams {
		c.textMatch(item(at+".queryParams", i), string(q.Name), q.Value, string(given(q.Type)))
	}
}

func (c *check) textMatch(at, name, text, kind string) {
	if name == "" {
		c.fail(at+".name", "is missing")
	}
	switch kind {
	case "", "Exact":
	case "RegularExpression":
		c.expression(at+".value", text)
	default:
		c.fail(at+".type", "invalid type %.100q: want Exact or RegularExpression", kind)
	}
}

func (c *check) expression(at, text string) {
	if _, err := regexp.Compile(text); err != nil || text == "" {
		c.fail(at, "invalid regular expression %.300q: want RE2 syntax", text)
	}
}

// filters checks the filters of a rule or, without whole, those of a backend.
func (c *check) filters(at string, list []gatewayv1.HTTPRouteFilter, whole bool) {
	redirects, rewrites := false, false
	for i, f := range list {
		at := item(at+".filters", i)
		missing := false
		switch f.Type {
		case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
			missing = f.RequestHeaderModifier == nil
		case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
			missing = f.ResponseHeaderModifier == nil
		case gatewayv1.HTTPRouteFilterRequestRedirect:
			missing, redirects = f.RequestRedirect == nil, true
			if r := f.RequestRedirect; r != nil {
				c.redirectFilter(at+".requestRedirect", r)
			}
		case gatewayv1.HTTPRouteFilterURLRewrite:
			missing, rewrites = f.URLRewrite == nil, true
			if f.URLRewrite != nil {
				c.pathModifier(at+".urlRewrite.path", f.URLRewrite.Path)
			}
		case gatewayv1.HTTPRouteFilterRequestMirror:
			if missing = f.RequestMirror == nil; !missing {
				c.backend(at+".requestMirror.backendRef", f.RequestMirror.BackendRef, nil)
				if p := f.RequestMirror.Percent; p != nil && (*p < 0 || *p > 100) {
					c.fail(at+".requestMirror.percent", "invalid percentage %d: want 0–100", *p)
				}
			}
		case gatewayv1.HTTPRouteFilterCORS:
			missing = f.CORS == nil
		case gatewayv1.HTTPRouteFilterExternalAuth, gatewayv1.HTTPRouteFilterExtensionRef:
			c.warn(at, "not applied: filters of type %s are not supported, and requests that match get 500", f.Type)
			continue
		default:
			c.fail(at+".type", "unknown type %.100q", string(f.Type))
			continue
		}
		if missing {
			c.fail(at, "the filter of type %s has no settings", f.Type)
		}
		if !whole && f.Type != gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.Type != gatewayv1.HTTPRouteFilterResponseHeaderModifier {
			c.warn(at, "not applied: at a backend, filters of type %s are not supported, and requests for it get 500; move it to the rule", f.Type)
		}
	}
	if redirects && rewrites {
		c.fail(at+".filters", "RequestRedirect and URLRewrite exclude each other")
	}
}

func (c *check) redirectFilter(at string, r *gatewayv1.HTTPRequestRedirectFilter) {
	if s := given(r.Scheme); s != "" && s != "http" && s != "https" {
		c.fail(at+".scheme", "invalid scheme %.100q: want http or https", s)
	}
	if r.StatusCode != nil && !slices.Contains([]int{301, 302, 303, 307, 308}, *r.StatusCode) {
		c.fail(at+".statusCode", "invalid status %s: want 301, 302, 303, 307 or 308", strconv.Itoa(*r.StatusCode))
	}
	c.kubernetesPort(at+".port", r.Port)
	c.pathModifier(at+".path", r.Path)
}

func (c *check) pathModifier(at string, p *gatewayv1.HTTPPathModifier) {
	switch {
	case p == nil:
	case p.Type == gatewayv1.FullPathHTTPPathModifier && p.ReplaceFullPath == nil:
		c.fail(at+".replaceFullPath", "is missing")
	case p.Type == gatewayv1.PrefixMatchHTTPPathModifier && p.ReplacePrefixMatch == nil:
		c.fail(at+".replacePrefixMatch", "is missing")
	case p.Type != gatewayv1.FullPathHTTPPathModifier && p.Type != gatewayv1.PrefixMatchHTTPPathModifier:
		c.fail(at+".type", "invalid type %.100q: want ReplaceFullPath or ReplacePrefixMatch", string(p.Type))
	}
}

func (c *check) backend(at string, b gatewayv1.BackendObjectReference, weight *int32) {
	c.kubernetesPort(at+".port", b.Port)
	if weight != nil && (*weight < 0 || *weight > 1_000_000) {
		c.fail(at+".weight", "invalid weight %d: want 0–1000000", *weight)
	}
	switch {
	case b.Name == "":
		c.fail(at+".name", "is missing")
	case given(b.Group) != "" || b.Kind != nil && *b.Kind != "Service":
		c.warn(at, "not applied: a backend of kind %.100q is none that is served, and requests for it get 500: want a Service", string(given(b.Kind)))
	case b.Port == nil:
		c.fail(at+".port", "is missing: a Service needs it")
	}
}

func (c *check) grpcRoute(s *gatewayv1.GRPCRouteSpec) {
	c.commonRoute(s.CommonRouteSpec, s.Hostnames)
	filters := func(at string, list []gatewayv1.GRPCRouteFilter, whole bool) {
		var out []gatewayv1.HTTPRouteFilter
		for _, f := range list {
			out = append(out, gatewayv1.HTTPRouteFilter{
				Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
				ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
			})
		}
		c.filters(at, out, whole)
	}
	for i, r := range s.Rules {
		at := item("spec.rules", i)
		for j, m := range r.Matches {
			at := item(at+".matches", j)
			if g := m.Method; g != nil && given(g.Type) == gatewayv1.GRPCMethodMatchRegularExpression {
				if text := given(g.Service); text != "" {
					c.expression(at+".method.service", text)
				}
				if text := given(g.Method); text != "" {
					c.expression(at+".method.method", text)
				}
			}
			for k, h := range m.Headers {
				c.textMatch(item(at+".headers", k), string(h.Name), h.Value, string(given(h.Type)))
			}
		}
		filters(at, r.Filters, true)
		for j, b := range r.BackendRefs {
			c.backend(item(at+".backendRefs", j), b.BackendObjectReference, b.Weight)
			filters(item(at+".backendRefs", j), b.Filters, false)
		}
		c.session(at, r.SessionPersistence, served(r.BackendRefs, func(b gatewayv1.GRPCBackendRef) *int32 { return b.Weight }), s.ParentRefs)
	}
}

func (c *check) kubernetesTLSRoute(s *gatewayv1.TLSRouteSpec) {
	c.commonRoute(s.CommonRouteSpec, s.Hostnames)
	c.oneRule(len(s.Rules))
	for i, r := range s.Rules {
		for j, b := range r.BackendRefs {
			c.backend(item(item("spec.rules", i)+".backendRefs", j), b.BackendObjectReference, b.Weight)
		}
	}
}

func (c *check) kubernetesTCPRoute(s *gatewayv1.TCPRouteSpec) {
	c.commonRoute(s.CommonRouteSpec, nil)
	c.oneRule(len(s.Rules))
	for i, r := range s.Rules {
		for j, b := range r.BackendRefs {
			c.backend(item(item("spec.rules", i)+".backendRefs", j), b.BackendObjectReference, b.Weight)
		}
	}
}

func (c *check) kubernetesUDPRoute(s *gatewayv1.UDPRouteSpec) {
	c.commonRoute(s.CommonRouteSpec, nil)
	c.oneRule(len(s.Rules))
	for i, r := range s.Rules {
		for j, b := range r.BackendRefs {
			c.backend(item(item("spec.rules", i)+".backendRefs", j), b.BackendObjectReference, b.Weight)
		}
	}
}

func (c *check) oneRule(n int) {
	if n > 1 {
		c.fail("spec.rules", "%d rules: want one, since connections have nothing to choose by", n)
	}
}

func (c *check) referenceGrant(s *gatewayv1.ReferenceGrantSpec) {
	for i, f := range s.From {
		if f.Kind == "" || f.Namespace == "" {
			c.fail(item("spec.from", i), "kind or namespace is missing")
		}
	}
	for i, t := range s.To {
		if t.Kind == "" {
			c.fail(item("spec.to", i)+".kind", "is missing")
		}
	}
}

// backendTLSPolicy warns of what makes a policy invalid: it is accepted, so that connections fail that it is to protect. Rejected, its Services
// would be reached in plaintext.
func (c *check) backendTLSPolicy(s *gatewayv1.BackendTLSPolicySpec) {
	const closed = "; until then requests of gateways to its Services get 503"
	if len(s.TargetRefs) == 0 {
		c.fail("spec.targetRefs", "is missing: want a Service")
	}
	targets := make([]gatewayv1.LocalPolicyTargetReferenceWithSectionName, len(s.TargetRefs))
	for i, t := range s.TargetRefs {
		at := item("spec.targetRefs", i)
		switch {
		case t.Name == "":
			c.warn(at+".name", "not applied: it is missing")
		case t.Group != "" || t.Kind != "Service":
			c.warn(at, "not applied: a target of kind %.100q is none that is served: want a Service (group \"\")", string(t.Kind))
		}
		section := gatewayv1.SectionName(given(t.SectionName))
		targets[i] = t
		targets[i].SectionName = &section
		if slices.ContainsFunc(targets[:i], func(o gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
			return o.LocalPolicyTargetReference == t.LocalPolicyTargetReference && *o.SectionName == section
		}) {
			c.warn(at, "not applied: it is there already")
		}
	}
	v := s.Validation
	if h := string(v.Hostname); !isDomain(h) || isIP(h) || strings.Contains(h, "*") {
		c.warn("spec.validation.hostname", "invalid host name %.300q: want one such as example.com%s", h, closed)
	}
	known := given(v.WellKnownCACertificates)
	switch {
	case len(v.CACertificateRefs) > 0 && known != "":
		c.warn("spec.validation", "want either caCertificateRefs or wellKnownCACertificates%s", closed)
	case len(v.CACertificateRefs) == 0 && known == "":
		c.warn("spec.validation", "want caCertificateRefs, or wellKnownCACertificates: System%s", closed)
	case known != "" && known != gatewayv1.WellKnownCACertificatesSystem:
		c.warn("spec.validation.wellKnownCACertificates", "unknown value %.100q: want System%s", string(known), closed)
	}
	for i, ref := range v.CACertificateRefs {
		if ref.Group != "" || ref.Kind != "ConfigMap" || ref.Name == "" {
			c.warn(item("spec.validation.caCertificateRefs", i), "not applied: a reference to %.100q %.100q of group %.100q: want a ConfigMap (group \"\") with the key ca.crt", string(ref.Kind), string(ref.Name), string(ref.Group))
		}
	}
	for i, n := range v.SubjectAltNames {
		at := item("spec.validation.subjectAltNames", i)
		switch {
		case n.Type == gatewayv1.HostnameSubjectAltNameType && n.Hostname != "":
			if n.URI != "" {
				c.warn(at+".uri", "not applied: the type is Hostname")
			}
		case n.Type == gatewayv1.URISubjectAltNameType && n.URI != "":
			if n.Hostname != "" {
				c.warn(at+".hostname", "not applied: the type is URI")
			}
		default:
			c.warn(at, "type %.100q without a value: want Hostname with hostname, or URI with uri%s", string(n.Type), closed)
		}
	}
	if len(s.Options) > 0 {
		c.warn("spec.options", "not applied: there are none")
	}
}
