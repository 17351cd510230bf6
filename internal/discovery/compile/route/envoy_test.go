package route_test

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	statev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func text(s string) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}},
	}}
}

// filters are those that routes configure, in the order that outbound listeners have.
func filters(t *testing.T) []*hcmv3.HttpFilter {
	t.Helper()
	alpn := &setstatev3.Config{OnRequestHeaders: []*statev3.FilterStateValue{{
		Key:                &statev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
		Value:              &statev3.FilterStateValue_FormatString{FormatString: text("istio-http/1.1,istio-h2,istio")},
		SharedWithUpstream: statev3.FilterStateValue_ONCE,
	}}}
	var out []*hcmv3.HttpFilter
	for _, f := range []struct {
		name   string
		config proto.Message
	}{
		{route.FilterStateFilter, alpn},
		{route.FaultFilter, &faultv3.HTTPFault{}},
		{route.CORSFilter, &corsv3.Cors{}},
		{"envoy.filters.http.router", &routerv3.Router{}},
	} {
		out = append(out, &hcmv3.HttpFilter{Name: f.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, f.config)}})
	}
	return out
}

func listener(t *testing.T, name string, port uint32, c *routev3.RouteConfiguration) *listenerv3.Listener {
	t.Helper()
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix:     name,
		HttpFilters:    filters(t),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: c},
	}
	return &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, hcm)},
		}}}},
	}
}

func check(t *testing.T, all []*routev3.RouteConfiguration) (string, error) {
	t.Helper()
	b := envoytest.Bootstrap()
	for i, c := range all {
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, listener(t, fmt.Sprintf("golden-%d", i), 0, c))
	}
	return envoytest.Check(t, b)
}

func validate(t *testing.T, all []*routev3.RouteConfiguration) {
	t.Helper()
	if out, err := check(t, all); err != nil {
		t.Fatalf("envoy --mode validate: %v\n%s", err, out)
	}
}

// TestEnvoyRefuses shows that the check above is one: with a header that Build leaves
// out, Envoy refuses the route configuration.
func TestEnvoyRefuses(t *testing.T) {
	c := parse(t, []byte(`[{host: a.b.svc.cluster.local, namespace: b, client: b, port: 80}]`))[0]
	c.VirtualHosts[0].Routes[0].RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: ":path", Value: "/"}}}
	if out, err := check(t, []*routev3.RouteConfiguration{c}); err == nil || !strings.Contains(out, "host headers") {
		t.Fatalf("Envoy let a route add :path: %v\n%s", err, out)
	}
}
