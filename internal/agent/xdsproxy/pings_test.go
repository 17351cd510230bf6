package xdsproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// received is what has been received on connections.
type received struct {
	mu   sync.Mutex
	each []*bytes.Buffer
}

func (r *received) of(c net.Conn) net.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := &bytes.Buffer{}
	r.each = append(r.each, b)
	return &recorded{c, r, b}
}

type recorded struct {
	net.Conn
	all  *received
	into *bytes.Buffer
}

func (c *recorded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.into.Write(b[:n])
	return n, err
}

// frames counts the frames with data, and the pings that want an answer. The preface comes first where a client has sent
// them. https://www.rfc-editor.org/rfc/rfc9113.html#section-4.1
func (r *received) frames(preface int) (data, pings int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.each {
		rest := b.Bytes()[min(preface, b.Len()):]
		for len(rest) >= 9 {
			size := int(binary.BigEndian.Uint32(rest) >> 8)
			switch kind, flags := rest[3], rest[4]; {
			case kind == 0:
				data++
			case kind == 6 && flags&1 == 0:
				pings++
			}
			rest = rest[min(9+size, len(rest)):]
		}
	}
	return data, pings
}

// recordingCreds record what a server receives.
type recordingCreds struct {
	credentials.TransportCredentials
	into *received
}

func (c recordingCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return c.into.of(conn), info, nil
}

func (c recordingCreds) Clone() credentials.TransportCredentials {
	return recordingCreds{c.TransportCredentials.Clone(), c.into}
}

// A response is followed by its acknowledgement, and by no ping on either connection.
func TestNoPingsFollowMessages(t *testing.T) {
	var upstreams, sockets received
	record := func(c credentials.TransportCredentials) credentials.TransportCredentials {
		return recordingCreds{c, &upstreams}
	}
	p := proxyBy(t, &plane{}, record, func(*Config) {})

	c, err := grpc.NewClient("passthrough:///envoy", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", p.config.Socket)
			if err != nil {
				return nil, err
			}
			return sockets.of(conn), nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 20
	for range rounds {
		if err := s.Send(request(envoyType + "a")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	const preface = 24
	if data, pings := upstreams.frames(preface); data < rounds || pings > 0 {
		t.Errorf("the control plane has received %d frames with data and %d pings: want none", data, pings)
	}
	if data, pings := sockets.frames(0); data < rounds || pings > 0 {
		t.Errorf("Envoy has received %d frames with data and %d pings: want none", data, pings)
	}
}
