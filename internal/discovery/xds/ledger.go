package xds

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// Limits bound what all clients together may make a server hold.
type Limits struct {
	// Streams is how many streams are served at a time; 0 is DefaultStreams. Twice as
	// many connections are taken. All streams together may hold bytesPerStream for each,
	// so that what one client does not use another can.
	Streams int
}

// DefaultStreams is how many streams a server serves at a time unless it is told otherwise.
const DefaultStreams = settings.DefaultStreams

// What one client may make a server hold. An agent has one connection for all its streams:
// one for each Envoy, two during a restart, and one for each target of a gRPC application
// behind it. Without an agent such an application makes a connection for each target, all
// under one node id.
const (
	maxStreamsPerConn = 64
	maxStreamsPerNode = 64
	// maxHeld bounds the bytes that the streams of one connection, or of one node id,
	// hold together: names, versions, labels.
	maxHeld = 8 << 20
	// bytesPerStream times the limit of streams is what all streams together may hold.
	bytesPerStream = 256 << 10
	// maxIdlePerHost bounds the connections from one address that have no stream. Many
	// proxies may stand behind one address, and each is idle for a moment when it comes: so
	// further ones wait for their turn before gRPC takes them, which costs a twentieth, at
	// most maxWaitingPerHost of them, for at most handshakeLimit.
	maxIdlePerHost    = 512
	maxWaitingPerHost = 8192
	// idlePatience is how long a connection may be idle while others wait for its place: long
	// enough for a client that comes to a busy server among thousands.
	idlePatience = 10 * time.Second
)

// share is what somebody has of a server.
type share struct{ streams, bytes int }

// host is what comes from one address.
type host struct {
	conns int
	// idle are its connections without a stream, and since when.
	idle map[*link]time.Time
	// queue are those that wait for a place among the idle ones, the first come first.
	queue []*link
}

// admit gives places that are free to those that wait.
func (h *host) admit(now time.Time) {
	for len(h.queue) > 0 && len(h.idle) < maxIdlePerHost {
		c := h.queue[0]
		h.queue[0], h.queue = nil, h.queue[1:]
		h.idle[c] = now
		c.turn()
	}
}

// ledger knows what each client has of a server. Any goroutine may use it.
type ledger struct {
	mu     sync.Mutex
	limits Limits
	all    share
	conns  int
	// nodes are by node id, owners by identity, or by address where callers have none.
	nodes, owners map[string]*share
	hosts         map[string]*host
}

func newLedger() *ledger {
	return &ledger{limits: Limits{Streams: DefaultStreams}, nodes: map[string]*share{}, owners: map[string]*share{}, hosts: map[string]*host{}}
}

// refusal is why a client is not served. It is a gRPC status, and its reason is the label
// by which refusals are counted.
type refusal struct {
	code   codes.Code
	reason string
	text   string
}

func (r *refusal) Error() string { return r.text }

// GRPCStatus makes a refusal the status that the client sees.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.text) }

// The reasons of refusals, for metrics.
const (
	reasonNode        = "node"
	reasonRequest     = "request"
	reasonNames       = "names"
	reasonStreams     = "streams"
	reasonMemory      = "memory"
	reasonSilence     = "silence"
	reasonConnections = "connections"
)

var reasons = []string{reasonNode, reasonRequest, reasonNames, reasonStreams, reasonMemory, reasonSilence, reasonConnections}

func exhausted(reason, format string, args ...any) *refusal {
	return &refusal{codes.ResourceExhausted, reason, fmt.Sprintf(format, args...)}
}

// crowded says whether an owner is refused more of something: anybody when nothing is
// left, and near that, who has a quarter of everything already. All replicas of a
// Deployment are one owner: until it gets tight nobody is limited by being many.
func crowded(all, limit, own int) bool {
	return all >= limit || all >= limit/4*3 && own >= limit/4
}

// account is one stream in a ledger.
type account struct {
	ledger *ledger
	conn   *link
	// node and owner are nil until the client has said, and proved, who it is.
	node, owner         *share
	nodeName, ownerName string
	held                int
	closed              bool
}

// open enters a stream of a connection; close ends it.
func (l *ledger) open(conn *link) (*account, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if conn.streams >= maxStreamsPerConn {
		return nil, exhausted(reasonStreams, "%d streams on this connection, at most %d are served", conn.streams, maxStreamsPerConn)
	}
	if l.all.streams >= l.limits.Streams {
		return nil, exhausted(reasonStreams, "%d streams on this server, at most %d are served (--maxStreams)", l.all.streams, l.limits.Streams)
	}
	conn.streams++
	l.all.streams++
	return &account{ledger: l, conn: conn}, nil
}

// name says whose stream it is.
func (a *account) name(node, owner string) error {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	n, o := at(l.nodes, node), at(l.owners, owner)
	if n.streams >= maxStreamsPerNode {
		return exhausted(reasonStreams, "%d streams of node %s, at most %d are served", n.streams, node, maxStreamsPerNode)
	}
	if crowded(l.all.streams-1, l.limits.Streams, o.streams) { // it is one of all already
		return exhausted(reasonStreams, "%d streams on this server, %d of them of %s; when three quarters of at most %d are in use (--maxStreams), nobody is served more than a quarter",
			l.all.streams, o.streams, owner, l.limits.Streams)
	}
	a.node, a.owner, a.nodeName, a.ownerName = n, o, node, owner
	l.nodes[node], l.owners[owner] = n, o
	n.streams++
	o.streams++
	n.bytes += a.held
	o.bytes += a.held
	a.conn.use(1)
	return nil
}

