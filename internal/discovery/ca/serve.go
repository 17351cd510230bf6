// Package ca is the mesh's certificate authority: it keeps the root, and signs certificates over gRPC for callers that prove who they are.
//
// The contract: a certificate names its authenticated caller and nobody else; only what
// policy.go approved is ever signed; private keys of workloads never arrive here and the
// root's never leaves. Refusals carry a gRPC code and say why: InvalidArgument for the
// request, Unauthenticated or PermissionDenied as the authenticator says,
// FailedPrecondition where the root itself has ended.
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

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Authenticator says who makes a call. Its errors carry gRPC codes.
type Authenticator interface {
	Authenticate(ctx context.Context) (mesh.Identity, error)
}

// Server answers istio.v1.auth.IstioCertificateService. [control-plane 1.14.1]
type Server struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	authority *Authority
	auth      Authenticator
	limits    Limits
	log       *slog.Logger
	metrics   metrics
}

// New makes a server; Register puts it on a gRPC server.
func New(authority *Authority, auth Authenticator, limits Limits, log *slog.Logger) *Server {
	return &Server{authority: authority, auth: auth, limits: limits, log: log}
}

// Register puts the service on a gRPC server (the secure one: bearer tokens come here).
func (s *Server) Register(r grpc.ServiceRegistrar) {
	securityv1.RegisterIstioCertificateServiceServer(r, s)
}

// CreateCertificate signs a certificate for the caller. The answer is the chain, leaf
// first, root last.
func (s *Server) CreateCertificate(ctx context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	s.metrics.requests.Add(1)
	caller, err := s.auth.Authenticate(ctx)
	if err != nil {
		s.metrics.unauthenticated.Add(1)
		s.log.Warn("certificate refused", "reason", err)
		return nil, err
	}
	cert, err := s.issue(request{caller: caller, csr: []byte(r.GetCsr()), ttl: seconds(r.GetValidityDuration())})
	if err != nil {
		s.log.Warn("certificate refused", "caller", caller, "reason", err)
		return nil, err
	}
	s.metrics.issued.Add(1)
	return &securityv1.IstioCertificateResponse{CertChain: []string{cert, string(s.authority.RootPEM())}}, nil
}

func (s *Server) issue(r request) (string, error) {
	root := s.authority.cert
	ok, err := decide(r, s.limits, pki.Term{NotBefore: root.NotBefore, NotAfter: root.NotAfter}, time.Now())
	if errors.Is(err, errSigner) {
		s.metrics.signErrors.Add(1)
		return "", status.Error(codes.FailedPrecondition, err.Error())
	}
	if err != nil {
		s.metrics.parseErrors.Add(1)
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	cert, err := s.authority.sign(ok)
	if err != nil {
		s.metrics.signErrors.Add(1)
		return "", status.Error(codes.Internal, err.Error())
	}
	s.log.Info("certificate issued", "identity", r.caller, "serial", cert.SerialNumber, "until", cert.NotAfter, "root", pki.Fingerprint(root)[:16])
	return string(pki.EncodeCerts(cert)), nil
}

// seconds reads a duration without overflow; below zero is zero, "none asked for".
func seconds(n int64) time.Duration {
	return time.Duration(max(0, min(n, math.MaxInt64/int64(time.Second)))) * time.Second
}
