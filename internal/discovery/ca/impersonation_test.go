package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
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
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	oidcIssuer = "https://issuer.example"
	kubernetes = "https://kubernetes.default.svc"
	account    = "system:serviceaccount:shop:alice"
)

// target is a CA over TCP with every way to authenticate.
type target struct {
	t       *testing.T
	addr    string
	server  *ca.Server
	log     *wait.Output
	root    *x509.Certificate
	rootKey crypto.Signer
	serving tls.Certificate
	own     *authn.Issuer
	// oidc is the key of the OIDC issuer; home and remote are those of the clusters.
	oidc, home, remote crypto.Signer
	limit              *authn.Limiter
}

// reviewer is a cluster's API server: it knows its own tokens by their signature.
type reviewer struct {
	key    crypto.PublicKey
	groups []string
	down   bool
}

func (r reviewer) Review(_ context.Context, token string, audiences []string) (authn.Review, error) {
	if r.down {
		return authn.Review{}, errors.New("connection refused")
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	var c jwt.Claims
	if err != nil || parsed.Claims(r.key, &c) != nil {
		return authn.Review{Error: "invalid bearer token"}, nil
	}
	return authn.Review{Authenticated: true, Username: c.Subject, Groups: r.groups, Audiences: audiences[:1]}, nil
}

type reviewers map[string]authn.Reviewer

func (r reviewers) Reviewer(cluster string) authn.Reviewer { return r[cluster] }

func ecKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newTarget(t *testing.T, perSecond float64, gateways ...netip.Prefix) *target {
	t.Helper()
	dir := wait.Folder(t)
	a := ok(t)(ca.OpenRoot(dir, "cluster.local", 0, ""))
	x := &target{t: t, log: &wait.Output{}, root: rootOf(t, a)[0], own: okIssuer(t, dir), oidc: ecKey(t), home: ecKey(t), remote: ecKey(t)}
	text, err := os.ReadFile(filepath.Join(dir, "ca", "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if x.rootKey, err = pki.ParseKey(text); err != nil {
		t.Fatal(err)
	}
	serving, err := a.ServerCertificate(ca.ServingNames("istio-system", ""))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := serving.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	x.serving = *shown
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "k", Key: x.oidc.Public()}}})
	if err != nil {
		t.Fatal(err)
	}
	rule, err := json.Marshal(map[string]string{"issuer": oidcIssuer, "jwks": string(keys)})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := authn.ParseRules(string(rule), nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(x.log, nil))
	accounts := []string{"system:serviceaccounts"}
	auth := authn.New("cluster.local", x.own, authn.WithIssuers(authn.NewIssuers(rules, nil, log)), authn.WithTrustedGateways(gateways...),
		authn.WithReviewers(reviewers{
			"": reviewer{key: x.home.Public(), groups: accounts}, "remote": reviewer{key: x.remote.Public(), groups: accounts},
			"users": reviewer{key: x.home.Public(), groups: []string{"system:authenticated"}}, "down": reviewer{down: true},
		}, log))
	auth.SetTrustDomainAliases([]string{"alias.example"})
	x.limit = authn.NewLimiter(auth, perSecond, log)
	x.server = ca.New(a, x.limit, policy.Limits{}, log)
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(serving.TLSConfig(0))))
	x.server.Register(s)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x.addr = ln.Addr().String()
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return x
}

// attempt is one request and what is expected.
type attempt struct {
	name string
	// cert is the client certificate, headers are pairs.
	cert    *tls.Certificate
	headers []string
	request *securityv1.IstioCertificateRequest
	code    codes.Code
	why     string
}

// send sends an attempt over a connection of its own.
func (x *target) send(a attempt) ([]string, error) {
	x.t.Helper()
	config := &tls.Config{RootCAs: pki.Pool([]*x509.Certificate{x.root}), ServerName: "istiod.istio-system.svc"}
	if a.cert != nil {
		// The certificate is sent whatever authorities the server names.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.cert, nil }
	}
	conn, err := grpc.NewClient(x.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		x.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(x.t.Context(), a.headers...), wait.Bound)
	defer cancel()
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, a.request)
	return answer.GetCertChain(), err
}

// issued is how many certificates the CA has signed for workloads.
func (x *target) issued() float64 {
	for _, m := range x.server.Metrics() {
		if m.Name == "citadel_server_success_cert_issuance_count" {
			return m.Value
		}
	}
	x.t.Fatal("there is no metric of issued certificates")
	return 0
}

