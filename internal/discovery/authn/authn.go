// Package authn authenticates the callers of gRPC methods by client certificate, bearer token or a gateway's header.
//
// The ways are tried in this order, and the first that succeeds is used: a client certificate that the
// TLS layer has verified against the mesh's roots; a token of an OIDC issuer (JWT_RULE); a token that
// Kubernetes reviews; a token that this control plane has signed; the header x-forwarded-client-cert of
// a gateway at a trusted address. Missing and invalid credentials are Unauthenticated, valid ones of
// another trust domain are PermissionDenied, and tokens that cannot be verified at present are
// Unavailable. An identity of an alias of the trust domain is that of the trust domain. Messages never
// contain a credential.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Verifier verifies bearer tokens, like *Issuer. It must be safe for concurrent use.
type Verifier interface {
	Verify(token string, now time.Time) (Subject, error)
}

// verifier verifies the tokens of one kind of issuer.
type verifier interface {
	// accepts reports whether tokens with this iss claim may be of the issuer.
	accepts(iss string) bool
	// verify returns whose the token is. Its errors are a *TokenError or an *unavailableError.
	verify(ctx context.Context, t *token, now time.Time) (Subject, error)
}

// Authenticator authenticates callers. It is safe for concurrent use. [control-plane 1.14.5]
type Authenticator struct {
	trustDomain string
	// aliases are of the trust domain. The slice is not changed.
	aliases atomic.Pointer[[]string]
	tokens  []verifier // in the order in which they are asked
	// trusted are the addresses of gateways.
	trusted []netip.Prefix
	// used remembers join tokens; nil if none are accepted.
	used Used
	log  *slog.Logger
}

// Option is a further way to authenticate.
type Option func(*Authenticator)

// WithIssuers accepts the tokens of OIDC issuers.
func WithIssuers(s *Issuers) Option {
	return func(a *Authenticator) {
		for _, i := range s.list {
			a.tokens = append(a.tokens, i)
		}
	}
}

// WithReviewers accepts the tokens that Kubernetes says to be for one of the audiences; for none given,
// for istio-ca. The cluster is that of the header clusterid.
func WithReviewers(clusters Reviewers, log *slog.Logger, audiences ...string) Option {
	return func(a *Authenticator) {
		a.tokens = append(a.tokens, &reviewed{clusters: clusters, audiences: orDefault(audiences), log: log, places: make(chan struct{}, maxReviews)})
	}
}

// WithTrustedGateways accepts the header x-forwarded-client-cert of clients with these addresses.
func WithTrustedGateways(at ...netip.Prefix) Option {
	return func(a *Authenticator) { a.trusted = append(a.trusted, at...) }
}

// New creates an Authenticator for a trust domain. It accepts certificates, what the options accept, in
// their order, and tokens that own verifies; own may be nil.
func New(trustDomain string, own Verifier, more ...Option) *Authenticator {
	a := &Authenticator{trustDomain: trustDomain}
	a.aliases.Store(&[]string{})
	for _, o := range more {
		o(a)
	}
	if own != nil {
		a.tokens = append(a.tokens, ownTokens{own})
	}
	return a
}

// ownTokens are the tokens that this control plane has signed.
type ownTokens struct{ issuer Verifier }

// accepts implements verifier.
func (o ownTokens) accepts(iss string) bool { return iss == TokenIssuer }

// verify implements verifier.
func (o ownTokens) verify(_ context.Context, t *token, now time.Time) (Subject, error) {
	return o.issuer.Verify(t.text, now)
}

// SetTrustDomainAliases replaces the names that mean the trust domain too.
func (a *Authenticator) SetTrustDomainAliases(aliases []string) {
	own := slices.Clone(aliases)
	a.aliases.Store(&own)
}

// TrustDomains returns the trust domain, and after it its aliases.
func (a *Authenticator) TrustDomains() []string {
	return append([]string{a.trustDomain}, *a.aliases.Load()...)
}

// caller is who makes a call.
type caller struct {
	id mesh.Identity
	// until is when the certificate expires that authenticated the caller; zero for other credentials.
	until time.Time
	// pod is the Pod that its token is bound to; empty if that is not known.
	pod string
	// join is set if the caller has nothing but a join token.
	join *Join
}

// Authenticate returns the identity of the caller of the gRPC method with context ctx. If the
// certificate is not valid, a valid token is enough; if neither is, the error describes both.
// Errors are gRPC statuses with code Unauthenticated or PermissionDenied.
func (a *Authenticator) Authenticate(ctx context.Context) (mesh.Identity, error) {
	id, _, err := a.AuthenticateUntil(ctx)
	return id, err
}

// AuthenticateUntil is Authenticate for calls that may last longer than the certificate: it also
// returns when the certificate that authenticated the caller expires. The time is zero for other
// credentials, which authenticate the call that they come with, however long that takes. With an
// error it is when the certificate expired, zero if there was none or it is invalid otherwise.
func (a *Authenticator) AuthenticateUntil(ctx context.Context) (id mesh.Identity, until time.Time, err error) {
	c, err := a.authenticate(ctx)
	if err == nil && c.join != nil {
		return mesh.Identity{}, time.Time{}, statusOf(rejected(WrongAudience, "a join token is for a machine's first certificate only (pilot-agent join)"))
	}
	return c.id, c.until, err
}

