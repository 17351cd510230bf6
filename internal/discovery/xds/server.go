// Package xds serves configuration to proxies over Envoy's aggregated discovery service.
//
// A View is what proxies of one class shall have: immutable, its resources stored once as
// encoded bytes, in layers that it shares with the views of other classes. A Registry (the compiler's side) gives each stream a LatestView that its views
// are published into; a Sub, one per stream, is the machine that decides what the stream is
// sent and when; Server and its streams do what the machines say. Both flavours of the
// protocol are served, incremental ("delta") and state-of-the-world.
//
// Promises: one response in flight per type and stream, newer state replacing older
// meanwhile; clusters and their endpoints before the listeners and routes that use them,
// removals last, also when a client comes back from an earlier stream, but nothing waits for
// a client forever; an assignment follows every cluster that is sent, whatever the client
// claims to have; nothing else that a client has is sent again; what a client refused is not
// sent again until it changes, but for listeners that could not be bound; what is reported as
// applied was asked for and accepted. view.go, layer.go and sub*.go are pure.
package xds

import (
	"cmp"
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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Registry finds out which class a proxy is of.
type Registry interface {
	// Join returns where the views for the proxy n appear, and a function to be called
	// when the proxy has gone. The identity who is what the caller proved, zero on a
	// plaintext port. The id is unique among all connections of the process.
	// It may be called from many goroutines. An error that is a gRPC status ends the
	// stream with it, codes.Unavailable while sources have not synced; any other error
	// becomes codes.Unavailable.
	Join(ctx context.Context, n mesh.Node, who mesh.Identity, id string) (*LatestView, func(), error)
}

// Authenticate finds out who is calling, from what the transport and the headers say, and
// until when that holds: streams end then. A zero time is no end. With an error it is when the
// client certificate of the connection expired, zero if that is not why. An error that is not
// a gRPC status becomes codes.Unauthenticated.
type Authenticate func(ctx context.Context) (id mesh.Identity, until time.Time, err error)

// Server serves any number of gRPC servers from one Registry.
type Server struct {
	registry Registry
	log      *slog.Logger
	metrics  *metrics
	steps    stepCache
	serial   atomic.Uint64
	quota    *quota
	refusals refusals

	mu    sync.Mutex
	conns map[string]*connection
	// warned are the sets of fields that a warning has named.
	warned map[mesh.ProxyConfigFields]bool
}

// New makes a server and registers its metrics; a nil reg registers none.
func New(registry Registry, log *slog.Logger, reg prometheus.Registerer) *Server {
	s := &Server{registry: registry, log: log, quota: newQuota(), conns: map[string]*connection{}, warned: map[mesh.ProxyConfigFields]bool{}}
	s.metrics = newMetrics(s.count, s.countStuck)
	if reg != nil {
		reg.MustRegister(s.metrics.all()...)
	}
	return s
}

// Limit sets what all clients together may make the server hold. Call it before serving.
func (s *Server) Limit(l Limits) {
	s.quota.limits.Streams = cmp.Or(l.Streams, DefaultStreams)
}

// Register adds the discovery service to a gRPC server, which must have been made with
// ServerOptions. A nil auth serves anybody: for a plaintext port.
func (s *Server) Register(g grpc.ServiceRegistrar, auth Authenticate) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, &service{server: s, auth: auth})
}

// How gRPC connections are served.
const (
	// maxConcurrent is how many calls a client may have open on a connection. It is above
	// maxStreamsPerConn, so that one stream too many gets an error and does not wait.
	maxConcurrent = 2 * maxStreamsPerConn
	// window is how much of a stream is received before it is read, in bytes: the least
	// that gRPC allows. gRPC would otherwise let it grow up to 16 MiB for fast clients.
	window     = 64 << 10
	connWindow = 1 << 20
	// maxHeaders bounds a call's headers, in bytes; tokens have a few thousand.
	maxHeaders = 32 << 10
	// handshakeLimit is how long a connection may take until it speaks gRPC.
	handshakeLimit = 20 * time.Second
	// silenceLimit is how long a stream may take until its first request.
	silenceLimit = 30 * time.Second
)

