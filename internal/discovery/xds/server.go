// Package xds serves configuration to proxies over Envoy's discovery services.
//
// A View is what proxies of one class shall have: immutable, its resources stored once as
// encoded bytes, in layers that it shares with the views of other classes. A Registry (the compiler's side) gives each stream a LatestView that its views
// are published into; a Sub, one per stream, is the machine that decides what the stream is
// sent and when; Server and its streams do what the machines say. Both flavours of the
// protocol are served, incremental ("delta") and state-of-the-world, by the aggregated service and by
// those of single types.
//
// Promises: one response in flight per type and stream, newer state replacing older
// meanwhile, but for clusters, of which Envoy answers none while one warms; a listener or route
// after the clusters that it names, with their endpoints, and after nothing else; removals last,
// also when a client comes back from an earlier stream (streams of single types know nothing of
// each other, and keep no order), and what such a client claims and no view has had later still; nothing waits for a client forever; an
// assignment follows every cluster that is sent, whatever the client claims to have; nothing else
// that a client has is sent again; what a client refused is not sent again until it changes, but
// for listeners that could not be bound, and all else goes on, even if the client does not say
// what it refuses; what is reported as applied was asked for and accepted. view.go, layer.go,
// references.go and sub*.go are pure.
package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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

// HealthReports is a Registry that takes the health which proxies report of their applications.
type HealthReports interface {
	// ReportHealth takes the health of the application of the connection with that id. It returns false if it has no use for it.
	// It does not block, and may be called from many goroutines.
	ReportHealth(id string, healthy bool, message string) bool
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
	room     room           // for requests that are not whole yet
	logLimit sharedLogLimit // of the log's lines about refused configuration
	// stuckLimit is that of lines about proxies that do not acknowledge, so that these and refusals do not keep each other out of the log.
	stuckLimit sharedLogLimit
	streamLog  streamLog
	debug      Introspection
	behind     func() bool
	trust      trust
	// credentials has the secrets; nil if none are served.
	credentials Credentials
	// firstTrust is closed by the first SetTrust.
	firstTrust chan struct{}

	drain    sync.Once
	draining chan struct{} // closed when streams are to end
	// drainTime is within which time they end; it is set before draining is closed.
	drainTime time.Duration

	mu    sync.Mutex
	conns map[string]*connection
	// left is when a connection of a proxy has ended since the last one began, by its node's id.
	left map[string]time.Time
	// guards are the connections, nil until their credentials have been exchanged.
	guards map[net.Conn]*guard
	// warned are the sets of fields that a warning has named.
	warned map[mesh.ProxyConfigFields]bool
}

// New makes a server and registers its metrics; a nil reg registers none.
func New(registry Registry, log *slog.Logger, reg prometheus.Registerer) *Server {
	s := &Server{registry: registry, log: log, behind: func() bool { return false }, quota: newQuota(), room: newRoom(), firstTrust: make(chan struct{}), draining: make(chan struct{}), conns: map[string]*connection{}, guards: map[net.Conn]*guard{}, warned: map[mesh.ProxyConfigFields]bool{}}
	s.metrics = newMetrics(s.count, s.countStuck)
	if reg != nil {
		reg.MustRegister(s.metrics.all()...)
	}
	return s
}

// Limit sets what all clients together may make the server hold. Call it before serving.
func (s *Server) Limit(l Limits) {
	s.quota.limits = l
	s.quota.limits.Streams = cmp.Or(l.Streams, DefaultStreams)
	s.quota.rate.perSecond = l.StreamsPerSecond
}

// BehindIf has f say whether the configuration may lack something which other instances of the control plane know. What proxies
// that come from these claim to have is not removed meanwhile. Call it before serving. It is called from many goroutines, and must not block.
func (s *Server) BehindIf(f func() bool) { s.behind = f }

// Register adds the discovery services, the aggregated one and those of single types, to a gRPC
// server, which must have been made with ServerOptions. A nil auth serves anybody: for a plaintext
// port.
func (s *Server) Register(g grpc.ServiceRegistrar, auth Authenticate) {
	v := &service{server: s, auth: auth}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, v)
	v.registerSingle(g)
}

// Drain refuses new streams and connections from now on, and ends those that there are within the time
// that is given, a few at a time, so that the instances to which clients go next do not get all at once.
// The status makes clients connect again. Connections that have not spoken HTTP/2 yet are closed: gRPC
// would wait for them. Drain does not wait for the streams' ends. Only its first call counts.
func (s *Server) Drain(within time.Duration) {
	s.drain.Do(func() {
		s.drainTime = within
		s.mu.Lock()
		close(s.draining)
		var mute []net.Conn
		for raw, g := range s.guards {
			if g == nil || !g.hasBegun() {
				mute = append(mute, raw)
			}
		}
		s.mu.Unlock()
		for _, raw := range mute {
			_ = raw.Close() // it has nothing to lose
		}
		time.AfterFunc(within+endingLimit, s.closeStuck)
	})
}

