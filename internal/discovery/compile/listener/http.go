package listener

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// ALPNFilter is the name of the HTTP filter that sets the mesh's ALPN for upstream connections. Routes
// to clusters with an ALPN of their own disable it.
const ALPNFilter = "envoy.filters.http.set_filter_state"

// grpcStats is the name of the HTTP filter that counts the messages of gRPC, and of what it writes for metrics.
const grpcStats = "envoy.filters.http.grpc_stats"

func httpFilter(name string, m proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

// offerALPN sets the ALPN by which the server's inbound listener selects its HTTP filter chain. None of
// the protocols is negotiated, since the server's TLS context has none of them; the server's codec
// detects HTTP/2 by its preface.
func offerALPN() *hcmv3.HttpFilter {
	return httpFilter(ALPNFilter, &httpfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{{
		Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
		Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "istio-http/1.1,istio-h2,istio"},
			}},
		}},
		SharedWithUpstream: filterstatev3.FilterStateValue_ONCE,
	}}})
}

// httpFilters returns the filters of a connection manager in their fixed order [control-plane 1.12.15],
// without those that the proxy does not have.
func (e Env) httpFilters(outbound bool) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	if e.Caps.Has(mesh.GRPCStats) {
		out = append(out, httpFilter(grpcStats, &grpcstatsv3.FilterConfig{
			EmitFilterState: true, PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)},
		}))
	}
	if outbound && e.Caps.Has(mesh.FilterState) {
		out = append(out, offerALPN())
	}
	if e.Caps.Has(mesh.Fault) {
		out = append(out, httpFilter("envoy.filters.http.fault", &faultv3.HTTPFault{}))
	}
	if e.Caps.Has(mesh.CORS) {
		out = append(out, httpFilter("envoy.filters.http.cors", &corsv3.Cors{}))
	}
	r := &routerv3.Router{}
	if outbound && e.tells() {
		r.UpstreamHttpFilters = tellPeer()
	}
	return append(out, httpFilter("envoy.filters.http.router", r))
}

func (e Env) manager(statPrefix string, outbound bool, s side) *hcmv3.HttpConnectionManager {
	h := &hcmv3.HttpConnectionManager{
		StatPrefix:                   statPrefix,
		HttpFilters:                  e.httpFilters(outbound),
		AccessLog:                    append(e.accessLog(httpLogName), e.httpStats(s)...),
		UseRemoteAddress:             wrapperspb.Bool(false),
		Proxy_100Continue:            true,
		UpgradeConfigs:               []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		StreamIdleTimeout:            durationpb.New(0),
		NormalizePath:                wrapperspb.Bool(true),
		PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_KEEP_UNCHANGED,
	}
	switch n := e.Mesh.GetPathNormalization().GetNormalization(); n {
	case meshv1.MeshConfig_ProxyPathNormalization_DEFAULT, meshv1.MeshConfig_ProxyPathNormalization_BASE:
	case meshv1.MeshConfig_ProxyPathNormalization_NONE:
		h.NormalizePath = wrapperspb.Bool(false)
	case meshv1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		h.MergeSlashes = true
	case meshv1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		h.MergeSlashes = true
		h.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	default:
		panic(fmt.Sprintf("listener: unknown path normalization %d", n)) // package config rejects it
	}
	if e.Caps.Has(mesh.RequestIDUUID) {
		h.RequestIdExtension = &hcmv3.RequestIDExtension{TypedConfig: marshal.MustAny(&uuidv3.UuidRequestIdConfig{
			UseRequestIdForTraceSampling: wrapperspb.Bool(e.Tracing == nil || !e.Tracing.IgnoreRequestID),
		})}
	}
	h.Tracing = e.tracing()
	if outbound && e.Sessions {
		keepSessions(h)
	}
	if e.Caps.Has(mesh.HTTP10) {
		h.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AcceptHttp_10: true}
	}
	return h
}

// keepSessions adds, before the router, the filter that keeps the requests of a session at one endpoint.
func keepSessions(h *hcmv3.HttpConnectionManager) {
	h.HttpFilters = slices.Insert(h.HttpFilters, len(h.HttpFilters)-1, httpFilter("envoy.filters.http.stateful_session", &sessionv3.StatefulSession{}))
}

// outboundHTTP returns a connection manager with the given RDS resource.
func (e Env) outboundHTTP(statPrefix, routes string) *listenerv3.Filter {
	h := e.manager(statPrefix, true, clientSide())
	h.RouteSpecifier = rds(routes)
	return networkFilter(managerName, h)
}

// rds refers to a route configuration of this control plane.
func rds(routes string) *hcmv3.HttpConnectionManager_Rds {
	return &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
		RouteConfigName: routes,
		ConfigSource: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(0),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		},
	}}
}

// managerName is the name of the connection manager's filter.
const managerName = "envoy.filters.network.http_connection_manager"

// http returns a connection manager with inline routes.
func (f *Frame) http(statPrefix string, p InboundPort, mutual bool) *listenerv3.Filter {
	shared := f.HTTP[0]
	if mutual {
		shared = f.HTTP[1]
	}
	if shared == nil {
		shared = marshal.Must(f.manager(p, mutual))
	}
	// In the order of the encoding the prefix is the first of the fields that are set, and the routes, which are one of several, the last.
	value := marshal.Must(&hcmv3.HttpConnectionManager{StatPrefix: statPrefix})
	value = append(value, shared...)
	value = marshal.MustAppend(value, &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: p.Routes}})
	return &listenerv3.Filter{Name: managerName, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: managerURL, Value: value}}}
}

var managerURL = marshal.TypeURL((*hcmv3.HttpConnectionManager)(nil))

// manager returns the connection manager of a port without its prefix and routes. It adds the identity of the client to
// x-forwarded-client-cert, which Envoy removes from requests without mutual TLS. The filters of authorization come before all
// others but the one that takes the header of peers.
func (f *Frame) manager(p InboundPort, mutual bool) *hcmv3.HttpConnectionManager {
	h := f.Env.manager("", false, p.side(mutual, true))
	h.HttpFilters = slices.Concat(f.Env.hearPeer(mutual), f.In.Authorization.HTTP, h.HttpFilters)
	h.ServerName = "istio-envoy"
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Dns: true, Uri: true,
	}
	return h
}
