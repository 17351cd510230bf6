package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/test/wait"
)

// harness is a Server and the name servers of its resolv.conf.
type harness struct {
	t      *testing.T
	s      *Server
	log    wait.Output
	conf   string
	port   int // of the name servers, whose addresses are 127.0.0.2 and higher
	dialed int // connections
}

// newHarness starts a server with the text of a resolv.conf. The adjust functions are called before it runs.
func newHarness(t *testing.T, conf string, adjust ...func(*Server)) *harness {
	t.Helper()
	w := &harness{t: t, conf: filepath.Join(t.TempDir(), "resolv.conf"), port: wait.FreePort(t)}
	w.write(conf)
	s, err := New(Options{
		Address: fmt.Sprintf("localhost:%d", wait.FreePort(t)), Conf: w.conf,
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(&w.log, t.Output()), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.s, s.up.port = s, uint16(w.port)
	for _, f := range adjust {
		f(s)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return w
}

func (w *harness) write(conf string) {
	w.t.Helper()
	if err := os.WriteFile(w.conf+".new", []byte(conf), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(w.conf+".new", w.conf); err != nil {
		w.t.Fatal(err)
	}
}

// received is a query that reached a name server.
type received struct {
	msg  []byte
	from string
	by   transport
}

// nameServer is a server on 127.0.0.N, over UDP and TCP.
type nameServer struct {
	mu       sync.Mutex
	received []received
}

func (n *nameServer) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.received)
}

func (n *nameServer) all() []received {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.received)
}

func (n *nameServer) add(h received) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.received = append(n.received, h)
}

// nameServer starts a server that sends what answers returns, in order.
func (w *harness) nameServer(last byte, answers func(h received) [][]byte) *nameServer {
	w.t.Helper()
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, last}), uint16(w.port))
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		w.t.Fatal(err)
	}
	n, done := &nameServer{}, make(chan struct{}, 2)
	w.t.Cleanup(func() {
		_, _ = c.Close(), l.Close()
		<-done
		<-done
	})
	var group sync.WaitGroup
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, maxMessage)
		for {
			size, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			h := received{bytes.Clone(buf[:size]), from.String(), overUDP}
			n.add(h)
			group.Go(func() {
				for _, a := range answers(h) {
					_, _ = c.WriteToUDPAddrPort(a, from)
				}
			})
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer func() { _ = c.Close() }()
				msg, err := readMessage(c, maxMessage)
				if err != nil {
					return
				}
				h := received{msg, c.RemoteAddr().String(), overTCP}
				n.add(h)
				for _, a := range answers(h) {
					_ = writeMessage(c, a)
				}
			})
		}
	}()
	return n
}

// dial connects to the server, alternating between its addresses.
func (w *harness) dial(t transport) net.Conn {
	w.t.Helper()
	w.dialed++
	c, err := net.Dial(string(t), w.s.addrs[w.dialed%len(w.s.addrs)].String())
	if err == nil {
		err = c.SetDeadline(time.Now().Add(wait.Bound))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// read reads one message from a connection to the server.
func (w *harness) read(c net.Conn) (m dnsmessage.Message) {
	w.t.Helper()
	msg, err := []byte(nil), error(nil)
	if c.LocalAddr().Network() == "tcp" {
		msg, err = readMessage(c, maxMessage)
	} else {
		msg = make([]byte, maxMessage)
		var n int
		n, err = c.Read(msg)
		msg = msg[:n]
	}
	if err == nil {
		err = m.Unpack(msg)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// get sends a query to the server and returns the response.
func (w *harness) get(t transport, msg []byte) dnsmessage.Message {
	w.t.Helper()
	c := w.dial(t)
	send := func() error { _, err := c.Write(msg); return err }
	if t == overTCP {
		send = func() error { return writeMessage(c, msg) }
	}
	if err := send(); err != nil {
		w.t.Fatal(err)
	}
	m := w.read(c)
	if m.ID != binary.BigEndian.Uint16(msg) || !m.Response {
		w.t.Fatalf("the response is %+v", m.Header)
	}
	return m
}

// answering responds with a number of addresses.
func answering(t *testing.T, addresses int) func(received) [][]byte {
	return func(h received) [][]byte { return [][]byte{newResponse(t, h.msg, 0, addresses)} }
}

func failing(t *testing.T, code dnsmessage.RCode) func(received) [][]byte {
	return func(h received) [][]byte { return [][]byte{newResponse(t, h.msg, code, 0)} }
}

func neverRespond(received) [][]byte { return nil }
