// Package jwt translates RequestAuthentications to Envoy's JWT filter.
//
// It consists of pure functions of values: equal rules give equal filters, with Istio's names of providers and its
// place for claims, which authorization and routes read [control-plane 1.10.3, 1.10.4]. A request without a token passes
// the filter, without claims; a token of another issuer, or one that is not valid, is refused. Rules must have passed
// package config.
package jwt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Filter is the name of the filter. It writes the payload of a valid token to the metadata of this name, below Payload.
const (
	Filter  = "envoy.filters.http.jwt_authn"
	Payload = "payload"
)

// Rule is a rule of a RequestAuthentication that is in force for a workload.
type Rule struct {
	Spec *security.JWTRule
	// Keys is the issuer's key set. If Remote has a URL, the proxy fetches it from there instead.
	Keys   string
	Remote Remote
}

// Remote is where a proxy fetches keys: a URL, through a cluster, each time within Timeout.
type Remote struct {
	URL, Cluster string
	Timeout      time.Duration
}

// Keys that proxies fetch are fetched anew after cacheTime, as with Istio, and retryTime after a fetch that failed.
const (
	cacheTime = 5 * time.Minute
	retryTime = time.Second
)

// fetched returns where keys are fetched: before there is a token and again before they are too old, so that the last ones stay while
// the server is away. A listener does not wait for them; while there are none, a token is one more reason to ask.
func (r Remote) fetched() *jwtv3.JwtProvider_RemoteJwks {
	return &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: &jwtv3.RemoteJwks{
		HttpUri: &corev3.HttpUri{
			Uri: r.URL, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: r.Cluster}, Timeout: durationpb.New(r.Timeout),
		},
		CacheDuration: durationpb.New(cacheTime),
		AsyncFetch:    &jwtv3.JwksAsyncFetch{FastListener: true, FailedRefetchDuration: durationpb.New(retryTime)},
	}}
}

// KeysOf returns the keys that a rule has itself; false if it has none. They must have passed pki.KeySet.
func KeysOf(r *security.JWTRule) (string, bool) {
	if r.GetJwks() == "" {
		return "", false
	}
	public, _, err := pki.KeySet(r.GetJwks())
	if err != nil {
		return pki.NoKeys, true
	}
	return public, true
}

// Build returns the filter for these rules, nil if there are none; the order of rules of one issuer matters. routed is set
// where routes may match claims, so that the route is chosen once more when they are known.
func Build(rules []Rule, routed bool) *hcmv3.HttpFilter {
	if len(rules) == 0 {
		return nil
	}
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b Rule) int { return cmp.Compare(a.Spec.GetIssuer(), b.Spec.GetIssuer()) })
	providers := map[string]*jwtv3.JwtProvider{}
	var any, each []*jwtv3.JwtRequirement
	for i, r := range rules {
		name := fmt.Sprintf("origins-%d", i)
		providers[name] = provider(r, routed)
		one := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
		any, each = append(any, one), append(each, anyOf(one, allowMissing()))
	}
	// One valid token is enough; without one, no provider may find a token that is not valid.
	required := each[0]
	if len(rules) > 1 {
		required = anyOf(append(any, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{
			RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: each},
		}})...)
	}
	return &hcmv3.HttpFilter{Name: Filter, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(&jwtv3.JwtAuthentication{
		Providers: providers,
		Rules: []*jwtv3.RequirementRule{{
			Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			RequirementType: &jwtv3.RequirementRule_Requires{Requires: required},
		}},
		BypassCorsPreflight: true,
	})}}
}

func anyOf(all ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: all}}}
}

func allowMissing() *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
}

// delimited are the claims that are lists in a text, whatever a rule says.
var delimited = []string{"permission", "scope"}

func provider(r Rule, routed bool) *jwtv3.JwtProvider {
	spaces := map[string]bool{}
	for _, name := range slices.Concat(delimited, r.Spec.GetSpaceDelimitedClaims()) {
		spaces[name] = true
	}
	out := &jwtv3.JwtProvider{
		Issuer:    r.Spec.GetIssuer(),
		Audiences: r.Spec.GetAudiences(),
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: r.Keys},
		}},
		Forward:              r.Spec.GetForwardOriginalToken(),
		FromParams:           r.Spec.GetFromParams(),
		FromCookies:          r.Spec.GetFromCookies(),
		ForwardPayloadHeader: r.Spec.GetOutputPayloadToHeader(),
		PayloadInMetadata:    Payload,
		NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{
			SpaceDelimitedClaims: slices.Sorted(maps.Keys(spaces)),
		},
		ClearRouteCache: routed,
	}
	if r.Remote.URL != "" {
		out.JwksSourceSpecifier = r.Remote.fetched()
	}
	for _, h := range r.Spec.GetFromHeaders() {
		out.FromHeaders = append(out.FromHeaders, &jwtv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()})
	}
	for _, c := range r.Spec.GetOutputClaimToHeaders() {
		out.ClaimToHeaders = append(out.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: c.GetHeader(), ClaimName: c.GetClaim()})
	}
	return out
}
