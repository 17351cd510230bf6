package config

import (
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	withoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/cel"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// logged is a bootstrap with a listener that has an access log.
func logged(t *testing.T, format, filter string) *bootstrapv3.Bootstrap {
	t.Helper()
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	log := &accesslogv3.AccessLog{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&filev3.FileAccessLog{
		Path: "/dev/null",
		AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
			Format:     &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: format}}},
			Formatters: []*corev3.TypedExtensionConfig{{Name: "without query", TypedConfig: pack(&withoutqueryv3.ReqWithoutQuery{})}},
		}},
	})}}
	if filter != "" {
		log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: "cel", ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: pack(&celfilterv3.ExpressionFilter{Expression: filter})},
		}}}
	}
	b := envoytest.Bootstrap()
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, &listenerv3.Listener{
		Name:      "logged",
		Address:   &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{}}}},
		AccessLog: []*accesslogv3.AccessLog{log},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
			{Name: "echo", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(&echov3.Echo{})}},
		}}},
	})
	return b
}

// What is accepted must be accepted by Envoy, which would refuse every listener with the format.
func TestFormatsAsEnvoyHasThem(t *testing.T) {
	var all strings.Builder
	for _, name := range plainCommands {
		all.WriteString("%" + name + "% ")
	}
	good := map[string]bool{all.String(): true}
	for _, f := range []string{
		"", "plain text\n", "100%% done", "%%PROTOCOL%%", "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH):40% %REQ_WITHOUT_QUERY(:PATH)%",
		"%RESP(a)% %TRAILER(a):3% %RESPONSE_HEADER(a)% %REQUEST_HEADER(a)% %RESPONSE_TRAILER(a)% %STREAM_INFO_REQ(a)%", "%START_TIME% %START_TIME(%s.%3f)% %EMIT_TIME_LOCAL(%Y)%",
		"%DYNAMIC_METADATA(a:b):9% %CLUSTER_METADATA(a)% %UPSTREAM_METADATA(a:b)% %METADATA(ROUTE:a:b)% %METADATA(LISTENER_FILTER_CHAIN:a)% %METADATA(VIRTUAL_HOST:a)%",
		"%FILTER_STATE(a)% %FILTER_STATE(a:PLAIN):3% %UPSTREAM_FILTER_STATE(a:FIELD:b)% %ENVIRONMENT(a)% %QUERY_PARAM(a)% %QUERY_PARAMS% %QUERY_PARAMS(DECODED):3%",
		"%PATH% %PATH(NQ:ORIG_OR_PATH)% %REQUESTED_SERVER_NAME% %REQUESTED_SERVER_NAME(HOST_FIRST:ORIG)% %GRPC_STATUS% %GRPC_STATUS(NUMBER)% %RESPONSE_CODE_DETAILS(a)%",
		"%COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)% %CEL(request.headers['a'].matches(\"x(y)\")):8% %TYPED_CEL(response.code)%",
		"%DOWNSTREAM_PEER_CERT_V_START% %UPSTREAM_PEER_CERT_V_END(%s)% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT(24)%",
		`%COALESCE({"operators": ["UPSTREAM_HOST", {"command": "REQ", "param": "a"}]}):9%`,
	} {
		good[f] = true
	}
	for f, want := range map[string]string{
		"100% done": "invalid command at", "%": "invalid command", "%protocol%": "invalid command", "%NO_SUCH_OPERATOR%": "unknown command %NO_SUCH_OPERATOR%",
		"%PROTOCOL(a)%": "takes no parameter", "%PROTOCOL:3%": "takes no parameter", "%REQ%": "needs a parameter", "%REQ()%": "needs a parameter", "%REQ(a b)%": "invalid header name",
		"%REQ(a?b?c)%": "two with a question mark", "%REQ(a):x%": "invalid command", "%REQ(a):999999999999999999999%": "invalid length", "%START_TIME(%s):3%": "takes no length",
		"%GRPC_STATUS(a)%": "want one of CAMEL_STRING", "%PATH(NQ:X)%": `invalid "X" after the colon`, "%METADATA(FILTER_CHAIN:a)%": "invalid kind of metadata", "%FILTER_STATE(a:X)%": "want a key",
		"%FILTER_STATE(a:FIELD)%": "want a key", "%COMMON_DURATION(a)%": "two points in time", "%COMMON_DURATION(a:b:q)%": "two points in time", "%CEL(nosuch())%": `calls "nosuch"`, "%CEL(1+)%": "invalid expression",
		"%COALESCE(x)%": "want a JSON object", `%COALESCE({"operators": ["NOPE"]})%`: "unknown command %NOPE%", "%PROTOCOL% %REQ(a)%)%": "invalid command",
	} {
		if err := checkFormat(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", f, err, want)
		}
		good[f] = false
	}
	for f, ok := range good {
		if err := checkFormat(f); ok && err != nil {
			t.Errorf("%q: %v", f, err)
		}
		if out, err := envoytest.Check(t, logged(t, f+"\n", "")); (err == nil) != ok {
			t.Errorf("%q: Envoy: %v %s", f, err, out)
		}
	}
}

