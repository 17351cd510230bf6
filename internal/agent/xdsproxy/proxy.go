// Package xdsproxy forwards Envoy's configuration streams to the control plane.
//
// Each stream that an Envoy opens on a Unix socket becomes one stream upstream; all share one
// connection, which is dialled in the background, authenticated anew at each handshake and
// kept alive. Messages of the types that concern a proxy pass as raw bytes in both directions, in both variants of the protocol;
// requests are only counted, and checked for a NACK, but for the acknowledgement of the inbound listener, which waits until all of
// Envoy's workers have the listener. Requests of other types are answered by the agent: nothing is there.
// The trust bundle and the name table are requested by the agent itself, on the same stream, and do not reach Envoy; the
// health of the application is reported on it.
// When the upstream stream ends, Envoy's ends with the same status, and Envoy reconnects.
package xdsproxy

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/agent/lastgood"
	"github.com/pilothouse/pilothouse/internal/claim"
)

// Config configures a Proxy. All fields but Node, Observe, Extensions, MaxResponse, Trust, Names, Bootstraps, Stats and Copy are required.
type Config struct {
	// Socket is the path to listen on; Envoy's bootstrap names it (<configPath>/XDS).
	Socket string
	// Upstream is the control plane.
	Upstream Upstream
	Log      *slog.Logger
	// Node is how the agent names its proxy when it asks for itself.
	Node Node
	// Observe, if not nil, reads each response before Envoy gets it, in the delta or the other variant. It must not
	// keep the buffers. Any goroutine may call it.
	Observe func(response mem.BufferSlice, delta bool)
	// Extensions, if not nil, converts the configurations of extensions.
	Extensions Extensions
	// MaxResponse is the maximum size of a message of the control plane in bytes; 0 is 512 MiB.
	MaxResponse int
	// Trust gets the trust bundles of the control plane, from any goroutine. If it is nil, none is requested.
	Trust Trust
	// Names gets the name tables of the control plane, from any goroutine. If it is nil, none is requested.
	Names Names
	// Bootstraps gets what the control plane changes in Envoy's bootstrap, from any goroutine. If it is nil, nothing is requested.
	Bootstraps Bootstraps
	// Stats, if not nil, says how far the workers of the Envoy that the agent has started are.
	Stats Stats
	// Copy keeps what Envoy acknowledges, and answers an Envoy without configuration while the control plane does not. If it is
	// nil, nothing is kept.
	Copy *lastgood.Store
}

// Upstream makes connections to the control plane; upstream.Server does. [agent S6, S8]
type Upstream interface {
	Address() string
	Connect(failed func(error), opts ...grpc.DialOption) (*grpc.ClientConn, error)
	// RootFile is the file by which the control plane is verified; empty if that is none.
	RootFile() string
}

// Bounds and times of the two connections.
const (
	// maxResponse is the maximum size of a message of the control plane, in bytes: it is held once in memory.
	maxResponse = 512 << 20
	// maxRequest is the maximum size of a message from a client on the socket, in bytes: any user
	// of the Pod can connect.
	maxRequest = 16 << 20
	// openLimit is how long a stream waits for the control plane before it fails.
	openLimit = 10 * time.Second
	// connectLimit is how long an attempt to connect may take.
	connectLimit = 5 * time.Second
	// bufferSize is the size of each connection's buffers in bytes: messages are rare, and larger ones
	// bypass them.
	bufferSize = 4 << 10
	// upstreamWindow and socketWindow are how much of a message is on its way before it is read, in bytes. With windows
	// that gRPC adapts, a ping follows nearly every message, which the other side has to answer: it doubles the packets of a
	// change. Istio's agent has the same window towards its control plane.
	upstreamWindow = 1 << 20
	socketWindow   = 256 << 10
)

