package xds

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// A type that nothing here serves, and that no client knows either.
const noSuchURL = "type.googleapis.com/nothing.v1.Serves"

// grpcNode is the node of a client that is not Envoy.
func grpcNode() *corev3.Node {
	n := node(nil)
	n.UserAgentName = "gRPC Go"
	return n
}

// An incremental client is told that nothing has the names that it asks for, once for each request that asks.
func TestUnservedTypesAreAnsweredInDelta(t *testing.T) {
	log := &wait.Output{}
	s := New(&oneClass{latest: NewLatestView(&View{})}, textLog(log), nil)
	g := open(t, dial(t, s, nil))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: grpcNode(), TypeUrl: noSuchURL, ResourceNamesSubscribe: []string{"a", "b"}})
	m := nothingOf(t, g, noSuchURL, "a", "b")
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: noSuchURL, ResponseNonce: m},
		{TypeUrl: noSuchURL, ResponseNonce: m, ErrorDetail: &rpcstatus.Status{Message: "no"}},
		{TypeUrl: noSuchURL, ResourceNamesUnsubscribe: []string{"a"}},
		{TypeUrl: noSuchURL, ResponseNonce: m, ResourceNamesSubscribe: []string{"c"}},
		{TypeUrl: "istio.io/other"},
		{TypeUrl: healthURL},
	} {
		ask(t, g, r)
	}
	nothingOf(t, g, noSuchURL, "c")
	nothingOf(t, g, "istio.io/other")
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL()})
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != LDS.URL() {
		t.Errorf("got %v, %v, want listeners", m, err)
	}
	if n := strings.Count(log.String(), "level=INFO msg=\"proxy asks for a type that is not served\""); n != 3 || strings.Count(log.String(), noSuchURL) != 1 {
		t.Errorf("%d lines, want one for each of three types:\n%s", n, log)
	}
}

// nothingOf receives an answer that has nothing but removed names, and returns its nonce.
func nothingOf(t *testing.T, g deltaStream, url string, removed ...string) string {
	t.Helper()
	m, err := g.Recv()
	if err != nil || m.GetTypeUrl() != url || len(m.GetResources()) > 0 || !slices.Equal(m.GetRemovedResources(), removed) || m.GetNonce() == "" {
		t.Fatalf("got %v, %v, want a response of %s without %v", m, err, url, removed)
	}
	return m.GetNonce()
}

// The state of the world is empty, also for further names; an acknowledgement is not answered.
func TestUnservedTypesAreAnsweredInSotW(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
	g, err := dial(t, s, nil).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DiscoveryRequest) {
		t.Helper()
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(url string) string {
		t.Helper()
		m, err := g.Recv()
		if err != nil || m.GetTypeUrl() != url || len(m.GetResources()) > 0 || m.GetNonce() == "" {
			t.Fatalf("got %v, %v, want an empty response of %s", m, err, url)
		}
		return m.GetNonce()
	}
	send(&discoveryv3.DiscoveryRequest{Node: grpcNode(), TypeUrl: noSuchURL, ResourceNames: []string{"a"}})
	nonce := receive(noSuchURL)
	send(&discoveryv3.DiscoveryRequest{TypeUrl: noSuchURL, ResourceNames: []string{"a"}, ResponseNonce: nonce})
	send(&discoveryv3.DiscoveryRequest{TypeUrl: noSuchURL, ResourceNames: []string{"a"}, ResponseNonce: nonce, ErrorDetail: &rpcstatus.Status{Message: "no"}})
	send(&discoveryv3.DiscoveryRequest{TypeUrl: noSuchURL, ResourceNames: []string{"a", "b"}, ResponseNonce: nonce})
	nonce = receive(noSuchURL)
	send(&discoveryv3.DiscoveryRequest{TypeUrl: noSuchURL, ResourceNames: []string{"a", "b"}, ResponseNonce: nonce})
	send(&discoveryv3.DiscoveryRequest{TypeUrl: VHDS.URL()}) // is for delta only
	nonce = receive(VHDS.URL())
	send(&discoveryv3.DiscoveryRequest{TypeUrl: VHDS.URL(), ResponseNonce: nonce})
	send(&discoveryv3.DiscoveryRequest{TypeUrl: CDS.URL()})
	receive(CDS.URL())
}

