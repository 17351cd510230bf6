package listener

import (
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Gateway is the plan of one listener of a router.
type Gateway struct {
	Name, Address string
	Port          uint32
	// TLS is set if chains are chosen by the server name of TLS.
	TLS bool
	// UDP is set if the listener takes datagrams: its one chain says where they go.
	UDP bool
	// QUIC is set if the listener serves HTTP/3: its chains are of HTTPS.
	QUIC   bool
	Chains []GatewayChain
	// TrustDomains are those whose certificates servers with mode ISTIO_MUTUAL accept, the mesh's first.
	TrustDomains []string
	// Topology says which proxies are in front of the router.
	Topology mesh.Topology
	// Authorization are the filters that decide who is let in, and Closed ends every connection.
	Authorization authz.Filters
	Closed        bool
	// Sessions is set if a route keeps the requests of a session at one endpoint.
	Sessions bool
}

// GatewayChain is one filter chain of a router's listener.
type GatewayChain struct {
	// ServerNames are those of the chain, none for all others.
	ServerNames []string
	// Prefixes and Sources have the destinations and the clients of the chain's connections, none for all others.
	Prefixes, Sources []netip.Prefix
	// TLS says how TLS is ended; nil for none.
	TLS *networking.ServerTLSSettings
	// ClientCA are the certificates, in PEM, that those of clients are verified with; empty for those that TLS names.
	ClientCA string
	// Routes is the RDS name if the chain is one of HTTP; else TCP says where connections go.
	Routes string
	TCP    TCP
	// Mesh is set if the chain forwards the mesh's mutual TLS to a cluster of [PassthroughChains].
	Mesh bool
}

// Clusters are those that the chains name, without those that are in routes.
func (g Gateway) Clusters() (out []string) {
	for _, c := range g.Chains {
		if c.Routes != "" || c.Mesh {
			continue
		}
		if c.TCP.Cluster != "" {
			out = append(out, c.TCP.Cluster)
		}
		for _, w := range c.TCP.Weighted {
			out = append(out, w.Cluster)
		}
	}
	return out
}

// BuildGateway translates the plan of a router's listener, which binds to its address. [control-plane 1.9.2, 1.12.16]
func BuildGateway(g Gateway, e Env) *listenerv3.Listener {
	switch {
	case g.UDP:
		return buildUDP(g, e)
	case g.QUIC:
		return buildQUIC(g, e)
	}
	l := e.gatewayListener(g)
	l.ListenerFilters = topologyFilters(g.Topology)
	for _, c := range g.Chains {
		chain := &listenerv3.FilterChain{TransportSocketConnectTimeout: connectTimeout}
		if g.TLS || len(c.Prefixes)+len(c.Sources) > 0 {
			chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.ServerNames, PrefixRanges: ranges(c.Prefixes), SourcePrefixRanges: ranges(c.Sources)}
		}
		if g.TLS {
			chain.FilterChainMatch.TransportProtocol = "tls"
		}
		switch {
		case c.Mesh:
			chain = e.passthroughChain(c)
		case g.Closed:
			chain.Filters = closing()
		case c.Routes != "":
			chain.Filters = []*listenerv3.Filter{e.gatewayHTTP("outbound_"+g.Name+";", c.Routes, g)}
		default:
			chain.Filters = slices.Concat(g.Authorization.TCP, e.tcpFilters(c.TCP.Cluster, c.TCP, clientSide()))
		}
		if c.TLS != nil {
			chain.TransportSocket = e.endTLS(c, g.TrustDomains)
		}
		l.FilterChains = append(l.FilterChains, chain)
	}
	if g.TLS {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	return l
}

// gatewayListener returns the listener of a plan, without filters.
func (e Env) gatewayListener(g Gateway) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:                                 g.Name,
		Address:                              address(g.Address, g.Port),
		AdditionalAddresses:                  e.additional(g.Address, g.Port),
		TrafficDirection:                     corev3.TrafficDirection_OUTBOUND,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
	}
}

// ClosedGateway returns a listener that takes the place of a plan's where Envoy has refused that: it closes every connection, and has
// nothing else that could be refused.
func ClosedGateway(g Gateway, e Env) *listenerv3.Listener {
	if g.UDP || g.QUIC {
		g.Chains, g.Closed = []GatewayChain{{}}, true
		return buildUDP(g, Env{Caps: e.Caps, Mesh: &meshv1.MeshConfig{}})
	}
	l := e.gatewayListener(g)
	l.FilterChains = []*listenerv3.FilterChain{{Filters: closing()}}
	return l
}

