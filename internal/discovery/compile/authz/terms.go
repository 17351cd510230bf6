package authz

import (
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
)

// operationTerms are the fields of an operation, in the order of Istio's permissions.
func operationTerms(o *security.Operation) []term[*rbacv3.Permission] {
	return []term[*rbacv3.Permission]{
		{http: true, values: o.GetHosts(), not: o.GetNotHosts(), one: headerPermission(":authority", true)},
		{http: true, values: o.GetMethods(), not: o.GetNotMethods(), one: headerPermission(":method", false)},
		{http: true, values: o.GetPaths(), not: o.GetNotPaths(), one: path},
		{values: o.GetPorts(), not: o.GetNotPorts(), one: destinationPort},
	}
}

// sourceTerms are the fields of a source, in the order of Istio's principals.
func (b builder) sourceTerms(s *security.Source, policyNamespace string) []term[*rbacv3.Principal] {
	return []term[*rbacv3.Principal]{
		{values: b.withAliases(s.GetPrincipals()), not: b.withAliases(s.GetNotPrincipals()), one: principal},
		{http: true, values: s.GetRequestPrincipals(), not: s.GetNotRequestPrincipals(), all: requestPrincipals},
		{values: s.GetServiceAccounts(), not: s.GetNotServiceAccounts(), one: serviceAccount(policyNamespace)},
		{values: s.GetTrustDomains(), not: s.GetNotTrustDomains(), one: trustDomain},
		{values: s.GetNamespaces(), not: s.GetNotNamespaces(), one: namespace},
		{values: s.GetRemoteIpBlocks(), not: s.GetNotRemoteIpBlocks(), one: remoteIP},
		{values: s.GetIpBlocks(), not: s.GetNotIpBlocks(), one: sourceIP},
	}
}

// The keys of conditions [control-plane 1.10.9]. Those that end in "[" have a name and "]" after it.
const (
	KeyHeader         = "request.headers["
	KeySourceIP       = "source.ip"
	KeyRemoteIP       = "remote.ip"
	KeyNamespace      = "source.namespace"
	KeyServiceAccount = "source.serviceAccount"
	KeyTrustDomain    = "source.trustDomain"
	KeyPrincipal      = "source.principal"
	KeyAuthPrincipal  = "request.auth.principal"
	KeyAudiences      = "request.auth.audiences"
	KeyPresenter      = "request.auth.presenter"
	KeyClaims         = "request.auth.claims["
	KeyDestinationIP  = "destination.ip"
	KeyPort           = "destination.port"
	KeyServerName     = "connection.sni"
	KeyExperimental   = "experimental.envoy.filters."
)

// Named returns the name in a key such as "request.headers[x-a]", whose start is given; false if it has none.
func Named(key, start string) (string, bool) {
	rest, ok := strings.CutPrefix(key, start)
	name, closed := strings.CutSuffix(rest, "]")
	return name, ok && closed && name != ""
}

// Metadata splits a key such as "experimental.envoy.filters.a.b[c]" into the filter's name and the field's.
func Metadata(key string) (filter, field string, ok bool) {
	rest, ok := strings.CutPrefix(key, "experimental.")
	filter, field, bracket := strings.Cut(rest, "[")
	field, closed := strings.CutSuffix(field, "]")
	return filter, field, ok && bracket && closed && field != "" && strings.HasPrefix(key, KeyExperimental)
}

