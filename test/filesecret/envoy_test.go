package filesecret_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// plane sends Envoy what it is given, each response once the one before is answered.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	changes chan *clusterv3.Cluster
	pushed  *sds.Pushed
	t       *testing.T
}

// DeltaAggregatedResources implements the service.
func (p *plane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	// The first answer is nothing: with it, Envoy goes on to be live.
	for n, c := 1, (*clusterv3.Cluster)(nil); ; n++ {
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Nonce: strconv.Itoa(n)}
		if c != nil {
			r.Resources = []*discoveryv3.Resource{{Name: c.Name, Version: strconv.Itoa(n), Resource: pack(p.t, c)}}
		}
		text, err := proto.Marshal(r)
		if err != nil {
			return err
		}
		p.pushed.Observe(mem.BufferSlice{mem.SliceBuffer(text)}, true) // as the agent's proxy does
		if err := s.Send(r); err != nil {
			return err
		}
		for answered := false; !answered; {
			a, err := s.Recv()
			if err != nil {
				return err
			}
			if e := a.GetErrorDetail(); e != nil {
				p.t.Errorf("Envoy refuses a cluster: %s", e.GetMessage())
			}
			answered = a.GetResponseNonce() == r.Nonce
		}
		select {
		case c = <-p.changes:
		case <-s.Context().Done():
			return nil
		}
	}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// none is a workload without a secret of its own.
type none struct{}

// Current implements sds.Source.
func (none) Current() (*pki.Secret, <-chan struct{}) { return nil, nil }

// envoy is a running Envoy with its control plane and the agent's secrets.
type envoy struct {
	at    map[string]string // address of the listener for each cluster
	files *secret.Named
	plane *plane
}

// run keeps f going until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// start runs an Envoy that has a listener for each of the clusters to come; system is the
// operating system's bundle.
func start(t *testing.T, system string, clusters ...string) *envoy {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	follower := filewatch.NewFollower(filewatch.FollowerOptions{Log: log})
	run(t, follower.Run)
	e := &envoy{files: secret.NewNamed([]string{system}, follower, log), plane: &plane{changes: make(chan *clusterv3.Cluster), t: t}}
	socket := filepath.Join(t.TempDir(), "socket")
	pushed := sds.NewPushed()
	e.plane.pushed = pushed
	secrets, err := sds.New(sds.Config{
		Socket: socket, Access: claim.AnyUser, Users: sds.Users{UIDs: []uint32{uint32(os.Getuid())}}, Source: none{}, Files: e.files, Names: pushed, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, e.files.Run)
	run(t, secrets.Run)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, e.plane)
	run(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, server.Stop)()
		return server.Serve(l)
	})

	b := envoytest.Bootstrap()
	b.DynamicResources.CdsConfig = &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}, ResourceApiVersion: corev3.ApiVersion_V3,
	}
	lead(t, b, envoytest.XDSCluster, &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(l.Addr().(*net.TCPAddr).Port)},
	}}})
	lead(t, b, envoytest.SDSCluster, &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}})
	for _, name := range clusters {
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, listener(t, name))
	}
	e.at = envoytest.Start(t, b)
	return e
}

// lead has a static cluster of the bootstrap speak HTTP/2 to an address.
func lead(t *testing.T, b *bootstrapv3.Bootstrap, name string, to *corev3.Address) {
	t.Helper()
	for _, c := range b.StaticResources.Clusters {
		if c.Name != name {
			continue
		}
		c.LoadAssignment.Endpoints[0].LbEndpoints[0].HostIdentifier = &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: to}}
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(t, &httpv3.HttpProtocolOptions{
				UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
				}},
			}),
		}
	}
}

// listener passes what it takes to the cluster of that host.
func listener(t *testing.T, host string) *listenerv3.Listener {
	t.Helper()
	return &listenerv3.Listener{
		Name: host,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.tcp_proxy",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &tcpv3.TcpProxy{
				StatPrefix: host, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster.Name("outbound", 443, "", host)},
			})},
		}}}},
	}
}

// send compiles a cluster and sends it, once Envoy has answered what was sent before.
func (e *envoy) send(host string, port uint32, settings *networking.ClientTLSSettings) {
	e.plane.t.Helper()
	select {
	case e.plane.changes <- cluster.Build(build(host, port, settings)):
	case <-time.After(bound):
		e.plane.t.Fatal(fmt.Errorf("send cluster %s: Envoy does not answer what was sent before", host))
	}
}