// closeStuck closes the connections of the streams that have not ended although they should: their clients
// do not read, so that they cannot be told.
func (s *Server) closeStuck() {
	s.mu.Lock()
	var stuck []*guard
	for _, c := range s.conns {
		stuck = append(stuck, c.guard)
	}
	s.mu.Unlock()
	for _, g := range stuck {
		_ = g.Close() // nothing can be done about an error
	}
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// errDraining ends a stream of a server that is about to stop.
var errDraining = status.Error(codes.Unavailable, "the control plane is stopping: connect again, to another instance")

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
		// Hundreds of connections are idle nearly always, and requests are small. A buffer to write is held only while
		// there is something to write; with half of its size a start takes a fifth more processor time.
		grpc.ReadBufferSize(2 << 10), grpc.WriteBufferSize(32 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// service is the server as one port sees it.
type service struct {
	server *Server
	auth   Authenticate
}

// StreamAggregatedResources implements the state-of-the-world flavour.
func (v *service) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return v.serve(g, false, everyType)
}

// DeltaAggregatedResources implements the incremental flavour.
func (v *service) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return v.serve(g, true, everyType)
}

// serve runs a stream of one type, or of everyType, to its end, and counts it if it is refused.
func (v *service) serve(g grpc.ServerStream, delta bool, only Type) error {
	who, err := v.admit(g, delta, only)
	v.server.refusals.note(v.server, err, who.text)
	if status.Code(err) == codes.Internal {
		v.server.metrics.internal.Inc()
		v.server.log.Error("stream ended by an internal error", "client", who.text, "error", err)
	}
	return err
}

// caller is who opened a stream, as far as it is known.
type caller struct {
	// identity is what it proved; proven is false on a plaintext port.
	identity mesh.Identity
	proven   bool
	address  string // host
	// text is the identity, or the address of a caller without one.
	text string
}

// admit enters a stream in the quota, finds out who it is of, and runs it.
func (v *service) admit(g grpc.ServerStream, delta bool, only Type) (who caller, err error) {
	if v.server.isDraining() {
		return who, errDraining
	}
	ctx := g.Context()
	conn, err := guardOf(ctx)
	if err != nil {
		return who, err
	}
	who.address = conn.entry.address
	who.text = "address " + who.address
	account, err := v.server.quota.openStream(conn.entry)
	if err != nil {
		return who, err
	}
	defer account.close()
	if err := v.awaitTurn(ctx); err != nil {
		return who, err
	}
	st := newStream(v.server, g, account, conn)
	st.delta, st.only = delta, only
	if v.auth != nil {
		var until time.Time
		if who.identity, until, err = v.auth(ctx); err != nil {
			if !until.IsZero() {
				// Only a new connection can present a new certificate.
				conn.closeSoon()
			}
			return who, coded(err, codes.Unauthenticated)
		}
		who.proven, who.text = true, who.identity.String()
		defer st.endAt(until)()
	}
	st.caller = who
	first, err := st.firstRequest(ctx)
	if errors.Is(err, io.EOF) {
		return who, nil // the client has ended the stream without having asked
	}
	if err != nil {
		return who, err
	}
	if only == everyType && isDebugType(first.url) {
		return who, v.server.serveDebug(st, first)
	}
	node, err := v.claimed(first.node, who)
	if err != nil {
		return who, err
	}
	first.node = nil
	if err := account.identify(node.NodeID.String(), who.text); err != nil {
		return who, err
	}
	if err := account.charge(nodeCost(node)); err != nil {
		return who, err
	}
	if st.asksForBootstrap(node, first.url) {
		return who, v.serveBootstrap(ctx, st, node, first)
	}
	return who, v.join(ctx, st, node, first)
}

// awaitTurn delays a new stream while too many begin.
func (v *service) awaitTurn(ctx context.Context) error {
	wait, err := v.server.quota.reserve(time.Now())
	if err != nil || wait == 0 {
		return err
	}
	turn := time.NewTimer(wait)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-v.server.draining:
		return errDraining
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// claimed decodes the node of a first request, and checks what it claims against what the caller proved.
func (v *service) claimed(encoded []byte, who caller) (mesh.Node, error) {
	if encoded == nil {
		return mesh.Node{}, errNoNode
	}
	node, err := decodeNode(encoded)
	if err == nil && v.auth != nil {
		if err := node.CheckIdentity(who.identity); err != nil {
			return mesh.Node{}, status.Error(codes.PermissionDenied, err.Error())
		}
	}
	return node, err
}

// join finds the views of a stream that has been admitted, and runs it.
func (v *service) join(ctx context.Context, st *stream, node mesh.Node, first incoming) error {
	s, who := v.server, st.caller
	id := fmt.Sprintf("%s-%d", node.ID, s.serial.Add(1))
	if !st.delta || st.only != everyType {
		node.Metadata.VirtualHosts = false // they need both types on one stream
	}
	latest, leave, err := s.registry.Join(ctx, node, who.identity, id)
	if err != nil {
		return coded(err, codes.Unavailable)
	}
	defer func() { leave() }()
	st.joinWhole = func() (latest *LatestView, err error) {
		leave()
		leave = func() {}
		whole := node
		whole.Metadata.VirtualHosts = false
		var next func()
		if latest, next, err = s.registry.Join(ctx, whole, who.identity, id); err != nil {
			return nil, coded(err, codes.Unavailable)
		}
		leave = next
		return latest, nil
	}
	st.begin(newConnection(ctx, id, node, who.identity, st.delta))
	s.add(st.conn)
	defer s.remove(st.conn)
	defer st.secrets.release()
	defer st.bootstrap.release()
	text := "unauthenticated"
	if who.proven {
		text = who.text
	}
	st.logBeginning("proxy connected", "connection", id, "proxy", node.NodeID.String(), "caller", text, "agent", node.UserAgent, "delta", st.delta, "types", st.only.service())
	err = st.run(latest, first)
	st.log.Info("proxy disconnected", "connection", id, "status", status.Code(err).String())
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