// ServerOptions are what a gRPC server needs to serve xDS, with these credentials: the
// codec, the bounds on what clients may send and make it hold, a Stop that waits for the
// streams' ends, and leave for agents to ask every 30 s whether the connection lives. The
// connections' age and idleness are the caller's.
func (s *Server) ServerOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(guards{creds, s}),
		grpc.ForceServerCodecV2(Codec()), grpc.MaxRecvMsgSize(maxRequest), grpc.WaitForHandlers(true),
		grpc.MaxConcurrentStreams(maxConcurrent), grpc.MaxHeaderListSize(maxHeaders), grpc.ConnectionTimeout(handshakeLimit),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(connWindow),
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
	return v.serve(g, false)
}

// DeltaAggregatedResources implements the incremental flavour.
func (v *service) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return v.serve(g, true)
}

// serve runs a stream to its end, and counts it if it is refused.
func (v *service) serve(g grpc.ServerStream, delta bool) error {
	who, err := v.admit(g, delta)
	v.server.refusals.note(v.server, err, who)
	return err
}

// admit enters a stream in the quota and finds out who it is of; caller says so, as far
// as it is known.
func (v *service) admit(g grpc.ServerStream, delta bool) (caller string, err error) {
	ctx := g.Context()
	conn, err := guardOf(ctx)
	if err != nil {
		return "", err
	}
	caller = "address " + conn.entry.address
	account, err := v.server.quota.openStream(conn.entry)
	if err != nil {
		return caller, err
	}
	defer account.close()
	st := newStream(v.server, g, account, conn.overrun())
	var who mesh.Identity
	if v.auth != nil {
		var until time.Time
		if who, until, err = v.auth(ctx); err != nil {
			if !until.IsZero() {
				// Only a new connection can present a new certificate.
				conn.closeSoon()
			}
			return caller, coded(err, codes.Unauthenticated)
		}
		caller = who.String()
		defer st.endAt(until)()
	}
	first, err := st.firstRequest(ctx, delta)
	if err != nil {
		return caller, err
	}
	if first.node == nil {
		return caller, errNoNode
	}
	node, err := decodeNode(first.node)
	if err != nil {
		return caller, err
	}
	first.node = nil
	if v.auth != nil {
		if err := node.CheckIdentity(who); err != nil {
			return caller, status.Error(codes.PermissionDenied, err.Error())
		}
	}
	if err := account.identify(node.NodeID.String(), caller); err != nil {
		return caller, err
	}
	if err := account.charge(nodeCost(node)); err != nil {
		return caller, err
	}
	return caller, v.join(ctx, st, node, who, first)
}

// join finds the views of a stream that has been admitted, and runs it.
func (v *service) join(ctx context.Context, st *stream, node mesh.Node, who mesh.Identity, first incoming) error {
	s := v.server
	id := fmt.Sprintf("%s-%d", node.ID, s.serial.Add(1))
	latest, leave, err := s.registry.Join(ctx, node, who, id)
	if err != nil {
		return coded(err, codes.Unavailable)
	}
	defer leave()
	st.begin(newConnection(ctx, id, node, who, st.delta))
	s.add(st.conn)
	defer s.remove(st.conn)
	caller := "unauthenticated"
	if v.auth != nil {
		caller = who.String()
	}
	s.log.Info("proxy connected", "connection", id, "proxy", node.NodeID.String(), "caller", caller, "agent", node.UserAgent, "delta", st.delta)
	err = st.run(ctx, latest, first)
	s.log.Info("proxy disconnected", "connection", id, "status", status.Code(err).String())
	return err
}

// guardOf finds the connection of a call.
func guardOf(ctx context.Context) (*guard, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(guardedAddr); ok {
			return a.guard, nil
		}
	}
	return nil, status.Error(codes.Internal, "the gRPC server was made without this server's options")
}

// coded makes a gRPC status of an error that is not one yet.
func coded(err error, c codes.Code) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(c, err.Error())
}
