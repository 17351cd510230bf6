package meshup

import (
	"context"
	"io"
	"net"
	"sync"
)

// Forward carries connections from a listener to an address inside a Pod until ctx ends
// or the listener is closed.
func Forward(ctx context.Context, l net.Listener, from Dialer, to string) {
	var group sync.WaitGroup
	defer group.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return // the listener is closed
		}
		group.Go(func() { proxyConn(ctx, c, from, to) })
	}
}

// proxyConn copies in both directions until either side ends or ctx does.
func proxyConn(ctx context.Context, c net.Conn, from Dialer, to string) {
	defer func() { _ = c.Close() }()
	up, err := from.Dial(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = c.Close()
		_ = up.Close()
	})
	defer stop()
	var group sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
		group.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			if half, ok := pair[0].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	group.Wait()
}