// extensionListener is a listener with an HTTP filter whose configuration comes from a source.
func extensionListener(t *testing.T, source *corev3.ConfigSource) *Resource {
	t.Helper()
	return listenerWith(t, "waits", "r", 0, &hcmv3.HttpFilter{Name: "filter", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
		ConfigSource: source, TypeUrls: []string{"type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault"},
	}}})
}

// certificateListener is a listener whose certificate comes from a source.
func certificateListener(t *testing.T, source *corev3.ConfigSource) *Resource {
	t.Helper()
	var l listenerv3.Listener
	if err := listener(t, "waits", "r").any().UnmarshalTo(&l); err != nil {
		t.Fatal(err)
	}
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: pack(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "certificate", SdsConfig: source}},
		}}),
	}}
	return NewResource(LDS, "waits", encode(t, &l))
}

// Envoy uses a listener without the filter or the certificate that nothing has when it has waited for the time that the
// listener says.
func TestRealEnvoyGoesOnWithoutAFilterThatIsNotServed(t *testing.T) {
	for name, make := range map[string]func(*testing.T, *corev3.ConfigSource) *Resource{"filter": extensionListener, "certificate": certificateListener} {
		t.Run(name, func(t *testing.T) {
			eachFlavour(t, func(t *testing.T, api string) {
				r := newRig(t, api, firstView(t, backend(t, "a")))
				url := r.url("in")
				source := ads()
				source.InitialFetchTimeout = durationpb.New(time.Second)
				r.show(r.view.put(make(t, source)))
				wait.Until(t, "the listener", func() bool {
					return r.listening("waits") != "" && r.stat("listener_manager.total_listeners_warming") == 0
				})
				_, asked := r.server.Connections()[0].Types[ECDS]
				if !asked && !strings.Contains(r.said.String(), "proxy asks for a type that is not served") {
					t.Error("Envoy has not asked: the test does not show what it should")
				}
				r.show(r.view.put(endpoints(t, "web", backend(t, "b"))))
				wait.Until(t, "an answer of b", func() bool { return fetch(url) == "b" })
			})
		})
	}
}

// Other types are answered, and Envoy goes on with that: here it would not start without an answer.
func TestRealEnvoyStartsWithoutARuntimeThatIsNotServed(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView(firstView(t, backend(t, "a")))}, quiet(t), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, s, nil)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	const layer = `"layered_runtime": {"layers": [{"name": "served", "rtds_layer": {"name": "runtime",
  "rtds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}}}]},
 "dynamic_resources": {`
	e := startEnvoyWith(t, strings.Replace(fmt.Sprintf(bootstrapText, "DELTA_GRPC", port), `"dynamic_resources": {`, layer, 1))
	wait.Until(t, "an answer", func() bool { return e.listening("in") != "" && fetch("http://"+e.listening("in")+"/") == "a" })
}

// A report on capture is kept with the connection, and not answered.
func TestReportsOnCaptureAreKept(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView(&View{})}, textLog(&wait.Output{}), nil)
	g := open(t, dial(t, s, nil))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: grpcNode(), TypeUrl: mesh.CaptureReportType, ErrorDetail: &rpcstatus.Status{Code: 13, Message: "restored"}})
	wait.Until(t, "the report is kept", func() bool { c := s.Connections(); return len(c) == 1 && c[0].Capture == "restored" })
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: mesh.CaptureReportType, ErrorDetail: &rpcstatus.Status{Code: 13}})
	wait.Until(t, "the report is taken back", func() bool { return s.Connections()[0].Capture == "" })
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL()})
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != LDS.URL() {
		t.Errorf("got %v, %v, want listeners", m, err)
	}
}