// closing are the filters that end every connection.
func closing() []*listenerv3.Filter {
	return []*listenerv3.Filter{Env{Mesh: &meshv1.MeshConfig{}}.tcpProxy(mesh.BlackHoleCluster, TCP{Cluster: mesh.BlackHoleCluster}, side{})}
}

// topologyFilters returns the listener filters that come before all others: they read what a proxy in front says of a connection. A
// connection without that is closed, since anybody could have made it.
func topologyFilters(t mesh.Topology) []*listenerv3.ListenerFilter {
	if !t.ProxyProtocol {
		return nil
	}
	return []*listenerv3.ListenerFilter{listenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{})}
}

// clientCertDetails says what becomes of x-forwarded-client-cert at a router, by the value of forwardClientCertDetails.
var clientCertDetails = map[meshv1.ForwardClientCertDetails]hcmv3.HttpConnectionManager_ForwardClientCertDetails{
	meshv1.ForwardClientCertDetails_UNDEFINED:           hcmv3.HttpConnectionManager_SANITIZE_SET,
	meshv1.ForwardClientCertDetails_SANITIZE:            hcmv3.HttpConnectionManager_SANITIZE,
	meshv1.ForwardClientCertDetails_FORWARD_ONLY:        hcmv3.HttpConnectionManager_FORWARD_ONLY,
	meshv1.ForwardClientCertDetails_APPEND_FORWARD:      hcmv3.HttpConnectionManager_APPEND_FORWARD,
	meshv1.ForwardClientCertDetails_SANITIZE_SET:        hcmv3.HttpConnectionManager_SANITIZE_SET,
	meshv1.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY: hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY,
}

// gatewayHTTP returns the connection manager of a router. Its clients are outside the mesh: their address is that of the
// connection, unless a trusted proxy in front has added another one to x-forwarded-for, and what they send in x-forwarded-client-cert is
// replaced, unless the topology says otherwise.
func (e Env) gatewayHTTP(statPrefix, routes string, g Gateway) *listenerv3.Filter {
	return networkFilter(managerName, e.gatewayManager(statPrefix, routes, g))
}

func (e Env) gatewayManager(statPrefix, routes string, g Gateway) *hcmv3.HttpConnectionManager {
	h, t := e.manager(statPrefix, true, clientSide()), g.Topology
	h.HttpFilters = slices.Concat(g.Authorization.HTTP, h.HttpFilters)
	if g.Sessions && !e.Sessions {
		keepSessions(h)
	}
	h.RouteSpecifier = rds(routes)
	h.UseRemoteAddress = wrapperspb.Bool(true)
	h.ServerName = "istio-envoy"
	h.XffNumTrustedHops = t.TrustedProxies
	switch h.ForwardClientCertDetails = clientCertDetails[t.ClientCert]; h.ForwardClientCertDetails {
	case hcmv3.HttpConnectionManager_SANITIZE_SET, hcmv3.HttpConnectionManager_APPEND_FORWARD:
		h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: wrapperspb.Bool(true), Cert: true, Dns: true, Uri: true,
		}
	case hcmv3.HttpConnectionManager_SANITIZE, hcmv3.HttpConnectionManager_FORWARD_ONLY, hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY:
	}
	return h
}

// endTLS returns the server side of a chain's TLS. [control-plane 1.9.5, 1.9.7, 1.9.8]
func (e Env) endTLS(c GatewayChain, trustDomains []string) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: marshal.MustAny(e.serverTLS(c, trustDomains))}}
}

