package listener

import (
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpcaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otelaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	withoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// accessFormat is Istio's default text format.
const accessFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% ` +
	`%DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" ` +
	`"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% ` +
	`%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%` + "\n"

// Log is one access log that a Telemetry or a default provider asks for.
type Log struct {
	Provider *meshv1.MeshConfig_ExtensionProvider
	// Cluster and Host are those of the provider's service; empty for a provider without one.
	Cluster, Host string
	// Filter is an expression that says which requests and connections are logged, empty for all.
	Filter string
}

// Logs are the access logs of a listener. If Decided is false, they are that of accessLogFile.
type Logs struct {
	Decided bool
	List    []Log
}

// The names of logs at the service of the proxies' own ProxyConfig, Istio's, by what they are of.
const (
	httpLogName     = "http_envoy_accesslog"
	tcpLogName      = "tcp_envoy_accesslog"
	listenerLogName = "listener_envoy_accesslog"
)

// accessLog returns the access logs of requests and connections, nil if there are none. name is that of the log at the proxies' own service, empty
// where nothing is sent to it. [control-plane 1.4.8, 1.11.3]
func (e Env) accessLog(name string) (out []*accesslogv3.AccessLog) {
	if !e.Logs.Decided {
		if path := e.Mesh.GetAccessLogFile(); path != "" {
			out = append(out, fileLog(path, e.meshFormat()))
		}
		if e.Mesh.GetEnableEnvoyAccessLogService() && e.Caps.Has(mesh.AccessLogService) && name != "" {
			out = append(out, ownServiceLog(name))
		}
		return out
	}
	for _, l := range e.Logs.List {
		one := e.log(l)
		if l.Filter != "" {
			one.Filter = expressionFilter(l.Filter)
		}
		out = append(out, one)
	}
	return out
}

func expressionFilter(text string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name:       "envoy.access_loggers.extension_filters.cel",
		ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: marshal.MustAny(&celfilterv3.ExpressionFilter{Expression: text})},
	}}}
}

// listenerLog returns the log of a listener's connections that no filter chain takes, such as those without TLS where it is required:
// the access logs, unless mesh configuration disables it. [control-plane 1.4.8]
func (e Env) listenerLog() []*accesslogv3.AccessLog {
	if e.Mesh.GetDisableEnvoyListenerLog() {
		return nil
	}
	logs := e.accessLog(listenerLogName)
	for _, l := range logs {
		noRoute := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
		}}
		if l.Filter == nil {
			l.Filter = noRoute
			continue
		}
		l.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
			AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{noRoute, l.Filter}},
		}}
	}
	return logs
}

func fileLog(path string, format *corev3.SubstitutionFormatString) *accesslogv3.AccessLog {
	return logger("envoy.access_loggers.file", &fileaccesslogv3.FileAccessLog{
		Path: path, AccessLogFormat: &fileaccesslogv3.FileAccessLog_LogFormat{LogFormat: format},
	})
}

func logger(name string, m proto.Message) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

// The state of filters that Istio's proxies have, and its servers of access logs expect; stock Envoy has none of it.
var (
	peerState = []string{"upstream_peer", "downstream_peer"}
	wasmState = []string{"upstream_peer", "downstream_peer", "wasm.upstream_peer", "wasm.upstream_peer_id", "wasm.downstream_peer", "wasm.downstream_peer_id"}
)

// log returns one access log, without its filter. It panics for a provider of something else.
func (e Env) log(l Log) *accesslogv3.AccessLog {
	switch p := l.Provider.GetProvider().(type) {
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		f := p.EnvoyFileAccessLog
		format := formatOf(f.GetLogFormat().GetText(), f.GetLogFormat().GetLabels())
		if l.Provider.GetName() == mesh.EnvoyLogProvider && f.GetLogFormat() == nil && !f.GetOmitEmptyValues() {
			format = e.meshFormat()
		}
		format.OmitEmptyValues = f.GetOmitEmptyValues()
		return fileLog(orDefault(f.GetPath(), "/dev/stdout"), format)
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		a := p.EnvoyHttpAls
		return logger("envoy.access_loggers.http_grpc", &grpcaccesslogv3.HttpGrpcAccessLogConfig{
			CommonConfig:                    l.common(a.GetLogName(), httpLogName, a.GetFilterStateObjectsToLog(), wasmState),
			AdditionalRequestHeadersToLog:   a.GetAdditionalRequestHeadersToLog(),
			AdditionalResponseHeadersToLog:  a.GetAdditionalResponseHeadersToLog(),
			AdditionalResponseTrailersToLog: a.GetAdditionalResponseTrailersToLog(),
		})
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		a := p.EnvoyTcpAls
		return logger("envoy.tcp_grpc_access_log", &grpcaccesslogv3.TcpGrpcAccessLogConfig{
			CommonConfig: l.common(a.GetLogName(), tcpLogName, a.GetFilterStateObjectsToLog(), peerState),
		})
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		a := p.EnvoyOtelAls
		text := orDefault(a.GetLogFormat().GetText(), accessFormat)
		out := &otelaccesslogv3.OpenTelemetryAccessLogConfig{
			CommonConfig:         l.common(a.GetLogName(), "otel_envoy_accesslog", nil, wasmState), //nolint:staticcheck // deprecated, but the only field that Istio's proxies and stock Envoy both read
			DisableBuiltinLabels: true,
			Body:                 &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: text}},
			Formatters:           formatters(text, a.GetLogFormat().GetLabels()),
		}
		if labels := a.GetLogFormat().GetLabels(); len(labels.GetFields()) > 0 {
			out.Attributes = attributes(labels)
		}
		return logger("envoy.access_loggers.open_telemetry", out)
	}
	panic("listener: provider " + l.Provider.GetName() + " is not one of access logs")
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// ownServiceLog returns a log to the service of the proxies' own ProxyConfig.
func ownServiceLog(name string) *accesslogv3.AccessLog {
	common := Log{Cluster: mesh.AccessLogServiceCluster}.common(name, "", nil, wasmState)
	if name == httpLogName {
		return logger("envoy.access_loggers.http_grpc", &grpcaccesslogv3.HttpGrpcAccessLogConfig{CommonConfig: common})
	}
	return logger("envoy.tcp_grpc_access_log", &grpcaccesslogv3.TcpGrpcAccessLogConfig{CommonConfig: common})
}

