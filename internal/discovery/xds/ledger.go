package xds

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits bound what all clients together may make a server hold.
type Limits struct {
	// Streams is how many streams are served at a time; 0 is DefaultStreams. Twice as
	// many connections are taken. All streams together may hold bytesPerStream for each,
	// so that what one client does not use another can.
	Streams int
}

// DefaultStreams is how many streams a server serves at a time unless it is told otherwise.
const DefaultStreams = 10_000

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
	// proxies may stand behind one address, and each is idle for a moment when it comes.
	maxIdlePerHost = 512
)

// share is what somebody has of a server.
type share struct{ streams, bytes int }

// host is what comes from one address.
type host struct{ conns, idle int }

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
	host    *host
	// named is how many of its streams have said whose they are; while it is zero the
	// connection counts as idle.
	named        int
	idle, closed bool
}

// connect enters a connection from an address; disconnect ends it.
func (l *ledger) connect(address string) (*link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[address]
	if h == nil {
		h = &host{}
	}
	if h.idle >= maxIdlePerHost {
		return nil, exhausted(reasonConnections, "%d connections without a stream from %s, at most %d are taken", h.idle, address, maxIdlePerHost)
	}
	if limit := 2 * l.limits.Streams; crowded(l.conns, limit, h.conns) {
		return nil, exhausted(reasonConnections, "%d connections to this server, %d of them from %s; when three quarters of at most %d are in use (twice --maxStreams), no address is given more than a quarter",
			l.conns, h.conns, address, limit)
	}
	l.hosts[address] = h
	h.conns++
	h.idle++
	l.conns++
	return &link{address: address, host: h, idle: true}, nil
}

func (l *ledger) disconnect(c *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
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
	idle := c.named == 0 && !c.closed
	if idle != c.idle {
		c.idle = idle
		c.host.idle += map[bool]int{true: 1, false: -1}[idle]
	}
}
