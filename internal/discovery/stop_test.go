package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// requesting is a request for a certificate that the server has begun to receive.
type requesting struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	csr    string
}

func (p *plane) requesting() *requesting {
	p.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.root()))
	conn, err := grpc.NewClient(p.addr.SecureGRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc"})))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "default"})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), wait.Bound)
	p.t.Cleanup(cancel)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+p.token("shop", "default"))
	r := &requesting{conn: conn, csr: string(csr)}
	if r.stream, err = conn.NewStream(ctx, &grpc.StreamDesc{}, securityv1.IstioCertificateService_CreateCertificate_FullMethodName); err != nil {
		p.t.Fatal(err)
	}
	// The server answers this after it has seen the beginning of the other call.
	err = conn.Invoke(ctx, "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters", &discoveryv3.DiscoveryRequest{}, &discoveryv3.DiscoveryResponse{})
	if status.Code(err) != codes.Unimplemented {
		p.t.Fatal(err)
	}
	return r
}

// finish sends the rest of the request.
func (r *requesting) finish() (*securityv1.IstioCertificateResponse, error) {
	var out securityv1.IstioCertificateResponse
	_ = r.stream.SendMsg(&securityv1.IstioCertificateRequest{Csr: r.csr, ValidityDuration: 3600}) // the receiver gets the error
	_ = r.stream.CloseSend()
	return &out, r.stream.RecvMsg(&out)
}

func TestStopEndsStreamsAndFinishesOpenCalls(t *testing.T) {
	var log wait.Output
	p := start(t, func(o *Options) { o.HTTP.Shutdown, o.Log = wait.Bound, slog.New(slog.NewTextHandler(&log, nil)) })
	p.emit(shop, true)
	c := p.dial(p.token("shop", "default"), p.root()).open()
	c.expect("RDS", "9080")
	call := p.requesting()
	ended := make(chan error, 1)
	go func() { ended <- p.stop() }()
	if err := c.refusal(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("the stream ended with %v, want Unavailable and why", err)
	}
	if code, body := p.get(p.addr.HTTP, "/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "stopping") {
		t.Errorf("/ready: %d %q, want 503 and why", code, body)
	}
	wait.Until(t, "the port is closed", func() bool {
		conn, err := net.Dial("tcp", p.addr.SecureGRPC)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	wait.Until(t, "the connection of the open call is told to go", func() bool {
		call.conn.Connect()
		return call.conn.GetState() != connectivity.Ready
	})
	answer, err := call.finish()
	if err != nil || len(answer.CertChain) == 0 {
		t.Errorf("the open call: %v, %v, want a certificate", answer, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if n := strings.Count(log.String(), "stopping: no new streams are accepted"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

// A call that does not end delays the end by no more than the time for open requests.
func TestStopDoesNotWaitForEver(t *testing.T) {
	p := start(t, func(o *Options) { o.HTTP.Shutdown = 50 * time.Millisecond })
	p.emit(shop, true)
	call := p.requesting()
	if err := p.stop(); err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := call.finish(); status.Code(err) != codes.Unavailable {
		t.Errorf("the open call: %v, want Unavailable", err)
	}
}
