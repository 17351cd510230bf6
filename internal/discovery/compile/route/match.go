package route

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

// claimPrefix is the prefix of header names that refer to claims of a token; only gateways support them.
const claimPrefix = "@request.auth.claims"

// translateMatch translates the conditions on a request of a sidecar or of a gateway. It returns false if one of them
// cannot be translated, since the match would be too wide without it.
func translateMatch(m *networking.HTTPMatchRequest, atGateway bool) (*routev3.RouteMatch, bool) {
	out := anyPath()
	if m == nil {
		return out, true
	}
	if !setPath(out, m.Uri) {
		return nil, false
	}
	out.CaseSensitive = wrapperspb.Bool(!m.IgnoreUriCase)
	if !addHeaders(out, m.Headers, false, atGateway) || !addHeaders(out, m.WithoutHeaders, true, atGateway) {
		return nil, false
	}
	for _, p := range []struct {
		name  string
		match *networking.StringMatch
	}{{":method", m.Method}, {":authority", m.Authority}, {":scheme", m.Scheme}} {
		if p.match == nil {
			continue
		}
		h, ok := headerMatcher(p.name, p.match)
		if !ok {
			return nil, false
		}
		out.Headers = append(out.Headers, h)
	}
	for _, name := range slices.Sorted(maps.Keys(m.QueryParams)) {
		q, ok := queryMatcher(name, m.QueryParams[name])
		if !ok {
			return nil, false
		}
		out.QueryParameters = append(out.QueryParameters, q)
	}
	return out, true
}

// setPath sets the path; a missing uri and the regex "*" match any path. [control-plane 1.7.5]
func setPath(out *routev3.RouteMatch, uri *networking.StringMatch) bool {
	switch t := uri.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: t.Exact}
	case *networking.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: t.Prefix}
	case *networking.StringMatch_Regex:
		if t.Regex == "*" {
			return true
		}
		re, ok := regex(t.Regex)
		if !ok {
			return false
		}
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: re}
	}
	return true
}

// addHeaders adds matchers, sorted by name. Names of pseudo-headers without the colon are ignored, as
// Istio documents; they have fields of their own.
func addHeaders(out *routev3.RouteMatch, headers map[string]*networking.StringMatch, without, atGateway bool) bool {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		switch {
		case strings.HasPrefix(name, claimPrefix):
			claim, ok := claimMatcher(name, headers[name])
			if !ok || !atGateway {
				return false
			}
			claim.Invert = without
			out.DynamicMetadata = append(out.DynamicMetadata, claim)
			continue
		case name == "uri" || name == "scheme" || name == "method" || name == "authority":
			continue
		}
		h, ok := headerMatcher(name, headers[name])
		if !ok {
			return false
		}
		if without {
			h.InvertMatch = true
			// A missing header differs from every value.
			_, present := h.HeaderMatchSpecifier.(*routev3.HeaderMatcher_PresentMatch)
			h.TreatMissingHeaderAsEmpty = !present
		}
		out.Headers = append(out.Headers, h)
	}
	return true
}

// claimMatcher matches a claim of the request's token, as the filter envoy.filters.http.jwt_authn leaves it in the dynamic
// metadata: a string, or a list that has one. It returns false for a name without claims. [control-plane 1.7.8]
func claimMatcher(name string, m *networking.StringMatch) (*matcherv3.MetadataMatcher, bool) {
	claims, ok := claimPath(strings.TrimPrefix(name, claimPrefix))
	if !ok {
		return nil, false
	}
	out := &matcherv3.MetadataMatcher{Filter: "envoy.filters.http.jwt_authn"}
	for _, key := range append([]string{"payload"}, claims...) {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	if anyValue(m) {
		out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
		return out, true
	}
	text, ok := stringMatcher(m)
	one := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: text}}
	list := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: one}},
	}}
	out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{list, one}},
	}}
	return out, ok
}

// claimPath returns the names in ".a.b" or "[a][b]"; false if there is none, or an empty one.
func claimPath(text string) ([]string, bool) {
	var names []string
	if inner, ok := strings.CutPrefix(text, "."); ok {
		names = strings.Split(inner, ".")
	} else if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		names = strings.Split(strings.TrimSuffix(inner, "]"), "][")
	}
	return names, len(names) > 0 && !slices.Contains(names, "")
}

func headerMatcher(name string, m *networking.StringMatch) (*routev3.HeaderMatcher, bool) {
	if anyValue(m) {
		return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}, true
	}
	s, ok := stringMatcher(m)
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: s}}, ok
}

func queryMatcher(name string, m *networking.StringMatch) (*routev3.QueryParameterMatcher, bool) {
	q := &routev3.QueryParameterMatcher{Name: name}
	if anyValue(m) {
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		return q, true
	}
	s, ok := stringMatcher(m)
	q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: s}
	return q, ok
}

// anyValue reports whether the match requires presence only: nothing, an empty prefix, or the regex "*". [control-plane 1.7.7]
func anyValue(m *networking.StringMatch) bool {
	switch t := m.GetMatchType().(type) {
	case nil:
		return true
	case *networking.StringMatch_Prefix:
		return t.Prefix == ""
	case *networking.StringMatch_Regex:
		return t.Regex == "*"
	}
	return false
}

func stringMatcher(m *networking.StringMatch) (*matcherv3.StringMatcher, bool) {
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: t.Exact}}, true
	case *networking.StringMatch_Prefix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: t.Prefix}}, true
	case *networking.StringMatch_Regex:
		re, ok := regex(t.Regex)
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: re}}, ok
	}
	return nil, false
}

// regex returns false for an invalid expression of RE2, which has Go's syntax: Envoy would reject the
// whole route configuration.
func regex(s string) (*matcherv3.RegexMatcher, bool) {
	if _, err := regexp.Compile(s); err != nil || s == "" {
		return nil, false
	}
	return &matcherv3.RegexMatcher{Regex: s}, true
}