// refused sends attempts that must be refused, with nothing signed.
func (x *target) refused(all []attempt) {
	x.t.Helper()
	seen := map[string]bool{}
	for _, a := range all {
		if seen[a.name] {
			x.t.Errorf("two attempts are named %s", a.name)
		}
		seen[a.name] = true
		before := x.issued()
		chain, err := x.send(a)
		if status.Code(err) != a.code || !strings.Contains(status.Convert(err).Message(), a.why) || len(status.Convert(err).Message()) > 4096 {
			x.t.Errorf("%s: %v; want %s %q", a.name, err, a.code, a.why)
		}
		if len(chain) > 0 || x.issued() != before || strings.Contains(x.log.String(), "certificate issued") {
			x.t.Errorf("%s: something was signed", a.name)
		}
		for n := 1; n < len(a.headers); n += 2 {
			if token, ok := strings.CutPrefix(a.headers[n], "Bearer "); ok && len(token) > 20 && (strings.Contains(x.log.String(), token) || err != nil && strings.Contains(err.Error(), token)) {
				x.t.Errorf("%s: the token is in the log or in the error", a.name)
			}
		}
	}
}

func bearer(token string) []string { return []string{"authorization", "Bearer " + token} }

type claims = map[string]any

// sign signs a token with a key: a valid one for alice, but for the changes.
func sign(t *testing.T, key crypto.Signer, keyID string, changes claims) string {
	t.Helper()
	all := claims{"iss": oidcIssuer, "sub": account, "aud": []string{"istio-ca"}, "exp": time.Now().Unix() + 3600}
	for k, v := range changes {
		if all[k] = v; v == nil {
			delete(all, k)
		}
	}
	return signClaims(t, jose.SigningKey{Algorithm: jose.ES256, Key: key}, keyID, all, nil)
}

