package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

const claimed = shop + `---
apiVersion: v1
kind: Pod
metadata: {name: job-1, namespace: shop}
spec: {serviceAccountName: job}
status: {phase: Succeeded, podIP: 10.99.0.7}
---
apiVersion: v1
kind: Pod
metadata: {name: far-1, namespace: bank}
spec: {serviceAccountName: far}
status: {phase: Running, podIP: 10.99.0.8}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop}
spec: {address: 10.99.0.9, serviceAccount: vm}
`

// TestAProxyIsNotServedAsAWorkloadOfAnotherAccount: an address and a name in a node id are only
// claims; the service account of whoever has them according to the source must be the caller's.
func TestAProxyIsNotServedAsAWorkloadOfAnotherAccount(t *testing.T) {
	p := start(t)
	p.emit(claimed, true)
	for name, c := range map[string]struct {
		account, id, ips string
		refused          string // empty for not
	}{
		"its own address and name":            {"default", "10.99.0.1~reviews-1.shop", "10.99.0.1", ""},
		"another Pod's address":               {"else", "10.99.0.1~else-1.shop", "", `10.99.0.1, which is that of Pod shop/reviews-1 with service account "default"`},
		"another Pod's address as a second":   {"else", "10.99.0.2~else-1.shop", "10.99.0.2,10.99.0.1", "shop/reviews-1"},
		"another Pod's address, in IPv6":      {"else", "10.99.0.2~else-1.shop", "::ffff:10.99.0.1", "shop/reviews-1"},
		"another Pod's address in the id":     {"else", "::ffff:10.99.0.1~else-1.shop", "", "shop/reviews-1"},
		"another Pod's name":                  {"else", "10.99.0.2~reviews-1.shop", "", `name of Pod shop/reviews-1 with service account "default"`},
		"an address that nobody has":          {"else", "10.99.0.2~else-1.shop", "", ""},
		"the address of a Pod that has ended": {"else", "10.99.0.7~else-1.shop", "", ""},
		"an address of another namespace":     {"else", "10.99.0.8~else-1.shop", "", ""},
		"a WorkloadEntry's address":           {"else", "10.99.0.9~else-1.shop", "", `WorkloadEntry shop/vm with service account "vm"`},
		"its own WorkloadEntry's":             {"vm", "10.99.0.9~vm.shop", "", ""},
		"on the plaintext port":               {"", "10.99.0.1~else-1.shop", "", ""},
	} {
		err := p.join(c.account, "sidecar~"+c.id+"~shop.svc.cluster.local", c.ips)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v, want it served", name, err)
		case c.refused != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v, want PermissionDenied that names %s", name, err, c.refused)
		}
	}
}

// A hostile client may come again and again with other claims.
func TestNothingIsKeptOfWhoIsRefused(t *testing.T) {
	p := start(t)
	p.emit(claimed, true)
	for range 3 {
		if err := p.join("else", "sidecar~10.99.0.1~else-1.shop~shop.svc.cluster.local", ""); status.Code(err) != codes.PermissionDenied {
			t.Fatal(err)
		}
	}
	n, _ := p.server.loop.numbers()
	for _, rule := range []string{"claims", "class"} {
		if live := n.rules[rule].Live; live != 0 {
			t.Errorf("rule %s keeps %d values", rule, live)
		}
	}
}

// join opens a stream as a service account of shop, or in plaintext, and returns the error that it
// ends with, nil if it is answered.
func (p *plane) join(account, id, ips string) error {
	p.t.Helper()
	addr, creds := p.addr.GRPC, insecure.NewCredentials()
	ctx, cancel := context.WithTimeout(p.t.Context(), wait.Bound)
	defer cancel()
	if account != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(p.root()))
		addr, creds = p.addr.SecureGRPC, credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc"})
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+p.token("shop", account))
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	fields := map[string]any{"NAMESPACE": "shop"}
	if ips != "" {
		fields["INSTANCE_IPS"] = ips
	}
	meta, err := structpb.NewStruct(fields)
	if err != nil {
		p.t.Fatal(err)
	}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.CDS.URL(), Node: &corev3.Node{Id: id, Metadata: meta}}) // its reader learns why it ended
	_, err = stream.Recv()
	return err
}
