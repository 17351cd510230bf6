package authz

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpextv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkextv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The names of the filters that ask an external authorizer.
const (
	HTTPExternalFilter    = "envoy.filters.http.ext_authz"
	NetworkExternalFilter = "envoy.filters.network.ext_authz"
)

const (
	// externalShadow is the prefix of the statistics and metadata that say which CUSTOM rule matches, and shadowPolicy the
	// metadata's field after it.
	externalShadow = "istio_ext_authz_"
	shadowPolicy   = "shadow_effective_policy_id"
	// externalPrefix begins the names of the rules of CUSTOM, before the name of the provider.
	externalPrefix = "istio-ext-authz-"
	badSuffix      = "-deny-due-to-bad-CUSTOM-action"
	// externalTimeout is that of a provider without one, which is Istio's.
	externalTimeout = 600 * time.Second
)

// Authorizer is a provider of external authorization, as a workload reaches it.
type Authorizer struct {
	// Provider is nil if there is a Fault.
	Provider *meshv1.MeshConfig_ExtensionProvider
	// Host and Cluster are those of its service.
	Host, Cluster string
	// Fault says why it cannot be used, empty if it can.
	Fault string
}

// custom returns the CUSTOM policies, and their provider. All policies of a workload must have the same one, as in Istio.
func custom(policies []Policy, known map[string]Authorizer) (out []Policy, a Authorizer) {
	names := map[string]bool{}
	for _, p := range policies {
		if _, custom := actionOf(p); custom {
			out = append(out, p)
			names[p.Spec.GetProvider().GetName()] = true
		}
	}
	list := slices.Sorted(maps.Keys(names))
	switch {
	case len(list) == 0:
	case len(list) > 1:
		a.Fault = fmt.Sprintf("policies of one workload have the providers %s: want one", strings.Join(list, ", "))
	default:
		var ok bool
		if a, ok = known[list[0]]; !ok {
			a.Fault = fmt.Sprintf("there is no provider %q in extensionProviders of mesh configuration", list[0])
		}
	}
	return out, a
}

// external appends the filters of CUSTOM policies: rules in the shadow find out whether one matches, and then the provider is
// asked. If that is not possible, what they match is denied. A provider that speaks HTTP is not asked about TCP connections, as in
// Istio.
func (f *Filters) external(b builder, policies []Policy, a Authorizer) {
	if len(policies) == 0 {
		return
	}
	suffix := ""
	if a.Fault != "" {
		suffix = badSuffix
	}
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	for _, p := range policies {
		b.add(rules.Policies, p, externalPrefix+p.Spec.GetProvider().GetName()+"-", suffix)
	}
	if a.Fault != "" {
		f.add(b.tcp, rules, nil, "")
		return
	}
	name := a.Provider.GetName()
	if !b.tcp {
		f.Needs |= mesh.ExtAuthz
		f.HTTP = append(f.HTTP, httpFilter(HTTPFilter, &httprbacv3.RBAC{ShadowRules: rules, ShadowRulesStatPrefix: externalShadow}))
		f.HTTP = append(f.HTTP, httpFilter(HTTPExternalFilter, httpExternal(a, name)))
		return
	}
	if g := a.Provider.GetEnvoyExtAuthzGrpc(); g != nil {
		f.Needs |= mesh.NetworkExtAuthz
		f.TCP = append(f.TCP, networkFilter(NetworkFilter, &networkrbacv3.RBAC{ShadowRules: rules, ShadowRulesStatPrefix: externalShadow, StatPrefix: tcpPrefix}))
		f.TCP = append(f.TCP, networkFilter(NetworkExternalFilter, &networkextv3.ExtAuthz{
			StatPrefix: tcpPrefix, GrpcService: grpcService(a, g.GetTimeout()), FailureModeAllow: g.GetFailOpen(),
			TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: matched(NetworkFilter, name),
		}))
	}
}

