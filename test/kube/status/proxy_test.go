package status_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/test/wait"
)

// proxy is a sidecar that speaks the delta protocol.
type proxy struct {
	mu sync.Mutex // guards what follows
	// refuses is a text: a response that has it is refused.
	refuses string
	// held has the responses that are not answered yet, while hold is set.
	hold bool
	held []*discoveryv3.DeltaDiscoveryResponse
	send func(*discoveryv3.DeltaDiscoveryRequest)
	// bodies are the newest resources, by type and name.
	bodies map[string]string
	stop   func()
	// gateway is the name of the Gateway that a router serves; empty for a sidecar.
	gateway string
}

// connect connects a proxy of a Pod in a namespace to one of a list of addresses, in turn when the connection ends,
// until the test ends.
func connect(t *testing.T, namespace, pod string, addresses ...string) *proxy {
	t.Helper()
	p := (&proxy{}).connect(t, namespace, pod, addresses...)
	wait.Until(t, "the proxy has its configuration", func() bool { return p.has("virtualOutbound") })
	return p
}

func (p *proxy) connect(t *testing.T, namespace, pod string, addresses ...string) *proxy {
	t.Helper()
	p.bodies = map[string]string{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(p.stop)
	go func() {
		defer close(ended)
		for n := 0; ctx.Err() == nil; n++ {
			p.stream(ctx, namespace, pod, addresses[n%len(addresses)])
			select { // not a wait for a condition: a proxy that is refused comes again later
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return p
}

// stream is one connection.
func (p *proxy) stream(ctx context.Context, namespace, pod, address string) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(false))
	if err != nil {
		return
	}
	role, labels := "sidecar", map[string]any{"app": pod}
	if p.gateway != "" {
		role, labels["gateway.networking.k8s.io/gateway-name"] = "router", p.gateway
	}
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "LABELS": labels, "SERVICE_ACCOUNT": "default"})
	if err != nil {
		return
	}
	node := &corev3.Node{Id: role + "~10.99.0.1~" + pod + "." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: meta}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		r.Node = node
		_ = stream.Send(r) // Recv returns the error
	}
	p.mu.Lock()
	p.send, p.held = send, nil
	p.mu.Unlock()
	for _, kind := range []string{"cluster.v3.Cluster", "endpoint.v3.ClusterLoadAssignment", "listener.v3.Listener"} {
		send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config." + kind, ResourceNamesSubscribe: []string{"*"}})
	}
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", ResourceNamesSubscribe: []string{"9080"}})
	for {
		r, err := stream.Recv()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.hold {
			p.held = append(p.held, r)
		} else {
			p.answer(r)
		}
		p.mu.Unlock()
	}
}

// answer accepts or refuses a response. mu is held.
func (p *proxy) answer(r *discoveryv3.DeltaDiscoveryResponse) {
	out := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
	for _, x := range r.Resources {
		p.bodies[r.TypeUrl+" "+x.Name] = string(x.Resource.GetValue())
		if p.refuses != "" && strings.Contains(string(x.Resource.GetValue()), p.refuses) {
			out.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: x.Name + ": it is refused by the test"}
		}
	}
	p.send(out)
}

// pause has the proxy answer nothing until resume.
func (p *proxy) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = true
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = false
	for _, r := range p.held {
		p.answer(r)
	}
	p.held = nil
}

// refuse has the proxy refuse what has a text.
func (p *proxy) refuse(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = text
}

// has reports whether a resource that the proxy has been sent contains a text.
func (p *proxy) has(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, body := range p.bodies {
		if strings.Contains(name, text) || strings.Contains(body, text) {
			return true
		}
	}
	return false
}