// common is what all loggers of gRPC have.
func (l Log) common(name, defaultName string, state, defaultState []string) *grpcaccesslogv3.CommonGrpcAccessLogConfig {
	if len(state) == 0 {
		state = defaultState
	}
	return &grpcaccesslogv3.CommonGrpcAccessLogConfig{
		LogName: orDefault(name, defaultName),
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: l.Cluster, Authority: l.Host},
		}},
		TransportApiVersion:     corev3.ApiVersion_V3,
		FilterStateObjectsToLog: state,
	}
}

// attributes are the labels of an OpenTelemetry log, sorted; a value that is not a string is its JSON.
func attributes(labels *structpb.Struct) *commonv1.KeyValueList {
	out := &commonv1.KeyValueList{}
	for _, name := range slices.Sorted(maps.Keys(labels.GetFields())) {
		v := labels.GetFields()[name]
		text, isText := v.GetKind().(*structpb.Value_StringValue)
		value := ""
		if isText {
			value = text.StringValue
		} else if j, err := v.MarshalJSON(); err == nil {
			value = string(j)
		}
		out.Values = append(out.Values, &commonv1.KeyValue{Key: name, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: value}}})
	}
	return out
}

// meshFormat returns the mesh's format, or Istio's default text or JSON format.
func (e Env) meshFormat() *corev3.SubstitutionFormatString {
	format := e.Mesh.GetAccessLogFormat()
	if e.Mesh.GetAccessLogEncoding() != meshv1.MeshConfig_JSON {
		return formatOf(format, nil)
	}
	fields := &structpb.Struct{}
	if format == "" || protojson.Unmarshal([]byte(format), fields) != nil { // package config rejects an invalid format
		fields = jsonFormat()
	}
	return formatOf("", fields)
}

// formatOf returns a format in text, Istio's default if it is empty, or in JSON if there are fields. A text that does not end its line
// gets a newline, as with Istio.
func formatOf(text string, fields *structpb.Struct) *corev3.SubstitutionFormatString {
	out := &corev3.SubstitutionFormatString{Formatters: formatters(text, fields)}
	if fields != nil {
		if len(fields.GetFields()) == 0 {
			fields = jsonFormat()
		}
		out.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}
		return out
	}
	text = orDefault(text, accessFormat)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	out.Format = &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: text},
	}}
	return out
}

// formatters are the extensions that the commands of a format need: Envoy refuses it without.
// https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/formatter/req_without_query/v3/req_without_query.proto
func formatters(text string, fields *structpb.Struct) []*corev3.TypedExtensionConfig {
	const command = "%REQ_WITHOUT_QUERY("
	if !strings.Contains(text, command) && !anyText(structpb.NewStructValue(fields), command) {
		return nil
	}
	return []*corev3.TypedExtensionConfig{{Name: "envoy.formatter.req_without_query", TypedConfig: marshal.MustAny(&withoutqueryv3.ReqWithoutQuery{})}}
}

// anyText reports whether a text in a value contains a part.
func anyText(v *structpb.Value, part string) bool {
	for _, f := range v.GetStructValue().GetFields() {
		if anyText(f, part) {
			return true
		}
	}
	return strings.Contains(v.GetStringValue(), part) ||
		slices.ContainsFunc(v.GetListValue().GetValues(), func(one *structpb.Value) bool { return anyText(one, part) })
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
