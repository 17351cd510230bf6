// Package authn authenticates the callers of gRPC methods by client certificate or bearer token.
//
// A certificate must have been verified by the TLS layer against the mesh's roots, and a
// token must be signed by the mesh's issuer. Missing and invalid credentials are
// Unauthenticated; valid ones of another trust domain are PermissionDenied. Messages never
// contain a credential.
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

// Verifier verifies bearer tokens, like *Issuer. It must be safe for concurrent use.
type Verifier interface {
	Verify(token string, now time.Time) (Subject, error)
}

// Authenticator authenticates by client certificate, then by bearer token. It is safe for
// concurrent use. [control-plane 1.14.5]
type Authenticator struct {
	trustDomain string
	tokens      Verifier
}

// New creates an Authenticator for a trust domain. With a nil Verifier it rejects all tokens.
func New(trustDomain string, tokens Verifier) *Authenticator {
	return &Authenticator{trustDomain: trustDomain, tokens: tokens}
}

// Authenticate returns the identity of the caller of the gRPC method with context ctx. If the
// certificate is not valid, a valid token is enough; if neither is, the error describes both.
// Errors are gRPC statuses with code Unauthenticated or PermissionDenied.
func (a *Authenticator) Authenticate(ctx context.Context) (mesh.Identity, error) {
	id, _, err := a.AuthenticateUntil(ctx)
	return id, err
}

// AuthenticateUntil is Authenticate for calls that may last longer than the certificate: it also
// returns when the certificate that authenticated the caller expires. The time is zero for a
// token, which authenticates the call that it comes with, however long that takes. With an
// error it is when the certificate expired, zero if there was none or it is invalid otherwise.
func (a *Authenticator) AuthenticateUntil(ctx context.Context) (id mesh.Identity, until time.Time, err error) {
	now := time.Now()
	id, until, certErr := a.fromCertificate(ctx, now)
	if certErr == nil {
		return id, until, nil
	}
	id, tokenErr := a.fromToken(ctx, now)
	if tokenErr == nil {
		return id, time.Time{}, nil
	}
	return mesh.Identity{}, until, statusOf(certErr, tokenErr)
}

// errNone is returned if the call has no credential of a kind.
var errNone = errors.New("none")

// errTrustDomain is returned for a valid certificate of another trust domain.
var errTrustDomain = errors.New("invalid trust domain")

// statusOf combines the errors for the two kinds of credentials.
func statusOf(certErr, tokenErr error) error {
	code := codes.Unauthenticated
	var parts []string
	for _, err := range []error{certErr, tokenErr} {
		if errors.Is(err, errNone) {
			continue
		}
		var t *TokenError
		if errors.Is(err, errTrustDomain) || errors.As(err, &t) && t.Reason == ConflictingClaims {
			code = codes.PermissionDenied
		}
		parts = append(parts, err.Error())
	}
	if parts == nil {
		parts = []string{"no credentials: neither a client certificate nor a bearer token"}
	}
	return status.Error(code, strings.Join(parts, "; "))
}

// fromCertificate returns the caller by the client certificate, and when that expires. If it has
// expired, the time is returned with the error.
func (a *Authenticator) fromCertificate(ctx context.Context, now time.Time) (mesh.Identity, time.Time, error) {
	var none time.Time
	p, ok := peer.FromContext(ctx)
	if !ok {
		return mesh.Identity{}, none, errNone
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	// PeerCertificates are not authenticated; only verified chains are.
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return mesh.Identity{}, none, errNone
	}
	// The connection may last longer than the certificate.
	end := expiry(info.State.VerifiedChains)
	if !now.Before(end) {
		return mesh.Identity{}, end, fmt.Errorf("client certificate: expired: at %s, it is %s", formatTime(end), formatTime(now))
	}
	id, err := pki.IdentityOf(info.State.VerifiedChains[0][0])
	if err != nil {
		return mesh.Identity{}, none, fmt.Errorf("client certificate: %w", err)
	}
	if id.TrustDomain != a.trustDomain {
		return mesh.Identity{}, none, fmt.Errorf("client certificate: %w %q: want %q", errTrustDomain, id.TrustDomain, a.trustDomain)
	}
	return id, end, nil
}

// expiry returns when the last of the chains expires.
func expiry(chains [][]*x509.Certificate) time.Time {
	var last time.Time
	for _, c := range chains {
		if end := pki.ValidityOf(c).NotAfter; end.After(last) {
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
		return mesh.Identity{}, errors.New("bearer token: malformed: want an authorization header of the form Bearer <token>")
	}
	if a.tokens == nil {
		return mesh.Identity{}, errors.New("bearer token: tokens are not accepted")
	}
	s, err := a.tokens.Verify(strings.TrimSpace(token), now)
	if err != nil {
		return mesh.Identity{}, err
	}
	return mesh.Identity{TrustDomain: a.trustDomain, Namespace: s.Namespace, ServiceAccount: s.ServiceAccount}, nil
}