func signClaims(t *testing.T, key jose.SigningKey, keyID string, all claims, opts *jose.SignerOptions) string {
	t.Helper()
	if opts == nil {
		opts = &jose.SignerOptions{}
	}
	if keyID != "" {
		opts = opts.WithHeader("kid", keyID)
	}
	signer, err := jose.NewSigner(key, opts)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// ownToken is one of the control plane's own.
func (x *target) ownToken(issuer *authn.Issuer, audience string, at time.Time) string {
	x.t.Helper()
	text, err := issuer.Issue("shop", "alice", audience, time.Hour, at)
	if err != nil {
		x.t.Fatal(err)
	}
	return text
}

// leaf is a client certificate that parent has signed; change makes it differ from a valid one of alice.
func (x *target) leaf(parent *x509.Certificate, parentKey crypto.Signer, change func(*x509.Certificate)) *tls.Certificate {
	x.t.Helper()
	key := ecKey(x.t)
	template, err := pki.WorkloadTemplate(alice, pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		x.t.Fatal(err)
	}
	change(template)
	if parent == nil {
		parentKey = key
	}
	c, err := pki.Sign(template, parent, key.Public(), parentKey)
	if err != nil {
		x.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

func address(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// csr is a signing request of alice, but for the changes.
func csr(t *testing.T, key crypto.Signer, change func(*x509.CertificateRequest)) *securityv1.IstioCertificateRequest {
	t.Helper()
	r := &x509.CertificateRequest{URIs: []*url.URL{address(t, alice.SPIFFE())}}
	if change != nil {
		change(r)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return &securityv1.IstioCertificateRequest{Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))}
}

// withKey replaces the public key of a signing request, whose signature is of another key then.
func withKey(t *testing.T, public crypto.PublicKey, r *securityv1.IstioCertificateRequest) *securityv1.IstioCertificateRequest {
	t.Helper()
	var parts struct {
		Info struct {
			Version                    int
			Subject, Public, Attribute asn1.RawValue
		}
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	block, _ := pem.Decode([]byte(r.Csr))
	if _, err := asn1.Unmarshal(block.Bytes, &parts); err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	parts.Info.Public = asn1.RawValue{FullBytes: key}
	if block.Bytes, err = asn1.Marshal(parts); err != nil {
		t.Fatal(err)
	}
	return &securityv1.IstioCertificateRequest{Csr: string(pem.EncodeToMemory(block))}
}

func extension(t *testing.T, oid asn1.ObjectIdentifier, value any) pkix.Extension {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: oid, Value: der}
}

// TestImpersonation: whoever tries to get a certificate that is not theirs gets none, and the CA signs nothing.
func TestImpersonation(t *testing.T) {
	x := newTarget(t, 0, netip.MustParsePrefix("192.0.2.0/24"))
	all := append(append(append(x.tokens(), x.certificates()...), x.requests()...), x.reviewed()...)
	if len(all) < 40 {
		t.Errorf("%d attempts, want at least 40", len(all))
	}
	x.refused(all)

	// What is refused above is refused for its own reason.
	key := ecKey(t)
	for name, a := range map[string]attempt{
		"own token":            {headers: bearer(x.ownToken(x.own, "", time.Now()))},
		"OIDC":                 {headers: bearer(sign(t, x.oidc, "k", nil))},
		"Kubernetes":           {headers: bearer(sign(t, x.home, "", claims{"iss": kubernetes}))},
		"remote cluster":       {headers: append(bearer(sign(t, x.remote, "", claims{"iss": kubernetes})), "clusterid", "remote")},
		"certificate":          {cert: x.leaf(x.root, x.rootKey, func(*x509.Certificate) {})},
		"certificate of alias": {cert: x.leaf(x.root, x.rootKey, func(c *x509.Certificate) { c.URIs[0].Host = "alias.example" })},
		"no names":             {headers: bearer(sign(t, x.oidc, "k", nil)), request: csr(t, key, func(r *x509.CertificateRequest) { r.URIs = nil })},
		"a name of the alias":  {headers: bearer(sign(t, x.oidc, "k", nil)), request: csr(t, key, func(r *x509.CertificateRequest) { r.URIs[0].Host = "alias.example" })},
		"uses of a leaf":       {headers: bearer(sign(t, x.oidc, "k", nil)), request: csr(t, key, func(r *x509.CertificateRequest) { r.ExtraExtensions = x.usesOfALeaf() })},
		"no signer, as Istio's agent asks for by default": {headers: bearer(sign(t, x.oidc, "k", nil)), request: withMetadata(csr(t, key, nil), "CertSigner", "")},
		"metadata without names":                          {headers: bearer(sign(t, x.oidc, "k", nil)), request: withMetadata(csr(t, key, nil), "Purpose", "x")},
	} {
		if a.request == nil {
			a.request = csr(t, key, nil)
		}
		chain, err := x.send(a)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if id, err := pki.IdentityOf(leafOf(t, chain)); err != nil || id != alice {
			t.Errorf("%s: a certificate of %v, %v", name, id, err)
		}
	}
}

func (x *target) usesOfALeaf() []pkix.Extension {
	return []pkix.Extension{
		extension(x.t, asn1.ObjectIdentifier{2, 5, 29, 15}, asn1.BitString{Bytes: []byte{0xa0}, BitLength: 3}),
		extension(x.t, asn1.ObjectIdentifier{2, 5, 29, 37}, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 1}, {1, 3, 6, 1, 5, 5, 7, 3, 2}}),
		extension(x.t, asn1.ObjectIdentifier{2, 5, 29, 19}, struct{}{}),
	}
}

func withMetadata(r *securityv1.IstioCertificateRequest, key, value string) *securityv1.IstioCertificateRequest {
	r.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
	return r
}

// tokens are attempts with tokens that prove nothing.
func (x *target) tokens() []attempt {
	t := x.t
	other, err := authn.OpenIssuer(wait.Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	good := x.ownToken(x.own, "", now)
	parts := strings.Split(good, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	boss := encode(`{"iss":"pilothouse","sub":"system:serviceaccount:bank:boss","aud":["istio-ca"],"exp":4102444800}`)
	attacker := ecKey(t)
	secret, err := json.Marshal(jose.JSONWebKey{Key: x.oidc.Public()})
	if err != nil {
		t.Fatal(err)
	}
	oidc := func(changes claims) []string { return bearer(sign(t, x.oidc, "k", changes)) }
	all := []attempt{
		{name: "no credentials", why: "no credentials"},
		{name: "an own token of another mesh", headers: bearer(x.ownToken(other, "", now)), why: "signature: not signed by this mesh"},
		{name: "another namespace in a signed token", headers: bearer(parts[0] + "." + boss + "." + parts[2]), why: "signature: not signed by this mesh"},
		{name: "a token without its signature", headers: bearer(parts[0] + "." + parts[1] + "."), why: "signature"},
		{name: "alg none", headers: bearer(encode(`{"alg":"none"}`) + "." + boss + "."), why: "malformed"},
		{name: "alg none with a signature", headers: bearer(encode(`{"alg":"none"}`) + "." + boss + "." + parts[2]), why: "malformed"},
		{name: "HMAC with the public key as its secret", headers: bearer(signClaims(t, jose.SigningKey{Algorithm: jose.HS256, Key: secret}, "k", claims{"iss": oidcIssuer, "sub": account, "aud": "istio-ca", "exp": now.Unix() + 60}, nil)), why: "malformed"},
		{name: "its key in its header", headers: bearer(signClaims(t, jose.SigningKey{Algorithm: jose.ES256, Key: attacker}, "", claims{"iss": oidcIssuer, "sub": account, "aud": "istio-ca", "exp": now.Unix() + 60}, &jose.SignerOptions{EmbedJWK: true})), why: "signature: not signed by issuer"},
		{name: "an expired own token", headers: bearer(x.ownToken(x.own, "", now.Add(-2*time.Hour))), why: "expired: at "},
		{name: "an own token of the future", headers: bearer(x.ownToken(x.own, "", now.Add(time.Hour))), why: "not yet valid"},
		{name: "an own token for another audience", headers: bearer(x.ownToken(x.own, "bank", now)), why: `wrong audience: ["bank"], want "istio-ca"`},
		{name: "two tokens", headers: append(bearer(good), bearer(good)...), why: "more than one authorization header"},
		{name: "a password", headers: []string{"authorization", "Basic YWxpY2U6YWxpY2U="}, why: "Bearer <token>"},
		{name: "no token after Bearer", headers: bearer(""), why: "malformed"},
		{name: "a huge token", headers: bearer(good + strings.Repeat("x", 8<<10)), why: "want at most 8192"},
		{name: "not a token", headers: bearer("alice"), why: "malformed"},
		{name: "an encrypted token", headers: bearer("a.b.c.d.e"), why: "malformed"},

		{name: "OIDC: another key of the same id", headers: bearer(sign(t, attacker, "k", nil)), why: "signature: not signed by issuer"},
		{name: "OIDC: an unknown key", headers: bearer(sign(t, attacker, "x", nil)), why: `no key "x"`},
		{name: "OIDC: a key id that is a path", headers: bearer(sign(t, attacker, "../../etc/passwd", nil)), why: "no key"},
		{name: "OIDC: the name of the control plane's issuer", headers: oidc(claims{"iss": authn.TokenIssuer}), why: "signature: not signed by this mesh"},
		{name: "OIDC: another audience", headers: oidc(claims{"aud": "bank"}), why: "wrong audience"},
		{name: "OIDC: no audience", headers: oidc(claims{"aud": []string{}}), why: "wrong audience"},
		{name: "OIDC: a part of the audience", headers: oidc(claims{"aud": "istio"}), why: "wrong audience"},
		{name: "OIDC: expired", headers: oidc(claims{"exp": now.Unix() - 61}), why: "expired"},
		{name: "OIDC: without an end", headers: oidc(claims{"exp": nil}), why: "no exp claim"},
		{name: "OIDC: of the future", headers: oidc(claims{"nbf": now.Unix() + 3600}), why: "not yet valid"},
		{name: "OIDC: a person", headers: oidc(claims{"sub": "alice@example.org"}), why: "malformed: subject"},
		{name: "OIDC: no subject", headers: oidc(claims{"sub": nil}), why: "malformed: subject"},
		{name: "OIDC: a slash in the namespace", headers: oidc(claims{"sub": "system:serviceaccount:shop/sa/boss:alice"}), why: "malformed: subject"},
		{name: "OIDC: a colon in the account", headers: oidc(claims{"sub": account + ":boss"}), why: "malformed: subject"},
		{name: "OIDC: upper case", headers: oidc(claims{"sub": "system:serviceaccount:SHOP:alice"}), why: "malformed: subject"},
		{name: "OIDC: bound to another namespace", headers: oidc(claims{"kubernetes.io": claims{"namespace": "bank", "serviceaccount": claims{"name": "alice"}}}), code: codes.PermissionDenied, why: "conflicting claims"},
		{name: "OIDC: bound to another account", headers: oidc(claims{"kubernetes.io": claims{"namespace": "shop", "serviceaccount": claims{"name": "boss"}}}), code: codes.PermissionDenied, why: "conflicting claims"},
	}
	return x.withDefaults(all, codes.Unauthenticated)
}

// reviewed are attempts with tokens of clusters.
func (x *target) reviewed() []attempt {
	t := x.t
	of := func(key crypto.Signer, changes claims) []string {
		all := claims{"iss": kubernetes}
		for k, v := range changes {
			all[k] = v
		}
		return bearer(sign(t, key, "", all))
	}
	in := func(cluster string, headers []string) []string { return append(headers, "clusterid", cluster) }
	all := []attempt{
		{name: "another cluster's token", headers: of(x.remote, nil), why: "Kubernetes rejects it"},
		{name: "our cluster's token as another's", headers: in("remote", of(x.home, nil)), why: "Kubernetes rejects it"},
		{name: "a cluster that is not known", headers: in("attacker", of(ecKey(t), nil)), why: `unknown cluster "attacker"`},
		{name: "two clusters", headers: in("", in("remote", of(x.home, nil))), why: "more than one clusterid"},
		{name: "a forged token of our cluster", headers: of(ecKey(t), nil), why: "Kubernetes rejects it"},
		{name: "an OIDC token as the cluster's", headers: of(x.oidc, nil), why: "Kubernetes rejects it"},
		{name: "the cluster's token for its API server", headers: of(x.home, claims{"aud": kubernetes}), why: "wrong audience"},
		{name: "an expired token of our cluster", headers: of(x.home, claims{"exp": 1}), why: "expired"},
		{name: "a user of our cluster", headers: of(x.home, claims{"sub": "admin"}), why: `user "admin"`},
		{name: "a user with the name of an account", headers: in("users", of(x.home, nil)), why: "in group system:serviceaccounts"},
		{name: "an API server that is down", headers: in("down", of(x.home, nil)), code: codes.Unavailable, why: "Kubernetes does not answer"},
		{name: "a token without an issuer", headers: of(ecKey(t), claims{"iss": ""}), why: "Kubernetes rejects it"},
	}
	return x.withDefaults(all, codes.Unauthenticated)
}

// certificates are attempts with client certificates, and with the headers of gateways.
func (x *target) certificates() []attempt {
	t := x.t
	rogueKey := ecKey(t)
	rogue, err := pki.Sign(pki.RootTemplate("cluster.local", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}), nil, rogueKey.Public(), rogueKey)
	if err != nil {
		t.Fatal(err)
	}
	same := func(*x509.Certificate) {}
	real := x.leaf(x.root, x.rootKey, same)
	signedByALeaf := x.leaf(real.Leaf, real.PrivateKey.(crypto.Signer), same)
	signedByALeaf.Certificate = append(signedByALeaf.Certificate, real.Certificate...)
	ours := func(change func(*x509.Certificate)) *tls.Certificate { return x.leaf(x.root, x.rootKey, change) }
	const header = "x-forwarded-client-cert"
	all := []attempt{
		// These fail in the handshake.
		{name: "a certificate of another root of the same name", cert: x.leaf(rogue, rogueKey, same), code: codes.Unavailable},
		{name: "a self-signed certificate", cert: x.leaf(nil, nil, same), code: codes.Unavailable},
		{name: "a certificate that another leaf has signed", cert: signedByALeaf, code: codes.Unavailable},
		{name: "an expired certificate", cert: ours(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), code: codes.Unavailable},
		{name: "a certificate of the future", cert: ours(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), code: codes.Unavailable},
		{name: "a certificate for servers", cert: ours(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), code: codes.Unavailable},
		{name: "the control plane's own certificate", cert: &x.serving, code: codes.Unavailable},
		{name: "somebody's certificate without its key", cert: &tls.Certificate{Certificate: real.Certificate, PrivateKey: rogueKey}, code: codes.Unavailable},

		{name: "another trust domain", cert: ours(func(c *x509.Certificate) { c.URIs[0].Host = "evil.example" }), code: codes.PermissionDenied, why: `invalid trust domain "evil.example"`},
		{name: "a certificate without an identity", cert: ours(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"alice.shop"} }), why: "no URI SAN"},
		{name: "a certificate of two identities", cert: ours(func(c *x509.Certificate) {
			c.URIs = append(c.URIs, address(t, "spiffe://cluster.local/ns/bank/sa/boss"))
		}), why: "2 URI SANs"},
		{name: "an identity with a longer path", cert: ours(func(c *x509.Certificate) { c.URIs[0].Path += "/x" }), why: "invalid identity"},

		{name: "a gateway's header from elsewhere", headers: []string{header, "URI=" + alice.SPIFFE()}, why: "no credentials"},
		{name: "a gateway's header and a bad token", headers: append(bearer("x"), header, "URI="+alice.SPIFFE()), why: "malformed"},
		{name: "an address in a header", headers: []string{header, "URI=" + alice.SPIFFE(), "x-forwarded-for", "192.0.2.1"}, why: "no credentials"},
	}
	return x.withDefaults(all, codes.Unauthenticated)
}

