// Package policytest asks a real Envoy whom filters let in.
//
// It has listeners with TLS, connections of chosen identities, and requests that are sent as they are. It is for tests.
package policytest

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
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ServerName is what connections ask for.
const ServerName = "www.example.com"

// Request is sent as it is.
type Request struct {
	Method, Host, Path string
	Headers            map[string][]string
}

// Filter returns a network filter.
func Filter(t testing.TB, name string, m proto.Message) *listenerv3.Filter {
	t.Helper()
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, m)}}
}

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Manager returns the filters of a chain for HTTP: these HTTP filters, and a route that answers all requests with 200 and,
// in x-path, the path that would be forwarded. edit may be nil.
func Manager(t testing.TB, filters []*hcmv3.HttpFilter, edit func(*hcmv3.HttpConnectionManager)) []*listenerv3.Filter {
	t.Helper()
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: "x", NormalizePath: wrapperspb.Bool(true), UseRemoteAddress: wrapperspb.Bool(false),
		PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_KEEP_UNCHANGED,
		HttpFilters: append(slices.Clone(filters), &hcmv3.HttpFilter{
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
	}
	if edit != nil {
		edit(m)
	}
	return []*listenerv3.Filter{Filter(t, "envoy.filters.network.http_connection_manager", m)}
}

// PKI is a certificate authority.
type PKI struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
	// leaves are the certificates of identities.
	leaves map[string]tls.Certificate
}

// NewPKI returns one with a new key.
func NewPKI(t testing.TB) *PKI {
	t.Helper()
	p := &PKI{leaves: map[string]tls.Certificate{}}
	p.key, p.cert, p.pem = p.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "root"}})
	return p
}

func (p *PKI) sign(t testing.TB, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate, string) {
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

func (p *PKI) leaf(t testing.TB, identity string) (tls.Certificate, string, string) {
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

// Listener returns a listener at a free port of 127.0.0.1 that ends TLS and asks for a certificate of this authority, with
// these network filters.
func (p *PKI) Listener(t testing.TB, name string, filters []*listenerv3.Filter) *listenerv3.Listener {
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

// Conn is a connection of one identity.
type Conn struct {
	net.Conn
	r *bufio.Reader
}

// Dial connects with an identity without its scheme; "" is none. The connection ends with the test.
func (p *PKI) Dial(t testing.TB, address, identity string) *Conn {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true, ServerName: ServerName} //nolint:gosec // the server is the test's own
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
	return &Conn{raw, bufio.NewReader(raw)}
}

// Ask sends a request as it is, and returns the status and the path that would be forwarded.
func (c *Conn) Ask(t testing.TB, r Request) (int, string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nhost: %s\r\ncontent-length: 0\r\n", r.Method, r.Path, r.Host)
	for k, values := range r.Headers {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", k, v)
		}
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

// Echoes says whether what is sent comes back. Otherwise the connection must end.
func (c *Conn) Echoes(t testing.TB) bool {
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
