package discovery

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// ask requests a certificate over one connection and returns whose it is.
func (p *plane) ask(conn *grpc.ClientConn, headers ...string) (mesh.Identity, error) {
	p.t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "default"})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(p.t.Context(), headers...), wait.Bound)
	defer cancel()
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr)})
	if err != nil {
		return mesh.Identity{}, err
	}
	certs, err := pki.ParseBundle([]byte(answer.CertChain[0]))
	if err != nil {
		p.t.Fatal(err)
	}
	id, err := pki.IdentityOf(certs[0])
	if err != nil {
		p.t.Fatal(err)
	}
	return id, nil
}

func (p *plane) secure(creds credentials.TransportCredentials) *grpc.ClientConn {
	p.t.Helper()
	if creds == nil {
		creds = credentials.NewTLS(p.clientTLS())
	}
	conn, err := grpc.NewClient(p.addr.SecureGRPC, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// When the trust domain is changed, workloads renew with their old certificates, which have an alias of
// the trust domain, and get the new one.
func TestAliasesOfTheTrustDomainAuthenticate(t *testing.T) {
	at := newPlace(t)
	quiet := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	before, err := New(t.Context(), at.options("old.example", quiet))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- before.Run(ctx) }()
	_, creds := (&plane{t: t, server: before, addr: before.Addresses()}).certificate(time.Hour)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	object := filepath.Join(at.dir, "mesh.yaml")
	write(t, object, meshMapOf("{trustDomain: new.example, trustDomainAliases: [older.example, old.example]}"))
	p := up(t, at.options("", quiet))
	if id, err := p.ask(p.secure(creds)); err != nil || id.SPIFFE() != "spiffe://new.example/ns/shop/sa/default" {
		t.Errorf("renewal with a certificate of an alias: %v, %v; want the identity in the new trust domain", id, err)
	}
	p.connect(p.addr.SecureGRPC, creds, "").open().expect("RDS", "9080")

	write(t, object, meshMapOf("{trustDomain: new.example, trustDomainAliases: [older.example]}"))
	wait.Until(t, "the alias has no effect when it is removed", func() bool {
		_, err := p.ask(p.secure(creds))
		return status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), `invalid trust domain "old.example": want "new.example" or "older.example"`)
	})
}

func TestTokensOfOIDCIssuersAuthenticate(t *testing.T) {
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "1", Key: key.Public()}}})
	if err != nil {
		t.Fatal(err)
	}
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write(keys); err != nil {
			t.Error(err)
		}
	}))
	defer site.Close()
	rules, err := authn.ParseRules(`{"issuer": "me", "audiences": ["mesh"], "jwks_uri": "`+site.URL+`"}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		t.Fatal(err)
	}
	token := func(audience string) string {
		text, err := jwt.Signed(signer).Claims(jwt.Claims{
			Issuer: "me", Audience: jwt.Audience{audience}, Subject: "system:serviceaccount:shop:default", Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	p := start(t, func(o *Options) { o.Auth.Issuers = rules })
	p.emit(shop, true)
	if id, err := p.ask(p.secure(nil), "authorization", "Bearer "+token("mesh")); err != nil || id.SPIFFE() != "spiffe://cluster.local/ns/shop/sa/default" {
		t.Errorf("%v, %v", id, err)
	}
	p.dial(token("mesh"), p.root()).open().expect("RDS", "9080")
	if _, err := p.ask(p.secure(nil), "authorization", "Bearer "+token("istio-ca")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token for another audience: %v", err)
	}
	// The control plane's own tokens are accepted too.
	p.dial(p.token("shop", "default"), p.root()).open().expect("RDS", "9080")
}

func TestAudiencesOfTokensAreConfigured(t *testing.T) {
	p := start(t, func(o *Options) { o.Auth.Audiences = []string{"mesh", "ca"} })
	issuer, err := authn.OpenIssuer(p.server.opts.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	for audience, want := range map[string]codes.Code{"mesh": codes.OK, "ca": codes.OK, "istio-ca": codes.Unauthenticated} {
		token, err := issuer.Issue("shop", "default", audience, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.ask(p.secure(nil), "authorization", "Bearer "+token); status.Code(err) != want {
			t.Errorf("audience %s: %v, want %s", audience, err, want)
		}
	}
}

// The client's address is 127.0.0.1.
func TestForwardedCertificatesOfTrustedGateways(t *testing.T) {
	const header, alice = "x-forwarded-client-cert", "By=spiffe://cluster.local/ns/gw/sa/gw;URI=spiffe://cluster.local/ns/shop/sa/default"
	for at, want := range map[string]codes.Code{"127.0.0.0/8": codes.OK, "10.0.0.0/8": codes.Unauthenticated, "": codes.Unauthenticated} {
		p := start(t, func(o *Options) {
			if at != "" {
				o.Auth.Gateways = []netip.Prefix{netip.MustParsePrefix(at)}
			}
		})
		p.emit(shop, true)
		if id, err := p.ask(p.secure(nil), header, alice); status.Code(err) != want || err == nil && id.SPIFFE() != "spiffe://cluster.local/ns/shop/sa/default" {
			t.Errorf("gateways at %q: %v, %v; want %s", at, id, err, want)
		}
		if at != "127.0.0.0/8" {
			continue
		}
		for forwarded, want := range map[string]codes.Code{
			alice + "," + alice: codes.Unauthenticated, "URI=spiffe://other.example/ns/shop/sa/default": codes.PermissionDenied, "Hash=1": codes.Unauthenticated,
		} {
			if _, err := p.ask(p.secure(nil), header, forwarded); status.Code(err) != want || !strings.Contains(err.Error(), header) {
				t.Errorf("%s: %v, want %s", forwarded, err, want)
			}
		}
		// What the caller itself proves comes first.
		if id, err := p.ask(p.secure(nil), header, "URI=spiffe://cluster.local/ns/bank/sa/boss", "authorization", "Bearer "+p.token("shop", "default")); err != nil || id.Namespace != "shop" {
			t.Errorf("a token and a header: %v, %v; want whose the token is", id, err)
		}
	}
}

func TestCertificateRequestsAreLimited(t *testing.T) {
	log := &wait.Output{}
	p := start(t, func(o *Options) {
		o.Auth.CertificatesPerSecond = 0.01 // 1 at once, the next after 100 s
		o.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	bearer := func(account string) []string { return []string{"authorization", "Bearer " + p.token("shop", account)} }
	conn := p.secure(nil)
	if _, err := p.ask(conn, bearer("default")...); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		conn    *grpc.ClientConn
		headers []string
		want    codes.Code
		why     string
	}{
		"the same connection":                     {conn, bearer("other"), codes.ResourceExhausted, "of one connection"},
		"the same connection without credentials": {conn, nil, codes.ResourceExhausted, "of one connection"},
		"the same node over another connection":   {p.secure(nil), bearer("default"), codes.ResourceExhausted, "of one node (PILOTHOUSE_CERTIFICATES_PER_SECOND); try again in "},
	} {
		if _, err := p.ask(c.conn, c.headers...); status.Code(err) != c.want || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %s %q", what, err, c.want, c.why)
		}
	}
	if n := p.metrics()["pilothouse_certificate_requests_limited_total"]; n != 3 {
		t.Errorf("%v requests are counted as refused, want 3", n)
	}
	if text := log.String(); strings.Count(text, "certificate requests refused: too many") != 1 || strings.Contains(text, "Bearer") {
		t.Errorf("want one line about refused requests:\n%s", text)
	}
}
