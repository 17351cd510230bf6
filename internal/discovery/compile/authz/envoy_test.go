package authz_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

var trustDomains = []string{"cluster.local", "old-td"}

const serverName = "www.example.com"

// sets are policies of namespace shop, each as YAML of specs; a spec that begins with "dry" is a dry run.
var sets = []string{
	`{}`, `{rules: [{}]}`, `{action: DENY}`, `{action: DENY, rules: [{}]}`, `{action: AUDIT, rules: [{}]}`,
	`{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}`,
	`{rules: [{from: [{source: {principals: [old-td/ns/shop/sa/client]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["cluster.local/ns/bad/*", "*/sa/client"]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["*"]}}]}]}`,
	`{rules: [{from: [{source: {principals: [other.td/ns/bad/sa/b]}}]}]}`,
	`{action: DENY, rules: [{from: [{source: {notPrincipals: ["*"]}}]}]}`,
	`{rules: [{from: [{source: {notPrincipals: [old-td/ns/shop/sa/client]}}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop]}}]}]}`, `{rules: [{from: [{source: {namespaces: ["b*", "*hop"]}}]}]}`,
	`{action: DENY, rules: [{from: [{source: {notNamespaces: [shop]}}]}]}`,
	`{rules: [{from: [{source: {serviceAccounts: [client]}}]}]}`, `{rules: [{from: [{source: {serviceAccounts: [bad/b]}}]}]}`,
	`{rules: [{from: [{source: {notServiceAccounts: [shop/client]}}]}]}`,
	`{rules: [{from: [{source: {trustDomains: [other.td]}}]}]}`, `{rules: [{from: [{source: {trustDomains: ["o*"], notTrustDomains: ["*.td"]}}]}]}`,
	`{rules: [{from: [{source: {ipBlocks: [127.0.0.0/8], notIpBlocks: [127.0.0.2]}}]}]}`, `{rules: [{from: [{source: {ipBlocks: ["2001:db8::/32", 10.1.1.1]}}]}]}`,
	`{rules: [{from: [{source: {remoteIpBlocks: [192.0.2.0/24], notRemoteIpBlocks: [192.0.2.7/32]}}]}]}`,
	`{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`, `{rules: [{from: [{source: {notRequestPrincipals: [a/b, "c*"]}}]}]}`,
	`{rules: [{to: [{operation: {methods: [GET]}}]}]}`, `{rules: [{to: [{operation: {notMethods: ["P*"]}}]}]}`,
	`{action: DENY, rules: [{to: [{operation: {methods: [GET], paths: ["/admin*"]}}]}]}`,
	`{rules: [{to: [{operation: {hosts: [a.example.com]}}]}]}`, `{rules: [{to: [{operation: {hosts: ["*.EXAMPLE.com", "a.example.com:*"]}}]}]}`,
	`{action: DENY, rules: [{to: [{operation: {notHosts: [a.example.com]}}]}]}`,
	`{rules: [{to: [{operation: {paths: [/exact, "/pre*", "*/suf"]}}]}]}`, `{rules: [{to: [{operation: {paths: ["*"]}}]}]}`,
	`{rules: [{to: [{operation: {paths: ["/a/{*}/b", "/c/{**}"]}}]}]}`, `{rules: [{to: [{operation: {paths: ["/d/{*}/{**}/e"], notPaths: ["/d/{*}/no/e"]}}]}]}`,
	`{rules: [{to: [{operation: {notPaths: ["/admin", "/a/{*}/b"]}}]}]}`,
	`{action: DENY, rules: [{to: [{operation: {ports: ["1"]}}]}]}`, `{rules: [{to: [{operation: {notPorts: ["1"]}}]}]}`,
	`{rules: [{when: [{key: "request.headers[x-a]", values: [one, "pre*", "*suf"], notValues: [presuf]}]}]}`,
	`{rules: [{when: [{key: "request.headers[x-a]", values: ["*"]}]}]}`, `{action: DENY, rules: [{when: [{key: "request.headers[x-a]", notValues: [one]}]}]}`,
	`{rules: [{when: [{key: source.ip, values: [127.0.0.1]}]}]}`, `{rules: [{when: [{key: remote.ip, notValues: [192.0.2.0/24]}]}]}`,
	`{rules: [{when: [{key: source.namespace, values: ["s*"]}, {key: source.trustDomain, values: [cluster.local]}]}]}`,
	`{rules: [{when: [{key: source.serviceAccount, values: [client]}, {key: source.principal, notValues: [old-td/ns/shop/sa/x]}]}]}`,
	`{rules: [{when: [{key: destination.ip, values: [127.0.0.0/8], notValues: [10.0.0.1]}]}]}`, `{rules: [{when: [{key: destination.port, values: ["1"]}]}]}`,
	`{rules: [{when: [{key: connection.sni, values: ["*.example.com"]}]}]}`, `{rules: [{when: [{key: connection.sni, notValues: [www.example.com]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[a]", values: [x]}]}]}`, `{action: DENY, rules: [{when: [{key: "request.auth.claims[a]", notValues: [x]}]}]}`,
	`{rules: [{when: [{key: "experimental.envoy.filters.a[b]", values: ["[x]"]}]}]}`, `{rules: [{when: [{key: "experimental.envoy.filters.a[b]", notValues: [x, "y*"]}]}]}`,
	`{action: CUSTOM, provider: {name: none}, rules: [{to: [{operation: {paths: [/exact]}}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop], trustDomains: [old-td]}}, {source: {remoteIpBlocks: [192.0.2.0/24]}}], to: [{operation: {methods: [GET]}}, {operation: {paths: [/exact]}}], when: [{key: "request.headers[x-a]", notValues: [one]}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop]}}]}]} | {rules: [{to: [{operation: {methods: [PUT]}}]}]} | {action: DENY, rules: [{to: [{operation: {paths: [/exact]}}]}]}`,
	`dry {action: DENY, rules: [{}]} | dry {rules: [{from: [{source: {namespaces: [none]}}]}]}`,
	`dry {rules: [{}]} | {rules: [{from: [{source: {namespaces: [bad]}}]}]}`,
	`{action: DENY, rules: [{from: [{source: {namespaces: [bad]}}], to: [{operation: {methods: [GET]}}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop], requestPrincipals: ["*"]}}, {source: {namespaces: [bad]}}]}, {from: [{source: {principals: [other.td/ns/bad/sa/b]}}]}]}`,
}

