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

// The bounds of what askers can occupy. All of them together cost at most some 20 MB, and that only
// while they ask at that rate with the longest messages there are.
const (
	// maxPackets and maxStreamed are questions at a time, by UDP and by TCP.
	maxPackets, maxStreamed = 128, 64
	maxConnections          = 64
	// pipelined are questions at a time of one connection.
	pipelined = 8
	// idle is how long a connection may take to bring its next question, or to take an answer.
	idle = 10 * time.Second
	// patience is how long a question waits for another one's end before it is turned down.
	patience = time.Second
	// pause follows an error of a socket that may go away by itself: no memory, no descriptors.
	pause = 100 * time.Millisecond
)

// gate lets so many in at a time. Once somebody has waited in vain nobody waits until there is room
// again: everyone has an answer at once then, even if it is that there is none.
type gate struct {
	room chan struct{}
	full atomic.Bool
}

func newGate(n int) *gate { return &gate{room: make(chan struct{}, n)} }

func (g *gate) enter(ctx context.Context) bool {
	select {
	case g.room <- struct{}{}:
		g.full.Store(false)
		return true
	default:
	}
	if g.full.Load() {
		return false
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case g.room <- struct{}{}:
		return true
	case <-wait.C:
		g.full.Store(true)
	case <-ctx.Done():
	}
	return false
}

func (g *gate) leave() { <-g.room }

// recovers waits a moment after a socket's error, and says whether to go on: not when the server ends.
func recovers(ctx context.Context, err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	wait := time.NewTimer(pause)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) servePackets(ctx context.Context, c *net.UDPConn, g *gate) {
	var group sync.WaitGroup
	defer group.Wait()
	buf := make([]byte, maxQuery+1)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			if !recovers(ctx, err) {
				return
			}
			continue
		}
		msg := bytes.Clone(buf[:n])
		// An answer that can't be sent is one whose asker is gone: he asks again if he lives.
		if !g.enter(ctx) {
			_, _ = c.WriteToUDPAddrPort(s.busy(msg), from)
			continue
		}
		group.Go(func() {
			defer g.leave()
			if answer := s.answer(ctx, msg, from, overUDP); answer != nil {
				_, _ = c.WriteToUDPAddrPort(answer, from)
			}
		})
	}
}

func (s *Server) serveStreams(ctx context.Context, l net.Listener, connections chan struct{}, g *gate) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if !recovers(ctx, err) {
				return
			}
			continue
		}
		select {
		case connections <- struct{}{}:
			group.Go(func() {
				defer func() { <-connections }()
				s.serveStream(ctx, c, g)
			})
		default:
			_ = c.Close()
		}
	}
}

// serveStream answers the questions of one connection as the answers come, until it is closed,
// idle, or sends what is none.
func (s *Server) serveStream(ctx context.Context, c net.Conn, g *gate) {
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	turns := make(chan struct{}, pipelined)
	var writing sync.Mutex
	tell := func(answer []byte) {
		writing.Lock()
		defer writing.Unlock()
		if answer == nil || c.SetWriteDeadline(time.Now().Add(idle)) != nil || writeMessage(c, answer) != nil {
			_ = c.Close() // nothing more can be told
		}
	}
	for {
		turns <- struct{}{}
		if c.SetReadDeadline(time.Now().Add(idle)) != nil {
			return
		}
		msg, err := readMessage(c, maxQuery)
		if err != nil {
			return
		}
		if !g.enter(ctx) {
			tell(s.busy(msg))
			<-turns
			continue
		}
		group.Go(func() {
			defer func() { <-turns }()
			defer g.leave()
			tell(s.answer(ctx, msg, from, overTCP))
		})
	}
}

var errLength = errors.New("the length that was announced is out of bounds")

// readMessage reads one message with its length before it. [RFC 1035, 4.2.2]
func readMessage(r io.Reader, most int) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if n < headerSize || n > most {
		return nil, errLength
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}

// writeMessage writes length and message at once: some take one segment for one message.
func writeMessage(w io.Writer, msg []byte) error {
	out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg)))
	_, err := w.Write(append(out, msg...))
	return err
}
