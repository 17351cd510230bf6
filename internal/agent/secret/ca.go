package secret

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxToken bounds the token file, in bytes.
const maxToken = 64 << 10

// bufferSize is that of the connection's buffers: what passes is a few kilobytes.
const bufferSize = 4 << 10

// SystemRoots as a root file stands for the operating system's roots. [agent E11]
const SystemRoots = "SYSTEM"

// CAOptions say where the CA is and what to show it. Files are read at each call, so
// that rotated ones count, and a missing one is an error of the call, never of the start.
type CAOptions struct {
	// Address is host:port. Port 15010 is spoken to in plaintext. [agent S8]
	Address string
	// RootFile holds the roots that the CA's server certificate must lead to.
	RootFile string
	// ServerName is the name that certificate must have; empty means Address's host.
	ServerName string
	// TokenFile holds the bearer token; it need not exist where there is a certificate.
	TokenFile string
	// ClusterID and Headers go with each call. [agent S6]
	ClusterID string
	Headers   map[string]string
	// CertSigner asks a CA with several signers for one. [agent E8]
	CertSigner string
	// Certificate offers a client certificate (tls.Config.GetClientCertificate); may be nil.
	Certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
}

// CA asks a certificate authority over gRPC. It keeps no connection between calls: they
// are half a day apart, and a new one sees new roots, addresses and certificates.
type CA struct{ options CAOptions }

// NewCA makes a client; it touches nothing yet.
func NewCA(o CAOptions) *CA { return &CA{options: o} }

// Sign is Signer's one method, by istio.v1.auth.IstioCertificateService. [agent S4, S5]
func (c *CA) Sign(ctx context.Context, csr []byte, ttl time.Duration) (chain, roots []byte, err error) {
	creds, err := c.credentials()
	if err != nil {
		return nil, nil, err
	}
	// The address is dialled as it is and without a proxy: the CA is part of the mesh.
	conn, err := grpc.NewClient("passthrough:///"+c.options.Address, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize))
	if err != nil {
		return nil, nil, fmt.Errorf("ask CA %s: %w", c.options.Address, err)
	}
	defer conn.Close()
	ctx, err = c.withHeaders(ctx)
	if err != nil {
		return nil, nil, err
	}
	r := &securityv1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: int64(ttl / time.Second)}
	if c.options.CertSigner != "" {
		r.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CertSigner": structpb.NewStringValue(c.options.CertSigner)}}
	}
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, r)
	if err != nil {
		return nil, nil, fmt.Errorf("ask CA %s: %w", c.options.Address, err)
	}
	certs := answer.GetCertChain()
	if len(certs) < 2 {
		return nil, nil, fmt.Errorf("ask CA %s: a chain of %d, want leaf and root at least", c.options.Address, len(certs))
	}
	return []byte(strings.Join(certs, "\n")), []byte(certs[len(certs)-1]), nil
}

func (c *CA) credentials() (credentials.TransportCredentials, error) {
	if strings.HasSuffix(c.options.Address, ":15010") {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.options.ServerName, GetClientCertificate: c.options.Certificate}
	if c.options.RootFile != SystemRoots {
		text, err := os.ReadFile(c.options.RootFile)
		if err != nil {
			return nil, fmt.Errorf("read the CA's root certificate: %w", err)
		}
		roots, err := pki.ParseBundle(text)
		if err != nil {
			return nil, fmt.Errorf("read the CA's root certificate %s: %w", c.options.RootFile, err)
		}
		config.RootCAs = pki.Pool(roots)
	}
	return credentials.NewTLS(config), nil
}

// withHeaders adds what goes with a call; the token is read afresh. [agent S6]
func (c *CA) withHeaders(ctx context.Context) (context.Context, error) {
	md := metadata.MD{}
	for k, v := range c.options.Headers {
		md.Set(k, v)
	}
	if c.options.ClusterID != "" {
		md.Set("clusterid", c.options.ClusterID)
	}
	token, err := readToken(c.options.TokenFile)
	switch {
	case err == nil:
		md.Set("authorization", "Bearer "+token)
	case !c.certified():
		return nil, err
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

// certified says whether a client certificate would be offered.
func (c *CA) certified() bool {
	if c.options.Certificate == nil {
		return false
	}
	cert, err := c.options.Certificate(&tls.CertificateRequestInfo{})
	return err == nil && len(cert.Certificate) > 0
}

func readToken(path string) (string, error) {
	if path == "" {
		return "", errors.New("read token: no file is named")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || len(text) > maxToken || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("read token %s: it is empty, too long or of several lines", path)
	}
	return token, nil
}
