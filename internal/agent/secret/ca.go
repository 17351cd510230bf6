package secret

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"
)

// bufferSize is the size of the connection's buffers in bytes: a message has a few kilobytes.
const bufferSize = 4 << 10

// Upstream makes connections to the certificate authority; upstream.Server does. [agent S6, S8]
type Upstream interface {
	Address() string
	Connect(failed func(error), opts ...grpc.DialOption) (*grpc.ClientConn, error)
}

// CA is a client of a certificate authority over gRPC. It keeps no connection between calls: they
// are half a day apart, and a new connection uses the current roots, addresses and certificates.
type CA struct {
	upstream Upstream
	signer   string
}

// NewCA makes a client, which connects at each call. signer, if not empty, selects one of
// the signers of the CA. [agent E8]
func NewCA(u Upstream, signer string) *CA { return &CA{upstream: u, signer: signer} }

// Sign implements Signer by istio.v1.auth.IstioCertificateService. [agent S4, S5]
func (c *CA) Sign(ctx context.Context, csr []byte, ttl time.Duration) (chain, roots []byte, err error) {
	conn, err := c.upstream.Connect(nil, grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize))
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	r := &securityv1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: int64(ttl / time.Second)}
	if c.signer != "" {
		r.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CertSigner": structpb.NewStringValue(c.signer)}}
	}
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, r)
	if err != nil {
		return nil, nil, fmt.Errorf("request a certificate from CA %s: %w", c.upstream.Address(), err)
	}
	certs := answer.GetCertChain()
	if len(certs) < 2 {
		return nil, nil, fmt.Errorf("request a certificate from CA %s: invalid chain of %d certificates: want at least leaf and root", c.upstream.Address(), len(certs))
	}
	return []byte(strings.Join(certs, "\n")), []byte(certs[len(certs)-1]), nil
}
