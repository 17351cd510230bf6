package discovery

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

// client is a proxy that speaks the delta protocol and accepts everything.
type client struct {
	t      *testing.T
	app    string // the label by which services select it; its name begins with it
	stream grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
	have   map[string]string // name → body
	seen   []string          // every body received
	// refuses says why a response is refused, naming the resources; empty for not.
	refuses func(*discoveryv3.DeltaDiscoveryResponse) string
	refused int // how many it has refused
	// delays says that a response is not answered before answer is called; delayed are those.
	delays  func(*discoveryv3.DeltaDiscoveryResponse) bool
	delayed []*discoveryv3.DeltaDiscoveryResponse
	got     chan *discoveryv3.DeltaDiscoveryResponse
	err     chan error
}

// dial opens a stream as reviews-1.shop: in plaintext, or with a token on the secure port.
func (p *plane) dial(token, rootPEM string) *client {
	p.t.Helper()
	if token == "" {
		return p.connect(p.addr.GRPC, insecure.NewCredentials(), "")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(rootPEM))
	return p.connect(p.addr.SecureGRPC, credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc"}), token)
}

func (p *plane) connect(addr string, creds credentials.TransportCredentials, token string) *client {
	p.t.Helper()
	return p.connectAs("reviews", addr, creds, token)
}

// connectAs is connect for a proxy with another label.
func (p *plane) connectAs(app, addr string, creds credentials.TransportCredentials, token string) *client {
	p.t.Helper()
	c, err := p.tryConnect(app, addr, creds, token)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// tryConnect is connectAs where the server may refuse the connection.
func (p *plane) tryConnect(app, addr string, creds credentials.TransportCredentials, token string) (*client, error) {
	p.t.Helper()
	ctx := p.t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	c := &client{t: p.t, app: app, stream: stream, have: map[string]string{}, got: make(chan *discoveryv3.DeltaDiscoveryResponse), err: make(chan error, 1)}
	c.ask(xds.CDS, "*")
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				c.err <- err
				return
			}
			select {
			case c.got <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return c, nil
}

func (c *client) ask(t xds.Type, names ...string) {
	role, labels := "sidecar", map[string]any{"app": c.app}
	if strings.HasPrefix(c.app, "gateway") {
		role, labels["gateway.networking.k8s.io/gateway-name"] = "router", c.app
	}
	meta, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "shop", "LABELS": labels, "SERVICE_ACCOUNT": "default",
		"PROXY_CONFIG": map[string]any{"proxyHeaders": map[string]any{"server": map[string]any{"value": "x"}}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	r := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: t.URL(), ResourceNamesSubscribe: names,
		Node: &corev3.Node{Id: role + "~10.99.0.1~" + c.app + "-1.shop~shop.svc.cluster.local", Metadata: meta},
	}
	_ = c.stream.Send(r) // Recv returns the error
}

// open subscribes to the other types, as Envoy does.
func (c *client) open() *client {
	c.ask(xds.LDS, "*")
	c.ask(xds.RDS, "9080")
	c.ask(xds.EDS, "outbound|9080||reviews.shop.svc.cluster.local")
	return c
}

// refusal returns the error with which the stream ends.
func (c *client) refusal() error {
	c.t.Helper()
	for limit := time.After(wait.Bound); ; {
		select {
		case err := <-c.err:
			return err
		case r := <-c.got:
			c.take(r)
		case <-limit:
			c.t.Fatal("the stream was not refused")
		}
	}
}

func (c *client) take(r *discoveryv3.DeltaDiscoveryResponse) {
	if c.refuses != nil {
		if why := c.refuses(r); why != "" {
			c.refused++
			_ = c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce, ErrorDetail: &rpcstatus.Status{Message: why}})
			return
		}
	}
	for _, res := range r.Resources {
		c.have[res.Name] = string(res.Resource.Value)
		c.seen = append(c.seen, string(res.Resource.Value))
	}
	for _, name := range r.RemovedResources {
		delete(c.have, name)
	}
	if c.delays != nil && c.delays(r) {
		c.delayed = append(c.delayed, r)
		return
	}
	_ = c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
}

// answer accepts what was delayed.
func (c *client) answer() {
	for _, r := range c.delayed {
		_ = c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
	}
	c.delayed, c.delays = nil, nil
}

// takeAll receives responses until the test ends.
func (c *client) takeAll() {
	for {
		select {
		case r := <-c.got:
			c.take(r)
		case <-c.t.Context().Done():
			return
		}
	}
}

// wait receives responses until ok returns true, which may be without another response.
func (c *client) wait(what string, ok func() bool) {
	c.t.Helper()
	deadline := time.After(wait.Bound)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case r := <-c.got:
			c.take(r)
		case <-again.C:
		case err := <-c.err:
			c.t.Fatalf("while waiting for %s the stream ended: %v", what, err)
		case <-deadline:
			c.t.Fatalf("waited in vain for %s; have %d resources", what, len(c.have))
		}
	}
}

func (c *client) expect(typ, name string) {
	c.t.Helper()
	c.wait(typ+" "+name, func() bool { return c.have[name] != "" })
}

func (c *client) text(name string) string { return c.have[name] }

func (c *client) until(name, part string) {
	c.t.Helper()
	c.wait(name+" with "+part, func() bool { return strings.Contains(c.have[name], part) })
}

func (c *client) untilGone(name, part string) {
	c.t.Helper()
	c.wait(name+" without "+part, func() bool { return c.have[name] != "" && !strings.Contains(c.have[name], part) })
}
