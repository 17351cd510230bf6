package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The clients run in a process of their own, this test binary started once more, so that
// what the control plane uses can be told from what they use. They take one command a
// line and answer each with one line.

// clientsEnv makes a process the clients.
const clientsEnv = "PILOTHOUSE_BENCH_CLIENTS"

// command is what the clients are told.
type command struct {
	// Op is connect, await (a resource on every stream), disconnect or renew (each stream
	// in turn, the others going on).
	Op     string   `json:"op"`
	Addr   string   `json:"addr,omitempty"`
	IDs    []string `json:"ids,omitempty"`    // node ids, one stream each
	Forget bool     `json:"forget,omitempty"` // on disconnect: the next streams start from nothing
	// Type and Name are what await waits for, counting from the last answer.
	Type string `json:"type,omitempty"`
	Name string `json:"name,omitempty"`
}

// answer is what all streams together have received since the last answer.
type answer struct {
	Bytes     int    `json:"bytes"`
	Responses int    `json:"responses"`
	Error     string `json:"error,omitempty"`
}

// Names by which a client knows the synthetic mesh, where an Envoy would decode.
const (
	edsPrefix = "outbound|"
	routeName = "8080"
	urlPrefix = "type.googleapis.com/envoy.config."
	cds       = urlPrefix + "cluster.v3.Cluster"
	eds       = urlPrefix + "endpoint.v3.ClusterLoadAssignment"
	lds       = urlPrefix + "listener.v3.Listener"
	rds       = urlPrefix + "route.v3.RouteConfiguration"
)

func TestMain(m *testing.M) {
	if os.Getenv(clientsEnv) == "" {
		os.Exit(m.Run())
	}
	c := &clients{out: json.NewEncoder(os.Stdout), versions: map[versionKey]*version{}, kept: map[string]map[string][]*version{}}
	c.seen = sync.NewCond(&c.mu)
	in := json.NewDecoder(os.Stdin)
	for {
		var cmd command
		if err := in.Decode(&cmd); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		if err := c.obey(cmd); err != nil {
			panic(err)
		}
	}
}

// clients are N delta streams that take everything, acknowledge it and keep nothing but
// names and versions.
type clients struct {
	out     *json.Encoder
	streams []*client

	mu       sync.Mutex
	seen     *sync.Cond // something has arrived
	answer   answer
	versions map[versionKey]*version
	// kept is what a disconnected stream had, by node id and type.
	kept map[string]map[string][]*version
}

type versionKey struct{ typ, name, version string }

// version is a resource's name and version, stored once for all streams.
type version struct{ versionKey }

func (c *clients) obey(cmd command) error {
	switch cmd.Op {
	case "connect":
		for _, id := range cmd.IDs {
			s, err := c.connect(cmd.Addr, id)
			if err != nil {
				return err
			}
			c.streams = append(c.streams, s)
		}
		if len(c.kept) == 0 {
			c.wait(func(s *client) bool { return s.got[rds] != nil })
		}
		clear(c.kept)
	case "await":
		c.wait(func(s *client) bool { return s.news[cmd.Type+cmd.Name] })
	case "renew":
		for i, s := range c.streams {
			s.close()
			c.kept[s.id] = s.had()
			next, err := c.connect(cmd.Addr, s.id)
			if err != nil {
				return err
			}
			c.streams[i] = next
		}
		clear(c.kept)
	case "disconnect":
		for _, s := range c.streams {
			s.close()
			if !cmd.Forget {
				c.kept[s.id] = s.had()
			}
		}
		c.streams = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		clear(s.news)
	}
	a := c.answer
	c.answer = answer{Error: a.Error}
	return c.out.Encode(a)
}

// wait blocks until ok holds for every stream or one of them has broken.
func (c *clients) wait(ok func(*client) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.answer.Error == "" && slices.ContainsFunc(c.streams, func(s *client) bool { return !ok(s) }) {
		c.seen.Wait()
	}
}

// client is one stream.
type client struct {
	all    *clients
	id     string
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	done   chan struct{}
	// got is what the stream has, by type and name, and news what came since the last
	// answer; both under the clients' lock.
	got  map[string]map[string]*version
	news map[string]bool
}

func (c *clients) connect(addr, id string) (*client, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, err
	}
	s := &client{all: c, id: id, conn: conn, done: make(chan struct{}), got: map[string]map[string]*version{}, news: map[string]bool{}}
	s.stream, err = conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName)
	if err != nil {
		return nil, fmt.Errorf("open a stream for %s: %w", id, err)
	}
	if err := s.subscribe(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.done)
		for {
			var r response
			if err := s.stream.RecvMsg(&r); err != nil {
				s.broken(err)
				return
			}
			if err := s.take(&r); err != nil {
				s.broken(err)
				return
			}
		}
	}()
	return s, nil
}

