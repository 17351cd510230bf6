package xds

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// guarded is a connection after its first headers, and the client's end of it. It waits for the ends of the turns of tests before.
func guarded(t *testing.T) (*guard, net.Conn) {
	t.Helper()
	wait.Until(t, "no turn of another test", allFree)
	server, client := net.Pipe()
	t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	return &guard{Conn: server, server: New(&oneClass{}, quiet(t), nil), streams: map[uint32]*message{1: {}}, full: make(chan struct{})}, client
}

// largeRequest is a frame with the beginning of a large message, and the frame with its rest.
func largeRequest(size int) (begin, rest []byte) {
	frame := func(payload []byte) []byte {
		head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), frameData, 0, 0, 0, 0, 1}
		return append(head, payload...)
	}
	return frame(binary.BigEndian.AppendUint32([]byte{0}, uint32(size))), frame(make([]byte, size))
}

// send writes to a connection what is read through its guard.
func send(t *testing.T, g *guard, client net.Conn, b []byte) {
	t.Helper()
	go func() { _, _ = client.Write(b) }() // what is missing is not read either
	if _, err := io.ReadFull(g, make([]byte, len(b))); err != nil {
		t.Fatal(err)
	}
}

// allFree says whether no connection has a turn.
func allFree() bool {
	if !turns.TryAcquire(turnBytes) {
		return false
	}
	turns.Release(turnBytes)
	return true
}

func TestLargeRequestsTakeTurns(t *testing.T) {
	const size = large + 1
	g, client := guarded(t)
	begin, rest := largeRequest(size)
	send(t, g, client, begin)
	if !allFree() {
		t.Fatal("a turn before the rest is read")
	}
	send(t, g, client, rest[:100])
	if g.turn.bytes != size || allFree() {
		t.Fatalf("a turn of %d bytes for a request that is read, want %d", g.turn.bytes, size)
	}
	send(t, g, client, rest[100:])
	g.endTurn() // as decoded
	if !allFree() {
		t.Fatal("the turn goes on after its request")
	}
	if g.turnSize() != 0 {
		t.Fatal("a turn without a request")
	}
	send(t, g, client, begin)
	if got := g.turnSize(); got != size {
		t.Errorf("a turn of %d bytes for the next request, want %d", got, size)
	}
}

// A connection that is slow keeps its turn for a while only, and does not take another one for the same request.
func TestTurnsOfSlowConnectionsEnd(t *testing.T) {
	g, client := guarded(t)
	begin, rest := largeRequest(2 * turnBytes)
	send(t, g, client, begin)
	send(t, g, client, rest[:100])
	if allFree() {
		t.Fatal("no turn for a request that is read")
	}
	wait.Until(t, "the end of the turn", allFree)
	send(t, g, client, rest[100:200])
	if !allFree() {
		t.Error("another turn for the same request")
	}
}

// What waits for its turn goes on without after a while.
func TestWithoutATurnARequestIsReadAnyway(t *testing.T) {
	g, client := guarded(t)
	if !turns.TryAcquire(turnBytes) {
		t.Fatal("a turn without a request")
	}
	begin, rest := largeRequest(large + 1)
	send(t, g, client, begin)
	send(t, g, client, rest)
	if g.turn.bytes != 0 {
		t.Error("a turn where there is none")
	}
	turns.Release(turnBytes)
}
