package multi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/pilothouse/pilothouse/test/kube/node"
)

// links are the connections between the networks: all that leads from one to the other. They forward bytes, as load
// balancers do.
type links struct {
	group sync.WaitGroup
	mu    sync.Mutex
	open  map[io.Closer]bool // nil when they have ended
}

// add forwards connections to a port at the gateway of a network.
func (l *links) add(at *node.Network, port uint16, dial func(context.Context) (net.Conn, error)) error {
	listener, err := at.Mesh.Host().Listen("tcp", netip.AddrPortFrom(at.Gateway(), port).String())
	if err != nil {
		return fmt.Errorf("link two networks at port %d: %w", port, err)
	}
	l.track(listener)
	l.group.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			l.group.Go(func() { l.forward(from, dial) })
		}
	})
	return nil
}

// forward copies in both directions until both have ended.
func (l *links) forward(from net.Conn, dial func(context.Context) (net.Conn, error)) {
	defer l.track(from)()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	to, err := dial(ctx)
	if err != nil {
		return
	}
	defer l.track(to)()
	var both sync.WaitGroup
	for _, d := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, err := io.Copy(d[1], d[0])
			half, ok := d[1].(interface{ CloseWrite() error })
			if err != nil || !ok || half.CloseWrite() != nil {
				_ = d[0].Close()
				_ = d[1].Close()
			}
		})
	}
	both.Wait()
}

// track has close close c; the function that it returns does so before.
func (l *links) track(c io.Closer) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		_ = c.Close()
		return func() {}
	}
	l.open[c] = true
	return func() {
		l.mu.Lock()
		delete(l.open, c)
		l.mu.Unlock()
		_ = c.Close()
	}
}

// close ends everything.
func (l *links) close() {
	l.mu.Lock()
	for c := range l.open {
		_ = c.Close()
	}
	l.open = nil
	l.mu.Unlock()
	l.group.Wait()
}