// requests are attempts of alice, who proves her identity, to get more than her certificate.
func (x *target) requests() []attempt {
	t := x.t
	key := ecKey(t)
	named := func(uris ...string) *securityv1.IstioCertificateRequest {
		return csr(t, key, func(r *x509.CertificateRequest) {
			r.URIs = nil
			for _, u := range uris {
				r.URIs = append(r.URIs, address(t, u))
			}
		})
	}
	with := func(e ...pkix.Extension) *securityv1.IstioCertificateRequest {
		return csr(t, key, func(r *x509.CertificateRequest) { r.ExtraExtensions = e })
	}
	must := func(key crypto.Signer, err error) crypto.Signer {
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	p521 := must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	huge := new(big.Int).SetBit(big.NewInt(1), 9000, 1)
	good := csr(t, key, nil).Csr
	block, _ := pem.Decode([]byte(good))
	flipped := bytes.Clone(block.Bytes)
	flipped[len(flipped)-1] ^= 1
	encoded := func(kind string, der []byte) *securityv1.IstioCertificateRequest {
		return &securityv1.IstioCertificateRequest{Csr: string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))}
	}
	name := func(tag int, value string) asn1.RawValue {
		return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(value)}
	}
	san := asn1.ObjectIdentifier{2, 5, 29, 17}
	uri := extension(t, san, []asn1.RawValue{name(6, alice.SPIFFE())})
	const denied, invalid = codes.PermissionDenied, codes.InvalidArgument
	all := []attempt{
		{name: "the name of another namespace", request: named("spiffe://cluster.local/ns/bank/sa/alice"), code: denied, why: `"spiffe://cluster.local/ns/bank/sa/alice": want spiffe://cluster.local/ns/shop/sa/alice`},
		{name: "the name of another account", request: named("spiffe://cluster.local/ns/shop/sa/boss"), code: denied, why: "/sa/boss"},
		{name: "the name of another trust domain", request: named("spiffe://evil.example/ns/shop/sa/alice"), code: denied, why: "evil.example"},
		{name: "her name and another", request: named(alice.SPIFFE(), "spiffe://cluster.local/ns/bank/sa/boss"), code: denied, why: "/sa/boss"},
		{name: "a longer path", request: named(alice.SPIFFE() + "/x"), code: denied, why: "or none"},
		{name: "a path in a name", request: named("spiffe://cluster.local/ns/shop/sa/alice%2Fx"), code: denied, why: "alice%2Fx"},
		{name: "a query", request: named(alice.SPIFFE() + "?x"), code: denied, why: "alice?x"},
		{name: "a web site", request: named("https://istiod.istio-system.svc"), code: denied, why: "or none"},
		{name: "the control plane's host", request: csr(t, key, func(r *x509.CertificateRequest) { r.DNSNames = []string{"istiod.istio-system.svc"} }), code: denied, why: "1 DNS names"},
		{name: "every host", request: csr(t, key, func(r *x509.CertificateRequest) { r.URIs, r.DNSNames = nil, []string{"*"} }), code: denied, why: "1 DNS names"},
		{name: "an address", request: csr(t, key, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} }), code: denied, why: "1 addresses"},
		{name: "a mailbox", request: csr(t, key, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"root@example.org"} }), code: denied, why: "1 others"},
		{name: "a name of an unknown type", request: with(extension(t, san, []asn1.RawValue{name(6, alice.SPIFFE()), name(8, "*\x03\x04")})), code: denied, why: "1 others"},
		{name: "two lists of names", request: with(uri, extension(t, san, []asn1.RawValue{name(6, "spiffe://cluster.local/ns/bank/sa/boss")})), why: "request", code: invalid},
		{name: "a CA", request: with(extension(t, asn1.ObjectIdentifier{2, 5, 29, 19}, struct{ CA bool }{true})), code: denied, why: "asks for a CA certificate"},
		{name: "a CA with a path length", request: with(extension(t, asn1.ObjectIdentifier{2, 5, 29, 19}, struct {
			CA   bool
			Path int
		}{true, 3})), code: denied, why: "asks for a CA certificate"},
		{name: "garbled constraints", request: with(pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte("x")}), code: denied, why: "invalid basic constraints"},
		{name: "signing certificates", request: with(extension(t, asn1.ObjectIdentifier{2, 5, 29, 15}, asn1.BitString{Bytes: []byte{0x04}, BitLength: 6})), code: denied, why: "key usage of CAs"},
		{name: "signing revocation lists", request: with(extension(t, asn1.ObjectIdentifier{2, 5, 29, 15}, asn1.BitString{Bytes: []byte{0x02}, BitLength: 7})), code: denied, why: "key usage of CAs"},
		{name: "signing code", request: with(extension(t, asn1.ObjectIdentifier{2, 5, 29, 37}, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 3}})), code: denied, why: "extended key usage 1.3.6.1.5.5.7.3.3"},
		{name: "any usage", request: with(extension(t, asn1.ObjectIdentifier{2, 5, 29, 37}, []asn1.ObjectIdentifier{{2, 5, 29, 37, 0}})), code: denied, why: "extended key usage 2.5.29.37.0"},
		{name: "an identity in the metadata", request: withMetadata(csr(t, key, nil), "ImpersonatedIdentity", "spiffe://cluster.local/ns/bank/sa/boss"), code: denied, why: "ImpersonatedIdentity"},

		{name: "RSA of 1024 bits", request: csr(t, weak, nil), code: invalid, why: "RSA key of 1024 bits"},
		{name: "RSA of 9001 bits", request: withKey(t, &rsa.PublicKey{N: huge, E: 65537}, csr(t, rsaKey, nil)), code: invalid, why: "RSA key of 9001 bits"},
		{name: "P-224", request: csr(t, p224, nil), code: invalid, why: "P-224"},
		{name: "P-521", request: csr(t, p521, nil), code: invalid, why: "P-521"},
		{name: "Ed25519", request: csr(t, ed, nil), code: invalid, why: "want ECDSA or RSA"},
		{name: "a signature with SHA-1", request: csr(t, rsaKey, func(r *x509.CertificateRequest) { r.SignatureAlgorithm = x509.SHA1WithRSA }), code: invalid, why: "SHA1"},
		{name: "a broken signature", request: encoded("CERTIFICATE REQUEST", flipped), code: invalid, why: "signature"},
		{name: "somebody else's key", request: withKey(t, x.root.PublicKey, csr(t, key, nil)), code: invalid, why: "signature"},

		{name: "no request", request: &securityv1.IstioCertificateRequest{}, code: invalid, why: "no PEM block"},
		{name: "not PEM", request: &securityv1.IstioCertificateRequest{Csr: "alice"}, code: invalid, why: "no PEM block"},
		{name: "a certificate", request: encoded("CERTIFICATE", x.root.Raw), code: invalid, why: `want "CERTIFICATE REQUEST"`},
		{name: "a certificate as a request", request: encoded("CERTIFICATE REQUEST", x.root.Raw), code: invalid, why: "certificate request"},
		{name: "a private key", request: encoded("PRIVATE KEY", []byte("x")), code: invalid, why: `want "CERTIFICATE REQUEST"`},
		{name: "two requests", request: &securityv1.IstioCertificateRequest{Csr: good + good}, code: invalid, why: "unexpected data"},
		{name: "a request cut short", request: encoded("CERTIFICATE REQUEST", block.Bytes[:len(block.Bytes)/2]), code: invalid, why: "certificate request"},
		{name: "a huge request", request: &securityv1.IstioCertificateRequest{Csr: good + strings.Repeat("\n", pki.MaxCSR)}, code: invalid, why: "at most 16384"},
		{name: "huge metadata", request: withMetadata(csr(t, key, nil), "x", strings.Repeat("x", 64<<10)), code: codes.ResourceExhausted, why: "want at most 65536"},
	}
	for n := range all {
		all[n].headers = bearer(sign(t, x.oidc, "k", nil))
	}
	return append(all, attempt{
		name: "huge metadata without credentials", code: codes.ResourceExhausted, why: "want at most 65536",
		request: withMetadata(csr(t, key, nil), "x", strings.Repeat("x", 3<<20)),
	})
}