// Proxy listens on the socket from New on, and serves it while Run runs.
type Proxy struct {
	config   Config
	listener net.Listener
	server   *grpc.Server
	upstream *grpc.ClientConn
	stats    stats
	streams  streams
	health   atomic.Pointer[Health] // of the application; nil while it is not known
	capture  atomic.Pointer[string] // the last report on capture; nil if there is none
	addition atomic.Pointer[Addition]
	epochs   atomic.Pointer[func(pid int) (epoch int, ok bool)]
	relays   sync.WaitGroup
	patience time.Duration // how long a stream waits for a connection
	waits    copyWaits
	// workersLimit is the constant of that name, or less in tests.
	workersLimit time.Duration
}

// New opens the socket, replacing one without a listener, and prepares the connection without
// dialling it. Call Run, or Close instead of Run.
func New(c Config) (*Proxy, error) {
	l, err := claim.Socket(c.Socket, claim.AnyUser) // every user of the Pod can connect [agent P15]
	if err != nil {
		return nil, fmt.Errorf("listen for Envoy's configuration: %w", err)
	}
	p := &Proxy{config: c, listener: l, patience: openLimit, waits: defaultCopyWaits, workersLimit: workersLimit, stats: stats{connected: make(chan bool, 1)}}
	p.stats.connected <- false
	p.stats.lost.log, p.stats.lost.upstream = c.Log, c.Upstream
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.relay), grpc.MaxRecvMsgSize(maxRequest),
		grpc.Creds(peers{}), grpc.WaitForHandlers(true), grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
		grpc.StaticStreamWindowSize(socketWindow), grpc.StaticConnWindowSize(socketWindow),
		// The usual pools would keep a megabyte for whatever is larger than 32 KiB, such as
		// an Envoy's first request or a route configuration: nothing is pooled here, on
		// either side, since seconds to days lie between two messages.
		experimental.BufferPool(mem.NopBufferPool{}))
	p.upstream, err = c.Upstream.Connect(p.stats.failed,
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(cmp.Or(c.MaxResponse, maxResponse)), grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectLimit,
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: 3 * time.Second}}),
		grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithStaticStreamWindowSize(upstreamWindow), grpc.WithStaticConnWindowSize(upstreamWindow),
		experimental.WithBufferPool(mem.NopBufferPool{}))
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return p, nil
}

// Close closes the socket and the connection of a proxy that was never run.
func (p *Proxy) Close() error { return errors.Join(p.listener.Close(), p.upstream.Close()) }

// Run serves until ctx ends, then ends all streams, removes the socket and returns nil. Call it once.
func (p *Proxy) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.server.Stop)
	defer stop()
	p.upstream.Connect()
	err := p.server.Serve(p.listener)
	// If Serve failed, this ends the open streams.
	p.server.Stop()
	closing := p.upstream.Close()
	p.relays.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("serve %s: %w", p.config.Socket, err), closing)
}

