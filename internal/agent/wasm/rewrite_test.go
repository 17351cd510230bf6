package wasm

import (
	"encoding/base64"
	"os"
	"strings"
	"testing"
	"time"

	udpa "github.com/cncf/xds/go/udpa/type/v1"
	xdstype "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkrbac "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// plugin is the configuration of a plugin with a module at a URL.
func plugin(t testing.TB, url, sha256 string) *wasmv3.PluginConfig {
	configuration, err := anypb.New(wrapperspb.String("configuration"))
	if err != nil {
		t.Fatal(err)
	}
	return &wasmv3.PluginConfig{
		Name: "ns.plugin", RootId: "root", Configuration: configuration,
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			VmId: "vm", Runtime: "envoy.wasm.runtime.v8", AllowPrecompiled: true,
			Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
				HttpUri: &corev3.HttpUri{Uri: url, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}, Timeout: durationpb.New(1500 * time.Millisecond)}, Sha256: sha256,
			}}},
			EnvironmentVariables: &wasmv3.EnvironmentVariables{HostEnvKeys: []string{"HOST"}, KeyValues: map[string]string{
				"A": "b", policyVariable: "Always", versionVariable: "7", secretVariable: `{"auths": {}}`,
			}},
		}},
	}
}

func extensionOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(&corev3.TypedExtensionConfig{Name: "ns.plugin", TypedConfig: a})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// typedOf is the configuration in a TypedExtensionConfig.
func typedOf(t testing.TB, b []byte) proto.Message {
	t.Helper()
	var e corev3.TypedExtensionConfig
	if err := proto.Unmarshal(b, &e); err != nil || e.GetName() != "ns.plugin" {
		t.Fatalf("%v, %v", &e, err)
	}
	m, err := e.GetTypedConfig().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// forms are the forms in which a plugin is configured.
func forms(t testing.TB, p *wasmv3.PluginConfig) map[string]proto.Message {
	text, err := protojson.Marshal(&httpwasm.Wasm{Config: p})
	if err != nil {
		t.Fatal(err)
	}
	var camel, snake structpb.Struct
	if err := protojson.Unmarshal(text, &camel); err != nil {
		t.Fatal(err)
	}
	if text, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(&httpwasm.Wasm{Config: p}); err == nil {
		err = protojson.Unmarshal(text, &snake)
	}
	if err != nil {
		t.Fatal(err)
	}
	return map[string]proto.Message{
		"http": &httpwasm.Wasm{Config: p}, "network": &networkwasm.Wasm{Config: p},
		"udpa": &udpa.TypedStruct{TypeUrl: httpFilter, Value: &snake}, "xds": &xdstype.TypedStruct{TypeUrl: httpFilter, Value: &camel},
	}
}

// pluginOf is the plugin in one of the forms.
func pluginOf(t testing.TB, m proto.Message) *wasmv3.PluginConfig {
	t.Helper()
	var s *structpb.Struct
	switch m := m.(type) {
	case *httpwasm.Wasm:
		return m.GetConfig()
	case *networkwasm.Wasm:
		return m.GetConfig()
	case *udpa.TypedStruct:
		s = m.GetValue()
	case *xdstype.TypedStruct:
		s = m.GetValue()
	default:
		t.Fatalf("got %T", m)
	}
	text, err := protojson.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var w httpwasm.Wasm
	if err := protojson.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	return w.GetConfig()
}

// Only the module and the agent's variables are changed.
func TestConvert(t *testing.T) {
	s := newSite(t, map[string][]byte{"/m": binary})
	for name, m := range forms(t, plugin(t, s.URL+"/m", sum(binary))) {
		cache := cacheOf(t, nil)
		out, err := cache.Convert(t.Context(), extensionOf(t, m))
		if err != nil {
			t.Fatal(name, err)
		}
		got := pluginOf(t, typedOf(t, out))
		file := got.GetVmConfig().GetCode().GetLocal().GetFilename()
		want := plugin(t, "", "")
		want.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: file}}}}
		want.GetVmConfig().EnvironmentVariables.KeyValues = map[string]string{"A": "b"}
		if !proto.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if b, err := os.ReadFile(file); err != nil || sum(b) != sum(binary) {
			t.Errorf("%s: %s: %v", name, file, err)
		}
	}
}

