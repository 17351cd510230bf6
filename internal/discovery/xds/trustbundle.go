package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// trustLabel is the name of the trust bundle's type in metrics and nonces.
const trustLabel = "pcds"

// maxLeft limits how many proxies are remembered that left without acknowledging the trust bundle.
const maxLeft = 10_000

// TrustBundle is the root certificates that workloads trust. It is immutable.
type TrustBundle struct {
	// Certificates are certificates in PEM.
	Certificates []string
	// CARoots are the SHA-256s, in hexadecimal, of those that are the mesh CA's own.
	CARoots []string
}

// TrustStatus is who has acknowledged the current trust bundle.
type TrustStatus struct {
	// Connected is how many proxies are connected. Waiting are the names, POD.NAMESPACE, of those that
	// have not acknowledged the bundle, or that left, since the CA's roots in it are current, without having
	// done so.
	Connected int
	Waiting   []string
}

// trust is the current trust bundle, and who left without it.
type trust struct {
	mu      sync.Mutex
	current *trustVersion
	// left are the proxies that left without an acknowledgement of current, or of an earlier bundle with the
	// same roots of the CA; at most maxLeft.
	left map[string]bool
}

// trustVersion is a version of the trust bundle, encoded.
type trustVersion struct {
	version  string
	caRoots  []string
	resource *anypb.Any
	next     chan struct{} // closed when there is a newer one
}

// SetTrust replaces the trust bundle, and has it sent to all agents that have subscribed to it. Nothing
// happens if it is the same. Until the first call, no agent is sent one. [control-plane 1.6.7]
func (s *Server) SetTrust(b TrustBundle) error {
	m := &meshv1.ProxyConfig{CaCertificatesPem: b.Certificates, ProxyMetadata: map[string]string{mesh.CARootsKey: strings.Join(b.CARoots, ",")}}
	text, err := marshal.Append(nil, m)
	if err != nil {
		return fmt.Errorf("encode the trust bundle: %w", err)
	}
	sum := sha256.Sum256(text)
	v := &trustVersion{version: hex.EncodeToString(sum[:8]), caRoots: b.CARoots, resource: &anypb.Any{TypeUrl: mesh.TrustBundleType, Value: text}, next: make(chan struct{})}
	s.trust.mu.Lock()
	defer s.trust.mu.Unlock()
	old := s.trust.current
	if old != nil && old.version == v.version {
		return nil
	}
	s.trust.current = v
	if old == nil || !slices.Equal(old.caRoots, v.caRoots) {
		s.trust.left = map[string]bool{} // else they still lack one of the CA's roots
	}
	if old != nil {
		close(old.next)
	} else {
		close(s.firstTrust)
	}
	return nil
}

// Trust returns who has acknowledged the current trust bundle. Any goroutine may call it.
func (s *Server) Trust() TrustStatus {
	acked := map[string]bool{} // by proxy: one of its streams has
	s.mu.Lock()
	s.trust.mu.Lock()
	version := ""
	if s.trust.current != nil {
		version = s.trust.current.version
	}
	for _, c := range s.conns {
		name := c.status.Node.ID
		acked[name] = acked[name] || version != "" && c.trusted() == version
	}
	out := TrustStatus{Connected: len(acked)}
	for name := range s.trust.left {
		if !acked[name] {
			acked[name] = false
		} else {
			delete(s.trust.left, name)
		}
	}
	s.trust.mu.Unlock()
	s.mu.Unlock()
	for name, ok := range acked {
		if !ok {
			out.Waiting = append(out.Waiting, name)
		}
	}
	slices.Sort(out.Waiting)
	return out
}

// trustLeft notes that a connection has ended. Callers hold s.mu.
func (s *Server) trustLeft(c *connection) {
	s.trust.mu.Lock()
	defer s.trust.mu.Unlock()
	if s.trust.current != nil && c.trusted() != s.trust.current.version && len(s.trust.left) < maxLeft {
		s.trust.left[c.status.Node.ID] = true
	}
}

// trusted returns the version of the trust bundle that the connection's agent has acknowledged.
func (c *connection) trusted() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trust
}

// trustStream is what one stream's agent has of the trust bundle. It is not a Type: Envoy does not
// know it, and no view has it.
type trustStream struct {
	wanted bool
	moved  <-chan struct{} // closed when there is a newer bundle; nil while none is wanted
	nonces uint64
	sent   string // version of the last response
	open   bool   // it is not acknowledged yet
}

// trustRequest handles a request for the trust bundle.
func (s *stream) trustRequest(r Request) error {
	t := &s.trust
	switch {
	case r.Unsubscribe.n > 0 && r.Names.n == 0:
		*t = trustStream{nonces: t.nonces}
		return nil
	case r.Nonce == "":
		t.wanted, t.sent, t.open = true, "", false
	case !t.open || r.Nonce != t.nonce():
		return nil // it answers an older response
	case r.Refused:
		t.open = false
		s.server.metrics.allRejects.WithLabelValues(trustLabel).Inc()
		s.logRefused("agent refused the trust bundle", "connection", s.conn.status.ID, "version", t.sent, "message", truncate([]byte(r.Message), maxMessage))
	default:
		t.open = false
		s.conn.mu.Lock()
		s.conn.trust = t.sent
		s.conn.mu.Unlock()
	}
	return s.sendTrust()
}

func (t *trustStream) nonce() string { return trustLabel + "-" + strconv.FormatUint(t.nonces, 10) }

// sendTrust sends the current trust bundle, unless the agent has it, was sent it, or has not answered
// the last response.
func (s *stream) sendTrust() error {
	t := &s.trust
	if !t.wanted {
		return nil
	}
	s.server.trust.mu.Lock()
	v := s.server.trust.current
	s.server.trust.mu.Unlock()
	if v == nil {
		t.moved = s.server.firstTrust
		return nil
	}
	if t.open {
		t.moved = nil // the answer to the last response comes first
		return nil
	}
	t.moved = v.next
	if t.sent == v.version {
		return nil
	}
	t.nonces++
	t.sent, t.open, t.moved = v.version, true, nil
	var m any = &discoveryv3.DiscoveryResponse{VersionInfo: v.version, TypeUrl: mesh.TrustBundleType, Nonce: t.nonce(), Resources: []*anypb.Any{v.resource}}
	if s.conn.status.Delta {
		// One resource without a name, as Istio sends it.
		m = &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: v.version, TypeUrl: mesh.TrustBundleType, Nonce: t.nonce(),
			Resources: []*discoveryv3.Resource{{Version: v.version, Resource: v.resource}}}
	}
	if err := s.wire.SendMsg(m); err != nil {
		s.server.metrics.pushes.WithLabelValues(trustLabel + "_senderr").Inc()
		return err
	}
	s.server.metrics.pushes.WithLabelValues(trustLabel).Inc()
	return nil
}
