package compile_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/golden"
)

// TestGolden compiles whole meshes for one proxy each. The first lines of an input say
// for whom ("# proxy: NODE-ID [labels]"; "# ips: …", "# locality: …", "# service: …", "# extensions: …",
// "# metadata: KEY=VALUE …"; "# proxy-config: JSON")
// and what of it is shown ("# show: LDS …"); "# mesh: …" is mesh configuration, and
// "# options: …" are the control plane's.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata", func(t *testing.T, input []byte) []proto.Message {
		b := envoytest.Bootstrap()
		show := strings.Fields(header(input, "show"))
		options := strings.Fields(header(input, "options"))
		remote := jwks.Discovery
		if len(options) == 2 && options[0] == "remote-keys" {
			remote = jwks.ParseMode(options[1])
		}
		var protocols mesh.Capability
		if slices.Contains(options, "protocol-filters") {
			protocols = mesh.MongoFilter | mesh.RedisFilter
		}
		unready := compile.UnreadyNever
		switch {
		case slices.Contains(options, "unready"):
			unready = compile.UnreadyAlways
		case slices.Contains(options, "unready-unused"):
			unready = compile.UnreadyUnused
		}
		w := newWorldWith(compile.Options{
			RemoteKeys:      remote,
			NoSniffOutbound: slices.Contains(options, "no-sniff-outbound"), NoSniffInbound: slices.Contains(options, "no-sniff-inbound"),
			WholeRoutes: slices.Contains(options, "whole-routes"), Sessions: slices.Contains(options, "sessions"), Unready: unready, HTTP3: slices.Contains(options, "http3"), TraceSampling: 1, ProtocolFilters: protocols,
		})
		m, verdicts := config.MeshConfig(header(input, "mesh"))
		if config.Rejected(verdicts) {
			t.Fatal(verdicts)
		}
		w.model.SetMesh(m)
		w.apply(t, string(input))
		if ns := header(input, "deny"); ns != "" {
			w.model.Deny([]model.Denial{{Name: "broken", Namespace: ns, Everything: true}})
		}
		class := w.join(subject(t, input))
		if subject(t, input).Metadata.AccessLogService {
			add(b, &clusterv3.Cluster{Name: mesh.AccessLogServiceCluster})
		}
		all := w.bytes(class)
		var out []proto.Message
		for _, k := range sortedKeys(all) {
			if all[k] == nil {
				continue // a patch has removed it
			}
			m := message(t, k.Kind, all[k])
			if subject(t, input).Metadata.Generator == "" {
				add(b, m)
			}
			if slices.Contains(show, typeName(k.Kind)) || slices.Contains(show, k.Name) {
				out = append(out, m)
			}
		}
		if len(out) == 0 {
			t.Fatalf("nothing to show for %q", show)
		}
		envoytest.Validate(t, b)
		return out
	})
}

// subject is the proxy that an input is compiled for.
func subject(t *testing.T, input []byte) mesh.Node {
	t.Helper()
	who := strings.Fields(header(input, "proxy"))
	node := proxy(t, who[0], strings.Join(who[1:], ""))
	node.Locality = mesh.ParseLocality(header(input, "locality"))
	node.Service = header(input, "service")
	for _, ip := range strings.Fields(header(input, "ips")) {
		node.Metadata.InstanceIPs = append(node.Metadata.InstanceIPs, netip.MustParseAddr(ip))
	}
	metadata := map[string]any{}
	for _, pair := range strings.Fields(header(input, "metadata")) {
		k, v, _ := strings.Cut(pair, "=")
		metadata[k] = v
	}
	if text := header(input, "proxy-config"); text != "" {
		var config any
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		metadata["PROXY_CONFIG"] = config
	}
	if m, err := mesh.DecodeMetadata(metadata); err != nil {
		t.Fatal(err)
	} else if len(metadata) > 0 {
		m.Labels, m.InstanceIPs = node.Metadata.Labels, node.Metadata.InstanceIPs
		node.Metadata = m
	}
	if list := header(input, "extensions"); list != "" {
		node.Extensions = map[string]bool{}
		for _, e := range strings.Fields(list) {
			node.Extensions[e] = true
		}
	}
	return node
}

func header(input []byte, name string) string {
	for s := bufio.NewScanner(bytes.NewReader(input)); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "# "+name+": "); ok {
			return v
		}
	}
	return ""
}

func typeName(k compile.Kind) string {
	switch k {
	case compile.Endpoints:
		return "EDS"
	case compile.Listener, compile.ListenerInbound, compile.ListenerAPI, compile.ListenerServer, compile.ListenerPatched, compile.ListenerInboundPatched:
		return "LDS"
	case compile.Route, compile.RouteAPI, compile.RoutePatched:
		return "RDS"
	case compile.VirtualHost, compile.VirtualHostPatched:
		return "VHDS"
	case compile.ExtensionPatched, compile.ExtensionInboundPatched:
		return "ECDS"
	}
	return "CDS"
}

