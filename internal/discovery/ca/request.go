package ca

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxRequest bounds a message, in bytes: a signing request of the greatest size, and metadata.
const maxRequest = 4 * pki.MaxCSR

// impersonated is the key in a request's metadata by which Istio's node proxies ask for the certificates of others.
const impersonated = "ImpersonatedIdentity"

// otherSigner is the key in a request's metadata by which Istio's agents choose among the signers of an external CA. They
// always send it, with an empty text by default.
const otherSigner = "CertSigner"

// service is the generated description of the service with a handler that bounds requests.
var service = grpc.ServiceDesc{
	ServiceName: "istio.v1.auth.IstioCertificateService",
	HandlerType: (*securityv1.IstioCertificateServiceServer)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "CreateCertificate",
		Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			return srv.(*Server).receive(ctx, decode, intercept)
		},
	}},
	Metadata: "security/v1alpha1/ca.proto",
}

// receive handles a call of CreateCertificate. The server's limit is that of configuration streams, and
// a message of that size with a Struct takes fifty times its size when it is decoded, whoever sends
// it. So it is decoded in two steps: the first leaves its fields as they are, since Empty has none.
func (s *Server) receive(ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
	var raw emptypb.Empty
	if err := decode(&raw); err != nil {
		return nil, err
	}
	text := raw.ProtoReflect().GetUnknown()
	if len(text) > maxRequest {
		s.metrics.requests.Add(1)
		s.metrics.parseErrors.Add(1)
		return nil, status.Errorf(codes.ResourceExhausted, "request of %d bytes: want at most %d", len(text), maxRequest)
	}
	var r securityv1.IstioCertificateRequest
	if err := proto.Unmarshal(text, &r); err != nil {
		s.metrics.requests.Add(1)
		s.metrics.parseErrors.Add(1)
		return nil, status.Error(codes.InvalidArgument, "invalid message: want an IstioCertificateRequest")
	}
	handle := func(ctx context.Context, r any) (any, error) {
		return s.CreateCertificate(ctx, r.(*securityv1.IstioCertificateRequest))
	}
	if intercept == nil {
		return handle(ctx, &r)
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: securityv1.IstioCertificateService_CreateCertificate_FullMethodName}
	return intercept(ctx, &r, info, handle)
}

// refuseSigner returns an error for a request that names a signer: it would get a certificate below another
// root than its peers expect.
func refuseSigner(r *securityv1.IstioCertificateRequest) error {
	value, has := r.GetMetadata().GetFields()[otherSigner]
	name, isText := value.GetKind().(*structpb.Value_StringValue)
	switch {
	case !has || isText && name.StringValue == "":
		return nil
	case !isText:
		return status.Errorf(codes.InvalidArgument, "metadata has an invalid %s: want a string", otherSigner)
	}
	return status.Errorf(codes.InvalidArgument, "metadata has %s %.253q: this CA has no other signers: unset ISTIO_META_CERT_SIGNER", otherSigner, name.StringValue)
}

// refuseImpersonation returns an error for a request that names another caller.
func refuseImpersonation(r *securityv1.IstioCertificateRequest) error {
	if _, has := r.GetMetadata().GetFields()[impersonated]; has {
		return status.Errorf(codes.PermissionDenied, "metadata has %s: nobody may ask for the certificates of others", impersonated)
	}
	return nil
}