func at(shares map[string]*share, name string) *share {
	if s := shares[name]; s != nil {
		return s
	}
	return &share{}
}

// add changes what the stream holds, in bytes. Less is never refused.
func (a *account) add(bytes int) error {
	if bytes == 0 {
		return nil
	}
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.closed {
		return errGone
	}
	if bytes > 0 {
		if most := max(a.conn.bytes, a.nodeShare().bytes) + bytes; most > maxHeld {
			return exhausted(reasonMemory, "names, versions and labels of %d bytes on the streams of this client, at most %d are held", most, maxHeld)
		}
		if own := a.ownerShare().bytes; crowded(l.all.bytes+bytes, l.limits.Streams*bytesPerStream, own+bytes) {
			return exhausted(reasonMemory, "names, versions and labels of %d bytes on this server, %d of them of %s, at most %d are held (%d for each of --maxStreams)",
				l.all.bytes, own, a.ownerName, l.limits.Streams*bytesPerStream, bytesPerStream)
		}
	}
	a.move(bytes)
	return nil
}

func (a *account) move(bytes int) {
	a.held += bytes
	for _, s := range []*share{&a.ledger.all, &a.conn.share, a.nodeShare(), a.ownerShare()} {
		s.bytes += bytes
	}
}

func (a *account) nodeShare() *share  { return orNobody(a.node) }
func (a *account) ownerShare() *share { return orNobody(a.owner) }

func orNobody(s *share) *share {
	if s == nil {
		return &share{}
	}
	return s
}

// close forgets the stream.
func (a *account) close() {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	a.move(-a.held)
	a.closed = true
	l.all.streams--
	a.conn.streams--
	if a.node == nil {
		return
	}
	a.conn.use(-1)
	if a.node.streams--; a.node.streams == 0 {
		delete(l.nodes, a.nodeName)
	}
	if a.owner.streams--; a.owner.streams == 0 {
		delete(l.owners, a.ownerName)
	}
}

// link is one connection. Its fields belong to the ledger.
type link struct {
	share
	address string
	// end closes the connection and disconnects it. turn says that it has a place; it must
	// not call the ledger.
	end, turn func()
	host      *host // nil until it is entered
	came      time.Time
	// named is how many of its streams have said whose they are; while it is zero the
	// connection counts as idle.
	named  int
	closed bool
}

// enter counts a connection; disconnect ends that. Where too many from its address have no
// stream it waits until its turn comes, at once or later; one without turn cannot wait.
func (l *ledger) enter(c *link) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[c.address]
	if h == nil {
		h = &host{idle: map[*link]time.Time{}}
	}
	place := len(h.idle) < maxIdlePerHost && len(h.queue) == 0
	if !place && (c.turn == nil || len(h.queue) >= maxWaitingPerHost) {
		return exhausted(reasonConnections, "%d connections without a stream from %s, and %d that wait: at most %d and %d are taken at a time",
			len(h.idle), c.address, len(h.queue), maxIdlePerHost, maxWaitingPerHost)
	}
	if limit := 2 * l.limits.Streams; crowded(l.conns, limit, h.conns) {
		return exhausted(reasonConnections, "%d connections to this server, %d of them from %s; when three quarters of at most %d are in use (twice --maxStreams), no address is given more than a quarter",
			l.conns, h.conns, c.address, limit)
	}
	l.hosts[c.address] = h
	h.conns++
	l.conns++
	c.host, c.came = h, time.Now()
	if !place {
		h.queue = append(h.queue, c)
		return nil
	}
	h.idle[c] = c.came
	if c.turn != nil {
		c.turn()
	}
	return nil
}

// overdue lists how to end the connections that have been idle for idlePatience while
// others wait for their places, as many as wait, and those that have waited too long.
func (l *ledger) overdue(now time.Time) (end []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hosts {
		wanted := len(h.queue)
		for c, since := range h.idle {
			if wanted > 0 && now.Sub(since) >= idlePatience {
				wanted--
				end = append(end, c.end)
			}
		}
		for _, c := range h.queue {
			if now.Sub(c.came) < handshakeLimit {
				break // the others came later
			}
			end = append(end, c.end)
		}
	}
	return end
}

func (l *ledger) disconnect(c *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed || c.host == nil {
		return
	}
	c.closed = true
	if i := slices.Index(c.host.queue, c); i >= 0 {
		c.host.queue = slices.Delete(c.host.queue, i, i+1)
	}
	c.use(0)
	c.host.conns--
	l.conns--
	if c.host.conns == 0 {
		delete(l.hosts, c.address)
	}
}

// use changes how many streams of the connection are named, and with it whether the
// connection counts as idle; one that is closed does not.
func (c *link) use(by int) {
	c.named += by
	now := time.Now()
	if c.named > 0 || c.closed {
		delete(c.host.idle, c)
		c.host.admit(now)
	} else if _, idle := c.host.idle[c]; !idle {
		c.host.idle[c] = now
	}
}
