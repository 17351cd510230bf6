package route

import (
	"regexp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// headerChanges adds the changes of a filter. Values are text, in which "%" has no meaning.
func headerChanges(to headerOps, f *gatewayv1.HTTPHeaderFilter) headerOps {
	put := func(list []gatewayv1.HTTPHeader, action corev3.HeaderValueOption_HeaderAppendAction) {
		for _, h := range list {
			if name := string(h.Name); authority(name) {
				to.authority = h.Value
			} else if !reserved(name) {
				to.add = append(to.add, &corev3.HeaderValueOption{
					Header: &corev3.HeaderValue{Key: name, Value: strings.ReplaceAll(h.Value, "%", "%%")}, AppendAction: action,
				})
			}
		}
	}
	put(f.Set, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	put(f.Add, corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	for _, name := range f.Remove {
		if !authority(name) && !reserved(name) {
			to.remove = append(to.remove, name)
		}
	}
	return to
}

// redirect has the default status 302. Without a port, it is that of the scheme, or the listener's if the scheme does not
// change; a scheme's default port is not written.
func (in KubernetesInput) redirect(m *routev3.RouteMatch, r *gatewayv1.HTTPRequestRedirectFilter) *routev3.RedirectAction {
	code := uint32(302)
	if r.StatusCode != nil {
		code = uint32(*r.StatusCode)
	}
	a := &routev3.RedirectAction{HostRedirect: string(value(r.Hostname)), ResponseCode: redirectCodes[code]}
	scheme := value(r.Scheme)
	if scheme != "" {
		a.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: scheme}
	}
	port := in.Port
	switch {
	case r.Port != nil:
		port = uint32(*r.Port)
	case scheme != "":
		port = schemePort(scheme)
	}
	if scheme == "" && in.TLS {
		scheme = "https"
	}
	if port != schemePort(scheme) {
		a.PortRedirect = port
	}
	if p := r.Path; p != nil {
		if p.Type == gatewayv1.FullPathHTTPPathModifier {
			a.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: value(p.ReplaceFullPath)}
		} else if re, prefix := replacePrefix(m, value(p.ReplacePrefixMatch)); re != nil {
			a.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: re}
		} else {
			a.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: prefix}
		}
	}
	return a
}

// rewriteURL sets the rewrites of host and path.
func rewriteURL(a *routev3.RouteAction, m *routev3.RouteMatch, f *gatewayv1.HTTPURLRewriteFilter) {
	if f.Hostname != nil {
		a.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: string(*f.Hostname)}
	}
	switch p := f.Path; {
	case p == nil:
	case p.Type == gatewayv1.FullPathHTTPPathModifier:
		a.RegexRewrite = substitute("^/.*$", value(p.ReplaceFullPath))
	default:
		if re, prefix := replacePrefix(m, value(p.ReplacePrefixMatch)); re != nil {
			a.RegexRewrite = re
		} else {
			a.PrefixRewrite = prefix
		}
	}
}

// replacePrefix returns what replaces the prefix of a match by whole elements of the path: a prefix or, where that would leave
// two slashes or none, a substitution.
func replacePrefix(m *routev3.RouteMatch, by string) (*matcherv3.RegexMatchAndSubstitute, string) {
	by = strings.TrimRight(by, "/")
	prefix := m.GetPathSeparatedPrefix()
	switch {
	case by == "":
		return substitute("^"+regexp.QuoteMeta(prefix)+"/*", "/"), ""
	case prefix == "":
		return substitute("^/*", by+"/"), ""
	}
	return nil, by
}

func substitute(pattern, by string) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: pattern}, Substitution: strings.ReplaceAll(by, `\`, `\\`)}
}

// mirror returns nil if nothing is mirrored.
func (in KubernetesInput) mirror(rule KubernetesRule, f *gatewayv1.HTTPRequestMirrorFilter) *routev3.RouteAction_RequestMirrorPolicy {
	percent := 100.0
	switch {
	case f.Percent != nil:
		percent = float64(*f.Percent)
	case f.Fraction != nil:
		percent = 100 * float64(f.Fraction.Numerator)
		if d := value(f.Fraction.Denominator); d > 0 {
			percent /= float64(d)
		} else {
			percent /= 100
		}
	}
	to := in.Backend(rule, f.BackendRef)
	if to.Cluster == "" || percent <= 0 {
		return nil
	}
	return &routev3.RouteAction_RequestMirrorPolicy{
		Cluster: to.Cluster, RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: fraction(percent)},
		TraceSampled: wrapperspb.Bool(false), DisableShadowHostSuffixAppend: true,
	}
}

// setCORS sets the configuration of CORS. A wildcard in an origin stands for any text.
func setCORS(x *Route, f *gatewayv1.HTTPCORSFilter) {
	c := &corsv3.CorsPolicy{
		FilterEnabled:                &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}},
		AllowMethods:                 joined(f.AllowMethods),
		AllowHeaders:                 joined(f.AllowHeaders),
		ExposeHeaders:                joined(f.ExposeHeaders),
		ForwardNotMatchingPreflights: wrapperspb.Bool(false),
	}
	for _, o := range f.AllowOrigins {
		if !strings.Contains(string(o), "*") {
			c.AllowOriginStringMatch = append(c.AllowOriginStringMatch, exactOrigin(string(o)))
			continue
		}
		re := strings.ReplaceAll(regexp.QuoteMeta(string(o)), `\*`, ".*")
		c.AllowOriginStringMatch = append(c.AllowOriginStringMatch, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: re}},
		})
	}
	if f.AllowCredentials != nil {
		c.AllowCredentials = wrapperspb.Bool(*f.AllowCredentials)
	}
	if f.MaxAge > 0 {
		c.MaxAge = strconv.Itoa(int(f.MaxAge))
	}
	x.setFilter(CORSFilter, marshal.MustAny(c))
}

// setFilter sets the configuration of an HTTP filter.
func (x *Route) setFilter(name string, c *anypb.Any) {
	if x.Filters == nil {
		x.Filters = map[string]*anypb.Any{}
	}
	x.Filters[name] = c
}

func joined[T ~string](list []T) string {
	var out []string
	for _, s := range list {
		out = append(out, string(s))
	}
	return strings.Join(out, ",")
}