// httpExternal returns the filter that asks about HTTP requests.
func httpExternal(a Authorizer, name string) *httpextv3.ExtAuthz {
	out := &httpextv3.ExtAuthz{TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: matched(HTTPFilter, name)}
	if g := a.Provider.GetEnvoyExtAuthzGrpc(); g != nil {
		out.FailureModeAllow, out.ClearRouteCache = g.GetFailOpen(), g.GetClearRouteCache()
		out.StatusOnError, out.WithRequestBody = statusOf(g.GetStatusOnError()), body(g.GetIncludeRequestBodyInCheck())
		out.Services = &httpextv3.ExtAuthz_GrpcService{GrpcService: grpcService(a, g.GetTimeout())}
		return out
	}
	h := a.Provider.GetEnvoyExtAuthzHttp()
	out.FailureModeAllow, out.ClearRouteCache = h.GetFailOpen(), h.GetClearRouteCache()
	out.StatusOnError, out.WithRequestBody = statusOf(h.GetStatusOnError()), body(h.GetIncludeRequestBodyInCheck())
	service := &httpextv3.HttpService{
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + a.Host, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: a.Cluster}, Timeout: timeout(h.GetTimeout()),
		},
		PathPrefix: h.GetPathPrefix(),
	}
	for _, key := range slices.Sorted(maps.Keys(h.GetIncludeAdditionalHeadersInCheck())) {
		if service.AuthorizationRequest == nil {
			service.AuthorizationRequest = &httpextv3.AuthorizationRequest{}
		}
		service.AuthorizationRequest.HeadersToAdd = append(service.AuthorizationRequest.HeadersToAdd, &corev3.HeaderValue{Key: key, Value: h.IncludeAdditionalHeadersInCheck[key]})
	}
	include := h.GetIncludeRequestHeadersInCheck()
	if len(include) == 0 {
		include = h.GetIncludeHeadersInCheck() //nolint:staticcheck // the field's older name
	}
	out.AllowedHeaders = headers(include)
	if len(h.GetHeadersToUpstreamOnAllow())+len(h.GetHeadersToDownstreamOnDeny())+len(h.GetHeadersToDownstreamOnAllow()) > 0 {
		service.AuthorizationResponse = &httpextv3.AuthorizationResponse{
			AllowedUpstreamHeaders: headers(h.GetHeadersToUpstreamOnAllow()), AllowedClientHeaders: headers(h.GetHeadersToDownstreamOnDeny()),
			AllowedClientHeadersOnSuccess: headers(h.GetHeadersToDownstreamOnAllow()),
		}
	}
	out.Services = &httpextv3.ExtAuthz_HttpService{HttpService: service}
	return out
}

func grpcService(a Authorizer, t *durationpb.Duration) *corev3.GrpcService {
	// The name of the cluster, Envoy's default, is no valid authority.
	return &corev3.GrpcService{Timeout: timeout(t), TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: a.Cluster, Authority: a.Host},
	}}
}

func timeout(t *durationpb.Duration) *durationpb.Duration {
	if t == nil {
		return durationpb.New(externalTimeout)
	}
	return t
}

// statusOf parses a status, nil for none.
func statusOf(text string) *typev3.HttpStatus {
	code, err := strconv.Atoi(text)
	if err != nil {
		return nil
	}
	return &typev3.HttpStatus{Code: typev3.StatusCode(code)}
}

func body(b *meshv1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) *httpextv3.BufferSettings {
	if b == nil {
		return nil
	}
	return &httpextv3.BufferSettings{MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes()}
}

// headers returns matchers of names with a "*" at the start or the end, nil for none.
func headers(list []string) *matcherv3.ListStringMatcher {
	if len(list) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range list {
		m := &matcherv3.StringMatcher{IgnoreCase: true, MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}}
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			m.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: prefix}
		} else if suffix, ok := strings.CutPrefix(name, "*"); ok {
			m.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: suffix}
		}
		out.Patterns = append(out.Patterns, m)
	}
	return out
}

// matched matches the metadata of a filter if a rule of the provider has matched. Since a workload has one provider, its name may
// begin that of another.
func matched(filter, name string) *matcherv3.MetadataMatcher {
	return &matcherv3.MetadataMatcher{
		Filter: filter,
		Path:   []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: externalShadow + shadowPolicy}}},
		Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: externalPrefix + name},
		}}},
	}
}