func message(t *testing.T, k compile.Kind, b []byte) proto.Message {
	t.Helper()
	var m proto.Message = &clusterv3.Cluster{}
	switch typeName(k) {
	case "EDS":
		m = &endpointv3.ClusterLoadAssignment{}
	case "LDS":
		m = &listenerv3.Listener{}
	case "RDS":
		m = &routev3.RouteConfiguration{}
	case "ECDS":
		m = &corev3.TypedExtensionConfig{}
	case "VHDS":
		m = &routev3.VirtualHost{}
	}
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// add makes a resource static, so that Envoy can be asked whether it takes it.
func add(b *bootstrapv3.Bootstrap, m proto.Message) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, m)
	case *listenerv3.Listener:
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, m)
	case *endpointv3.ClusterLoadAssignment:
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, &clusterv3.Cluster{
			Name:                 "static-" + m.ClusterName,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment:       rename(m),
		})
	case *corev3.TypedExtensionConfig:
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, withExtension(m, uint32(20000+len(b.StaticResources.Listeners))))
	case *routev3.VirtualHost:
		add(b, &routev3.RouteConfiguration{Name: m.Name, VirtualHosts: []*routev3.VirtualHost{m}, ValidateClusters: wrapperspb.Bool(false)})
	case *routev3.RouteConfiguration:
		if m.Vhds != nil {
			m = proto.CloneOf(m)
			m.Vhds = nil // only for RDS
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, withRoutes(m, uint32(20000+len(b.StaticResources.Listeners))))
	}
}

func rename(m *endpointv3.ClusterLoadAssignment) *endpointv3.ClusterLoadAssignment {
	c := proto.Clone(m).(*endpointv3.ClusterLoadAssignment)
	c.ClusterName = "static-" + m.ClusterName
	return c
}

// withExtension is a listener whose only purpose is to hold an extension configuration, as an HTTP or network filter.
func withExtension(m *corev3.TypedExtensionConfig, port uint32) *listenerv3.Listener {
	m = fetched(m)
	l := withRoutes(&routev3.RouteConfiguration{Name: "extension " + m.Name}, port)
	chain := l.FilterChains[0]
	if !strings.Contains(m.TypedConfig.TypeUrl, ".filters.http.") {
		chain.Filters = slices.Insert(chain.Filters, 0, &listenerv3.Filter{Name: m.Name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: m.TypedConfig}})
		return l
	}
	hcm := &hcmv3.HttpConnectionManager{}
	if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(hcm); err != nil {
		panic(err)
	}
	hcm.HttpFilters = slices.Insert(hcm.HttpFilters, 0, &hcmv3.HttpFilter{Name: m.Name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: m.TypedConfig}})
	a, err := anypb.New(hcm)
	if err != nil {
		panic(err)
	}
	chain.Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: a}
	return l
}

// fetched is an extension configuration with a module that is there in place of the one that it names, which an agent fetches.
func fetched(m *corev3.TypedExtensionConfig) *corev3.TypedExtensionConfig {
	config, err := m.TypedConfig.UnmarshalNew()
	if err != nil {
		panic(err)
	}
	wasm, ok := config.(interface{ GetConfig() *wasmv3.PluginConfig })
	if !ok {
		return m
	}
	wasm.GetConfig().GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineBytes{InlineBytes: envoytest.WasmHeaderModule()},
	}}}
	m = proto.CloneOf(m)
	m.TypedConfig = marshal.MustAny(config)
	return m
}

// withRoutes is a listener whose only purpose is to hold a route configuration. Its
// filters are those of an outbound listener, which routes may configure.
func withRoutes(rc *routev3.RouteConfiguration, port uint32) *listenerv3.Listener {
	l := &listenerv3.Listener{}
	if err := proto.Unmarshal(outboundTemplate(), l); err != nil {
		panic(err)
	}
	hcm := &hcmv3.HttpConnectionManager{}
	filters := l.FilterChains[0].Filters
	if err := filters[len(filters)-1].GetTypedConfig().UnmarshalTo(hcm); err != nil {
		panic(err)
	}
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: rc}
	a, err := anypb.New(hcm)
	if err != nil {
		panic(err)
	}
	return &listenerv3.Listener{
		Name: "routes " + rc.Name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.http_connection_manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: a},
		}}}},
	}
}

// outboundTemplate is an outbound HTTP listener as the compiler makes it.
func outboundTemplate() []byte {
	w := newWorld()
	res := "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: x}\nspec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n"
	w.model.Apply(objects(tbPanic{}, res))
	class := w.join(proxy(tbPanic{}, "sidecar~10.1.1.1~p.x~x.svc.cluster.local", "a=b"))
	for k, b := range w.bytes(class) {
		if k.Name == "0.0.0.0_80" {
			return b
		}
	}
	panic("no listener 0.0.0.0_80")
}

// tbPanic lets helpers that take a testing.TB run where there is none.
type tbPanic struct{ testing.TB }

func (tbPanic) Helper()           {}
func (tbPanic) Fatal(args ...any) { panic(args) }