// requests are combined with each set; seen is what they come to with normalization.
var requests = []request{
	{method: "GET", host: "a.example.com", path: "/exact"},
	{identity: client, method: "GET", host: "a.example.com", path: "/exact?q=/admin"},
	{identity: client, method: "PUT", host: "A.Example.COM", path: "/prefix", headers: map[string]string{"x-a": "one"}},
	{identity: former, method: "POST", host: "a.example.com:8080", path: "/x/suf", headers: map[string]string{"x-a": "prefix"}, remote: "192.0.2.1"},
	{identity: other, method: "GET", host: "b.example.com", path: "/admin/x", headers: map[string]string{"x-a": "a-suf"}, remote: "192.0.2.7"},
	{identity: other, method: "GET", host: "c", path: "/Admin"},
	{identity: client, method: "GET", host: "c", path: "/x/../admin", seen: "/admin"},
	{identity: client, method: "GET", host: "c", path: "/./admin/./x", seen: "/admin/x"},
	{identity: client, method: "GET", host: "c", path: "/x%2F..%2Fadmin"},
	{identity: client, method: "GET", host: "c", path: "//admin"},
	{identity: client, method: "GET", host: "c", path: "/%61dmin", seen: "/admin"},
	{identity: former, method: "GET", host: "c", path: "/a/x/b", headers: map[string]string{"x-a": "presuf"}},
	{identity: former, method: "GET", host: "c", path: "/a/x/y/b"},
	{identity: former, method: "DELETE", host: "c", path: "/a//b"},
	{identity: other, method: "GET", host: "c", path: "/c/x/y"},
	{identity: other, method: "GET", host: "c", path: "/c"},
	{identity: other, method: "GET", host: "c", path: "/d/x/y/z/e?x=1"},
	{identity: other, method: "GET", host: "c", path: "/d/x/no/e"},
}

