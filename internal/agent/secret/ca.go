package secret

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"
)

const (
	// bufferSize is the size of the connection's buffers in bytes: a message has a few kilobytes.
	bufferSize = 4 << 10
	// maxAnswer bounds a response, in bytes.
	maxAnswer = 1 << 20
	// callTimeout bounds one call to one address, connection included.
	callTimeout = 10 * time.Second
)

// Upstream makes connections to the certificate authority; upstream.Server does. [agent S6, S8]
type Upstream interface {
	Address() string
	Connect(failed func(error), opts ...grpc.DialOption) (*grpc.ClientConn, error)
}

// CA is a client of a certificate authority over gRPC. It keeps no connection between calls: they
// are half a day apart, and a new connection uses the current roots, addresses and certificates.
// Its methods may be called by several goroutines.
type CA struct {
	upstreams []Upstream
	signer    string
	last      atomic.Int64 // the index of the upstream that answered last
}

// NewCA makes a client of a CA at one or more addresses, which connects at each call. signer, if not empty,
// selects one of the signers of the CA. [agent E8]
func NewCA(upstreams []Upstream, signer string) *CA { return &CA{upstreams: upstreams, signer: signer} }

// Address is the address that answered last, the first one before that.
func (c *CA) Address() string { return c.upstreams[c.last.Load()].Address() }

// Sign implements Signer by istio.v1.auth.IstioCertificateService. It begins with the address that answered last, and
// tries the next one if there is no answer; a refusal is an answer. [agent S4, S5]
func (c *CA) Sign(ctx context.Context, csr []byte, ttl time.Duration) (chain, roots []byte, err error) {
	var reasons []string
	first := int(c.last.Load())
	for i := range c.upstreams {
		at := (first + i) % len(c.upstreams)
		chain, roots, err = c.ask(ctx, c.upstreams[at], csr, ttl)
		if err == nil || !unanswered(err) {
			c.last.Store(int64(at))
		}
		if err == nil {
			return chain, roots, nil
		}
		reasons = append(reasons, err.Error())
		if !unanswered(err) || ctx.Err() != nil {
			break
		}
	}
	if len(reasons) > 1 {
		return nil, nil, errors.New(strings.Join(reasons, "; "))
	}
	return nil, nil, err
}

// unanswered reports whether another address may answer. The codes are those on which Istio tries again. [agent S7]
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Internal, codes.Unavailable:
		return true
	}
	return false
}

// ask makes one call to one address.
func (c *CA) ask(ctx context.Context, u Upstream, csr []byte, ttl time.Duration) (chain, roots []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := u.Connect(nil, grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
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
		return nil, nil, fmt.Errorf("request a certificate from CA %s: %w", u.Address(), err)
	}
	certs := answer.GetCertChain()
	if len(certs) < 2 {
		return nil, nil, fmt.Errorf("request a certificate from CA %s: invalid chain of %d certificates: want at least leaf and root", u.Address(), len(certs))
	}
	return []byte(strings.Join(certs, "\n")), []byte(certs[len(certs)-1]), nil
}
