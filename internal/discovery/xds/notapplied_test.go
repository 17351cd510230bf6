package xds

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A set of fields is logged once, however many proxies have it, and every proxy is listed with its own.
func TestFieldsThatAreNotAppliedAreLoggedOnceForEachSet(t *testing.T) {
	said := &record{}
	s := New(&oneClass{latest: NewLatestView((&View{}).put(NewResource(CDS, "a", nil)))}, textLog(said), nil)
	d := dial(t, s, nil)
	settings, headers := map[string]any{"x": 1}, map[string]any{"server": map[string]any{}}
	for _, config := range []map[string]any{
		{"connectionSettings": settings}, {"connectionSettings": settings, "drainDuration": "5s"}, {"connectionSettings": settings, "proxyHeaders": headers}, {"drainDuration": "5s"}, {"connectionSettings": settings},
	} {
		g := open(t, d)
		ask(t, g, first(node(map[string]any{"PROXY_CONFIG": config})))
		if _, err := g.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	var logged []string
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "not applied") {
			_, fields, _ := strings.Cut(line, "fields=")
			fields, _, _ = strings.Cut(fields, " ")
			logged = append(logged, fields)
		}
	}
	if want := []string{"connectionSettings", "connectionSettings,proxyHeaders"}; !slices.Equal(logged, want) {
		t.Errorf("logged %q, want %q:\n%s", logged, want, said)
	}
	var listed []string
	for _, c := range s.Connections() {
		listed = append(listed, strings.Join(c.Node.Metadata.NotApplied.Names(), ","))
	}
	slices.Sort(listed)
	if want := []string{"", "connectionSettings", "connectionSettings", "connectionSettings", "connectionSettings,proxyHeaders"}; !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
}

// A proxy with a configuration that is large or cannot be read is served: only a warning depends on it.
func TestAnyProxyConfigIsServed(t *testing.T) {
	large := map[string]any{"connectionSettings": map[string]any{"sampling": 1}, "proxyMetadata": map[string]any{"A": strings.Repeat("x", maxMetadataValue)}}
	if n, err := decodeNode(encoded(t, node(map[string]any{"PROXY_CONFIG": large}))); err != nil || !slices.Equal(n.Metadata.NotApplied.Names(), []string{"connectionSettings"}) {
		t.Errorf("large: fields %q, error %v", n.Metadata.NotApplied.Names(), err)
	}
	long := map[string]any{"connectionSettings": map[string]any{strings.Repeat("x", 1000): 1}, strings.Repeat("connectionSettings", 100): map[string]any{"a": 1}}
	if n, err := decodeNode(encoded(t, node(map[string]any{"PROXY_CONFIG": long}))); err != nil || !slices.Equal(n.Metadata.NotApplied.Names(), []string{"connectionSettings"}) {
		t.Errorf("long keys: fields %q, error %v", n.Metadata.NotApplied.Names(), err)
	}
	bytesField := func(n protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), v)
	}
	for _, value := range [][]byte{{0xff}, bytesField(5, []byte{0xff}), bytesField(5, bytesField(1, []byte{0xff})), bytesField(5, bytesField(1, bytesField(2, []byte{0xff})))} {
		entry := slices.Concat(bytesField(1, []byte("PROXY_CONFIG")), bytesField(2, value))
		raw := slices.Concat(encoded(t, &corev3.Node{Id: nodeID}), bytesField(3, bytesField(1, entry)))
		if n, err := decodeNode(raw); err != nil || n.Metadata.NotApplied != 0 {
			t.Errorf("%x: fields %q, error %v", value, n.Metadata.NotApplied.Names(), err)
		}
	}
}

// FuzzProxyConfig compares what is read of the encoded configuration with what is read of its JSON.
func FuzzProxyConfig(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `1`, `{"tracing": {"sampling": 1}, "proxyHeaders": {}}`, `{"tracing": {"zipkin": {}, "sampling": 12.5, "maxPathTagLength": 9, "customTags": {"a": {"literal": {"value": "x"}}, "b": {"header": {"name": "h", "defaultValue": "d"}}, "c": {}, "": {"literal": {"value": "y"}}}}}`, `{"tracing": {"sampling": 101, "maxPathTagLength": -1, "customTags": []}}`, `{"readinessProbe": {"httpGet": {"port": 1}}}`, `{"readinessProbe": {}}`, `{"gatewayTopology": {"numTrustedProxies": 2, "forwardClientCertDetails": "SANITIZE", "proxyProtocol": {}}}`, `{"gatewayTopology": {}}`, `{"envoyAccessLogService": {"address": "a:1"}}`, `{"envoyAccessLogService": {"tlsSettings": {}}}`, `{"gatewayTopology": {"numTrustedProxies": -1}}`, `{"connectionSettings": {"globalDownstreamConnectionLimit": 1, "x": null}}`, `[{"tracing": {"a": 1}}]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var v structpb.Value
		if protojson.Unmarshal([]byte(text), &v) != nil {
			return
		}
		want, err := mesh.DecodeMetadata(map[string]any{"PROXY_CONFIG": v.AsInterface()})
		got := decodeProxyConfig(encoded(t, &v))
		if expected := (proxyConfig{want.NotApplied, want.ReadinessProbe, want.Topology, want.Tracing, want.AccessLogService}); err != nil || got != expected {
			t.Errorf("%s: %+v, want %+v (%v)", text, got, expected, err)
		}
	})
}