const (
	client = "cluster.local/ns/shop/sa/client"
	former = "old-td/ns/shop/sa/client"
	other  = "other.td/ns/bad/sa/b"
)

// policiesOf parses a set. Each of its specs must be valid.
func policiesOf(t *testing.T, set string) (out []authz.Policy) {
	t.Helper()
	for i, spec := range strings.Split(set, " | ") {
		spec, dry := strings.CutPrefix(spec, "dry ")
		res := decode.Documents("p.yaml", fmt.Appendf(nil, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p%d, namespace: shop}\nspec: %s\n", i, spec))
		if len(res.Objects) != 1 || len(res.Problems) > 0 || config.Rejected(config.Validate(res.Objects[0])) {
			t.Fatalf("%s: %v %v", spec, res.Problems, config.Validate(res.Objects[0]))
		}
		out = append(out, authz.Policy{Namespace: "shop", Name: fmt.Sprintf("p%d", i), Spec: res.Objects[0].Spec.(*security.AuthorizationPolicy), DryRun: dry})
	}
	return out
}

// TestVerdictsOfEnvoy compares what a real Envoy lets in with an evaluation of the policies that knows nothing of their
// translation: each set of policies with each request, and with TCP connections of each identity.
func TestVerdictsOfEnvoy(t *testing.T) {
	pki := newPKI(t)
	b := envoytest.Bootstrap()
	for i, set := range sets {
		f := authz.Build(policiesOf(t, set), trustDomains, nil)
		b.StaticResources.Listeners = append(b.StaticResources.Listeners,
			pki.listener(t, fmt.Sprintf("http-%d", i), manager(t, f)), pki.listener(t, fmt.Sprintf("tcp-%d", i), append(f.TCP, filter(t, "envoy.filters.network.echo", &echov3.Echo{}))))
	}
	at := envoytest.Start(t, b)
	verdicts := 0
	for i, set := range sets {
		policies := policiesOf(t, set)
		address := at[fmt.Sprintf("http-%d", i)]
		conns := map[string]*conn{}
		for _, r := range requests {
			if r.seen == "" {
				r.seen = r.path
			}
			_, r.port, _ = net.SplitHostPort(address)
			c := conns[r.identity]
			if c == nil {
				c = pki.dial(t, address, r.identity)
				conns[r.identity] = c
			}
			status, seen := c.ask(t, r)
			if want := allowed(policies, r); status != http.StatusOK && status != http.StatusForbidden || want != (status == http.StatusOK) {
				t.Errorf("%s\n%+v: status %d, want allowed %v", set, r, status, want)
			}
			if status == http.StatusOK && seen != r.seen {
				t.Errorf("%s is forwarded as %s, want %s", r.path, seen, r.seen)
			}
			verdicts++
		}
		address = at[fmt.Sprintf("tcp-%d", i)]
		for _, identity := range []string{"", client, former, other} {
			r := request{identity: identity, tcp: true}
			_, r.port, _ = net.SplitHostPort(address)
			if got, want := pki.dial(t, address, identity).echoes(t), allowed(policies, r); got != want {
				t.Errorf("%s\nTCP from %q: %v, want %v", set, identity, got, want)
			}
			verdicts++
		}
	}
	t.Logf("%d verdicts", verdicts)
	if verdicts < 1000 {
		t.Error("the table has become small")
	}
}

func filter(t *testing.T, name string, m proto.Message) *listenerv3.Filter {
	t.Helper()
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, m)}}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// manager answers what is let in with the path that would be forwarded.
func manager(t *testing.T, f authz.Filters) []*listenerv3.Filter {
	t.Helper()
	return []*listenerv3.Filter{filter(t, "envoy.filters.network.http_connection_manager", &hcmv3.HttpConnectionManager{
		StatPrefix: "x", NormalizePath: wrapperspb.Bool(true), UseRemoteAddress: wrapperspb.Bool(false),
		PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_KEEP_UNCHANGED,
		HttpFilters: append(f.HTTP, &hcmv3.HttpFilter{
			Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})},
		}),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{
			Name: "x", Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
				ResponseHeadersToAdd: []*corev3.HeaderValueOption{{
					Header: &corev3.HeaderValue{Key: "x-path", Value: "%REQ(:PATH)%"},
				}},
			}},
		}}}},
	})}
}

