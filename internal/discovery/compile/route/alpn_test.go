package route_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// offers is a TLS server that notes which protocols are offered under which server name.
type offers struct {
	mu   sync.Mutex
	seen map[string][]string
}

func (o *offers) serve(t *testing.T) (host string, port uint32) {
	t.Helper()
	o.seen = map[string][]string{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("sni", r.TLS.ServerName)
	}))
	srv.TLS = &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.seen[h.ServerName] = h.SupportedProtos
		return &tls.Config{Certificates: srv.TLS.Certificates}, nil // negotiates no protocol
	}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	host, p, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return host, uint32(n)
}

// upstream is a cluster that calls the server by TLS under its own name, as a mesh does
// it (alpn istio) or by ordinary TLS (no alpn).
func upstream(t *testing.T, name, host string, port uint32, alpn ...string) *clusterv3.Cluster {
	t.Helper()
	ctx := &tlsv3.UpstreamTlsContext{Sni: strings.ReplaceAll(name, "|", "_"), CommonTlsContext: &tlsv3.CommonTlsContext{AlpnProtocols: alpn}}
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(5e9),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment:       cluster.Assignment(name, []cluster.Endpoint{{Address: host, Port: port}}),
		TransportSocket: &corev3.TransportSocket{
			Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, ctx)},
		},
	}
}

// TestMeshALPN: with a real Envoy, a route into the mesh offers the mesh's protocols, and
// a route to ordinary TLS, alone or as one of several weighted ones, only what Envoy
// itself offers for HTTP/1.1.
func TestMeshALPN(t *testing.T) {
	var o offers
	host, port := o.serve(t)
	hosts := []*routev3.VirtualHost{
		parse(t, []byte(`[{host: mesh.example, port: 80}]`))[0].VirtualHosts[0],
		parse(t, []byte(`[{host: ordinary.example, port: 80, tls: [ordinary.example]}]`))[0].VirtualHosts[0],
		parse(t, []byte(`[{host: mixed.example, port: 80, tls: [mixed-ordinary.example], name: mixed, rule: {http: [{
		  route: [{destination: {host: mixed-mesh.example}, weight: 1}, {destination: {host: mixed-ordinary.example}, weight: 1}]}]}}]`))[0].VirtualHosts[0],
	}
	c := route.Frame("80")
	c.VirtualHosts = hosts
	b := envoytest.Bootstrap()
	for _, name := range []string{"mesh.example", "mixed-mesh.example"} {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, upstream(t, cluster.Name(cluster.Outbound, 80, "", name), host, port, "istio"))
	}
	for _, name := range []string{"ordinary.example", "mixed-ordinary.example"} {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, upstream(t, cluster.Name(cluster.Outbound, 80, "", name), host, port))
	}
	b.DynamicResources = nil // nothing would answer
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, listener(t, "outbound", 0, c))
	address := envoytest.Start(t, b)["outbound"]

	want := map[string][]string{
		"outbound_80__mesh.example": {"istio-http/1.1", "istio-h2", "istio"}, "outbound_80__ordinary.example": {"http/1.1"},
		"outbound_80__mixed-mesh.example": {"istio-http/1.1", "istio-h2", "istio"}, "outbound_80__mixed-ordinary.example": {"http/1.1"},
	}
	reached := map[string]bool{}
	for range 200 { // the weighted route reaches both sooner or later
		for _, h := range hosts {
			reached[call(t, address, h.Domains[0])] = true
		}
		if len(reached) == len(want) {
			break
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, protocols := range want {
		if got, ok := o.seen[name]; !ok || !slices.Equal(got, protocols) {
			t.Errorf("%s: called %v, offered %q, want %q", name, ok, got, protocols)
		}
	}
}

// call returns the server name under which the upstream was reached.
func call(t *testing.T, address, host string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d", host, resp.StatusCode)
	}
	return resp.Header.Get("sni")
}
