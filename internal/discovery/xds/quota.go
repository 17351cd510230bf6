package xds

import (
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// Limits bound what all clients together may make a server hold.
type Limits struct {
	// Streams is how many streams are served at a time; 0 is DefaultStreams. Twice as
	// many connections are accepted. All streams together may hold bytesPerStream for each,
	// so that what one client does not use another can.
	Streams int
	// StreamsPerSecond bounds how many streams begin in a second; 0 is no bound.
	StreamsPerSecond float64
}

// DefaultStreams is how many streams a server serves at a time by default.
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
	// maxIdleTime is how long a connection may be idle while others wait for its place: long
	// enough for a client that comes to a busy server among thousands.
	maxIdleTime = 10 * time.Second
)

// usage is what a node, an owner, a connection or all together use of a server.
type usage struct{ streams, bytes int }

// hostUsage is what comes from one address.
type hostUsage struct {
	conns int
	// idle are its connections without a stream, and since when.
	idle map[*connUsage]time.Time
	// queue are those that wait for a place among the idle ones, the first come first.
	queue []*connUsage
}

// admit gives places that are free to those that wait.
func (h *hostUsage) admit(now time.Time) {
	for len(h.queue) > 0 && len(h.idle) < maxIdlePerHost {
		c := h.queue[0]
		h.queue[0], h.queue = nil, h.queue[1:]
		h.idle[c] = now
		c.admitted()
	}
}

// quota counts what each client uses of a server, and refuses what is too much. Any goroutine may use it.
type quota struct {
	// idle is maxIdleTime, and waiting is handshakeLimit. Tests that make thousands of connections have longer ones.
	idle, waiting time.Duration

	mu     sync.Mutex
	limits Limits
	rate   rateLimit
	all    usage
	conns  int
	// nodes are by node id, owners by identity, or by address where callers have none.
	nodes, owners map[string]*usage
	hosts         map[string]*hostUsage
}

func newQuota() *quota {
	return &quota{idle: maxIdleTime, waiting: handshakeLimit, limits: Limits{Streams: DefaultStreams}, nodes: map[string]*usage{}, owners: map[string]*usage{}, hosts: map[string]*hostUsage{}}
}

// overQuota says whether an owner is refused more of something: anybody when nothing is
// left, and near that, who has a quarter of everything already. All replicas of a
// Deployment are one owner: until then no owner is limited by the number of its replicas.
func overQuota(all, limit, own int) bool {
	return all >= limit || all >= limit/4*3 && own >= limit/4
}

// account is what one stream uses.
type account struct {
	quota *quota
	conn  *connUsage
	// node and owner are nil until the client has said, and proved, who it is.
	node, owner         *usage
	nodeName, ownerName string
	bytes               int
	closed              bool
}

// maxRateWait is how long a stream waits for its turn when too many begin at once. Then it is refused, so
// that the client connects to another instance or waits.
const maxRateWait = time.Second

// reserve returns how long a new stream is to wait.
func (l *quota) reserve(now time.Time) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait, ok := l.rate.reserve(now, maxRateWait)
	if !ok {
		return 0, exhausted(reasonRate, "more than %g new streams a second (PILOT_MAX_REQUESTS_PER_SECOND)", l.limits.StreamsPerSecond)
	}
	return wait, nil
}

// openStream counts a stream of a connection; close ends it.
func (l *quota) openStream(conn *connUsage) (*account, error) {
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
	return &account{quota: l, conn: conn}, nil
}

// identify says whose stream it is.
func (a *account) identify(node, owner string) error {
	l := a.quota
	l.mu.Lock()
	defer l.mu.Unlock()
	n, o := usageOf(l.nodes, node), usageOf(l.owners, owner)
	if n.streams >= maxStreamsPerNode {
		return exhausted(reasonStreams, "%d streams of node %s, at most %d are served", n.streams, node, maxStreamsPerNode)
	}
	if overQuota(l.all.streams-1, l.limits.Streams, o.streams) { // it is one of all already
		return exhausted(reasonStreams, "%d streams on this server, %d of them of %s; when three quarters of at most %d are in use (--maxStreams), no client is served more than a quarter",
			l.all.streams, o.streams, owner, l.limits.Streams)
	}
	a.node, a.owner, a.nodeName, a.ownerName = n, o, node, owner
	l.nodes[node], l.owners[owner] = n, o
	n.streams++
	o.streams++
	n.bytes += a.bytes
	o.bytes += a.bytes
	a.conn.countNamed(1)
	return nil
}

func usageOf(by map[string]*usage, name string) *usage {
	if s := by[name]; s != nil {
		return s
	}
	return &usage{}
}