// conditions are the terms of a rule's when: those of permissions and those of principals.
func (b builder) conditions(r *security.Rule, policyNamespace string) (to []term[*rbacv3.Permission], from []term[*rbacv3.Principal]) {
	for _, w := range r.GetWhen() {
		key := w.GetKey()
		permission := term[*rbacv3.Permission]{values: w.GetValues(), not: w.GetNotValues()}
		id := term[*rbacv3.Principal]{values: w.GetValues(), not: w.GetNotValues()}
		switch {
		case key == KeyDestinationIP:
			permission.one = destinationIP
		case key == KeyPort:
			permission.one = destinationPort
		case key == KeyServerName:
			permission.one = serverName
		case strings.HasPrefix(key, KeyExperimental):
			permission.all = metadataOf(key)
		case key == KeySourceIP:
			id.one = sourceIP
		case key == KeyRemoteIP:
			id.one = remoteIP
		case key == KeyNamespace:
			id.one = namespace
		case key == KeyServiceAccount:
			id.one = serviceAccount(policyNamespace)
		case key == KeyTrustDomain:
			id.one = trustDomain
		case key == KeyPrincipal:
			id.values, id.not, id.one = b.withAliases(id.values), b.withAliases(id.not), principal
		case key == KeyAuthPrincipal:
			id.http, id.all = true, requestPrincipals
		case key == KeyAudiences:
			id.http, id.all = true, claim("aud")
		case key == KeyPresenter:
			id.http, id.all = true, claim("azp")
		case strings.HasPrefix(key, KeyClaims):
			name, _ := Named(key, KeyClaims)
			id.http, id.all = true, claim(strings.Split(name, "][")...)
		case strings.HasPrefix(key, KeyHeader):
			name, _ := Named(key, KeyHeader)
			id.http, id.one = true, func(value string) *rbacv3.Principal {
				return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: header(name, value, false)}}
			}
		default:
			panic("authz: unknown key of a condition: " + key) // package config rejects it
		}
		if permission.one != nil || permission.all != nil {
			to = append(to, permission)
		} else {
			from = append(from, id)
		}
	}
	return to, from
}

func metadata(filter string, value *matcherv3.ValueMatcher, path ...string) *matcherv3.MetadataMatcher {
	m := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range path {
		m.Path = append(m.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return m
}

func textValue(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

// inList matches a list with a matching element.
func inList(m *matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: m},
	}}}
}

// anyValue matches a value that one of the matchers does.
func anyValue(all []*matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	if len(all) == 1 {
		return all[0]
	}
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{ValueMatchers: all}}}
}

// claim returns the translation of the values of a claim, which is a text or a list of texts.
func claim(path ...string) func([]string) *rbacv3.Principal {
	return func(values []string) *rbacv3.Principal {
		var each []*matcherv3.ValueMatcher
		for _, v := range values {
			each = append(each, textValue(text(v, false)))
		}
		value := anyValue([]*matcherv3.ValueMatcher{inList(anyValue(each)), anyValue(each)})
		return inMetadata(metadata(jwt.Filter, value, append([]string{jwt.Payload}, path...)...))
	}
}

func inMetadata(m *matcherv3.MetadataMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Metadata{Metadata: m}} //nolint:staticcheck // Istio sends it, and proxies of before its successor know no other
}

// requestPrincipals matches the issuer and the subject of a token, "issuer/subject". One "*" is a wildcard, at the start or at the end:
// at the start it is of the issuer, or of the subject where there is no slash, and at the end of the subject, or of the issuer.
func requestPrincipals(values []string) *rbacv3.Principal {
	var each []*rbacv3.Principal
	for _, v := range values {
		i := strings.LastIndex(v, "/")
		var issuer, subject *matcherv3.StringMatcher
		switch {
		case i < 0 && strings.HasPrefix(v, "*"):
			issuer, subject = pattern(".+"), text(v, false)
		case i < 0:
			issuer, subject = text(v, false), pattern(".+")
		case strings.HasPrefix(v, "*"):
			issuer, subject = text(v[:i], false), exactly(v[i+1:])
		default:
			issuer, subject = exactly(v[:i]), text(v[i+1:], false)
		}
		each = append(each, principals.and([]*rbacv3.Principal{
			inMetadata(metadata(jwt.Filter, textValue(issuer), jwt.Payload, "iss")), inMetadata(metadata(jwt.Filter, textValue(subject), jwt.Payload, "sub")),
		}))
	}
	if len(each) == 1 {
		return each[0]
	}
	return principals.or(each)
}

// metadataOf returns the translation of values of metadata that a filter has written; a value in brackets is an
// element of a list.
func metadataOf(key string) func([]string) *rbacv3.Permission {
	filter, field, _ := Metadata(key)
	return func(values []string) *rbacv3.Permission {
		var each []*matcherv3.ValueMatcher
		for _, v := range values {
			if strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") {
				each = append(each, inList(textValue(text(strings.Trim(v, "[]"), false))))
			} else {
				each = append(each, textValue(text(v, false)))
			}
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Metadata{Metadata: metadata(filter, anyValue(each), field)}} //nolint:staticcheck // as above
	}
}
