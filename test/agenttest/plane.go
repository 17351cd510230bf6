// Package agenttest runs the built pilot-agent, with a real Envoy, against a minimal control plane.
//
// Plane signs every request and answers every subscription with the resources that it was given, by delta
// xDS. Process is an agent in a directory of its own, on free ports. Both end with the test that started
// them.
package agenttest

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// The type URLs of the resources of a Plane.
const (
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
)

// Plane is a control plane: CA and discovery on one TLS port.
type Plane struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	// Addr is host:port. RootFile contains the root certificate.
	Addr, RootFile string

	t       testing.TB
	key     crypto.Signer
	root    *x509.Certificate
	server  *grpc.Server
	serving sync.WaitGroup
	given   map[string][]*discoveryv3.Resource

	mu       sync.Mutex
	seen     seen
	granted  int // requests that are granted before refusal
	refusal  error
	lifetime time.Duration
}

// seen is what agents and Envoys have sent.
type seen struct {
	node     *corev3.Node
	metadata metadata.MD
	signed   int
	reports  []string
}

// NewPlane makes a control plane that does not serve yet, with a free address.
func NewPlane(t testing.TB) *Plane {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.Sign(pki.RootTemplate("cluster.local", term()), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	p := &Plane{t: t, key: key, root: root, given: map[string][]*discoveryv3.Resource{}, Addr: net.JoinHostPort("127.0.0.1", Port(t))}
	p.RootFile = filepath.Join(t.TempDir(), "root-cert.pem")
	if err := os.WriteFile(p.RootFile, pki.EncodeCerts(root), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func term() pki.Validity {
	return pki.Validity{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
}

// Give sets the resources of a type, by name. Call it before Start.
func (p *Plane) Give(typeURL string, resources map[string]proto.Message) {
	p.t.Helper()
	for name, m := range resources {
		a, err := anypb.New(m)
		if err != nil {
			p.t.Fatal(err)
		}
		p.given[typeURL] = append(p.given[typeURL], &discoveryv3.Resource{Name: name, Version: "1", Resource: a})
	}
}

// GiveBytes sets one resource of a type that has no Go message here, encoded. Call it before Start.
func (p *Plane) GiveBytes(typeURL, name string, value []byte) {
	p.given[typeURL] = append(p.given[typeURL], &discoveryv3.Resource{
		Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: typeURL, Value: value},
	})
}

// GiveBootstrap replaces what discovery changes in the bootstrap. Call it before Start, or between Stop and Start.
func (p *Plane) GiveBootstrap(m proto.Message) {
	p.t.Helper()
	delete(p.given, mesh.BootstrapType)
	p.Give(mesh.BootstrapType, map[string]proto.Message{"": m})
}

// Refuse lets requests for certificates fail with an error; nil ends that.
func (p *Plane) Refuse(err error) { p.RefuseAfter(0, err) }

// RefuseAfter is Refuse after so many more requests have been granted.
func (p *Plane) RefuseAfter(granted int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.granted, p.refusal = granted, err
}

// Lifetime sets the lifetime of the certificates to come. It is an hour if this is not called.
func (p *Plane) Lifetime(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lifetime = d
}

// issue is the validity of the next certificate, or the error of Refuse.
func (p *Plane) issue() (pki.Validity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := term()
	if p.lifetime > 0 {
		v.NotAfter = time.Now().Add(p.lifetime)
	}
	if p.granted > 0 {
		p.granted--
		return v, nil
	}
	return v, p.refusal
}

// Start serves until Stop or the test's end.
func (p *Plane) Start() {
	p.t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		p.t.Fatal(err)
	}
	leaf, err := pki.Sign(pki.ServerTemplate([]string{"127.0.0.1"}, term()), p.root, key.Public(), p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.server = grpc.NewServer(grpc.WaitForHandlers(true), grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
	})))
	securityv1.RegisterIstioCertificateServiceServer(p.server, p)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, p)
	p.serving.Go(func() {
		if err := p.server.Serve(l); err != nil {
			p.t.Errorf("serve the control plane: %v", err)
		}
	})
	p.t.Cleanup(p.Stop)
}

