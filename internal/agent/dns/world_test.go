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

// world is a server under test, and the name servers that its resolv.conf names.
type world struct {
	t    *testing.T
	s    *Server
	log  wait.Output
	conf string
	port int // of the name servers, which differ by their addresses, 127.0.0.2 and up
	// dialled counts connections.
	dialled int
}

// newWorld starts a server. Its options are those of a resolv.conf; adjust it before it runs.
func newWorld(t *testing.T, conf string, adjust ...func(*Server)) *world {
	t.Helper()
	w := &world{t: t, conf: filepath.Join(t.TempDir(), "resolv.conf"), port: wait.FreePort(t)}
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

func (w *world) write(conf string) {
	w.t.Helper()
	if err := os.WriteFile(w.conf+".new", []byte(conf), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(w.conf+".new", w.conf); err != nil {
		w.t.Fatal(err)
	}
}

// heard is a question that reached a name server.
type heard struct {
	msg  []byte
	from string
	by   transport
}

// nameServer is one of 127.0.0.N. What answers returns is sent in order.
type nameServer struct {
	mu    sync.Mutex
	heard []heard
}

func (n *nameServer) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.heard)
}

func (n *nameServer) all() []heard {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.heard)
}

func (n *nameServer) take(h heard) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, h)
}

func (w *world) nameServer(last byte, answers func(h heard) [][]byte) *nameServer {
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
			h := heard{bytes.Clone(buf[:size]), from.String(), overUDP}
			n.take(h)
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
				h := heard{msg, c.RemoteAddr().String(), overTCP}
				n.take(h)
				for _, a := range answers(h) {
					_ = writeMessage(c, a)
				}
			})
		}
	}()
	return n
}

// dial connects to the server under test, at its addresses of either family in turn.
func (w *world) dial(t transport) net.Conn {
	w.t.Helper()
	w.dialled++
	c, err := net.Dial(string(t), w.s.addrs[w.dialled%len(w.s.addrs)].String())
	if err == nil {
		err = c.SetDeadline(time.Now().Add(wait.Bound))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// read takes one message from a connection to the server under test.
func (w *world) read(c net.Conn) (m dnsmessage.Message) {
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

// get asks the server under test.
func (w *world) get(t transport, msg []byte) dnsmessage.Message {
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
		w.t.Fatalf("answered with %+v", m.Header)
	}
	return m
}

// answering gives so many addresses.
func answering(t *testing.T, addresses int) func(heard) [][]byte {
	return func(h heard) [][]byte { return [][]byte{reply(t, h.msg, 0, addresses)} }
}

func saying(t *testing.T, code dnsmessage.RCode) func(heard) [][]byte {
	return func(h heard) [][]byte { return [][]byte{reply(t, h.msg, code, 0)} }
}

func silent(heard) [][]byte { return nil }
