package authz

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

var permissions = algebra[*rbacv3.Permission]{
	and: func(all []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
	},
	or: func(all []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: all}}}
	},
	not: func(p *rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: p}}
	},
	any: func() *rbacv3.Permission { return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}} },
}

var principals = algebra[*rbacv3.Principal]{
	and: func(all []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: all}}}
	},
	or: func(all []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: all}}}
	},
	not: func(p *rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: p}}
	},
	any: func() *rbacv3.Principal { return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}} },
}

// text matches a value with at most one wildcard, at its start or end; "*" alone is any text that is not empty.
func text(value string, ignoreCase bool) *matcherv3.StringMatcher {
	m := &matcherv3.StringMatcher{IgnoreCase: ignoreCase}
	switch {
	case value == "*":
		return pattern(".+")
	case strings.HasPrefix(value, "*"):
		m.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: value[1:]}
	case strings.HasSuffix(value, "*"):
		m.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: strings.TrimSuffix(value, "*")}
	default:
		m.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: value}
	}
	return m
}

// exactly matches a value in which no character is a wildcard.
func exactly(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}

// pattern matches a whole text with a regular expression.
func pattern(re string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: re}}}
}

// header matches a header; "*" is one that is present.
func header(name, value string, ignoreCase bool) *routev3.HeaderMatcher {
	m := &routev3.HeaderMatcher{Name: name}
	if value == "*" {
		m.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
	} else {
		m.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: text(value, ignoreCase)}
	}
	return m
}

// headerPermission returns the translation of a header's value.
func headerPermission(name string, ignoreCase bool) func(string) *rbacv3.Permission {
	return func(value string) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: header(name, value, ignoreCase)}}
	}
}

// IsTemplate reports whether a path is a template, with "{*}" for a segment or "{**}" for any number of them.
func IsTemplate(path string) bool {
	return strings.Contains(path, "{*}") || strings.Contains(path, "{**}")
}

func path(value string) *rbacv3.Permission {
	if IsTemplate(value) {
		template := strings.NewReplacer("{*}", "*", "{**}", "**").Replace(value)
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{UriTemplate: &corev3.TypedExtensionConfig{
			Name: "uri-template", TypedConfig: marshal.MustAny(&uritemplatev3.UriTemplateMatchConfig{PathTemplate: template}),
		}}}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: text(value, false)}}}}
}

func destinationPort(value string) *rbacv3.Permission {
	n, _ := strconv.ParseUint(value, 10, 16) // package config has parsed it
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(n)}}
}

func destinationIP(value string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: block(value)}}
}

func serverName(value string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: text(value, false)}}
}

// Block parses an address, or a block of addresses.
func Block(value string) (netip.Prefix, error) {
	if strings.Contains(value, "/") {
		return netip.ParsePrefix(value)
	}
	ip, err := netip.ParseAddr(value)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(ip, ip.BitLen()), nil
}

func block(value string) *corev3.CidrRange {
	p, err := Block(value)
	if err != nil {
		panic("authz: " + err.Error()) // package config has parsed it
	}
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}
}

func sourceIP(value string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: block(value)}}
}

func remoteIP(value string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: block(value)}}
}

// authenticated matches the identity in the client's certificate. It matches no connection without one.
func authenticated(m *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m}}}
}

const spiffe = "spiffe://"

// principal matches an identity without its scheme.
func principal(value string) *rbacv3.Principal {
	switch {
	case value == "*":
		return authenticated(pattern(".+"))
	case strings.HasPrefix(value, "*"):
		return authenticated(pattern(spiffe + ".*" + regexp.QuoteMeta(value[1:])))
	}
	return authenticated(text(spiffe+value, false))
}

// wild returns a regular expression for a text in which each "*" stands for any text.
func wild(value, any string) string {
	parts := strings.Split(value, "*")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return strings.Join(parts, any)
}

func namespace(value string) *rbacv3.Principal {
	return authenticated(pattern(".*/ns/" + wild(value, ".*") + "/.*"))
}

// trustDomain matches identities of a trust domain; a "*" stands for any text within it.
func trustDomain(value string) *rbacv3.Principal {
	return authenticated(pattern(spiffe + wild(value, "[^/]*") + "/.*"))
}

// serviceAccount returns the translation of a service account, "name" in the policy's namespace or "namespace/name".
func serviceAccount(policyNamespace string) func(string) *rbacv3.Principal {
	return func(value string) *rbacv3.Principal {
		ns, name, ok := strings.Cut(value, "/")
		if !ok {
			ns, name = policyNamespace, value
		}
		return authenticated(pattern(spiffe + ".+/ns/" + regexp.QuoteMeta(ns) + "/(.+/|)sa/" + regexp.QuoteMeta(name) + "(/.+)?"))
	}
}

// localDomain stands for the mesh's trust domain in principals, whatever that is.
const localDomain = "cluster.local"

// identityParts is the number of parts of an identity, DOMAIN/ns/NAMESPACE/sa/ACCOUNT, between slashes.
const identityParts = 5

// withAliases replaces each principal of one of the mesh's trust domains by one of each of them. One that has not all parts of an
// identity, such as cluster.local/*, is compared as it is, as with Istio; a trust domain with a wildcard at its start stands for
// itself where it matches one of the mesh's, and one with a wildcard at its end for all of them. [control-plane 1.10.11]
func (b builder) withAliases(values []string) []string {
	var out []string
	for _, v := range values {
		domain, rest, _ := strings.Cut(v, "/")
		end, suffix := strings.CutPrefix(domain, "*")
		start, prefix := strings.CutSuffix(domain, "*")
		known := domain == localDomain
		for _, d := range b.trustDomains {
			known = known || d == domain || suffix && strings.HasSuffix(d, end) || prefix && strings.HasPrefix(d, start)
		}
		if strings.Count(v, "/") != identityParts-1 || domain == "*" || !known {
			out = append(out, v)
			continue
		}
		var each []string
		for _, d := range b.trustDomains {
			one := d + "/" + rest
			if suffix && strings.HasSuffix(d, end) {
				one = v
			}
			if !slices.Contains(each, one) {
				each = append(each, one)
			}
		}
		out = append(out, each...)
	}
	return out
}