// Stop ends every stream and frees the address; Start may follow.
func (p *Plane) Stop() {
	p.server.Stop()
	p.serving.Wait()
}

// CreateCertificate signs the request as it stands.
func (p *Plane) CreateCertificate(ctx context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	validity, err := p.issue()
	if err != nil {
		return nil, err
	}
	csr, err := pki.ParseCSR([]byte(r.GetCsr()))
	if err != nil {
		return nil, err
	}
	if len(csr.URIs) != 1 {
		return nil, errors.New("want one URI")
	}
	id, err := pki.IdentityOf(&x509.Certificate{URIs: csr.URIs})
	if err != nil {
		return nil, err
	}
	template, err := pki.WorkloadTemplate(id, validity)
	if err != nil {
		return nil, err
	}
	leaf, err := pki.Sign(template, p.root, csr.PublicKey, p.key)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.signed++
	p.seen.metadata, _ = metadata.FromIncomingContext(ctx)
	return &securityv1.IstioCertificateResponse{CertChain: []string{string(pki.EncodeCerts(leaf)), string(pki.EncodeCerts(p.root))}}, nil
}

// DeltaAggregatedResources answers each type once, with all that was given of it.
func (p *Plane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	answered := map[string]bool{}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		p.mu.Lock()
		if r.GetNode() != nil {
			p.seen.node = r.GetNode()
		}
		p.mu.Unlock()
		if r.GetTypeUrl() == healthType {
			p.report(r.GetErrorDetail())
			continue
		}
		if answered[r.GetTypeUrl()] {
			continue
		}
		answered[r.GetTypeUrl()] = true
		if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "1", SystemVersionInfo: "1", Resources: p.given[r.GetTypeUrl()]}); err != nil {
			return err
		}
	}
}

// healthType is the type of health reports.
const healthType = "type.googleapis.com/istio.v1.HealthInformation"

func (p *Plane) report(detail *rpcstatus.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := "healthy"
	if detail != nil {
		text = detail.GetMessage()
	}
	p.seen.reports = append(p.seen.reports, text)
}

// Reports are the health reports that were received: healthy, or why not.
func (p *Plane) Reports() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen.reports)
}

// StreamAggregatedResources answers a request for a page about the control plane with its name, and one for a bootstrap with that.
func (p *Plane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	r, err := s.Recv()
	if err != nil {
		return err
	}
	if r.GetTypeUrl() == mesh.BootstrapType {
		answer := &discoveryv3.DiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "1", VersionInfo: "1"}
		for _, given := range p.given[mesh.BootstrapType] {
			answer.Resources = append(answer.Resources, given.GetResource())
		}
		return s.Send(answer)
	}
	body := &anypb.Any{TypeUrl: r.GetTypeUrl(), Value: []byte(strings.Join(r.GetResourceNames(), ","))}
	return s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "1", Resources: []*anypb.Any{body}})
}

// Node is the node of the last Envoy, nil before the first one.
func (p *Plane) Node() *corev3.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.node
}

// Signed returns the number of signed certificates, and the metadata of the last request.
func (p *Plane) Signed() (int, metadata.MD) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.signed, p.seen.metadata
}

// Roots is a pool with the root certificate.
func (p *Plane) Roots() *x509.CertPool { return pki.Pool([]*x509.Certificate{p.root}) }

// ClientCertificate is a certificate of an identity of the mesh.
func (p *Plane) ClientCertificate(namespace, account string) tls.Certificate {
	p.t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		p.t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: mesh.DefaultTrustDomain, Namespace: namespace, ServiceAccount: account}, term())
	if err != nil {
		p.t.Fatal(err)
	}
	leaf, err := pki.Sign(template, p.root, key.Public(), p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
}
