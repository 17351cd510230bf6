package cluster

import (
	"crypto/tls"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	tlsSocket = "envoy.transport_sockets.tls"
	rawSocket = "envoy.transport_sockets.raw_buffer"
	// alpnMesh means mutual TLS of the mesh with a protocol that is not HTTP. Istio's
	// istio-peer-exchange is never offered: a server that selects it sends a metadata preamble, which
	// stock Envoy would forward to the application.
	alpnMesh = "istio"
	// alpnMeshH2 means that HTTP/2 follows. A server that is a gRPC library requires that alpnH2 is negotiated.
	alpnMeshH2 = "istio-h2"
	alpnH2     = "h2"
)

// OwnALPN reports whether a cluster's TLS is to offer its own ALPN, and not that of the HTTP filter, with which a server may take
// the connection for HTTP/1.1: if it is ordinary TLS, or connections always are HTTP/2.
func OwnALPN(p mesh.Protocol, policy *networking.TrafficPolicy, m *meshv1.MeshConfig) bool {
	return OrdinaryTLS(policy) || version(p, policy.GetConnectionPool().GetHttp(), m, false) == http2
}

// OrdinaryTLS reports whether the policy originates TLS that is not the mesh's (mode SIMPLE or MUTUAL).
// Such a server must not be offered the mesh's ALPN, so that routes to the cluster disable the ALPN
// filter.
func OrdinaryTLS(p *networking.TrafficPolicy) bool {
	m := p.GetTls().GetMode()
	return m == networking.ClientTLSSettings_SIMPLE || m == networking.ClientTLSSettings_MUTUAL
}

// setTLS sets the transport sockets. It returns false if the policy requires TLS that cannot be
// configured, so that the caller closes the cluster.
func setTLS(c *clusterv3.Cluster, in Input, o *options) bool {
	t := in.Policy.GetTls()
	switch {
	case in.TLS != nil:
		if in.TLS.Closed {
			return false
		}
		c.TransportSocket = socket(backendContext(in, o))
		c.Metadata.FilterMetadata[metadataKey].Fields["alpn_override"] = structpb.NewStringValue("false")
	case t == nil:
		// An ORIGINAL_DST cluster has no endpoint metadata to match the transport socket by, as little as one that resolves names of requests.
		if in.AutoMTLS && c.GetType() != clusterv3.Cluster_ORIGINAL_DST && c.GetClusterType() == nil {
			c.TransportSocketMatches = autoMatches(meshSocket(in, nil, o))
		}
	case t.Mode == networking.ClientTLSSettings_ISTIO_MUTUAL:
		c.TransportSocket = meshSocket(in, t, o)
	case OrdinaryTLS(in.Policy):
		ctx, ok := ordinaryContext(in, t, o)
		if !ok {
			return false
		}
		c.TransportSocket = socket(ctx)
		c.Metadata.FilterMetadata[metadataKey].Fields["alpn_override"] = structpb.NewStringValue("false")
	case t.Mode != networking.ClientTLSSettings_DISABLE:
		return false // an unknown mode, which package config rejects
	}
	return true
}

// autoMatches selects mutual TLS for endpoints with that metadata, plaintext for the others.
// [control-plane 1.12.13]
func autoMatches(mutual *corev3.TransportSocket) []*clusterv3.Cluster_TransportSocketMatch {
	return []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: stringStruct(tlsMode, modeIstio), TransportSocket: mutual},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: &corev3.TransportSocket{
			Name:       rawSocket,
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: rawBufferURL}},
		}},
	}
}

// rawBufferURL is the type of a transport socket for plaintext, which has no fields.
var rawBufferURL = marshal.TypeURL(&rawv3.RawBuffer{})

func socket(ctx *tlsv3.UpstreamTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: marshal.MustAny(ctx)}}
}

// meshSocket returns the client side of the mesh's mutual TLS, with the workload's certificate and the
// mesh's roots, and verification of the server's identity.
func meshSocket(in Input, t *networking.ClientTLSSettings, o *options) *corev3.TransportSocket {
	names := t.GetSubjectAltNames()
	if len(names) == 0 {
		names = in.SANs
	}
	sni := t.GetSni()
	if sni == "" {
		sni = SNI(in.Port, in.Subset, in.Service.Host)
	}
	alpn := meshALPN
	if o.version == http2 {
		alpn = meshALPNOverHTTP2
	}
	server := marshal.Must(&tlsv3.CommonTlsContext_CombinedCertificateValidationContext{DefaultValidationContext: validation(names)})
	common := marshal.Must(&tlsv3.CommonTlsContext{TlsParams: TLSParams(in.Mesh.GetMeshMTLS(), in.Caps)})
	common = appendField(append(common, alpn...), combinedField, server, meshRoots)
	value := appendField(make([]byte, 0, len(common)+len(sni)+16), upstreamCommonField, common)
	value = appendField(value, upstreamSNIField, []byte(sni))
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: upstreamURL, Value: value}}}
}

