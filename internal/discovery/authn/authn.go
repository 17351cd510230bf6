// Package authn says who makes a gRPC call, from a client certificate or a bearer token.
//
// The contract: an identity is returned only when it is proven; a certificate counts
// when the TLS layer verified it against this mesh's roots, a token when this mesh's
// issuer signed it. What is missing or not valid is Unauthenticated, what is valid but
// belongs elsewhere is PermissionDenied; messages say why and never repeat a credential.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Verifier checks bearer tokens; *Issuer is one.
type Verifier interface {
	Verify(token string, now time.Time) (Subject, error)
}

// Authenticator tries a call's credentials in order: client certificate, then bearer
// token. [control-plane 1.14.5] Any goroutine may use it.
type Authenticator struct {
	trustDomain string
	tokens      Verifier
}

// New makes an authenticator for one trust domain. A nil verifier takes no tokens.
func New(trustDomain string, tokens Verifier) *Authenticator {
	return &Authenticator{trustDomain: trustDomain, tokens: tokens}
}

// Authenticate says who makes the call that ctx belongs to. A certificate that is not
// good leaves the word to the token; the error then tells of both. Errors are gRPC
// statuses.
func (a *Authenticator) Authenticate(ctx context.Context) (mesh.Identity, error) {
	now := time.Now()
	id, certErr := a.fromCertificate(ctx, now)
	if certErr == nil {
		return id, nil
	}
	id, tokenErr := a.fromToken(ctx, now)
	if tokenErr == nil {
		return id, nil
	}
	return mesh.Identity{}, refusal(certErr, tokenErr)
}

// errNone says that a kind of credential is not there at all.
var errNone = errors.New("none")

// errElsewhere is a credential that is good, but not here.
var errElsewhere = errors.New("not of this mesh")

func refusal(certErr, tokenErr error) error {
	code := codes.Unauthenticated
	var parts []string
	for _, err := range []error{certErr, tokenErr} {
		if errors.Is(err, errNone) {
			continue
		}
		var t *TokenError
		if errors.Is(err, errElsewhere) || errors.As(err, &t) && t.Reason == Contradiction {
			code = codes.PermissionDenied
		}
		parts = append(parts, err.Error())
	}
	if parts == nil {
		parts = []string{"no credentials: neither a client certificate nor a bearer token"}
	}
	return status.Error(code, strings.Join(parts, "; "))
}

func (a *Authenticator) fromCertificate(ctx context.Context, now time.Time) (mesh.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return mesh.Identity{}, errNone
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	// Only verified chains count: what a peer merely showed proves nothing.
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return mesh.Identity{}, errNone
	}
	// A connection may outlive the certificate that it was made with.
	if end := endOf(info.State.VerifiedChains); !now.Before(end) {
		return mesh.Identity{}, fmt.Errorf("client certificate: expired: at %s, it is %s", stamp(end), stamp(now))
	}
	id, err := pki.IdentityOf(info.State.VerifiedChains[0][0])
	if err != nil {
		return mesh.Identity{}, fmt.Errorf("client certificate: %w", err)
	}
	if id.TrustDomain != a.trustDomain {
		return mesh.Identity{}, fmt.Errorf("client certificate: %w: trust domain %q, this is %q", errElsewhere, id.TrustDomain, a.trustDomain)
	}
	return id, nil
}

// endOf is the moment after which no chain is good any more.
func endOf(chains [][]*x509.Certificate) time.Time {
	var last time.Time
	for _, c := range chains {
		if end := pki.TermOf(c).NotAfter; end.After(last) {
			last = end
		}
	}
	return last
}

func (a *Authenticator) fromToken(ctx context.Context, now time.Time) (mesh.Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	switch {
	case len(values) == 0:
		return mesh.Identity{}, errNone
	case len(values) > 1:
		return mesh.Identity{}, errors.New("bearer token: malformed: more than one authorization header")
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return mesh.Identity{}, errors.New("bearer token: malformed: the authorization header is not of the form Bearer <token>")
	}
	if a.tokens == nil {
		return mesh.Identity{}, errors.New("bearer token: none are taken here")
	}
	s, err := a.tokens.Verify(strings.TrimSpace(token), now)
	if err != nil {
		return mesh.Identity{}, err
	}
	return mesh.Identity{TrustDomain: a.trustDomain, Namespace: s.Namespace, ServiceAccount: s.ServiceAccount}, nil
}