// charge changes what the stream holds, in bytes. Less is never refused.
func (a *account) charge(bytes int) error {
	if bytes == 0 {
		return nil
	}
	l := a.quota
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.closed {
		return errGone
	}
	if bytes > 0 {
		if most := max(a.conn.bytes, a.nodeUsage().bytes) + bytes; most > maxHeld {
			return exhausted(reasonMemory, "names, versions and labels of %d bytes on the streams of this client, at most %d are held", most, maxHeld)
		}
		if own := a.ownerUsage().bytes; overQuota(l.all.bytes+bytes, l.limits.Streams*bytesPerStream, own+bytes) {
			return exhausted(reasonMemory, "names, versions and labels of %d bytes on this server, %d of them of %s, at most %d are held (%d for each of --maxStreams)",
				l.all.bytes, own, a.ownerName, l.limits.Streams*bytesPerStream, bytesPerStream)
		}
	}
	a.count(bytes)
	return nil
}

func (a *account) count(bytes int) {
	a.bytes += bytes
	for _, s := range []*usage{&a.quota.all, &a.conn.usage, a.nodeUsage(), a.ownerUsage()} {
		s.bytes += bytes
	}
}

func (a *account) nodeUsage() *usage  { return orZero(a.node) }
func (a *account) ownerUsage() *usage { return orZero(a.owner) }

func orZero(s *usage) *usage {
	if s == nil {
		return &usage{}
	}
	return s
}

// close forgets the stream.
func (a *account) close() {
	l := a.quota
	l.mu.Lock()
	defer l.mu.Unlock()
	a.count(-a.bytes)
	a.closed = true
	l.all.streams--
	a.conn.streams--
	if a.node == nil {
		return
	}
	a.conn.countNamed(-1)
	if a.node.streams--; a.node.streams == 0 {
		delete(l.nodes, a.nodeName)
	}
	if a.owner.streams--; a.owner.streams == 0 {
		delete(l.owners, a.ownerName)
	}
}

// connUsage is one connection. Its fields are guarded by quota.mu.
type connUsage struct {
	usage
	address string
	// end closes the connection and disconnects it. admitted says that it has a place; it must
	// not call the quota.
	end, admitted func()
	host          *hostUsage // nil until it is entered
	since         time.Time
	// named is how many of its streams are identified; while it is zero the
	// connection counts as idle.
	named  int
	closed bool
}

// addConn counts a connection; removeConn ends that. Where too many from its address have no
// stream it waits until its turn comes, at once or later; one without admitted cannot wait.
func (l *quota) addConn(c *connUsage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[c.address]
	if h == nil {
		h = &hostUsage{idle: map[*connUsage]time.Time{}}
	}
	place := len(h.idle) < maxIdlePerHost && len(h.queue) == 0
	if !place && (c.admitted == nil || len(h.queue) >= maxWaitingPerHost) {
		return exhausted(reasonConnections, "%d connections without a stream from %s, and %d that wait: at most %d and %d are accepted at a time",
			len(h.idle), c.address, len(h.queue), maxIdlePerHost, maxWaitingPerHost)
	}
	if limit := 2 * l.limits.Streams; overQuota(l.conns, limit, h.conns) {
		return exhausted(reasonConnections, "%d connections to this server, %d of them from %s; when three quarters of at most %d are in use (twice --maxStreams), no address is given more than a quarter",
			l.conns, h.conns, c.address, limit)
	}
	l.hosts[c.address] = h
	h.conns++
	l.conns++
	c.host, c.since = h, time.Now()
	if !place {
		h.queue = append(h.queue, c)
		return nil
	}
	h.idle[c] = c.since
	if c.admitted != nil {
		c.admitted()
	}
	return nil
}

// expired lists how to end the connections that have been idle for maxIdleTime while
// others wait for their places, as many as wait, and those that have waited too long.
func (l *quota) expired(now time.Time) (end []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hosts {
		wanted := len(h.queue)
		for c, since := range h.idle {
			if wanted > 0 && now.Sub(since) >= l.idle {
				wanted--
				end = append(end, c.end)
			}
		}
		for _, c := range h.queue {
			if now.Sub(c.since) < l.waiting {
				break // the others came later
			}
			end = append(end, c.end)
		}
	}
	return end
}

func (l *quota) removeConn(c *connUsage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed || c.host == nil {
		return
	}
	c.closed = true
	if i := slices.Index(c.host.queue, c); i >= 0 {
		c.host.queue = slices.Delete(c.host.queue, i, i+1)
	}
	c.countNamed(0)
	c.host.conns--
	l.conns--
	if c.host.conns == 0 {
		delete(l.hosts, c.address)
	}
}

// countNamed changes how many streams of the connection are named, and with it whether the
// connection counts as idle; one that is closed does not.
func (c *connUsage) countNamed(by int) {
	c.named += by
	now := time.Now()
	if c.named > 0 || c.closed {
		delete(c.host.idle, c)
		c.host.admit(now)
	} else if _, idle := c.host.idle[c]; !idle {
		c.host.idle[c] = now
	}
}