// The same for filters.
func TestExpressionsAsEnvoyHasThem(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"response.code >= 400", ""},
		{"response.code >= 400 && connection.mtls || !has(request.headers['x-a'].b)", ""},
		{"nosuch.thing == 1", ""},
		{"request.path.startsWith('/x') && request.host.contains('a') && endsWith(request.path, 'b') && size(request.path) > 3", ""},
		{"string(1) == '1'", `calls "string"`},
		{"request.headers['a'].matches('4..')", ""},
		{"request.headers['a'].matches('(')", "invalid regular expression"},
		{"nosuch(1)", `calls "nosuch"`},
		{"request.path.lowerAscii() == 'a'", `calls "lowerAscii"`},
		{"getFullYear(request.time) == 1", `calls "getFullYear"`},
		{"request.time.getFullYear() == 2026 && request.time.getMilliseconds() > 1", ""},
		{"request.path.contains('a', 'b')", "with 3 arguments"},
		{"[1, 2].exists(x, x == 1)", `calls "exists"`},
		{"response.code in [1, 2] && {'a': 1}.a == 1 ? true : false", ""},
		{"Foo{a: 1}", "makes a message Foo"},
		{"response.code >", "character"},
		{"has(a)", "invalid"},
		{"request.headers.?a", "invalid"},
		{"-9223372036854775809 < 1", "invalid"},
		{"-x + 1 - 2 * 3 / 4 % 5 != 0 && x[0] <= 1 && x < 2 && x > 3", ""},
		{"duration('1s') < response.duration && timestamp('2026-01-01T00:00:00Z') < request.time && uint(1) == 1u && int(x) == double(y) && bool('true') && bytes('x') == b'x' && dyn(1) == 1 && type(1) == int", ""},
		{strings.Repeat("(", 30) + "true" + strings.Repeat(")", 30), ""},
		{strings.Repeat("!", 20) + "true", ""},
	} {
		err := cel.Check(tt.text)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: error %v, want %q", tt.text, err, tt.want)
		}
		if out, err := envoytest.Check(t, logged(t, "x\n", tt.text)); (err == nil) != (tt.want == "") {
			t.Errorf("%q: Envoy: %v %s", tt.text, err, out)
		}
	}
	for text, want := range map[string]string{
		" ": "is empty", strings.Repeat("a", cel.MaxLength+1): "want at most 8192", strings.Repeat("(", 500) + "1" + strings.Repeat(")", 500): "invalid expression",
	} {
		if err := cel.Check(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want %q", text, err, want)
		}
	}
}

func FuzzFormatsAndExpressions(f *testing.F) {
	for _, s := range []string{"%REQ(a)%", "response.code >= 400", "%COALESCE({\"operators\": []})%", "[1].map(x, x)", "((((("} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if cel.Check(s) == nil && checkFormat("%CEL(a)%"+strings.ReplaceAll(s, "%", "%%")) != nil {
			t.Errorf("%q: text is taken for a command", s)
		}
		_ = checkFormat(s)
	})
}
