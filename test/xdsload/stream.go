package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// proxy is a workload's Envoy: what it says of itself.
type proxy struct {
	id, namespace, account string
	node                   []byte // encoded
}

// proxyOf is the sidecar of an endpoint; proxies beyond the number of services are of further endpoints.
func (z meshSize) proxyOf(n int, vhds bool) (proxy, error) {
	i, e := n%z.Services, n/z.Services%z.Endpoints
	ns, name, ip := z.namespace(i), z.name(i), z.podIP(i, e)
	p := proxy{id: fmt.Sprintf("sidecar~%s~%s.%s~%[3]s.svc.cluster.local", ip, z.podName(i, e), ns), namespace: ns, account: name}
	labels := map[string]any{"app": name, "version": version(e), "security.istio.io/tlsMode": "istio"}
	values := map[string]any{
		"NAMESPACE": ns, "NAME": z.podName(i, e), "SERVICE_ACCOUNT": name, "WORKLOAD_NAME": name, "CLUSTER_ID": "Kubernetes",
		"INSTANCE_IPS": ip, "INTERCEPTION_MODE": "REDIRECT", "ISTIO_VERSION": "1.27.0", "MESH_ID": "cluster.local", "NODE_NAME": "node-1",
		"LABELS": labels,
	}
	if vhds {
		values[mesh.VirtualHostsKey] = "true"
	}
	metadata, err := structpb.NewStruct(values)
	if err != nil {
		return p, err
	}
	p.node, err = proto.Marshal(&corev3.Node{Id: p.id, Cluster: name + "." + ns, UserAgentName: "envoy", Metadata: metadata})
	return p, err
}

// typeState is what a stream knows of one type. Slices are indexed by the numbers of names.
type typeState struct {
	asked, answered bool
	version, nonce  string      // of the last response
	have            []*resource // nil where there is none
	want            []bool      // subscribed to, of types that are subscribed to by name
	waiting         int         // names subscribed to that have not been answered
	due             bool        // of virtual hosts: those of a route configuration that was received are to come
}

// had returns what there is of a name, or nil.
func (s *typeState) had(number int) *resource {
	if number >= len(s.have) {
		return nil
	}
	return s.have[number]
}

func (s *typeState) set(number int, r *resource) {
	s.have = grown(s.have, number)
	s.have[number] = r
}

// grown is a list that has an index.
func grown[T any](list []T, index int) []T {
	if index >= len(list) {
		list = append(list, make([]T, index+1-len(list))...)
	}
	return list
}

// stream is one proxy's stream. Its state belongs to the goroutine that receives.
type stream struct {
	fleet  *fleet
	number int
	proxy  proxy
	creds  credentials.TransportCredentials
	types  [numTypes]typeState

	ctx  context.Context // of its calls
	conn *grpc.ClientConn
	call grpc.ClientStream
	done chan struct{}
	// opened, unless nil, is called when it has reached its goal, and when it has ended.
	opened func()
	// heard says that it has received something since it was opened.
	heard bool
	// returning says that it has what an earlier stream received.
	returning bool
	// reached is the last goal that it has reached.
	reached *goal

	mu      sync.Mutex
	closing bool
}

// open connects and asks for what an Envoy asks for: clusters, and for all that an earlier stream had.
func (s *stream) open(ctx context.Context) error {
	if err := s.dial(ctx); err != nil {
		return err
	}
	if err := s.start(); err != nil && !errors.Is(err, io.EOF) { // receiving tells why it has ended
		_ = s.conn.Close() // the error that counts is known
		return fmt.Errorf("stream of %s: %w", s.proxy.id, err)
	}
	go s.receive()
	return nil
}