// What meshSocket encodes itself, as marshal.Must would, so that what all clusters have in common is encoded once.
const (
	upstreamCommonField = 1 // of UpstreamTlsContext
	upstreamSNIField    = 2
	combinedField       = 8 // of CommonTlsContext
)

var (
	upstreamURL = marshal.TypeURL(&tlsv3.UpstreamTlsContext{})
	// meshALPN is an encoded CommonTlsContext without the fields before and after the ALPN and the certificate.
	meshALPN          = ownSide(alpnMesh)
	meshALPNOverHTTP2 = ownSide(alpnMeshH2, alpnMesh, alpnH2)
	// meshRoots is what follows the names of a server in its encoded validation context.
	meshRoots = marshal.Must(&tlsv3.CommonTlsContext_CombinedCertificateValidationContext{ValidationContextSdsSecretConfig: Secret(mesh.SecretRoot, 0)})
)

func ownSide(alpn ...string) []byte {
	return marshal.Must(&tlsv3.CommonTlsContext{AlpnProtocols: alpn, TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{Secret(mesh.SecretDefault, 0)}})
}

// appendField appends a field whose value consists of parts.
func appendField(b []byte, field protowire.Number, parts ...[]byte) []byte {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(size))
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// ordinaryContext returns TLS to a server outside the mesh. It returns false if the certificate or the
// key is missing in mode MUTUAL, or if there is a credentialName that the proxy is not for. [control-plane 1.8.10]
func ordinaryContext(in Input, t *networking.ClientTLSSettings, o *options) (*tlsv3.UpstreamTlsContext, bool) {
	if t.CredentialName != "" && !in.Credentials {
		return nil, false
	}
	common := &tlsv3.CommonTlsContext{TlsParams: TLSParams(in.Mesh.GetTlsDefaults(), in.Caps)}
	if o.version == http2 {
		common.AlpnProtocols = []string{alpnH2}
	}
	if t.Mode == networking.ClientTLSSettings_MUTUAL {
		name := mesh.SecretFileCert + t.ClientCertificate + "~" + t.PrivateKey
		switch {
		case t.CredentialName != "":
			name = CredentialSecret(t.CredentialName)
		case t.ClientCertificate == "" || t.PrivateKey == "":
			return nil, false
		}
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{Secret(name, in.Caps)}
	}
	insecure, names := t.GetInsecureSkipVerify().GetValue(), t.SubjectAltNames
	if len(names) == 0 {
		names = in.Declared
	}
	if !insecure {
		root := mesh.SecretSystemRoot
		switch {
		case t.CredentialName != "":
			root = CredentialSecret(t.CredentialName) + credentials.CASuffix
		case t.CaCertificates != "":
			root = mesh.SecretFileRoot + t.CaCertificates
		}
		common.ValidationContextType = combined(root, names, t.CaCrl, in.Caps)
	}
	if t.Sni == "" && (in.Protocol.IsHTTP() || in.Protocol == mesh.Auto) {
		o.auto = &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: !insecure && len(names) == 0}
	}
	return &tlsv3.UpstreamTlsContext{Sni: t.Sni, CommonTlsContext: common}, true
}

// backendContext returns TLS as a BackendTLSPolicy says.
func backendContext(in Input, o *options) *tlsv3.UpstreamTlsContext {
	common := &tlsv3.CommonTlsContext{TlsParams: TLSParams(in.Mesh.GetTlsDefaults(), in.Caps)}
	if o.version == http2 {
		common.AlpnProtocols = []string{alpnH2}
	}
	if in.TLS.Certificate != "" {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{Secret(in.TLS.Certificate, in.Caps)}
	}
	v := &tlsv3.CertificateValidationContext{}
	add := func(kind tlsv3.SubjectAltNameMatcher_SanType, names []string) {
		for _, n := range names {
			v.MatchTypedSubjectAltNames = append(v.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
				SanType: kind, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: n}},
			})
		}
	}
	add(tlsv3.SubjectAltNameMatcher_DNS, in.TLS.DNS)
	add(tlsv3.SubjectAltNameMatcher_URI, in.TLS.URIs)
	if in.TLS.CA != "" {
		v.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: in.TLS.CA}}
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: v}
	} else {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: v, ValidationContextSdsSecretConfig: Secret(mesh.SecretSystemRoot, in.Caps),
		}}
	}
	return &tlsv3.UpstreamTlsContext{Sni: in.TLS.ServerName, CommonTlsContext: common}
}

