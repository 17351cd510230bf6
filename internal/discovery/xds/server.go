// Package xds serves configuration to proxies over Envoy's aggregated discovery service.
//
// A View is what proxies of one class shall have: immutable, its resources stored once as
// encoded bytes. A Registry (the compiler's side) gives each stream a Cell that its views
// are published into; a Sub, one per stream, is the machine that decides what the stream is
// sent and when; Server and its streams do what the machines say. Both flavours of the
// protocol are served, incremental ("delta") and state-of-the-world.
//
// Promises: one response in flight per type and stream, newer state replacing older
// meanwhile; clusters and their endpoints before the listeners and routes that use them,
// removals last, also when a client comes back from an earlier stream, but nothing waits for
// a client for ever; an assignment follows every cluster that is sent, whatever the client
// claims to have; nothing else that a client has is sent again; what a client refused is not
// sent again until it changes, but for listeners that could not be bound; what is told as
// applied was asked for and accepted. view.go and sub*.go are pure.
package xds

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Registry finds out which class a proxy is of.
type Registry interface {
	// Join returns the cell with the views for the proxy n, and a function to be called
	// when the proxy has gone. The id is unique among all connections of the process.
	// It may be called from many goroutines. An error that is a gRPC status ends the
	// stream with it, codes.Unavailable while sources have not synced; any other error
	// becomes codes.Unavailable.
	Join(ctx context.Context, n mesh.Node, id string) (*Cell, func(), error)
}

// Authenticate finds out who is calling, from what the transport and the headers say.
// An error that is no gRPC status becomes codes.Unauthenticated.
type Authenticate func(ctx context.Context) (mesh.Identity, error)

// Server serves any number of gRPC servers from one Registry.
type Server struct {
	registry Registry
	log      *slog.Logger
	metrics  *metrics
	steps    steps
	serial   atomic.Uint64

	mu    sync.Mutex
	conns map[string]*connection
}

// New makes a server and registers its metrics; a nil reg registers none.
func New(registry Registry, log *slog.Logger, reg prometheus.Registerer) *Server {
	s := &Server{registry: registry, log: log, conns: map[string]*connection{}}
	s.metrics = newMetrics(s.count, s.countStuck)
	if reg != nil {
		reg.MustRegister(s.metrics.all()...)
	}
	return s
}

// Register adds the discovery service to a gRPC server, which must have been made with
// ServerOptions. A nil auth serves anybody: for a plaintext port.
func (s *Server) Register(g grpc.ServiceRegistrar, auth Authenticate) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, &service{server: s, auth: auth})
}

// maxRequest bounds a request, in bytes.
const maxRequest = 4 << 20

// ServerOptions are what a gRPC server needs to serve xDS: the codec, the bound of a
// request's size, a Stop that waits for the streams' ends, and leave for agents to ask
// every 30 s whether the connection lives. Its age and other limits are the caller's.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()), grpc.MaxRecvMsgSize(maxRequest), grpc.WaitForHandlers(true),
		// Hundreds of connections are idle nearly always, and requests are small.
		grpc.ReadBufferSize(8 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// service is the server as one port sees it.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
	auth   Authenticate
}

// StreamAggregatedResources implements the state-of-the-world flavour.
func (v *service) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return v.serve(g, false, func() (incoming, error) {
		m, err := g.Recv()
		return fromSotW(m), err
	})
}

// DeltaAggregatedResources implements the incremental flavour.
func (v *service) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return v.serve(g, true, func() (incoming, error) {
		m, err := g.Recv()
		return fromDelta(m), err
	})
}

// serve admits a stream and runs it to its end.
func (v *service) serve(g grpc.ServerStream, delta bool, recv func() (incoming, error)) error {
	ctx := g.Context()
	var who mesh.Identity
	if v.auth != nil {
		var err error
		if who, err = v.auth(ctx); err != nil {
			return coded(err, codes.Unauthenticated)
		}
	}
	first, err := recv()
	if err != nil {
		return err
	}
	node, err := decodeNode(first.node)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if v.auth != nil {
		if err := agree(node, who); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	s := v.server
	id := fmt.Sprintf("%s-%d", node.ID, s.serial.Add(1))
	cell, leave, err := s.registry.Join(ctx, node, id)
	if err != nil {
		return coded(err, codes.Unavailable)
	}
	defer leave()
	st := newStream(s, g, newConnection(ctx, id, node, who, delta))
	s.add(st.conn)
	defer s.remove(st.conn)
	caller := "unauthenticated"
	if v.auth != nil {
		caller = who.String()
	}
	s.log.Info("proxy connected", "connection", id, "proxy", node.NodeID.String(), "caller", caller, "agent", node.UserAgent, "delta", delta)
	err = st.run(ctx, cell, first, recv)
	s.log.Info("proxy disconnected", "connection", id, "status", status.Code(err).String())
	return err
}

// coded makes a gRPC status of an error that is none yet.
func coded(err error, c codes.Code) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(c, err.Error())
}

// agree checks what a node says of itself against who it proved to be. [control-plane 1.5.5]
func agree(n mesh.Node, who mesh.Identity) error {
	account := n.Metadata.ServiceAccount
	if n.Namespace() == who.Namespace && (account == "" || account == who.ServiceAccount) {
		return nil
	}
	return fmt.Errorf("node claims namespace %q and service account %q, but the caller is %s", n.Namespace(), account, who)
}
