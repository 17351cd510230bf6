package xds

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Connection is the state of one stream, for people and for status writers.
type Connection struct {
	// ID is unique in the process: the node's pod.namespace and a number.
	ID string
	// Node is the proxy; its Extensions are left out.
	Node mesh.Node
	// Identity is who the caller proved to be, zero on a plaintext port.
	Identity mesh.Identity
	Peer     string // address
	Since    time.Time
	// NotBefore and NotAfter are those of the certificate that the caller connected with, zero without one.
	NotBefore, NotAfter time.Time
	Delta               bool
	// Only is the short name of the type that the stream is limited to, empty on an aggregated one.
	Only string
	// Sent is the newest generation of which something was sent, Applied the newest that
	// the proxy has accepted whole.
	Sent, Applied uint64
	// Quarantined are the resources of its view that proxies of its class have refused, as in "RDS 80":
	// the view has the last accepted versions, or nothing.
	Quarantined []string
	// Secrets are the names of the secrets that the proxy wants, sorted; the slice must not be changed. SecretsRefused are those
	// that it has refused and has not been sent anew since.
	Secrets        []string
	SecretsRefused map[string]bool
	// Capture is what the agent last reported of its rules of capture; empty if nothing was wrong with them, or nothing is reported.
	Capture string
	// Types has an entry for each type that was asked for.
	Types map[Type]TypeStatus
}

// Stuck says whether a response of some type has gone unanswered for 10 s or more.
func (c *Connection) Stuck() bool {
	for _, s := range c.Types {
		if !s.Stuck.IsZero() {
			return true
		}
	}
	return false
}

// TypeStatus is what a stream has of one type.
type TypeStatus struct {
	// SentNonce and AckedNonce are equal where the proxy is in sync.
	SentNonce, AckedNonce           string
	SentGeneration, AckedGeneration uint64
	// SentAt is when the last response was sent; zero if none was.
	SentAt time.Time
	// Resources is how many the proxy is subscribed to.
	Resources int
	// Synced says that the proxy has everything that it shall have of the type and asked for,
	// whether it was sent on this stream or not.
	Synced bool
	// Stuck is when the response was sent that has gone unanswered for 10 s or more; zero
	// if there is none.
	Stuck time.Time
	// Rejects counts NACKs; the others are of the last one, and empty once nothing that was
	// refused is left.
	Rejects      int
	Rejected     time.Time
	RejectedName []string
	Message      string
	// LastRejected and LastMessage are those of the last NACK, also once nothing that was refused is left.
	LastRejected time.Time
	LastMessage  string
	// Refused are all resources that the proxy refuses now, in order of their names. The slice is
	// shared and must not be changed.
	Refused []string
}

// connection is a Connection that is still going on. The identifying fields never change
// and are read without the lock.
type connection struct {
	mu     sync.Mutex
	status Connection            // without Types
	types  [numTypes]*TypeStatus // nil for those that were not asked for
	trust  string                // version of the trust bundle that the agent has acknowledged
	guard  *guard                // set before the connection is listed
	// questions are asked on the stream's goroutine, until ended is closed.
	questions chan func(*Sub)
	ended     chan struct{}
}

func newConnection(ctx context.Context, id string, n mesh.Node, who mesh.Identity, delta bool) *connection {
	// Hundreds of names per proxy, all alike.
	n.Extensions = nil
	c := &connection{questions: make(chan func(*Sub)), ended: make(chan struct{}), status: Connection{ID: id, Node: n, Identity: who, Delta: delta, Since: time.Now()}}
	if p, ok := peer.FromContext(ctx); ok {
		c.status.Peer = p.Addr.String()
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(t.State.PeerCertificates) > 0 {
			leaf := t.State.PeerCertificates[0]
			c.status.NotBefore, c.status.NotAfter = leaf.NotBefore, leaf.NotAfter
		}
	}
	return c
}

func (c *connection) change(t Type, f func(*TypeStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(t, f)
}

func (c *connection) set(t Type, f func(*TypeStatus)) {
	if c.types[t] == nil {
		c.types[t] = &TypeStatus{}
	}
	f(c.types[t])
}

// asked notes that a type was asked for.
func (c *connection) asked(t Type) { c.change(t, func(*TypeStatus) {}) }

// progress notes what the proxy has of the types that it asked for.
func (c *connection) progress(sub *Sub) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, s := range c.types {
		if s == nil {
			continue
		}
		t := Type(t)
		s.Resources, s.Synced = sub.Subscribed(t), sub.Synced(t)
		if refused := sub.Refused(t); !slices.Equal(s.Refused, refused) {
			s.Refused = refused // which snapshots may share: it is never changed
		}
	}
}

func (c *connection) sent(e Send) {
	c.change(e.Type, func(s *TypeStatus) {
		s.SentNonce, s.SentGeneration, s.SentAt = e.Nonce, e.Generation, time.Now()
		c.status.Sent = max(c.status.Sent, e.Generation)
	})
}

