package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// bootstrapLabel is the name of the bootstraps' type in metrics and nonces.
const bootstrapLabel = "bootstrap"

// Bootstrap is what an agent merges into the bootstrap that it builds. It is immutable.
type Bootstrap struct {
	// Version identifies the contents.
	Version  string
	resource *anypb.Any
}

// NewBootstrap returns one of an encoded message of mesh.BootstrapType, which must not be changed any more.
func NewBootstrap(version string, body []byte) *Bootstrap {
	return &Bootstrap{Version: version, resource: &anypb.Any{TypeUrl: mesh.BootstrapType, Value: body}}
}

// LatestBootstrap holds the newest bootstrap of one proxy. One goroutine publishes, one stream reads.
type LatestBootstrap struct {
	mu      sync.Mutex
	current *Bootstrap
	next    chan struct{} // closed when there is a newer one
}

// NewLatestBootstrap starts with b.
func NewLatestBootstrap(b *Bootstrap) *LatestBootstrap {
	return &LatestBootstrap{current: b, next: make(chan struct{})}
}

// Publish replaces the bootstrap.
func (l *LatestBootstrap) Publish(b *Bootstrap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = b
	close(l.next)
	l.next = make(chan struct{})
}

// Load returns the bootstrap, and a channel that is closed when there is a newer one.
func (l *LatestBootstrap) Load() (*Bootstrap, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.next
}

// Bootstraps is a Registry that knows what agents merge into the bootstraps that they build.
type Bootstraps interface {
	// JoinBootstrap returns where the bootstraps for the proxy n appear, and a function to be called when nobody waits for them any
	// more. The identity who and the errors are as in Join; the id is unique. It may be called from many goroutines.
	JoinBootstrap(ctx context.Context, n mesh.Node, who mesh.Identity, id string) (*LatestBootstrap, func(), error)
}

// bootstrapStream is what one stream's agent has of its bootstrap. It is not a Type: Envoy does not know it, and no view has it.
type bootstrapStream struct {
	latest *LatestBootstrap // nil before the first request
	leave  func()
	wanted bool
	moved  <-chan struct{} // closed when there is a newer one; nil while none is wanted
	nonces uint64
	sent   string // version of the last response
	open   bool   // it is not acknowledged yet
}

func (b *bootstrapStream) nonce() string {
	return bootstrapLabel + "-" + strconv.FormatUint(b.nonces, 10)
}

// release is called at the stream's end.
func (b *bootstrapStream) release() {
	if b.leave != nil {
		b.leave()
	}
}

// asksForBootstrap reports whether a request is one for what an agent merges into its bootstrap. Others that ask for bootstraps want a whole
// one.
func (s *stream) asksForBootstrap(n mesh.Node, url string) bool {
	_, served := s.server.registry.(Bootstraps)
	return served && url == mesh.BootstrapType && s.only == everyType && n.Metadata.BootstrapDifferences
}

// serveBootstrap serves a stream whose first request asks for the bootstrap: of an agent whose Envoy does not run yet. It is not a proxy's,
// so it is in no list of proxies, and costs no compilation of what proxies are sent. [agent B26]
func (v *service) serveBootstrap(ctx context.Context, st *stream, node mesh.Node, first incoming) error {
	defer st.bootstrap.release()
	st.logBeginning("agent asks for the bootstrap", "proxy", node.NodeID.String(), "caller", st.caller.text)
	st.rest <- nil
	err := st.bootstrapRequest(ctx, node, first)
	for err == nil {
		select {
		case m, ok := <-st.in:
			if !ok {
				if errors.Is(st.failure, io.EOF) {
					return nil
				}
				return st.failure
			}
			if m.url != mesh.BootstrapType {
				return &refusal{codes.InvalidArgument, reasonRequest, fmt.Sprintf("type %.200q on a stream of bootstraps: open another stream for the resources of a proxy", m.url)}
			}
			err = st.bootstrapRequest(ctx, node, m)
		case <-st.bootstrap.moved:
			err = st.sendBootstrap()
		case <-st.overrun:
			err = unfinished()
		case <-st.expired:
			err = errExpired
		case <-v.server.draining:
			err = errDraining
		}
	}
	return err
}

// bootstrapRequest handles a request for the bootstrap.
func (s *stream) bootstrapRequest(ctx context.Context, node mesh.Node, m incoming) error {
	b, r := &s.bootstrap, m.req
	if b.latest == nil {
		id := fmt.Sprintf("bootstrap-%s-%d", node.ID, s.server.serial.Add(1))
		var err error
		if b.latest, b.leave, err = s.server.registry.(Bootstraps).JoinBootstrap(ctx, node, s.caller.identity, id); err != nil {
			return coded(err, codes.Unavailable)
		}
	}
	switch {
	case r.Unsubscribe.n > 0 && r.Names.n == 0:
		b.wanted, b.moved, b.sent, b.open = false, nil, "", false
	case r.Nonce == "":
		b.wanted, b.sent, b.open = true, "", false
	case !b.open || r.Nonce != b.nonce(): // it answers an older response
	case r.Refused:
		b.open = false
		s.server.metrics.allRejects.WithLabelValues(bootstrapLabel).Inc()
		s.logRefused("agent refused the bootstrap", "proxy", node.NodeID.String(), "version", b.sent, "message", truncate([]byte(r.Message), maxMessage))
	default:
		b.open = false
	}
	if err := s.sendBootstrap(); err != nil {
		return err
	}
	return s.account.charge(-m.cost)
}

// sendBootstrap sends the current bootstrap, unless the agent did not ask for it, was sent it, or has not answered the last response.
func (s *stream) sendBootstrap() error {
	b := &s.bootstrap
	b.moved = nil
	if !b.wanted || b.open {
		return nil
	}
	var current *Bootstrap
	if current, b.moved = b.latest.Load(); b.sent == current.Version {
		return nil
	}
	b.nonces++
	b.sent, b.open, b.moved = current.Version, true, nil
	var m any = &discoveryv3.DiscoveryResponse{VersionInfo: b.sent, TypeUrl: mesh.BootstrapType, Nonce: b.nonce(), Resources: []*anypb.Any{current.resource}}
	if s.delta {
		m = &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: b.sent, TypeUrl: mesh.BootstrapType, Nonce: b.nonce(),
			Resources: []*discoveryv3.Resource{{Version: b.sent, Resource: current.resource}}}
	}
	if err := s.wire.SendMsg(m); err != nil {
		s.server.metrics.pushes.WithLabelValues(bootstrapLabel + "_senderr").Inc()
		return err
	}
	s.server.metrics.pushes.WithLabelValues(bootstrapLabel).Inc()
	return nil
}