// AuthenticateForCertificate is Authenticate for requests for certificates, which join tokens are good for. If the caller has
// nothing else, redeem is not nil and must be called with the public key of the request, before anything is signed: it counts the
// use, and returns an error if the token is used up. Its errors are gRPC statuses, too.
func (a *Authenticator) AuthenticateForCertificate(ctx context.Context) (id mesh.Identity, redeem Redeem, err error) {
	c, err := a.authenticate(ctx)
	if err != nil {
		return mesh.Identity{}, nil, err
	}
	redeem, err = a.redeem(c)
	return c.id, redeem, err
}

// authenticate is AuthenticateUntil that returns all that is known of the caller.
func (a *Authenticator) authenticate(ctx context.Context) (caller, error) {
	now := time.Now()
	id, until, certErr := a.fromCertificate(ctx, now)
	if certErr == nil {
		return caller{id: id, until: until}, nil
	}
	s, tokenErr := a.fromToken(ctx, now)
	if tokenErr == nil {
		return caller{id: mesh.Identity{TrustDomain: a.trustDomain, Namespace: s.Namespace, ServiceAccount: s.ServiceAccount}, pod: s.Pod, join: s.Join}, nil
	}
	id, gatewayErr := a.fromGateway(ctx)
	if gatewayErr == nil {
		return caller{id: id}, nil
	}
	return caller{until: until}, statusOf(certErr, tokenErr, gatewayErr)
}

// errNone is returned if the call has no credential of a kind.
var errNone = errors.New("none")

// errTrustDomain is returned for a valid identity of another trust domain.
var errTrustDomain = errors.New("invalid trust domain")

// statusOf combines the errors of all ways. A caller whose token cannot be verified at present may try
// again, whatever its other credentials are.
func statusOf(errs ...error) error {
	code := codes.Unauthenticated
	var parts []string
	for _, err := range errs {
		if errors.Is(err, errNone) {
			continue
		}
		var t *TokenError
		switch {
		case errors.As(err, new(*unavailableError)):
			code = codes.Unavailable
		case code != codes.Unavailable && (errors.Is(err, errTrustDomain) || errors.As(err, &t) && t.Reason == ConflictingClaims):
			code = codes.PermissionDenied
		}
		parts = append(parts, err.Error())
	}
	if parts == nil {
		parts = []string{"no credentials: neither a client certificate nor a bearer token"}
	}
	return status.Error(code, strings.Join(parts, "; "))
}

// inMesh returns an identity with the mesh's trust domain, which may have an alias.
func (a *Authenticator) inMesh(id mesh.Identity) (mesh.Identity, error) {
	if known := a.TrustDomains(); !slices.Contains(known, id.TrustDomain) {
		return mesh.Identity{}, fmt.Errorf("%w %q: want %s", errTrustDomain, id.TrustDomain, quoteAll(known))
	}
	id.TrustDomain = a.trustDomain
	return id, nil
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
	if id, err = a.inMesh(id); err != nil {
		return mesh.Identity{}, none, fmt.Errorf("client certificate: %w", err)
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

// fromToken returns whose the bearer token is.
func (a *Authenticator) fromToken(ctx context.Context, now time.Time) (Subject, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	switch {
	case len(values) == 0:
		return Subject{}, errNone
	case len(values) > 1:
		return Subject{}, rejected(Malformed, "more than one authorization header")
	}
	scheme, text, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Subject{}, rejected(Malformed, "want an authorization header of the form Bearer <token>")
	}
	if len(a.tokens) == 0 {
		return Subject{}, errors.New("bearer token: tokens are not accepted")
	}
	t, err := parseToken(strings.TrimSpace(text))
	if err != nil {
		return Subject{}, err
	}
	for _, v := range a.tokens {
		if !v.accepts(t.claimed.Issuer) {
			continue
		}
		s, wrong := v.verify(ctx, t, now)
		if wrong == nil {
			return s, nil
		}
		if err == nil {
			err = wrong
		} else {
			err = fmt.Errorf("%w; %w", err, wrong)
		}
	}
	if err == nil {
		err = rejected(WrongIssuer, "%s is not accepted (JWT_RULE)", printable.Quote(t.claimed.Issuer, maxShown))
	}
	return Subject{}, err
}

// fromGateway returns the identity that a gateway at a trusted address has authenticated.
func (a *Authenticator) fromGateway(ctx context.Context) (mesh.Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("x-forwarded-client-cert")
	// The header of somebody else means nothing: sidecars add it to each request.
	if len(values) == 0 || !a.trusts(ctx) {
		return mesh.Identity{}, errNone
	}
	id, err := forwardedIdentity(values)
	if err == nil {
		id, err = a.inMesh(id)
	}
	if err != nil {
		return mesh.Identity{}, fmt.Errorf("x-forwarded-client-cert: %w", err)
	}
	return id, nil
}

// trusts reports whether the call comes from the address of a trusted gateway.
func (a *Authenticator) trusts(ctx context.Context) bool {
	from, ok := addressOf(ctx)
	return ok && slices.ContainsFunc(a.trusted, func(p netip.Prefix) bool { return p.Contains(from) })
}

// addressOf returns the IP address of the caller.
func addressOf(ctx context.Context) (netip.Addr, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}, false
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	return at.Addr().Unmap().WithZone(""), err == nil
}

// clusterOf returns the cluster that the caller says its token to be of.
func clusterOf(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	switch values := md.Get("clusterid"); len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", rejected(Malformed, "more than one clusterid header")
}