// relay forwards one stream of an Envoy.
func (p *Proxy) relay(_ any, envoy grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(envoy)
	delta, ok := methods[method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unsupported method %s: want aggregated discovery", method)
	}
	down := &downstream{ServerStream: envoy, delta: delta}
	if p.config.Copy != nil && isEnvoy(down.Context()) {
		return p.relayKept(down, method)
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	opened, err := p.open(ctx, cancel, method, p.patience)
	if err != nil {
		return err
	}
	return p.exchange(ctx, down, &upstreamStream{ClientStream: opened, delta: delta, end: cancel, epoch: p.epoch(down.Context())}, nil)
}

// exchange forwards messages in both directions until one of the streams ends. k is not nil if they are recorded.
func (p *Proxy) exchange(ctx context.Context, down *downstream, up *upstreamStream, k *keptStream) error {
	p.stats.opened()
	defer p.stats.closed()
	state := newRecord(up.delta)
	p.streams.add(up, state)
	defer p.streams.remove(up)
	forward := func(f *frame, url string) error {
		return up.forward(f, url, p.own(), p.health.Load, p.capture.Load, p.addition.Load)
	}
	workers := p.newWorkers(down, forward)
	p.relays.Add(1)
	go func() {
		// Ends at the latest when down does, which is when relay returns.
		defer p.relays.Done()
		p.requests(ctx, down, up, requestSteps{state, k, workers, forward})
	}()
	converter := p.convert(ctx, func(f *frame) error { return p.deliver(ctx, f, up, down, k) })
	for {
		f := &frame{}
		if err := up.RecvMsg(f); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if k.answered() {
				return errAnswered
			}
			if ctx.Err() == nil {
				p.config.Log.Info("control plane ended the configuration stream", "status", status.Code(err).String(), "reason", status.Convert(err).Message())
				p.stats.ended(err)
			} else {
				p.stats.left()
			}
			return err
		}
		k.heard()
		if taken, err := p.takeTrust(up, f.data); taken {
			if err != nil {
				return err
			}
			continue
		}
		if taken, err := p.takeNames(up, f.data); taken {
			if err != nil {
				return err
			}
			continue
		}
		if taken, err := p.takeBootstrap(up, f.data); taken {
			if err != nil {
				return err
			}
			continue
		}
		h, err := readHead(f.data, responseFields)
		if err != nil || !passes(h.url) {
			p.drop(down, h, err)
			continue
		}
		p.stats.responses.Add(1)
		state.response(h)
		if converter.take(ctx, f, h) {
			continue
		}
		if p.config.Observe != nil {
			p.config.Observe(f.data, up.delta)
		}
		workers.response(ctx, f, h)
		k.response(f)
		if err := down.SendMsg(f); err != nil {
			p.stats.left()
			return err
		}
	}
}

// requestSteps are what a request of one stream passes.
type requestSteps struct {
	state   *record
	kept    *keptStream // nil if nothing is recorded
	workers *workers    // nil if nothing is held back
	forward func(f *frame, url string) error
}

// requests forwards Envoy's requests upstream until either stream ends.
func (p *Proxy) requests(ctx context.Context, down *downstream, up *upstreamStream, s requestSteps) {
	for {
		f, err := s.kept.receive(down)
		if err != nil {
			up.closeSend()
			return
		}
		h, ok := p.admit(down, f)
		if !ok {
			continue
		}
		s.state.request(h)
		if s.kept.request(f) || s.workers.request(ctx, f, h) {
			continue
		}
		if s.forward(f, h.url) != nil && !s.kept.answered() {
			// RecvMsg in exchange returns the reason.
			return
		}
	}
}

// admit reports whether a request of Envoy passes, and takes note of it.
func (p *Proxy) admit(down *downstream, f *frame) (head, bool) {
	h, err := readHead(f.data, requestFields(down.delta))
	if err != nil || !passes(h.url) {
		p.withhold(down, f, h, err)
		return h, false
	}
	p.stats.requests.Add(1)
	if h.refused {
		p.nack(f.data, down.delta)
	}
	return h, true
}

// nack takes note of a response that Envoy rejected.
func (p *Proxy) nack(request mem.BufferSlice, delta bool) {
	if n, ok := refusal(request, delta); ok {
		n.At = time.Now()
		p.stats.refused(n)
		p.config.Log.Warn("Envoy rejected configuration", "type", n.Type, "message", n.Message)
	}
}

// open opens the upstream stream. It waits for a connection: a control
// plane that is up again is found sooner by the agent's retries than by Envoy's.
func (p *Proxy) open(ctx context.Context, cancel func(), method string, patience time.Duration) (grpc.ClientStream, error) {
	limit := time.AfterFunc(patience, cancel)
	up, err := p.upstream.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if !limit.Stop() {
		return nil, status.Errorf(codes.Unavailable, "no connection to control plane %s: %s", p.config.Upstream.Address(), p.stats.reason())
	}
	if err != nil && status.Code(err) != codes.Canceled {
		p.stats.failed(err)
	}
	return up, err
}

// methods are the served methods; the value is whether it is the delta variant.
var methods = map[string]bool{
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources": false,
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources":  true,
}
