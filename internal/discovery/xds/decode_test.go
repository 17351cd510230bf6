package xds

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRequestsAreReadAsProtobufWould(t *testing.T) {
	delta := inbound{delta: true, wantNode: true}
	if err := delta.decode(encoded(t, &discoveryv3.DeltaDiscoveryRequest{
		Node: node(nil), TypeUrl: EDS.URL(), ResourceNamesSubscribe: []string{"a", "", "b"}, ResourceNamesUnsubscribe: []string{"c"},
		InitialResourceVersions: map[string]string{"a": "1", "": "", "d": ""}, ResponseNonce: "7",
		ErrorDetail: &rpcstatus.Status{Code: 3, Message: "no"}, ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{Name: "x"}},
	})); err != nil {
		t.Fatal(err)
	}
	want := readRequest{Names: []string{"a", "", "b"}, Unsubscribe: []string{"c"}, Initial: map[string]string{"a": "1", "": "", "d": ""},
		Nonce: "7", Refused: true, Message: "no"}
	if got := read(delta.req); delta.url != EDS.URL() || delta.node == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("delta: %+v, want %+v", got, want)
	}
	sotw := inbound{}
	if err := sotw.decode(encoded(t, &discoveryv3.DiscoveryRequest{
		VersionInfo: "9", Node: node(nil), TypeUrl: LDS.URL(), ResourceNames: []string{"a", "b"}, ResponseNonce: "7", ErrorDetail: &rpcstatus.Status{},
	})); err != nil {
		t.Fatal(err)
	}
	if want := (readRequest{Names: []string{"a", "b"}, Nonce: "7", Refused: true}); sotw.url != LDS.URL() || sotw.node != nil || !reflect.DeepEqual(read(sotw.req), want) {
		t.Errorf("SotW: %+v, want %+v; and a node that is not wanted is left aside", sotw.incoming, want)
	}
}

// readRequest is a request with its lists as values.
type readRequest struct {
	Names, Unsubscribe []string
	Initial            map[string]string
	Nonce              string
	Refused            bool
	Message            string
}

func read(r Request) readRequest {
	return readRequest{r.Names.strings(), r.Unsubscribe.strings(), r.Initial.table(), r.Nonce, r.Refused, r.Message}
}

// A node that is there twice is merged, as protobuf says: whoever passes on a request may add to it.
func TestNodesAreMerged(t *testing.T) {
	first := encoded(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local"}})
	second := encoded(t, &discoveryv3.DeltaDiscoveryRequest{Node: node(map[string]any{"NAME": "web-1"})})
	q := inbound{delta: true, wantNode: true}
	if err := q.decode(append(first, second...)); err != nil {
		t.Fatal(err)
	}
	if n, err := decodeNode(q.node); err != nil || n.ID == "" || n.Metadata.Name != "web-1" {
		t.Errorf("%+v, %v", n, err)
	}
	large := inbound{delta: true, wantNode: true}
	part := encoded(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: strings.Repeat("x", maxNode*2/3)}})
	if err := large.decode(append(part, part...)); err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("two parts of a node that is too large: %v", err)
	}
}