// withDefaults completes attempts: what they ask for is a certificate of alice.
func (x *target) withDefaults(all []attempt, code codes.Code) []attempt {
	request := csr(x.t, ecKey(x.t), nil)
	for n := range all {
		if all[n].code == codes.OK {
			all[n].code = code
		}
		if all[n].request == nil {
			all[n].request = request
		}
	}
	return all
}

// A gateway is trusted by its address, which is 127.0.0.1 here; it must say exactly whose the client's certificate is.
func TestImpersonationThroughGateways(t *testing.T) {
	x := newTarget(t, 0, netip.MustParsePrefix("127.0.0.1/32"))
	const header, id = "x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/shop/sa/alice"
	x.refused(x.withDefaults([]attempt{
		{name: "appended to what the client sent", headers: []string{header, "URI=spiffe://cluster.local/ns/bank/sa/boss," + id}, why: "2 elements"},
		{name: "two headers", headers: []string{header, id, header, id}, why: "2 headers"},
		{name: "two identities", headers: []string{header, id + ";URI=spiffe://cluster.local/ns/bank/sa/boss"}, why: "2 values of URI"},
		{name: "another trust domain", headers: []string{header, "URI=spiffe://evil.example/ns/shop/sa/alice"}, code: codes.PermissionDenied, why: "evil.example"},
		{name: "only a hash", headers: []string{header, "Hash=00"}, why: "0 values of URI"},
		{name: "a subject", headers: []string{header, `Subject="CN=` + alice.SPIFFE() + `"`}, why: "0 values of URI"},
		{name: "an identity within a quoted subject", headers: []string{header, `Subject="CN=x;` + id + `"`}, why: "0 values of URI"},
		{name: "garbled", headers: []string{header, `Subject="`}, why: "does not end"},
		{name: "empty", headers: []string{header, ""}, why: "invalid pair"},
	}, codes.Unauthenticated))
	chain, err := x.send(attempt{headers: []string{header, id}, request: csr(t, ecKey(t), nil)})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pki.IdentityOf(leafOf(t, chain)); err != nil || got != alice {
		t.Errorf("%v, %v", got, err)
	}
}

