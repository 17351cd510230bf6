package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of what clients can occupy: about 20 MB in all, while they send the longest queries at
// the highest rate.
const (
	// maxUDPQueries and maxTCPQueries are concurrent queries.
	maxUDPQueries, maxTCPQueries = 128, 64
	maxConnections               = 64
	// maxPipelined are concurrent queries of one connection.
	maxPipelined = 8
	// idleTimeout bounds the wait for the next query of a connection, and for writing a response.
	idleTimeout = 10 * time.Second
	// queueTimeout is how long a query waits for another one to finish before it is refused.
	queueTimeout = time.Second
	// retryDelay follows a temporary socket error: no memory, no file descriptors.
	retryDelay = 100 * time.Millisecond
)

// limiter admits a number of queries at a time. After a query has timed out in the queue, others are
// refused at once until there is room again, so that every client gets a response soon.
type limiter struct {
	slots chan struct{}
	full  atomic.Bool
}

func newLimiter(n int) *limiter { return &limiter{slots: make(chan struct{}, n)} }

func (l *limiter) acquire(ctx context.Context) bool {
	select {
	case l.slots <- struct{}{}:
		l.full.Store(false)
		return true
	default:
	}
	if l.full.Load() {
		return false
	}
	timeout := time.NewTimer(queueTimeout)
	defer timeout.Stop()
	select {
	case l.slots <- struct{}{}:
		return true
	case <-timeout.C:
		l.full.Store(true)
	case <-ctx.Done():
	}
	return false
}

func (l *limiter) release() { <-l.slots }

// waitToRetry waits after a socket error, and returns false if the socket was closed or ctx ended.
func waitToRetry(ctx context.Context, err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	delay := time.NewTimer(retryDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) serveUDP(ctx context.Context, c *net.UDPConn, l *limiter) {
	var group sync.WaitGroup
	defer group.Wait()
	buf := make([]byte, maxQuery+1)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			if !waitToRetry(ctx, err) {
				return
			}
			continue
		}
		// Errors of writes are ignored: the client has gone, or it retries.
		if resp := s.answer(buf[:n], overUDP); resp != nil {
			_, _ = c.WriteToUDPAddrPort(resp, from)
			continue
		}
		msg := bytes.Clone(buf[:n])
		if !l.acquire(ctx) {
			_, _ = c.WriteToUDPAddrPort(s.overloaded(msg), from)
			continue
		}
		group.Go(func() {
			defer l.release()
			if resp := s.respond(ctx, msg, from, overUDP); resp != nil {
				_, _ = c.WriteToUDPAddrPort(resp, from)
			}
		})
	}
}

func (s *Server) serveTCP(ctx context.Context, listener net.Listener, connections chan struct{}, l *limiter) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		c, err := listener.Accept()
		if err != nil {
			if !waitToRetry(ctx, err) {
				return
			}
			continue
		}
		select {
		case connections <- struct{}{}:
			group.Go(func() {
				defer func() { <-connections }()
				s.serveConn(ctx, c, l)
			})
		default:
			_ = c.Close()
		}
	}
}

// serveConn answers the queries of one connection, in the order of the responses, until it is closed
// or idle, or the client sends something else.
func (s *Server) serveConn(ctx context.Context, c net.Conn, l *limiter) {
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	pipeline := make(chan struct{}, maxPipelined)
	var writing sync.Mutex
	write := func(resp []byte) {
		writing.Lock()
		defer writing.Unlock()
		if resp == nil || c.SetWriteDeadline(time.Now().Add(idleTimeout)) != nil || writeMessage(c, resp) != nil {
			_ = c.Close()
		}
	}
	for {
		pipeline <- struct{}{}
		if c.SetReadDeadline(time.Now().Add(idleTimeout)) != nil {
			return
		}
		msg, err := readMessage(c, maxQuery)
		if err != nil {
			return
		}
		if resp := s.answer(msg, overTCP); resp != nil {
			write(resp)
			<-pipeline
			continue
		}
		if !l.acquire(ctx) {
			write(s.overloaded(msg))
			<-pipeline
			continue
		}
		group.Go(func() {
			defer func() { <-pipeline }()
			defer l.release()
			write(s.respond(ctx, msg, from, overTCP))
		})
	}
}

var errLength = errors.New("invalid length of a message")

// readMessage reads one message of at most limit bytes after its length. [RFC 1035, 4.2.2]
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n < headerSize || n > limit {
		return nil, errLength
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}

// writeMessage writes length and message at once: some servers expect both in one segment.
func writeMessage(w io.Writer, msg []byte) error {
	out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg)))
	_, err := w.Write(append(out, msg...))
	return err
}
