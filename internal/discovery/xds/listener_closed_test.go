package xds

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilothouse/pilothouse/test/wait"
)

// pipes is a listener of connections in memory, all from one address.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Connections that are closed since others wait for their place are counted, and logged once in a while.
func TestConnectionsThatGiveWayAreCountedAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 3
		var out wait.Output
		reg := prometheus.NewRegistry()
		s := New(&oneClass{latest: NewLatestView(&View{})}, textLog(&out), reg)
		inner := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		l := s.Listen(inner)
		var all []net.Conn
		for range maxIdlePerHost + waiting {
			client, server := net.Pipe()
			all = append(all, client)
			inner.conns <- server
		}
		for range maxIdlePerHost {
			if _, err := l.Accept(); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(maxIdleTime + 2*time.Second) // of the bubble
		synctest.Wait()
		if n := total(reg, "pilothouse_xds_refused_total"); n < waiting {
			t.Errorf("%v are counted, want %d", n, waiting)
		}
		if n := strings.Count(out.String(), "client refused"); n != 1 || !strings.Contains(out.String(), "was idle for 10s while others waited") {
			t.Errorf("logged %d times:\n%s", n, out.String())
		}
		for _, c := range all {
			_ = c.Close() // the server may have closed it
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}
