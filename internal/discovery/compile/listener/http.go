package listener

import (
	"fmt"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	withoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// ALPNFilter is the name of the HTTP filter that sets the mesh's ALPN for upstream connections. Routes
// to clusters with an ALPN of their own disable it.
const ALPNFilter = "envoy.filters.http.set_filter_state"

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
		out = append(out, httpFilter("envoy.filters.http.grpc_stats", &grpcstatsv3.FilterConfig{
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
	return append(out, httpFilter("envoy.filters.http.router", &routerv3.Router{}))
}

func (e Env) manager(statPrefix string, outbound bool) *hcmv3.HttpConnectionManager {
	h := &hcmv3.HttpConnectionManager{
		StatPrefix:                   statPrefix,
		HttpFilters:                  e.httpFilters(outbound),
		AccessLog:                    e.accessLog(),
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
			UseRequestIdForTraceSampling: wrapperspb.Bool(true),
		})}
	}
	if e.Caps.Has(mesh.HTTP10) {
		h.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AcceptHttp_10: true}
	}
	return h
}

// outboundHTTP returns a connection manager with the given RDS resource.
func (e Env) outboundHTTP(statPrefix, routes string) *listenerv3.Filter {
	h := e.manager(statPrefix, true)
	h.RouteSpecifier = rds(routes)
	return networkFilter("envoy.filters.network.http_connection_manager", h)
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

// inboundHTTP returns a connection manager with inline routes. It adds the identity of the client to
// x-forwarded-client-cert, which Envoy removes from requests without mutual TLS. The filters first come before all
// others.
func (e Env) inboundHTTP(statPrefix string, routes *routev3.RouteConfiguration, first []*hcmv3.HttpFilter) *listenerv3.Filter {
	h := e.manager(statPrefix, false)
	h.HttpFilters = slices.Concat(first, h.HttpFilters)
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	h.ServerName = "istio-envoy"
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Dns: true, Uri: true,
	}
	return networkFilter("envoy.filters.network.http_connection_manager", h)
}

// accessFormat is Istio's default text format.
const accessFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% ` +
	`%DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" ` +
	`"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% ` +
	`%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%` + "\n"

// accessLog returns the mesh's access log, nil if it has none.
func (e Env) accessLog() []*accesslogv3.AccessLog {
	path := e.Mesh.GetAccessLogFile()
	if path == "" {
		return nil
	}
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.file",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: marshal.MustAny(&fileaccesslogv3.FileAccessLog{
			Path:            path,
			AccessLogFormat: &fileaccesslogv3.FileAccessLog_LogFormat{LogFormat: e.logFormat()},
		})},
	}}
}

// listenerLog returns the log of a listener's connections that no filter chain takes, such as those without TLS where it is required:
// the mesh's access log, unless mesh configuration disables it. [control-plane 1.4.8]
func (e Env) listenerLog() []*accesslogv3.AccessLog {
	if e.Mesh.GetDisableEnvoyListenerLog() {
		return nil
	}
	logs := e.accessLog()
	for _, l := range logs {
		l.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
		}}
	}
	return logs
}

// logFormat returns the mesh's format, or Istio's default text or JSON format. A text that does not end its line gets a newline, as
// with Istio.
func (e Env) logFormat() *corev3.SubstitutionFormatString {
	format := e.Mesh.GetAccessLogFormat()
	out := &corev3.SubstitutionFormatString{}
	if strings.Contains(format, "%REQ_WITHOUT_QUERY(") {
		// Envoy has this command in an extension, and refuses it without. https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/formatter/req_without_query/v3/req_without_query.proto
		out.Formatters = []*corev3.TypedExtensionConfig{{Name: "envoy.formatter.req_without_query", TypedConfig: marshal.MustAny(&withoutqueryv3.ReqWithoutQuery{})}}
	}
	if e.Mesh.GetAccessLogEncoding() == meshv1.MeshConfig_JSON {
		fields := &structpb.Struct{}
		if format == "" || protojson.Unmarshal([]byte(format), fields) != nil { // package config rejects an invalid format
			fields = jsonFormat()
		}
		out.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}
		return out
	}
	if format == "" {
		format = accessFormat
	}
	if !strings.HasSuffix(format, "\n") {
		format += "\n"
	}
	out.Format = &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: format},
	}}
	return out
}

// jsonFormat returns Istio's default JSON format.
func jsonFormat() *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for name, command := range map[string]string{
		"start_time": "%START_TIME%", "route_name": "%ROUTE_NAME%", "method": "%REQ(:METHOD)%", "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
		"protocol": "%PROTOCOL%", "response_code": "%RESPONSE_CODE%", "response_flags": "%RESPONSE_FLAGS%",
		"response_code_details": "%RESPONSE_CODE_DETAILS%", "connection_termination_details": "%CONNECTION_TERMINATION_DETAILS%",
		"bytes_received": "%BYTES_RECEIVED%", "bytes_sent": "%BYTES_SENT%", "duration": "%DURATION%",
		"upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%", "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
		"user_agent": "%REQ(USER-AGENT)%", "request_id": "%REQ(X-REQUEST-ID)%", "authority": "%REQ(:AUTHORITY)%",
		"upstream_host": "%UPSTREAM_HOST%", "upstream_cluster": "%UPSTREAM_CLUSTER_RAW%", "upstream_local_address": "%UPSTREAM_LOCAL_ADDRESS%",
		"downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%", "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
		"requested_server_name": "%REQUESTED_SERVER_NAME%", "upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	} {
		s.Fields[name] = structpb.NewStringValue(command)
	}
	return s
}
