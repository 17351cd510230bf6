package xds

import (
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pilothouse/pilothouse/test/wait"
)

// handedOver counts what was handed to gRPC for the streams that carry the header "slow".
type handedOver struct {
	mu        sync.Mutex
	responses [numTypes]int
	bytes     int
}

func (h *handedOver) intercept(srv any, g grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if md, _ := metadata.FromIncomingContext(g.Context()); len(md["slow"]) == 0 {
		return handle(srv, g)
	}
	return handle(srv, &countedStream{g, h})
}

type countedStream struct {
	grpc.ServerStream
	to *handedOver
}

func (c *countedStream) SendMsg(m any) error {
	if r, ok := m.(*response); ok {
		counted := *r // which can be encoded once
		c.to.mu.Lock()
		c.to.responses[r.Type]++
		c.to.bytes += counted.encode().Len()
		c.to.mu.Unlock()
	}
	return c.ServerStream.SendMsg(m)
}

// A client that reads nothing gets at most one response of each type, however many changes there are, and of clusters
// another one each holdLimit: an Envoy acknowledges none while its clusters warm.
// Others, on its connection too, get every change meanwhile; it gets the newest when it reads again.
func TestSlowReaderDelaysNobody(t *testing.T) {
	const size, changes, readers = 200 << 10, 12, 6
	big := func(generation uint64) *View {
		return meshView(generation, strings.Repeat("x", size+int(generation)))
	}
	latest := NewLatestView(big(1))
	var queued handedOver
	s := New(&oneClass{latest: latest}, quiet(t), nil)
	subscribe := func(g deltaStream) {
		for of := range numTypes {
			r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: of.URL()}
			if of == CDS {
				r.Node = node(nil)
			}
			if !types[of].wildcard {
				r.ResourceNamesSubscribe = []string{singleNames[of]}
			}
			ask(t, g, r)
		}
	}
	read := func(g deltaStream) {
		for {
			m, err := g.Recv()
			if err != nil || g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.TypeUrl, ResponseNonce: m.Nonce}) != nil {
				return
			}
		}
	}
	began := time.Now() // before the first response
	shared := dialIntercepted(t, s, queued.intercept)
	slow, err := shared.DeltaAggregatedResources(metadata.AppendToOutgoingContext(t.Context(), "slow", "yes"))
	if err != nil {
		t.Fatal(err)
	}
	subscribe(slow)
	for i := range readers {
		c := shared
		if i > 0 {
			c = dial(t, s, nil)
		}
		g := open(t, c)
		subscribe(g)
		go read(g)
	}
	appliedBy := func(generation uint64) (n int) {
		for _, c := range s.Connections() {
			if c.Applied == generation {
				n++
			}
		}
		return n
	}
	wait.Until(t, "all streams are connected", func() bool { return len(s.Connections()) == readers+1 })
	for generation := uint64(2); generation < changes; generation++ {
		latest.Publish(big(generation))
		wait.Until(t, "the readers have applied the change", func() bool { return appliedBy(generation) == readers })
	}
	queued.mu.Lock()
	most := 0
	for of, n := range queued.responses {
		limit := 1
		if Type(of) == CDS {
			limit += int(time.Since(began) / holdLimit)
		}
		if most += limit; n > limit {
			t.Errorf("%d responses of %s were handed over for a client that does not read: want at most %d", n, Type(of), limit)
		}
	}
	if queued.bytes > most*(size+1024) {
		t.Errorf("%d bytes were handed over for a client that does not read: want at most %d responses of %d", queued.bytes, most, size)
	}
	queued.mu.Unlock()
	go read(slow)
	wait.Until(t, "the slow reader has applied the newest change", func() bool { return appliedBy(changes-1) == readers+1 })
}
