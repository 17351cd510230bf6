package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	wasmfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// wasmListener answers all requests that pass an extension.
func wasmListener(t *testing.T, name, port string) *listenerv3.Listener {
	t.Helper()
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{
			Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
			}},
		}}}},
		HttpFilters: []*hcmv3.HttpFilter{
			{Name: name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
				ConfigSource: &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}},
				TypeUrls:     []string{"type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"},
			}}},
			{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(t, &routerv3.Router{})}},
		},
	}
	return &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(number)}}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: anyOf(t, manager)}}}}},
	}
}

func wasmExtension(t *testing.T, name, url string, policy wasmv3.FailurePolicy) *corev3.TypedExtensionConfig {
	t.Helper()
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: anyOf(t, &wasmfilter.Wasm{Config: &wasmv3.PluginConfig{
		Name: name, FailurePolicy: policy, Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			VmId: name, Runtime: "envoy.wasm.runtime.v8", Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
				HttpUri: &corev3.HttpUri{Uri: url, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
			}}},
		}},
	}})}
}

// Envoy runs a module that the agent has fetched. Without its module an extension denies requests, or lets them pass if it says so.
func TestEnvoyRunsAModuleThatTheAgentFetches(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/good" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(envoytest.WasmModule())
	}))
	defer site.Close()
	plane := agenttest.NewPlane(t)
	listeners, extensions, ports := map[string]proto.Message{}, map[string]proto.Message{}, map[string]string{}
	for name, c := range map[string]struct {
		path   string
		policy wasmv3.FailurePolicy
	}{"good": {"/good", wasmv3.FailurePolicy_FAIL_CLOSED}, "closed": {"/none", wasmv3.FailurePolicy_FAIL_CLOSED}, "open": {"/none", wasmv3.FailurePolicy_FAIL_OPEN}} {
		ports[name] = agenttest.Port(t)
		listeners[name] = wasmListener(t, name, ports[name])
		extensions[name] = wasmExtension(t, name, site.URL+c.path, c.policy)
	}
	plane.Give("type.googleapis.com/envoy.config.listener.v3.Listener", listeners)
	plane.Give("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", extensions)
	plane.Start()
	dir := filepath.Join(t.TempDir(), "modules")
	a := agenttest.New(t, plane, "", "WASM_MODULES_DIR="+dir)
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	for name, want := range map[string]int{"good": 200, "closed": 403, "open": 200} {
		agenttest.Until(t, "an answer of "+name, func() error {
			code, body, err := a.Get(ports[name], "/")
			if err == nil && code != want {
				err = fmt.Errorf("status %d: %s", code, body)
			}
			return err
		})
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*", "*.wasm")); err != nil || len(files) != 1 {
		t.Errorf("modules %q, %v, want one", files, err)
	} else if b, err := os.ReadFile(files[0]); err != nil || string(b) != string(envoytest.WasmModule()) {
		t.Errorf("%s: %d bytes, %v, want the module", files[0], len(b), err)
	}
	if _, stats, err := a.Get(a.Admin, "/stats?filter=wasm.*created"); err != nil || !strings.Contains(stats, "created: ") || strings.Contains(stats, "created: 0") {
		t.Errorf("Envoy has made no VM: %s, %v", stats, err)
	}
	if _, text, err := a.Get(a.Status, "/metrics"); err != nil || !strings.Contains(text, `wasm_remote_fetch_count{result="success"} 1`) ||
		!strings.Contains(text, `wasm_config_conversion_count{result="success"} 1`) || !strings.Contains(text, `wasm_config_conversion_count{result="fetch_failure"} 2`) || !strings.Contains(text, "wasm_config_conversion_duration_count 3") {
		t.Errorf("the fetch is not counted: %v", err)
	}
}
