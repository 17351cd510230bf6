// Package ca is the mesh's certificate authority: it keeps the root and signs certificates for authenticated callers over gRPC.
//
// A certificate has the identity of the authenticated caller, and only what the package policy approves
// is signed. Errors are gRPC statuses: InvalidArgument for an invalid request, ResourceExhausted for a
// large one, PermissionDenied for one that asks for what the caller may not have, those of the
// authenticator, and FailedPrecondition if the root has expired.
package ca

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Authenticator authenticates the caller of a gRPC method. Its errors are gRPC statuses.
type Authenticator interface {
	// AuthenticateForCertificate returns the caller. If redeem is not nil, it is called with the public key of the request, in
	// the form of its certificate, once the request is approved; nothing is signed if it returns an error, a gRPC status.
	AuthenticateForCertificate(ctx context.Context) (id mesh.Identity, redeem func(ctx context.Context, publicKey []byte) error, err error)
	// TrustDomains returns the trust domain of identities and its aliases.
	TrustDomains() []string
}

// Server implements istio.v1.auth.IstioCertificateService. It is safe for concurrent use.
// [control-plane 1.14.1]
type Server struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	authority *Authority
	auth      Authenticator
	limits    policy.Limits
	log       *slog.Logger
	metrics   metrics
	issued    issued
}

// New creates a server. Register adds it to a gRPC server.
func New(authority *Authority, auth Authenticator, limits policy.Limits, log *slog.Logger) *Server {
	return &Server{authority: authority, auth: auth, limits: limits, log: log}
}

// Register adds the service to a gRPC server, which should use TLS, since clients send bearer tokens.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&service, s)
}

// CreateCertificate signs a certificate for the caller and returns the chain, each element in PEM: the
// leaf, the issuer's intermediates, and the trust bundle, which may be several certificates.
func (s *Server) CreateCertificate(ctx context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	s.metrics.requests.Add(1)
	caller, redeem, err := s.auth.AuthenticateForCertificate(ctx)
	if status.Code(err) == codes.ResourceExhausted {
		return nil, err // the authenticator counts and logs it: there may be very many
	}
	if err == nil {
		err = refuseImpersonation(r)
	}
	if err != nil {
		s.metrics.unauthenticated.Add(1)
		s.log.Warn("certificate request denied", "reason", err)
		return nil, err
	}
	if err := refuseSigner(r); err != nil {
		s.metrics.parseErrors.Add(1)
		s.log.Warn("certificate request denied", "caller", caller, "reason", err)
		return nil, err
	}
	chain, err := s.issue(ctx, redeem, policy.Request{Caller: caller, CSR: []byte(r.GetCsr()), TTL: seconds(r.GetValidityDuration()), TrustDomains: s.auth.TrustDomains()})
	if err != nil {
		s.log.Warn("certificate request denied", "caller", caller, "reason", err)
		return nil, err
	}
	s.metrics.issued.Add(1)
	return &securityv1.IstioCertificateResponse{CertChain: chain}, nil
}

// issue returns the response's chain. Issuer and trust bundle in it are of one state.
func (s *Server) issue(ctx context.Context, redeem func(context.Context, []byte) error, r policy.Request) ([]string, error) {
	state := s.authority.State()
	now := time.Now()
	approval, err := policy.Workload(r, s.limits, state.Issuer.Validity(), now)
	if errors.Is(err, policy.ErrIssuer) {
		s.metrics.signErrors.Add(1)
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if errors.Is(err, policy.ErrNames) {
		s.metrics.idErrors.Add(1)
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	if err != nil {
		s.metrics.parseErrors.Add(1)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if redeem != nil {
		key, err := approval.PublicKey()
		if err != nil {
			s.metrics.parseErrors.Add(1)
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		if err := redeem(ctx, key); err != nil {
			s.metrics.unauthenticated.Add(1)
			return nil, err
		}
	}
	cert, err := state.Issuer.Sign(approval)
	if err != nil {
		s.metrics.signErrors.Add(1)
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.issued.note(ctx, r.Caller, cert)
	s.authority.noteIssued(state.Issuer.Root(), cert.NotAfter)
	s.log.Info("certificate issued", "identity", r.Caller, "serial", cert.SerialNumber, "until", cert.NotAfter, "root", pki.Fingerprint(state.Issuer.Root())[:16])
	chain := []string{string(pki.EncodeCerts(cert))}
	for _, c := range state.Issuer.Intermediates() {
		chain = append(chain, string(pki.EncodeCerts(c)))
	}
	return append(chain, string(state.RootsPEM())), nil
}

// seconds returns n seconds, limited to what a Duration can hold, and 0 if n is negative.
func seconds(n int64) time.Duration {
	return time.Duration(max(0, min(n, math.MaxInt64/int64(time.Second)))) * time.Second
}
