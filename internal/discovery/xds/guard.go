package xds

import (
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// maxUnfinished bounds what a connection's streams together have sent of requests that
// are not whole yet, in bytes: one of the largest, and then some. Past it the streams are
// ended, and nothing more is read meanwhile; a connection on which they have not ended
// after endingLimit is closed.
const (
	maxUnfinished = maxRequest + 1<<20
	endingLimit   = 2 * time.Second
)

// guards wraps a gRPC server's credentials, so that each connection is counted, known to
// its streams and watched.
type guards struct {
	credentials.TransportCredentials
	server *Server
}

// ServerHandshake implements credentials.TransportCredentials.
func (g guards) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	entry, err := g.server.connUsageOf(raw)
	if err != nil {
		return nil, nil, err
	}
	if !g.server.track(raw, nil) {
		g.server.quota.removeConn(entry)
		return nil, nil, errDraining
	}
	conn, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		g.server.untrack(raw)
		g.server.quota.removeConn(entry)
		return nil, nil, err
	}
	guarded := &guard{
		Conn: conn, raw: raw, server: g.server, entry: entry, in: meter{skip: clientPreface},
		streams: map[uint32]*message{}, full: make(chan struct{}), closed: make(chan struct{}),
	}
	g.server.track(raw, guarded)
	return guarded, info, nil
}

// track notes a connection, unless it is new and the server is draining.
func (s *Server) track(raw net.Conn, g *guard) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g == nil && s.isDraining() {
		return false
	}
	s.guards[raw] = g
	return true
}

func (s *Server) untrack(raw net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.guards, raw)
}

// Clone implements credentials.TransportCredentials.
func (g guards) Clone() credentials.TransportCredentials {
	return guards{g.TransportCredentials.Clone(), g.server}
}

// connUsageOf is a connection's entry in the quota. One that did not come through Listen cannot
// wait for its turn.
func (s *Server) connUsageOf(raw net.Conn) (*connUsage, error) {
	if w, ok := raw.(*waiting); ok {
		return w.entry, nil
	}
	address := hostOf(raw.RemoteAddr())
	c := &connUsage{address: address}
	c.end = func() {
		s.quota.removeConn(c)
		_ = raw.Close() // nothing can be done about an error
	}
	if err := s.quota.addConn(c); err != nil {
		s.refusals.note(s, err, "address "+address)
		return nil, err
	}
	return c, nil
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// guard is one connection. Its streams find it through the address of their peer.
type guard struct {
	net.Conn
	raw    net.Conn // below the credentials
	server *Server
	entry  *connUsage

	mu      sync.Mutex
	in, out meter
	frames  int // that have begun to come
	streams map[uint32]*message
	waiting int // bytes of unfinished requests
	large   int // size of the unfinished requests that are large, in bytes
	turn    turn
	full    chan struct{} // closed while they are too many
	eased   chan struct{} // closed when they no longer are; nil while they are not
	since   time.Time     // when waiting began to be much; zero while it is not
	// finishing ends the connection's going on although there is no room; nil while it does not.
	finishing *time.Timer
	gone      bool
	closed    chan struct{} // closed when gone
}

// guardedAddr is a peer's address with its connection.
type guardedAddr struct {
	net.Addr
	guard *guard
}

// RemoteAddr implements net.Conn.
func (g *guard) RemoteAddr() net.Addr { return guardedAddr{g.Conn.RemoteAddr(), g} }

// Close implements net.Conn.
func (g *guard) Close() error {
	g.server.untrack(g.raw)
	g.server.quota.removeConn(g.entry)
	g.release()
	return g.Conn.Close()
}

// hasBegun reports whether the client has sent what begins an HTTP/2 connection: the preface and the
// first frame.
func (g *guard) hasBegun() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frames > 1 || g.frames == 1 && g.in.left == 0
}

// closeSoon closes the connection when its client has had time to read why a call was refused.
func (g *guard) closeSoon() {
	time.AfterFunc(endingLimit, func() { _ = g.Close() }) // nothing can be done about an error
}

// Read implements net.Conn.
func (g *guard) Read(b []byte) (int, error) {
	g.awaitTurn()
	g.awaitRoom()
	n, err := g.Conn.Read(b)
	eased := g.received(b[:n])
	if eased == nil || err != nil {
		return n, err
	}
	limit := time.NewTimer(endingLimit)
	defer limit.Stop()
	select {
	case <-eased:
		return n, nil
	case <-limit.C:
		err = unfinished()
		g.server.refusals.note(g.server, err, "address "+g.entry.address)
		return 0, err
	}
}

// Write implements net.Conn.
func (g *guard) Write(b []byte) (int, error) {
	g.mu.Lock()
	g.out.read(b, func() {
		// The server ends a stream by resetting it or with its trailers.
		if k := g.out.kind(); k == frameReset || k == frameHeaders && g.out.ends() {
			g.drop(g.out.stream())
		}
	}, func([]byte) {})
	g.mu.Unlock()
	return g.Conn.Write(b)
}

// received follows what came. Where there is too much of unfinished requests it returns
// what is closed when there is less.
func (g *guard) received(b []byte) (eased <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in.read(b, func() {
		g.frames = min(g.frames+1, 2)
		switch g.in.kind() {
		case frameHeaders:
			if id := g.in.stream(); g.streams[id] == nil {
				g.streams[id] = &message{}
			}
		case frameReset:
			g.drop(g.in.stream())
		}
	}, func(data []byte) {
		if m := g.streams[g.in.stream()]; m != nil {
			g.large -= m.large()
			g.hold(m.receive(data))
			g.large += m.large()
		}
	})
	if g.waiting <= maxUnfinished {
		return nil
	}
	return g.overfill()
}

// overfill has the streams end, and returns what is closed when enough of them have. The caller holds mu.
func (g *guard) overfill() (eased <-chan struct{}) {
	if g.eased == nil {
		close(g.full)
		g.eased = make(chan struct{})
	}
	return g.eased
}

// drop forgets a stream that has ended.
func (g *guard) drop(id uint32) {
	m := g.streams[id]
	if m == nil {
		return
	}
	delete(g.streams, id)
	g.hold(-m.waiting())
	g.large -= m.large()
	if g.eased != nil && g.waiting <= maxUnfinished {
		close(g.eased)
		g.eased, g.full = nil, make(chan struct{})
	}
}

// overrun is closed when the connection has too much of unfinished requests.
func (g *guard) overrun() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.full
}

func unfinished() error {
	return exhausted(reasonMemory, "unfinished requests: at most %d bytes of them are held for a connection, and %d for all", maxUnfinished, maxUnfinishedAll)
}