func TestModuleOfAConfiguration(t *testing.T) {
	for name, m := range forms(t, plugin(t, "oci://r.test/a", "ab")) {
		e, err := parse(extensionOf(t, m))
		if err != nil || e == nil {
			t.Fatalf("%s: %v, %v", name, e, err)
		}
		g := e.module
		if e.name != "ns.plugin" || g.URL != "oci://r.test/a" || g.SHA256 != "ab" || g.Timeout != 1500*time.Millisecond || !g.Always || g.Version != "7" || string(g.Secret) != `{"auths": {}}` || e.failOpen {
			t.Errorf("%s: %+v", name, e)
		}
	}
	secret := func(text string) *extension {
		p := plugin(t, "oci://r.test/a", "")
		p.GetVmConfig().GetEnvironmentVariables().GetKeyValues()[secretVariable] = text
		e, err := parse(extensionOf(t, &httpwasm.Wasm{Config: p}))
		if err != nil {
			return nil
		}
		return e
	}
	if e := secret(base64.StdEncoding.EncodeToString([]byte(`{"a": 1}`))); e == nil || string(e.module.Secret) != `{"a": 1}` {
		t.Errorf("a secret in base64: %+v", e)
	}
	if e := secret(""); e == nil || !e.module.SecretMissing {
		t.Errorf("an empty secret: %+v", e)
	}
	if e := secret("nonsense!"); e != nil {
		t.Errorf("an invalid secret: %+v, want an error", e)
	}
	local := plugin(t, "", "")
	local.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/f"}}}}
	for name, m := range forms(t, local) {
		in := extensionOf(t, m)
		if out, err := cacheOf(t, nil).Convert(t.Context(), in); err != nil || string(out) != string(in) {
			t.Errorf("%s with a local module: %v, want it as it is", name, err)
		}
	}
	in := extensionOf(t, wrapperspb.String("x"))
	if out, err := cacheOf(t, nil).Convert(t.Context(), in); err != nil || string(out) != string(in) {
		t.Errorf("another type: %v, want it as it is", err)
	}
	if _, err := cacheOf(t, nil).Convert(t.Context(), extensionOf(t, &httpwasm.Wasm{Config: plugin(t, "", "")})); err == nil || !strings.Contains(err.Error(), "http_uri") {
		t.Errorf("without a URL: %v, want an error", err)
	}
}

// Without its module an extension lets requests pass, or denies all.
func TestSubstitutes(t *testing.T) {
	s := newSite(t, nil)
	for open, set := range map[bool]func(*wasmv3.PluginConfig){
		false: func(*wasmv3.PluginConfig) {}, true: func(p *wasmv3.PluginConfig) { p.FailurePolicy = wasmv3.FailurePolicy_FAIL_OPEN },
	} {
		p := plugin(t, s.URL+"/m", "")
		set(p)
		for name, m := range forms(t, p) {
			out, err := cacheOf(t, nil).Convert(t.Context(), extensionOf(t, m))
			if err != nil {
				t.Fatal(name, err)
			}
			var deniesAll bool
			switch got := typedOf(t, out).(type) {
			case *rbacv3.RBAC:
				deniesAll = got.GetRules() != nil && len(got.GetRules().GetPolicies()) == 0
				err = got.ValidateAll()
			case *networkrbac.RBAC:
				deniesAll = got.GetRules() != nil && len(got.GetRules().GetPolicies()) == 0
				if err = got.ValidateAll(); name != "network" {
					t.Errorf("%s: got %v", name, got)
				}
			default:
				t.Errorf("%s: got %v", name, got)
			}
			if err != nil || deniesAll == open {
				t.Errorf("%s, open %v: denies all %v, %v", name, open, deniesAll, err)
			}
		}
	}
	old := plugin(t, s.URL+"/m", "")
	old.FailOpen = true //nolint:staticcheck // deprecated, and still sent
	if e, err := parse(extensionOf(t, &httpwasm.Wasm{Config: old})); err != nil || !e.failOpen {
		t.Errorf("fail_open: %+v, %v", e, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range forms(f, plugin(f, "http://h/m", "ab")) {
		f.Add(extensionOf(f, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parse(b)
		if err != nil || e == nil {
			return
		}
		out, err := e.local("/file")
		if err != nil {
			return
		}
		if again, err := parse(out); err == nil && again != nil && again.module.URL != "" {
			t.Errorf("a module is left: %+v", again.module)
		}
		var m corev3.TypedExtensionConfig
		if err := proto.Unmarshal(e.substitute(), &m); err != nil && proto.Unmarshal(b, &m) == nil {
			t.Error(err)
		}
	})
}

func TestConversionsAreCounted(t *testing.T) {
	s := newSite(t, map[string][]byte{"/m": binary})
	cache := cacheOf(t, func(o *Options) { o.Retries = 0 })
	for _, url := range []string{s.URL + "/m", s.URL + "/none"} {
		if _, err := cache.Convert(t.Context(), extensionOf(t, &httpwasm.Wasm{Config: plugin(t, url, "")})); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = cache.Convert(t.Context(), extensionOf(t, &httpwasm.Wasm{Config: plugin(t, "", "")})) // invalid
	if _, err := cache.Convert(t.Context(), extensionOf(t, &corev3.Address{})); err != nil {
		t.Fatal(err)
	}
	got := cache.Stats()
	if got.Converted != 1 || got.Substituted != 1 || got.Invalid != 1 || got.Local != 1 {
		t.Errorf("%+v", got)
	}
	var n uint64
	for _, d := range got.Durations {
		n += d
	}
	if n != 2 {
		t.Errorf("%d durations, want those of two", n)
	}
}
