package node

import (
	"context"
	"net"
	"testing"
	"time"
)

// A connection to an API server that does not run waits for it, until nobody wants it any more.
func TestConnectionsWaitForTheAPIServer(t *testing.T) {
	// An address that no other program uses.
	l, err := net.Listen("tcp", "127.0.73.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	short, end := context.WithTimeout(t.Context(), 2*dialPause)
	defer end()
	if c, err := dialPatiently(short, "tcp", addr); err == nil || c != nil {
		t.Errorf("connection %v, error %v, want none", c, err)
	}
	type result struct {
		c   net.Conn
		err error
	}
	dialed := make(chan result, 1)
	go func() {
		c, err := dialPatiently(t.Context(), "tcp", addr)
		dialed <- result{c, err}
	}()
	select {
	case r := <-dialed:
		t.Fatalf("it did not wait: connection %v, error %v", r.c, r.err)
	case <-time.After(3 * dialPause):
	}
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := <-dialed
	if r.err != nil {
		t.Fatal(r.err)
	}
	_ = r.c.Close()
}
