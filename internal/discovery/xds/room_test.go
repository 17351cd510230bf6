package xds

import (
	"fmt"
	"net"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/test/wait"
)

// Many connections that send most of a large request each, and then no more, get no more room together than there is: those that have held
// theirs for the longest time lose it. Others that send large requests are served.
func TestUnfinishedRequestsOnManyConnections(t *testing.T) {
	const (
		conns = 24
		size  = 400 << 10
		most  = 2 << 20
	)
	s := New(&oneClass{latest: NewLatestView(meshView(1, "one"))}, quiet(t), nil)
	s.room.most, s.room.stall, s.room.finishing = most, 0, make(chan struct{}, 1)
	all, address := unfinishedOn(t, s, conns, size)
	var peak int64
	wait.Until(t, "all have sent what they can", func() bool {
		peak = max(peak, s.room.bytes.Load())
		for _, f := range all {
			f.mu.Lock()
			rest := f.rest[1]
			f.mu.Unlock()
			if rest > 0 && len(f.statuses) == 0 {
				return false
			}
		}
		return true
	})
	// Each connection may have been reading when the room was full, and one at a time goes on.
	if limit := int64(most + conns*(large+window) + size); peak > limit {
		t.Errorf("%d bytes were held at a time, want at most %d", peak, limit)
	}
	wait.Until(t, "what is too much has been given up", func() bool { return s.room.bytes.Load() <= most })
	ended := 0
	for _, f := range all {
		if len(f.statuses) > 0 {
			ended++
			if status := f.status(); status != "8" {
				t.Errorf("grpc-status %s, want 8, ResourceExhausted", status)
			}
		}
	}
	if ended == 0 || ended == conns {
		t.Errorf("%d of %d streams were ended, want some", ended, conns)
	}

	askMuch(t, address)
}

// unfinishedOn serves at an address, and has clients there, each with its own connection, send most of a request of that size, and then no more.
func unfinishedOn(t *testing.T, s *Server, conns, size int) (all []*frames, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, s, nil)
	for range conns {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		f := newFrames(t, conn)
		f.open(1)
		f.begin(1, size)
		go f.write()
		all = append(all, f)
	}
	return all, l.Addr().String()
}

// askMuch has a client send a large request, and checks that it is answered.
func askMuch(t *testing.T, address string) {
	t.Helper()
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	g := open(t, discoveryv3.NewAggregatedDiscoveryServiceClient(c))
	claims := map[string]string{}
	for i := range 20_000 {
		claims[fmt.Sprintf("cluster-%d", i)] = "version"
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: CDS.URL(), InitialResourceVersions: claims})
	if m, err := g.Recv(); err != nil || len(m.GetResources()) != 1 {
		t.Errorf("got %v, %v, want a cluster", m, err)
	}
}

// Connections that have sent a part of a large request while there is no room do not all wait for each other.
func TestRequestsBecomeWholeWithoutRoom(t *testing.T) {
	const (
		conns = maxFinishing + 4
		size  = 400 << 10
	)
	s := New(&oneClass{latest: NewLatestView(meshView(1, "one"))}, quiet(t), nil)
	s.room.most, s.room.stall = size, time.Hour
	_, address := unfinishedOn(t, s, conns, size)
	wait.Until(t, "no room", func() bool { return s.room.bytes.Load() > size+2*window })
	askMuch(t, address)
	if held := s.room.bytes.Load(); held <= size {
		t.Errorf("%d bytes are held, want more than there is room for", held)
	}
	wait.Until(t, "no connection goes on", func() bool { return len(s.room.finishing) == 0 })
}

// What a connection held is free after its end, and those that wait for room go on.
func TestRoom(t *testing.T) {
	r := room{most: 10}
	r.add(10)
	if r.full() != nil {
		t.Error("there is no room for nothing more")
	}
	r.add(5)
	free := r.full()
	if free == nil {
		t.Fatal("there is room")
	}
	r.add(-3)
	select {
	case <-free:
		t.Error("there is room again")
	default:
	}
	r.add(-2)
	select {
	case <-free:
	default:
		t.Error("who waits is not told that there is room")
	}
	if r.full() != nil {
		t.Error("there is no room")
	}
	now := time.Unix(1e9, 0)
	if !r.sweep(now) || r.sweep(now.Add(sweepTime/2)) || !r.sweep(now.Add(sweepTime)) {
		t.Error("connections are looked for too often, or too rarely")
	}
}