func (e Env) serverTLS(c GatewayChain, trustDomains []string) *tlsv3.DownstreamTlsContext {
	t := c.TLS
	common := &tlsv3.CommonTlsContext{TlsParams: e.serverParams(t)}
	if c.Routes != "" {
		common.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	root := ""
	var sans []*matcherv3.StringMatcher
	for _, s := range t.SubjectAltNames {
		sans = append(sans, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}})
	}
	if t.Mode == networking.ServerTLSSettings_ISTIO_MUTUAL {
		root = mesh.SecretRoot
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{cluster.Secret(mesh.SecretDefault, e.Caps)}
		if len(sans) == 0 {
			for _, td := range trustDomains {
				sans = append(sans, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + td + "/"}})
			}
		}
	} else {
		for _, name := range certificates(t) {
			common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, cluster.Secret(name, e.Caps))
		}
		if t.Mode != networking.ServerTLSSettings_SIMPLE && c.ClientCA == "" {
			root = clientRoots(t)
		}
	}
	if root != "" {
		v := &tlsv3.CertificateValidationContext{
			MatchSubjectAltNames:  sans, //nolint:staticcheck // the typed form needs a matcher for each kind of name; this one takes any kind
			VerifyCertificateSpki: t.VerifyCertificateSpki, VerifyCertificateHash: t.VerifyCertificateHash,
		}
		if t.CaCrl != "" {
			v.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: t.CaCrl}}
		}
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: v, ValidationContextSdsSecretConfig: cluster.Secret(root, e.Caps),
			},
		}
	}
	if c.ClientCA != "" {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: c.ClientCA}},
		}}
	}
	return &tlsv3.DownstreamTlsContext{
		CommonTlsContext: common, RequireClientCertificate: wrapperspb.Bool((root != "" || c.ClientCA != "") && t.Mode != networking.ServerTLSSettings_OPTIONAL_MUTUAL),
	}
}

// certificates returns the names of the secrets with a server's certificates: of Secrets, or of files, each with its key.
func certificates(t *networking.ServerTLSSettings) (out []string) {
	switch {
	case len(t.CredentialNames) > 0:
		for _, name := range t.CredentialNames {
			out = append(out, cluster.CredentialSecret(name))
		}
	case t.CredentialName != "":
		out = append(out, cluster.CredentialSecret(t.CredentialName))
	case len(t.TlsCertificates) > 0:
		for _, one := range t.TlsCertificates {
			out = append(out, mesh.SecretFileCert+one.GetServerCertificate()+"~"+one.GetPrivateKey())
		}
	default:
		out = append(out, mesh.SecretFileCert+t.ServerCertificate+"~"+t.PrivateKey)
	}
	return out
}

// clientRoots returns the name of the secret that the certificates of a server's clients are verified with.
func clientRoots(t *networking.ServerTLSSettings) string {
	switch {
	case t.CaCertCredentialName != "":
		return cluster.CredentialSecret(t.CaCertCredentialName) + credentials.CASuffix
	case t.CredentialName != "":
		return cluster.CredentialSecret(t.CredentialName) + credentials.CASuffix
	case len(t.CredentialNames) > 0:
		return cluster.CredentialSecret(t.CredentialNames[0]) + credentials.CASuffix
	}
	return mesh.SecretFileRoot + t.CaCertificates
}

var tlsVersions = map[networking.ServerTLSSettings_TLSProtocol]tlsv3.TlsParameters_TlsProtocol{
	networking.ServerTLSSettings_TLSV1_0: tlsv3.TlsParameters_TLSv1_0, networking.ServerTLSSettings_TLSV1_1: tlsv3.TlsParameters_TLSv1_1,
	networking.ServerTLSSettings_TLSV1_2: tlsv3.TlsParameters_TLSv1_2, networking.ServerTLSSettings_TLSV1_3: tlsv3.TlsParameters_TLSv1_3,
}

// serverParams returns the parameters of a server's TLS: those of the proxy's compliance policy, else its own, else those of mesh
// configuration, else versions 1.2 and 1.3.
func (e Env) serverParams(t *networking.ServerTLSSettings) *tlsv3.TlsParameters {
	var defaults *meshv1.MeshConfig_TLSConfig
	if t.Mode == networking.ServerTLSSettings_ISTIO_MUTUAL {
		defaults = e.Mesh.GetMeshMTLS()
	} else {
		defaults = e.Mesh.GetTlsDefaults()
	}
	p := cluster.TLSParams(defaults, e.Caps)
	if e.Caps.CompliancePolicy() != "" {
		return p // the policy's limits, which no server may widen
	}
	if v := tlsVersions[t.MaxProtocolVersion]; v != tlsv3.TlsParameters_TLS_AUTO {
		p.TlsMaximumProtocolVersion = v
		p.TlsMinimumProtocolVersion = min(p.TlsMinimumProtocolVersion, v)
	}
	if v := tlsVersions[t.MinProtocolVersion]; v != tlsv3.TlsParameters_TLS_AUTO {
		p.TlsMinimumProtocolVersion = v
	}
	if known := mesh.KnownCipherSuites(t.CipherSuites); len(known) > 0 {
		p.CipherSuites = known
	}
	return p
}