// Replicas share an identity: what is limited is a Pod, or an identity at an address.
func TestRequestsOfOneNodeAreLimited(t *testing.T) {
	x := newTarget(t, 0.001) // one at once, the next after 1,000 s
	request := csr(t, ecKey(t), nil)
	pod := func(uid string) []string {
		return bearer(sign(t, x.oidc, "k", claims{"kubernetes.io": claims{"namespace": "shop", "serviceaccount": claims{"name": "alice"}, "pod": claims{"name": "p", "uid": uid}}}))
	}
	for _, a := range []attempt{
		{name: "the first of a Pod", headers: pod("1"), request: request},
		{name: "the first of another replica", headers: pod("2"), request: request},
		{name: "another of the Pod", headers: pod("1"), request: request, code: codes.ResourceExhausted, why: "of one node"},
		{name: "the first without a Pod", headers: bearer(sign(t, x.oidc, "k", nil)), request: request},
		{name: "another without a Pod", headers: bearer(sign(t, x.oidc, "k", nil)), request: request, code: codes.ResourceExhausted, why: "of one node"},
		{name: "another identity at the address", headers: bearer(sign(t, x.oidc, "k", claims{"sub": "system:serviceaccount:shop:bob"})),
			request: csr(t, ecKey(t), func(r *x509.CertificateRequest) { r.URIs = nil })},
	} {
		if _, err := x.send(a); status.Code(err) != a.code || !strings.Contains(status.Convert(err).Message(), a.why) {
			t.Errorf("%s: %v; want %s %q", a.name, err, a.code, a.why)
		}
	}
	if x.limit.Refused() != 2 || x.issued() != 4 {
		t.Errorf("%d refused, %v issued; want 2 and 4", x.limit.Refused(), x.issued())
	}
}