// stuck says whether the connection was not stuck before.
func (c *connection) stuck(e Stuck) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news = !c.isStuck()
	c.set(e.Type, func(s *TypeStatus) { s.Stuck = e.Since })
	return news
}

// answered notes an answer, and says whether the connection is not stuck any more by it.
func (c *connection) answered(t Type, f func(*TypeStatus)) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.isStuck()
	c.set(t, func(s *TypeStatus) {
		s.Stuck = time.Time{}
		f(s)
	})
	return before && !c.isStuck()
}

// isStuck says whether some response is unanswered for too long. The caller holds mu.
func (c *connection) isStuck() bool {
	return slices.ContainsFunc(c.types[:], func(s *TypeStatus) bool { return s != nil && !s.Stuck.IsZero() })
}

func (c *connection) acked(e Acked) (news bool) {
	return c.answered(e.Type, func(s *TypeStatus) {
		s.AckedNonce, s.AckedGeneration = e.Nonce, e.Generation
		if e.Refused == 0 {
			s.forgetRejection()
		}
	})
}

// unrefused notes that nothing is left that the proxy refuses.
func (c *connection) unrefused(t Type) { c.change(t, (*TypeStatus).forgetRejection) }

func (s *TypeStatus) forgetRejection() { s.Rejected, s.RejectedName, s.Message = time.Time{}, nil, "" }

func (c *connection) nacked(e Nacked, at time.Time) (news bool) {
	return c.answered(e.Type, func(s *TypeStatus) {
		s.Rejects++
		s.Rejected, s.RejectedName, s.Message = at, e.Names, e.Message
		s.LastRejected, s.LastMessage = at, e.Message
	})
}

// quarantined notes what is in quarantine in the proxy's view.
func (c *connection) quarantined(list []Quarantined) {
	var names []string
	for _, q := range list {
		names = append(names, q.Type.String()+" "+q.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Quarantined = names
}

// captureReported notes what the agent says of capture.
func (c *connection) captureReported(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Capture = text
}

// wantsSecrets notes which secrets the proxy wants.
func (c *connection) wantsSecrets(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Secrets = names
}

// secretsAnswered notes that the proxy has refused, or accepted, a response with some secrets.
func (c *connection) secretsAnswered(names []string, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(c.status.SecretsRefused) // snapshots have the one before
	if all == nil {
		all = map[string]bool{}
	}
	for _, name := range names {
		if delete(all, name); refused {
			all[name] = true
		}
	}
	c.status.SecretsRefused = all
}

func (c *connection) applied(generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Applied = generation
}

func (c *connection) snapshot() Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.status
	out.Types = make(map[Type]TypeStatus, numTypes)
	for t, s := range c.types {
		if s != nil {
			out.Types[Type(t)] = *s
		}
	}
	return out
}

// Connections is the state of every stream, in order of the ids. Any goroutine may call
// it; the result is the caller's.
func (s *Server) Connections() []Connection {
	s.mu.Lock()
	open := make([]*connection, 0, len(s.conns))
	for _, c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	out := make([]Connection, 0, len(open))
	for _, c := range open {
		out = append(out, c.snapshot())
	}
	slices.SortFunc(out, func(a, b Connection) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Connection is the state of the stream with an id; false if it has ended.
func (s *Server) Connection(id string) (Connection, bool) {
	s.mu.Lock()
	c := s.conns[id]
	s.mu.Unlock()
	if c == nil {
		return Connection{}, false
	}
	return c.snapshot(), true
}

func (s *Server) add(c *connection) {
	fields := c.status.Node.Metadata.NotApplied
	s.mu.Lock()
	s.conns[c.status.ID] = c
	delete(s.left, c.status.Node.ID)
	warn := fields != 0 && !s.warned[fields]
	if warn {
		s.warned[fields] = true
	}
	s.mu.Unlock()
	if warn {
		s.log.Warn("a proxy's ProxyConfig has fields that are not applied; pilotctl proxies lists all such proxies",
			"fields", strings.Join(fields.Names(), ","), "connection", c.status.ID)
	}
}

func (s *Server) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c.status.ID)
	s.noteLeft(c.status.Node.ID)
	s.trustLeft(c)
	close(c.ended)
}

// maxGone bounds how many proxies are remembered that have left; of more, any is forgotten.
const maxGone = 20_000

// noteLeft takes note of the end of a proxy's connection. The caller holds mu.
func (s *Server) noteLeft(id string) {
	if len(s.left) >= maxGone {
		for other := range s.left {
			delete(s.left, other)
			break
		}
	}
	if s.left == nil {
		s.left = map[string]time.Time{}
	}
	s.left[id] = time.Now()
}

// Left is when the last connection of a proxy, by the id of its node, ended; zero if nothing is known.
// Any goroutine may call it.
func (s *Server) Left(id string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[id]
}

func (s *Server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// countStuck is how many connections have a response unanswered for 10 s or more.
func (s *Server) countStuck() int {
	n := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.mu.Lock()
		if c.isStuck() {
			n++
		}
		c.mu.Unlock()
	}
	return n
}