// Every field of a node that is used is read; a new one in mesh.Node fails this test.
func TestNodesAreReadWhole(t *testing.T) {
	n := node(map[string]any{
		"NAME": "web-1", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "CLUSTER_ID": "east", "NETWORK": "net", "INTERCEPTION_MODE": "tproxy",
		"GENERATOR": "grpc", "DNS_CAPTURE": "true", "DNS_AUTO_ALLOCATE": "true", "HTTP10": 1, "VIRTUAL_HOST_DISCOVERY": true, "file-credential": "true", mesh.SelfDiscoveryKey: "true", "COMPLIANCE_POLICY": "pqc", "ENVOY_EPOCH": 1, "LABELS": map[string]any{"app": "web"}, "INSTANCE_IPS": "10.0.0.1,10.0.0.2",
		"ISTIO_VERSION": "1.31.0", "PROXY_CONFIG": map[string]any{"proxyHeaders": map[string]any{"a": 1}, "tracing": map[string]any{"sampling": 1, "datadog": map[string]any{}, "maxPathTagLength": 9, "enableIstioTags": false, "customTags": map[string]any{"a": map[string]any{"literal": map[string]any{"value": "b"}}}}, "readinessProbe": map[string]any{"tcpSocket": map[string]any{"port": 1}}, "gatewayTopology": map[string]any{"numTrustedProxies": 1, "forwardClientCertDetails": "SANITIZE", "proxyProtocol": map[string]any{}}, "envoyAccessLogService": map[string]any{"address": "logs:15000"}}, "AUTO_REGISTER_GROUP": "vms", "GRPC_CERTIFICATE_PROVIDER": "true", mesh.BootstrapKey: "true",
		"ANNOTATIONS": map[string]any{"a": strings.Repeat("x", 256<<10)},
	})
	n.Locality.SubZone, n.Cluster = "s", "web.shop"
	got, err := decodeNode(encoded(t, n))
	if err != nil {
		t.Fatal(err)
	}
	var empty func(v reflect.Value, path string)
	empty = func(v reflect.Value, path string) {
		if v.IsZero() {
			t.Errorf("%s is not read", path)
		}
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Struct && f.Type().PkgPath() == reflect.TypeFor[mesh.Node]().PkgPath() {
				empty(f, path+"."+v.Type().Field(i).Name)
			} else if f.IsZero() {
				t.Errorf("%s.%s is not read", path, v.Type().Field(i).Name)
			}
		}
	}
	empty(reflect.ValueOf(got), "node")
	md, err := mesh.DecodeMetadata(n.Metadata.AsMap())
	if err != nil || !reflect.DeepEqual(got.Metadata, md) {
		t.Errorf("metadata %+v, want %+v (%v)", got.Metadata, md, err)
	}
	for _, cluster := range []string{strings.Repeat("x", 300), "a\x1b[1m"} {
		n.Cluster = cluster
		if got, err := decodeNode(encoded(t, n)); err != nil || got.Service != "" {
			t.Errorf("cluster %q: service %q (%v)", cluster, got.Service, err)
		}
	}
	n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40, Patch: 2}}}
	if got, err := decodeNode(encoded(t, n)); err != nil || got.UserAgent != "envoy/1.40.2" {
		t.Errorf("user agent %q (%v)", got.UserAgent, err)
	}
}

// Values that are texts are kept, whatever their keys, for EnvoyFilters to select proxies by; others are not.
func TestTextsOfNodesAreKept(t *testing.T) {
	n, err := decodeNode(encoded(t, node(map[string]any{
		"RACK": "r7", "EMPTY": "", "INTERCEPTION_MODE": "tproxy", "NAME": "web-1", "NUMBER": 7, "LIST": []any{"a"}, "LONG": strings.Repeat("x", 257), "ESCAPE": "a\x1b[1m", "NUL": "a\x00RACK",
	})))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"RACK": "r7", "EMPTY": "", "INTERCEPTION_MODE": "tproxy"} {
		if got, ok := n.Metadata.Texts.Get(key); !ok || got != want {
			t.Errorf("%s: %q, %v, want %q", key, got, ok, want)
		}
	}
	for _, key := range []string{"NAME", "NUMBER", "LIST", "LONG", "ESCAPE", "NUL", "r7", ""} {
		if got, ok := n.Metadata.Texts.Get(key); ok {
			t.Errorf("%s: %q, want none", key, got)
		}
	}
}