// pki is a certificate authority, in PEM and parsed.
type pki struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
	// leaves are the certificates of identities.
	leaves map[string]tls.Certificate
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{leaves: map[string]tls.Certificate{}}
	p.key, p.cert, p.pem = p.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "root"}})
	return p
}

func (p *pki) sign(t *testing.T, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := p.cert, p.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, parsed, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (p *pki) leaf(t *testing.T, identity string) (tls.Certificate, string, string) {
	t.Helper()
	u, err := url.Parse("spiffe://" + identity)
	if err != nil {
		t.Fatal(err)
	}
	key, cert, text := p.sign(t, &x509.Certificate{URIs: []*url.URL{u}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}, text, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (p *pki) listener(t *testing.T, name string, filters []*listenerv3.Filter) *listenerv3.Listener {
	t.Helper()
	inline := func(s string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}}
	}
	_, cert, key := p.leaf(t, "cluster.local/ns/shop/sa/server")
	return &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}},
		ListenerFilters: []*listenerv3.ListenerFilter{{Name: "envoy.filters.listener.tls_inspector", ConfigType: &listenerv3.ListenerFilter_TypedConfig{
			TypedConfig: pack(t, &tlsinspectorv3.TlsInspector{}),
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: filters, TransportSocket: &corev3.TransportSocket{
			Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, &tlsv3.DownstreamTlsContext{
				CommonTlsContext: &tlsv3.CommonTlsContext{
					TlsCertificates:       []*tlsv3.TlsCertificate{{CertificateChain: inline(cert), PrivateKey: inline(key)}},
					ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(p.pem)}},
				},
			})},
		}}},
	}
}

// conn is a connection of one identity.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func (p *pki) dial(t *testing.T, address, identity string) *conn {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true, ServerName: serverName} //nolint:gosec // the server is the test's own
	if identity != "" {
		leaf, ok := p.leaves[identity]
		if !ok {
			leaf, _, _ = p.leaf(t, identity)
			p.leaves[identity] = leaf
		}
		c.Certificates = []tls.Certificate{leaf}
	}
	d := &net.Dialer{Timeout: 30 * time.Second}
	raw, err := tls.DialWithDialer(d, "tcp", address, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(2 * time.Minute))
	return &conn{raw, bufio.NewReader(raw)}
}

// ask sends a request as it is, and returns the status and the path that would be forwarded.
func (c *conn) ask(t *testing.T, r request) (int, string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nhost: %s\r\ncontent-length: 0\r\n", r.method, r.path, r.host)
	for k, v := range r.headers {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	if r.remote != "" {
		fmt.Fprintf(&b, "x-forwarded-for: %s\r\n", r.remote)
	}
	if _, err := io.WriteString(c, b.String()+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("x-path")
}

// echoes says whether what is sent comes back. Otherwise the connection must end.
func (c *conn) echoes(t *testing.T) bool {
	t.Helper()
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	got, err := c.r.ReadByte()
	if err == nil && got != 'x' {
		t.Fatalf("read %q", got)
	}
	return err == nil
}