// dial connects, and opens a stream on which nothing has been sent.
func (s *stream) dial(ctx context.Context) error {
	const (
		bufferSize = 32 << 10
		window     = 1 << 20 // as agents have, ours and Istio's; Envoy, too, has a window that does not adapt
	)
	conn, err := grpc.NewClient("passthrough:///"+s.fleet.address, grpc.WithTransportCredentials(s.creds),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(clientCodec{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(1<<30), grpc.WaitForReady(true)))
	if err != nil {
		return err
	}
	s.ctx, s.conn, s.done, s.closing, s.heard = ctx, conn, make(chan struct{}), false, false
	if err = s.newCall(); err != nil {
		_ = conn.Close() // the error that counts is known
		return fmt.Errorf("stream of %s: %w", s.proxy.id, err)
	}
	return nil
}

// newCall opens a stream on the connection.
func (s *stream) newCall() (err error) {
	method := discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	if s.fleet.delta {
		method = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	}
	s.call, err = s.conn.NewStream(s.ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	return err
}

// again begins anew, as agents do, if the connection was closed before anything was received: a server that is
// overwhelmed does so. It reports whether the stream goes on.
func (s *stream) again(ended error) bool {
	if s.heard || status.Code(ended) != codes.Unavailable || s.isClosing() {
		return false
	}
	s.fleet.again(s)
	err := s.newCall()
	if err == nil {
		err = s.start()
	}
	return err == nil || errors.Is(err, io.EOF) // receiving tells why
}

func (s *stream) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// close ends the stream. What it received is kept for the next open.
func (s *stream) close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	_ = s.conn.Close() // nothing is in flight that anybody waits for
	<-s.done
}

func (s *stream) receive() {
	defer close(s.done)
	defer s.isOpened()
	var r response
	for {
		err := s.call.RecvMsg(&r)
		if err != nil && s.again(err) {
			continue
		}
		if err == nil {
			s.heard = true
			s.fleet.received(s, &r)
			err = s.take(&r)
			r.release()
			for errors.Is(err, io.EOF) {
				// A request could not be sent since the stream has ended. Receiving tells why, after what was sent before.
				if ended := s.call.RecvMsg(&r); ended != nil {
					err = ended
					break
				}
				r.release()
			}
		}
		if err != nil {
			if !s.isClosing() {
				s.fleet.fail(fmt.Errorf("stream of %s: %w", s.proxy.id, err))
			}
			return
		}
	}
}

// start sends the first requests.
func (s *stream) start() error {
	s.returning = s.types[clusters].answered
	if !s.returning {
		s.types[clusters].asked = true
		return s.send(request{node: s.proxy.node, typ: clusters})
	}
	for typ := range s.types {
		t := &s.types[typ]
		if typ == hosts && !t.asked {
			continue
		}
		t.nonce, t.waiting = "", 0
		q := request{typ: typ, names: s.wanted(typ)}
		if typ == clusters {
			q.node = s.proxy.node
		}
		if s.fleet.delta {
			q.have = t.have
		} else {
			// The state of the world is sent once more.
			q.version, t.answered = t.version, false
			clear(t.have)
			t.waiting = len(q.names)
		}
		if err := s.send(q); err != nil {
			return err
		}
	}
	if !s.fleet.delta {
		return nil
	}
	// An unchanged proxy may be sent nothing at all. The answer to this request says that the server has
	// handled those before it: a name that is subscribed to once more is sent once more.
	first := slices.IndexFunc(s.types[assignments].have, func(r *resource) bool { return r != nil && r != absent })
	if first < 0 {
		return fmt.Errorf("there is no assignment to ask for again")
	}
	return s.send(request{typ: assignments, names: []string{s.fleet.tables.nameList(assignments)[first]}})
}

// wanted are the names that the stream is subscribed to, none for types that are asked for by wildcard.
func (s *stream) wanted(typ int) []string {
	var out []string
	names := s.fleet.tables.nameList(typ)
	for n, want := range s.types[typ].want {
		if want {
			out = append(out, names[n])
		}
	}
	return out
}

func (s *stream) send(q request) error {
	q.nameOf = func(n int) string { return s.fleet.tables.nameList(q.typ)[n] }
	if q.have != nil {
		names := s.fleet.tables.nameList(q.typ)
		q.nameOf = func(n int) string { return names[n] }
	}
	b := q.encode(s.fleet.delta)
	s.fleet.sent(s, len(b))
	return s.call.SendMsg(b)
}

// take keeps what a response says, asks for what follows from it and acknowledges it: Envoy sends both in this
// order.
func (s *stream) take(r *response) error {
	if r.typ < 0 {
		return fmt.Errorf("response without a type")
	}
	t := &s.types[r.typ]
	scratch := resourcePool.Get().(*[]*resource)
	list, err := s.fleet.tables.intern(r.typ, r.resources, (*scratch)[:0])
	if err != nil {
		return err
	}
	defer func() {
		clear(list)
		*scratch = list
		resourcePool.Put(scratch)
	}()
	wildcard := r.typ == clusters || r.typ == listeners || r.typ == hosts
	gone := false
	if !s.fleet.delta && wildcard {
		clear(t.have)
		gone = true
	}
	epoch := 0
	for _, v := range list {
		epoch = max(epoch, v.epoch)
		s.keep(t, v.number, v)
		s.types[hosts].due = s.types[hosts].due || v.separate && !s.returning
	}
	if r.typ == hosts {
		t.due = false
	}
	for _, name := range r.removed {
		if n := s.fleet.tables.known(r.typ, name); n >= 0 {
			if wildcard {
				t.set(n, nil)
				gone = true
			} else {
				s.keep(t, n, absent)
			}
		}
	}
	t.answered, t.version, t.nonce = true, r.version, r.nonce
	if child := referred[r.typ]; child >= 0 {
		if err := s.follow(t, child, list, gone); err != nil {
			return err
		}
	}
	if err := s.askForListeners(); err != nil {
		return err
	}
	if err := s.askForHosts(); err != nil {
		return err
	}
	ack := request{typ: r.typ, nonce: r.nonce}
	if !s.fleet.delta {
		ack.version, ack.names = r.version, s.wanted(r.typ)
	}
	if err := s.send(ack); err != nil {
		return err
	}
	s.report(r.typ, epoch)
	return nil
}

var resourcePool = sync.Pool{New: func() any { return new([]*resource) }}

// keep sets what there is of a name, which answers a subscription to it.
func (s *stream) keep(t *typeState, number int, r *resource) {
	if t.had(number) == nil && number < len(t.want) && t.want[number] {
		t.waiting--
	}
	t.set(number, r)
}

// follow subscribes to what the resources of a response refer to. If some of what there was may be gone, it ends
// subscriptions to what nothing refers to any more.
func (s *stream) follow(t *typeState, child int, list []*resource, gone bool) error {
	c := &s.types[child]
	names := s.fleet.tables.nameList(child)
	var added, removed []string
	for _, r := range list {
		for _, ref := range r.refs {
			c.want = grown(c.want, ref)
			if !c.want[ref] {
				c.want[ref] = true
				if c.had(ref) == nil {
					c.waiting++
				}
				added = append(added, names[ref])
			}
		}
	}
	if gone {
		needed := make([]bool, len(c.want))
		for _, r := range t.have {
			if r != nil {
				for _, ref := range r.refs {
					needed[ref] = true
				}
			}
		}
		for n, want := range c.want {
			if want && !needed[n] {
				if c.had(n) == nil {
					c.waiting--
				}
				c.want[n] = false
				c.have = grown(c.have, n)
				c.have[n] = nil
				removed = append(removed, names[n])
			}
		}
	}
	if len(added)+len(removed) == 0 {
		return nil
	}
	c.asked = true
	q := request{typ: child, names: added, unsubscribe: removed}
	if !s.fleet.delta {
		q = request{typ: child, names: s.wanted(child), version: c.version, nonce: c.nonce}
	}
	return s.send(q)
}

// askForListeners asks for listeners once all clusters have their endpoints.
func (s *stream) askForListeners() error {
	l := &s.types[listeners]
	if l.asked || !s.types[clusters].answered || s.types[assignments].waiting > 0 {
		return nil
	}
	l.asked = true
	return s.send(request{typ: listeners})
}

// askForHosts asks for virtual hosts once there is a route configuration that takes them from VHDS: without names,
// and once for all.
func (s *stream) askForHosts() error {
	h := &s.types[hosts]
	if h.asked || !h.due {
		return nil
	}
	h.asked = true
	return s.send(request{typ: hosts})
}

// complete reports whether the stream has all that it asked for.
func (s *stream) complete() bool {
	for typ := range s.types {
		t := &s.types[typ]
		if t.waiting > 0 || t.due || (typ == clusters || typ == listeners) && !t.answered {
			return false
		}
	}
	return true
}

// report tells the fleet if the stream has reached its goal with a response that it has acknowledged.
func (s *stream) report(typ, epoch int) {
	g := s.fleet.current()
	if g == nil || s.number < g.from || s.reached == g {
		return
	}
	switch {
	case g.epoch > 0 && epoch != g.epoch:
		return
	case g.epoch == 0 && s.returning && s.fleet.delta && typ != assignments:
		return
	case g.epoch == 0 && !s.complete():
		return
	}
	s.reached = g
	g.reach()
	s.isOpened()
}

// isOpened lets another stream be opened.
func (s *stream) isOpened() {
	if s.opened != nil {
		s.opened()
	}
}

// count is how many resources of a type the stream has.
func (s *stream) count(typ int) int {
	n := 0
	for _, r := range s.types[typ].have {
		if r != nil && r != absent {
			n++
		}
	}
	return n
}