func TestRequestsPastTheirBounds(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	many := slices.Repeat([]string{"x"}, maxRequestNames+1)
	initial := map[string]string{}
	for i := range maxRequestNames + 1 {
		initial[fmt.Sprint(i)] = ""
	}
	for want, r := range map[string]*discoveryv3.DeltaDiscoveryRequest{
		"type URL of 257 bytes: want at most 256":         {TypeUrl: long(257)},
		"resource name of 4097 bytes: want at most 4096":  {ResourceNamesSubscribe: []string{long(4097)}},
		"resource name of 4098 bytes: want at most 4096":  {ResourceNamesUnsubscribe: []string{long(4098)}},
		"resource name of 4099 bytes: want at most 4096":  {InitialResourceVersions: map[string]string{long(4099): "1"}},
		"resource version of 257 bytes: want at most 256": {InitialResourceVersions: map[string]string{"a": long(257)}},
		"response nonce of 257 bytes: want at most 256":   {ResponseNonce: long(257)},
		"more than 32768 resource names":                  {ResourceNamesSubscribe: many},
		"more than 32768 initial":                         {InitialResourceVersions: initial},
		"node of 1048577 bytes: want at most 1048576":     {Node: &corev3.Node{Id: long(1<<20 + 1 - 4)}},
	} {
		q := inbound{delta: true}
		if err := q.decode(encoded(t, r)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	q := inbound{delta: true}
	if err := q.decode([]byte{3<<3 | 2, 2, 0xff, 0xfe}); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("a name that is no text: %v", err)
	}
	if got := truncate([]byte("aä"), 2); got != "a" {
		t.Errorf("cut to %q", got)
	}
}

// FuzzDecode compares with the protobuf library whatever both can read.
func FuzzDecode(f *testing.F) {
	f.Add(encoded(f, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
		InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "1", ErrorDetail: &rpcstatus.Status{Message: "m"}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		q := inbound{delta: true, wantNode: true}
		var m discoveryv3.DeltaDiscoveryRequest
		if q.decode(raw) != nil || proto.Unmarshal(raw, &m) != nil {
			return
		}
		if q.url != m.TypeUrl || !slices.Equal(q.req.Names.strings(), m.ResourceNamesSubscribe) || !slices.Equal(q.req.Unsubscribe.strings(), m.ResourceNamesUnsubscribe) ||
			!maps.Equal(q.req.Initial.table(), m.InitialResourceVersions) || q.req.Nonce != m.ResponseNonce || q.req.Refused != (m.ErrorDetail != nil) ||
			q.req.Message != truncate([]byte(m.GetErrorDetail().GetMessage()), maxErrorText) {
			t.Errorf("%+v, want %v", q.incoming, &m)
		}
	})
}

// The meter is given the same bytes in pieces of every size.
func TestMeterFollowsMessages(t *testing.T) {
	var wire []byte
	frame := func(kind, flags byte, id uint32, payload []byte) {
		wire = append(wire, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
		wire = binary.BigEndian.AppendUint32(wire, id)
		wire = append(wire, payload...)
	}
	body := func(size, sent int) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, sent)...)
	}
	wire = append(wire, make([]byte, clientPreface)...)
	frame(4, 0, 0, nil) // settings
	for id := uint32(1); id <= 7; id += 2 {
		frame(frameHeaders, 4, id, []byte("headers"))
	}
	frame(frameData, 0, 1, slices.Concat(body(10, 10), body(100, 40))) // one whole, 40 of another
	frame(frameData, flagPadded, 3, slices.Concat([]byte{20}, body(50, 30), make([]byte, 20)))
	frame(frameData, 0, 5, body(1000, 999)[:3]) // a head in two pieces
	frame(frameData, 0, 5, body(1000, 999)[3:])
	frame(frameReset, 0, 5, make([]byte, 4))
	frame(frameData, 0, 5, make([]byte, 100)) // late
	frame(frameData, 0, 7, slices.Concat(body(0, 0), body(5, 5)))
	frame(frameData, 0, 3, make([]byte, 20)) // the rest
	server := New(&oneClass{}, quiet(t), nil)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := &guard{server: server, in: meter{skip: clientPreface}, streams: map[uint32]*message{}, full: make(chan struct{})}
		for rest := wire; len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(60))
			g.received(rest[:n])
			rest = rest[n:]
		}
		if g.waiting != 40 || len(g.streams) != 3 {
			t.Fatalf("seed %d: %d bytes of unfinished messages on %d streams, want 40 on 3", seed, g.waiting, len(g.streams))
		}
	}
}
