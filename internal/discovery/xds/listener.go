package xds

import (
	"net"
	"sync"
	"time"
)

// Listen makes a listener that limits the connections which gRPC serves: while too many of
// an address have no stream yet, further ones wait (see docs/limits.md). Serve the
// gRPC server on it, and close it as any other.
func (s *Server) Listen(inner net.Listener) net.Listener {
	l := &waitingListener{Listener: inner, server: s, done: make(chan struct{}), some: make(chan struct{}, 1), all: map[*waiting]bool{}}
	l.tasks.Go(l.accept)
	l.tasks.Go(l.watch)
	return l
}

type waitingListener struct {
	net.Listener
	server *Server
	tasks  sync.WaitGroup
	close  sync.Once
	done   chan struct{}
	some   chan struct{} // signals Accept that there may be something

	mu     sync.Mutex
	all    map[*waiting]bool // that Accept has not returned yet
	placed []*waiting        // those of them whose turn it is
	err    error             // of the inner listener, for Accept to return once
}

// waiting is a connection that is entered in the quota before gRPC has it.
type waiting struct {
	net.Conn
	quota *quota
	entry *connUsage
}

// Close implements net.Conn.
func (w *waiting) Close() error {
	w.quota.removeConn(w.entry)
	return w.Conn.Close()
}

// accept accepts connections from the inner listener until that is closed.
func (l *waitingListener) accept() {
	for {
		raw, err := l.Listener.Accept()
		if err == nil {
			l.enter(raw)
			continue
		}
		l.change(func() { l.err = err })
		select {
		case <-l.done:
			return
		case <-time.After(acceptPause): // out of file descriptors, for one
		}
	}
}

// acceptPause is how long a listener that failed is left alone.
const acceptPause = 50 * time.Millisecond

func (l *waitingListener) enter(raw net.Conn) {
	address := hostOf(raw.RemoteAddr())
	w := &waiting{Conn: raw, quota: l.server.quota}
	w.entry = &connUsage{address: address, end: func() { l.forget(w) }, admitted: func() { l.change(func() { l.placed = append(l.placed, w) }) }}
	l.change(func() { l.all[w] = true })
	if err := w.quota.addConn(w.entry); err != nil {
		l.server.refusals.note(l.server, err, "address "+address)
		l.forget(w)
	}
	select {
	case <-l.done: // Accept is not called any more
		l.forget(w)
	default:
	}
}

// forget closes a connection.
func (l *waitingListener) forget(w *waiting) {
	l.change(func() { delete(l.all, w) })
	_ = w.Close() // nothing can be done about an error
}

// change does something under the lock, and wakes Accept.
func (l *waitingListener) change(do func()) {
	l.mu.Lock()
	do()
	l.mu.Unlock()
	select {
	case l.some <- struct{}{}:
	default:
	}
}

// Accept implements net.Listener.
func (l *waitingListener) Accept() (net.Conn, error) {
	for {
		if w, err := l.next(); w != nil || err != nil {
			return w, err
		}
		select {
		case <-l.some:
		case <-l.done:
			return nil, net.ErrClosed
		}
	}
}

// next is a connection whose turn it is, or what the inner listener failed with.
func (l *waitingListener) next() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.placed) > 0 {
		w := l.placed[0]
		l.placed[0], l.placed = nil, l.placed[1:]
		if l.all[w] { // else it is closed already
			delete(l.all, w)
			return w, nil
		}
	}
	err := l.err
	l.err = nil
	return nil, err
}

// watch closes connections that are expired, until the listener is closed.
func (l *waitingListener) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for _, end := range l.server.quota.expired(now) {
				end()
				l.server.refusals.note(l.server, exhausted(reasonConnections, "a connection without a stream was idle for %s while others waited, or waited for %s itself",
					maxIdleTime, handshakeLimit), "an address with many connections")
			}
		case <-l.done:
			return
		}
	}
}

// Close implements net.Listener. Connections that gRPC has go on.
func (l *waitingListener) Close() error {
	l.close.Do(func() { close(l.done) })
	err := l.Listener.Close()
	l.mu.Lock()
	left := l.all
	l.all, l.placed = map[*waiting]bool{}, nil
	l.mu.Unlock()
	for w := range left {
		_ = w.Close() // they have not been spoken to
	}
	l.tasks.Wait()
	return err
}