// subscribe asks for clusters, and a client that comes back for all that it had.
func (s *client) subscribe() error {
	first := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, Node: &corev3.Node{Id: s.id, UserAgentName: "envoy"}}
	kept := s.all.kept[s.id]
	for _, t := range []string{cds, eds, lds, rds} {
		if kept == nil && t != cds {
			break
		}
		req := first
		if t != cds {
			req = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: t}
		}
		if kept != nil {
			req.InitialResourceVersions = map[string]string{}
			s.got[t] = map[string]*version{}
		}
		for _, v := range kept[t] {
			s.got[t][v.name] = v
			req.InitialResourceVersions[v.name] = v.version
			if t == eds || t == rds {
				req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, v.name)
			}
		}
		if err := s.stream.SendMsg(req); err != nil {
			return fmt.Errorf("subscribe %s to %s: %w", s.id, t, err)
		}
	}
	return nil
}

func (s *client) broken(err error) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.all.answer.Error == "" && s.news != nil {
		s.all.answer.Error = fmt.Sprintf("stream of %s: %v", s.id, err)
	}
	s.all.seen.Broadcast()
}

// close ends the stream on purpose.
func (s *client) close() {
	s.all.mu.Lock()
	s.news = nil
	s.all.mu.Unlock()
	_ = s.conn.Close() // nothing is in flight that anybody waits for
	<-s.done
}

func (s *client) had() map[string][]*version {
	out := map[string][]*version{}
	for t, byName := range s.got {
		for _, v := range byName {
			out[t] = append(out[t], v)
		}
	}
	return out
}

// take keeps what a response says, acknowledges it and asks for what comes next.
func (s *client) take(r *response) error {
	c := s.all
	c.mu.Lock()
	if s.got[r.url] == nil {
		s.got[r.url] = map[string]*version{}
	}
	var names []string
	for _, k := range r.resources {
		k.typ = r.url
		v := c.versions[k]
		if v == nil {
			v = &version{k}
			c.versions[k] = v
		}
		if r.url == cds && s.got[cds][k.name] == nil && strings.HasPrefix(k.name, edsPrefix) {
			names = append(names, k.name)
		}
		s.got[r.url][v.name] = v
		if s.news != nil {
			s.news[r.url+v.name] = true
		}
	}
	for _, n := range r.removed {
		delete(s.got[r.url], n)
	}
	c.answer.Bytes += r.size
	c.answer.Responses++
	firstEndpoints := r.url == eds && s.got[lds] == nil
	firstListeners := r.url == lds && s.got[rds] == nil
	c.mu.Unlock()
	defer c.seen.Broadcast()

	requests := []*discoveryv3.DeltaDiscoveryRequest{{TypeUrl: r.url, ResponseNonce: r.nonce}}
	if len(names) > 0 {
		requests = append(requests, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: names})
	}
	if firstEndpoints {
		requests = append(requests, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: lds})
	}
	if firstListeners {
		requests = append(requests, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesSubscribe: []string{routeName}})
	}
	for _, q := range requests {
		if err := s.stream.SendMsg(q); err != nil {
			return err
		}
	}
	return nil
}

// response is what a client reads of a DeltaDiscoveryResponse.
type response struct {
	url, nonce string
	resources  []versionKey
	removed    []string
	size       int
}

// rawCodec reads responses without decoding what is in them.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*response)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	r.size = data.Len()
	return fields(buf.ReadOnlyData(), func(n protowire.Number, b []byte) error {
		switch n {
		case 2:
			var k versionKey
			err := fields(b, func(n protowire.Number, b []byte) error {
				switch n {
				case 1:
					k.version = string(b)
				case 3:
					k.name = string(b)
				}
				return nil
			})
			r.resources = append(r.resources, k)
			return err
		case 4:
			r.url = string(b)
		case 5:
			r.nonce = string(b)
		case 6:
			r.removed = append(r.removed, string(b))
		}
		return nil
	})
}

// fields calls f for each length-delimited field of a message.
func fields(b []byte, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, t, b); size < 0 {
			return protowire.ParseError(size)
		}
		if t == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			if err := f(n, v); err != nil {
				return err
			}
		}
		b = b[size:]
	}
	return nil
}