// envoyVersions are Envoy's names of versions of crypto/tls.
var envoyVersions = map[uint16]tlsv3.TlsParameters_TlsProtocol{tls.VersionTLS12: tlsv3.TlsParameters_TLSv1_2, tls.VersionTLS13: tlsv3.TlsParameters_TLSv1_3}

// TLSParams returns parameters for TLS 1.2 to 1.3, with the minimum version, ciphers and curves of mesh
// configuration; c may be nil. A policy that limits the proxy's TLS counts instead. [agent E34]
func TLSParams(c *meshv1.MeshConfig_TLSConfig, caps mesh.Capability) *tlsv3.TlsParameters {
	policy := pki.TLSPolicy(caps.CompliancePolicy())
	if l, limited := policy.Limits(); limited {
		p := &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: envoyVersions[l.Min], TlsMaximumProtocolVersion: envoyVersions[l.Max], CipherSuites: l.EnvoyCiphers, EcdhCurves: l.EnvoyCurves,
		}
		if policy == pki.FIPS1403 {
			p.CompliancePolicies = []tlsv3.TlsParameters_CompliancePolicy{tlsv3.TlsParameters_FIPS_202205} // only so can suites of TLS 1.3 be left out
		}
		return p
	}
	p := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		CipherSuites:              c.GetCipherSuites(),
		EcdhCurves:                c.GetEcdhCurves(),
	}
	if c.GetMinProtocolVersion() == meshv1.MeshConfig_TLSConfig_TLSV1_3 {
		p.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	return p
}

// combined verifies the server's chain with a root from SDS, its names with sans, if any, and its
// revocation with the list in the file crl, if any.
func combined(root string, sans []string, crl string, caps mesh.Capability) *tlsv3.CommonTlsContext_CombinedValidationContext {
	v := validation(sans)
	if crl != "" {
		v.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: crl}}
	}
	return &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
		DefaultValidationContext:         v,
		ValidationContextSdsSecretConfig: Secret(root, caps),
	}}
}

// validation accepts a server with one of the names, or with any if there are none.
func validation(sans []string) *tlsv3.CertificateValidationContext {
	v := &tlsv3.CertificateValidationContext{}
	for _, s := range sans {
		//nolint:staticcheck // the typed form needs a matcher for each kind of name; this one takes any kind
		v.MatchSubjectAltNames = append(v.MatchSubjectAltNames, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}})
	}
	return v
}

// fileWait is how long a cluster waits for a secret from files. While a cluster waits, Envoy applies no
// other change of clusters, and a configured file or Secret may never exist. After the timeout only this
// cluster's connections fail, until it exists.
const fileWait = 2 * time.Second

// CredentialSecret returns the name by which a proxy asks for a Secret that a rule names. [control-plane 1.9.6]
func CredentialSecret(name string) string {
	if isCredential(name) {
		return name
	}
	return credentials.Prefix + name
}

// isCredential reports whether a secret comes from the control plane.
func isCredential(name string) bool {
	return strings.HasPrefix(name, credentials.Prefix) || strings.HasPrefix(name, credentials.GatewayPrefix)
}

// Secret returns a reference to a secret that a proxy with these capabilities gets over SDS. There is no fetch timeout
// for the mesh's own secrets, which always arrive.
func Secret(name string, caps mesh.Capability) *tlsv3.SdsSecretConfig {
	if isCredential(name) {
		return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(fileWait),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}}
	}
	wait, server := &durationpb.Duration{}, mesh.SDSCluster
	if strings.HasPrefix(name, mesh.SecretFileCert) || strings.HasPrefix(name, mesh.SecretFileRoot) {
		wait = durationpb.New(fileWait)
		if caps.Has(mesh.FileSecrets) {
			server = mesh.SDSFilesCluster
		}
	}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: server},
			}}},
		}},
		InitialFetchTimeout: wait,
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}}
}
