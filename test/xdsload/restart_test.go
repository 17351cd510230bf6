package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/test/wait"
)

// firstCloses closes the connections of the first streams, and answers others.
type firstCloses struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	net.Listener

	mu    sync.Mutex
	conns []net.Conn
	calls int
}

// closes is how many streams are closed.
const closes = 3

func (f *firstCloses) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, c)
	return c, err
}

func (f *firstCloses) DeltaAggregatedResources(g grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	if _, err := g.Recv(); err != nil {
		return err
	}
	f.mu.Lock()
	f.calls++
	calls, last := f.calls, f.conns[len(f.conns)-1]
	f.mu.Unlock()
	if calls <= closes {
		return last.Close()
	}
	if err := g.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[clusters], Nonce: "1", Resources: []*discoveryv3.Resource{
		{Name: "c", Version: "1", Resource: &anypb.Any{TypeUrl: typeURLs[clusters]}},
	}}); err != nil {
		return err
	}
	<-g.Context().Done()
	return nil
}

// A stream whose connection is closed before it was answered begins anew, as an agent's does. It is counted.
func TestStreamBeginsAnewIfItsConnectionIsClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := &firstCloses{Listener: l}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, service)
	go func() { _ = server.Serve(service) }() // ended by Stop
	t.Cleanup(server.Stop)
	p, err := meshSize{Services: 1, Endpoints: 1, Namespaces: 1}.proxyOf(0, false)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(true, l.Addr().String(), 0)
	f.script = &script{}
	f.script.next()
	f.add(p, insecure.NewCredentials())
	t.Cleanup(f.close)
	if err := f.connect(t.Context(), f.streams); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a response", func() bool { return f.totals().Responses == 1 })
	if n := f.restarts.Load(); n != closes {
		t.Errorf("streams began anew %d times, want %d", n, closes)
	}
	select {
	case err := <-f.failed:
		t.Error(err)
	default:
	}
	f.script.mu.Lock()
	defer f.script.mu.Unlock()
	if frames := f.script.phases[0]; len(frames) != 1 || frames[0].After != 1 {
		t.Errorf("the script has %+v, want one response after one request", frames)
	}
}

// No more streams are opening at a time than may be: one that has ended, or has what it asked for, makes room for another.
func TestStreamsWaitForOthersThatAreOpening(t *testing.T) {
	f := newFleet(true, "", 2)
	first, err := f.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := f.acquire(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("a third one: got error %v, want %v", err, context.Canceled)
	}
	first()
	first() // as a stream does that reaches its goal and then ends
	if _, err := f.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.acquire(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("one more after one release: got error %v, want %v", err, context.Canceled)
	}
}
