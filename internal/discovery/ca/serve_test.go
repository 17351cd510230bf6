package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

var alice = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "alice"}

// authority is a CA behind TLS, gRPC and authentication, on an in-memory connection.
type authority struct {
	t      *testing.T
	ln     *bufconn.Listener
	root   *ca.Authority
	server *ca.Server
	issuer *authn.Issuer
	logs   *bytes.Buffer
}

func start(t *testing.T, limits policy.Limits) *authority {
	t.Helper()
	return startWith(t, ok(t)(ca.OpenRoot(wait.Folder(t), "cluster.local", 0, "")), limits)
}

func startWith(t *testing.T, root *ca.Authority, limits policy.Limits) *authority {
	t.Helper()
	dir := wait.Folder(t)
	a := &authority{t: t, ln: bufconn.Listen(1 << 16), root: root, issuer: okIssuer(t, dir), logs: &bytes.Buffer{}}
	serving, err := root.ServerCertificate(ca.ServingNames("istio-system", ""))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(serving.TLSConfig(0))))
	a.server = ca.New(root, authn.New("cluster.local", a.issuer), limits, slog.New(slog.NewTextHandler(a.logs, nil)))
	a.server.Register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(a.ln) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return a
}

func rootOf(t *testing.T, a *ca.Authority) []*x509.Certificate {
	t.Helper()
	certs, err := pki.ParseBundle(a.State().RootsPEM())
	if err != nil {
		t.Fatal(err)
	}
	return certs
}

func ok(t *testing.T) func(*ca.Authority, error) *ca.Authority {
	return func(a *ca.Authority, err error) *ca.Authority {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
}

func okIssuer(t *testing.T, dir string) *authn.Issuer {
	t.Helper()
	i, err := authn.OpenIssuer(dir)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (a *authority) token(ns, sa, audience string, at time.Time) string {
	a.t.Helper()
	token, err := a.issuer.Issue(ns, sa, audience, time.Hour, at)
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

// call makes one call with a client certificate (or none) and a token (or none).
func (a *authority) call(cert *tls.Certificate, token string, r *securityv1.IstioCertificateRequest) ([]string, error) {
	a.t.Helper()
	return a.callWith(rootOf(a.t, a.root), cert, token, r)
}

// callTrusting makes one call with a client certificate, and trusts only the roots.
func (a *authority) callTrusting(roots []*x509.Certificate, cert *tls.Certificate, r *securityv1.IstioCertificateRequest) ([]string, error) {
	a.t.Helper()
	return a.callWith(roots, cert, "", r)
}

func (a *authority) callWith(roots []*x509.Certificate, cert *tls.Certificate, token string, r *securityv1.IstioCertificateRequest) ([]string, error) {
	a.t.Helper()
	config := &tls.Config{RootCAs: pki.Pool(roots), ServerName: "istiod.istio-system.svc"}
	if cert != nil {
		// Send the certificate regardless of the server's list of CAs.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	conn, err := grpc.NewClient("passthrough:///mem", grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return a.ln.DialContext(ctx) }))
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, r)
	return answer.GetCertChain(), err
}

func newCSR(t *testing.T, id mesh.Identity) (crypto.Signer, string) {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, id)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(csr)
}

func request(csr string) *securityv1.IstioCertificateRequest {
	return &securityv1.IstioCertificateRequest{Csr: csr}
}

// tlsCertificate is a chain, leaf first, for a client.
func tlsCertificate(chain []*x509.Certificate, key crypto.Signer) *tls.Certificate {
	c := &tls.Certificate{PrivateKey: key}
	for _, cert := range chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

func leafOf(t *testing.T, chain []string) *x509.Certificate {
	t.Helper()
	if len(chain) != 2 {
		t.Fatalf("chain of %d, want leaf and root", len(chain))
	}
	certs, err := pki.ParseBundle([]byte(strings.Join(chain, "")))
	if err != nil || len(certs) != 2 {
		t.Fatalf("chain: %d certificates, %v", len(certs), err)
	}
	if err := pki.VerifyChain(certs[:1], certs[1:], x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func TestCertificateHasTheCallersIdentity(t *testing.T) {
	a := start(t, policy.Limits{})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// A subject names nobody. Requests with other names are refused: TestImpersonation.
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "istiod.istio-system.svc"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	token := a.token("shop", "alice", "", time.Now())
	chain, err := a.call(nil, token, &securityv1.IstioCertificateRequest{Csr: string(csr)})
	if err != nil {
		t.Fatal(err)
	}
	leaf := leafOf(t, chain)
	if id, err := pki.IdentityOf(leaf); err != nil || id != alice {
		t.Errorf("identity %v, %v", id, err)
	}
	if leaf.Subject.String() != "" || leaf.DNSNames != nil || leaf.IPAddresses != nil || leaf.EmailAddresses != nil || leaf.IsCA {
		t.Errorf("the certificate has names of the request: %q %v %v %v", leaf.Subject, leaf.DNSNames, leaf.IPAddresses, leaf.EmailAddresses)
	}
	if !pki.KeyMatches(key, leaf) {
		t.Error("the certificate is for another key")
	}
	line := a.logs.String()
	for _, want := range []string{`msg="certificate issued"`, "identity=spiffe://cluster.local/ns/shop/sa/alice", "serial=" + leaf.SerialNumber.String(), "until=" + leaf.NotAfter.Format(time.RFC3339)[:19]} {
		if !strings.Contains(line, want) {
			t.Errorf("the log lacks %s: %s", want, line)
		}
	}
	if strings.Contains(line, token) || strings.Contains(line, "PRIVATE") || strings.Contains(line, string(csr)) {
		t.Error("the log has a token, a key or the request")
	}
	if got := a.server.Issued(time.Now()); len(got) != 1 || got[0].Identity != alice.SPIFFE() || got[0].Address == "" || !got[0].NotAfter.Equal(leaf.NotAfter) {
		t.Errorf("issued: %+v", got)
	}
	if got := a.server.Issued(leaf.NotAfter.Add(time.Second)); len(got) != 0 {
		t.Errorf("certificates that have ended are listed: %+v", got)
	}
	if life := time.Until(leaf.NotAfter); life < 23*time.Hour || life > 24*time.Hour {
		t.Errorf("lifetime %s", life)
	}
}

func TestRenewalWithACertificate(t *testing.T) {
	a := start(t, policy.Limits{})
	key, csr := newCSR(t, alice)
	chain, err := a.call(nil, a.token("shop", "alice", "", time.Now()), &securityv1.IstioCertificateRequest{Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{leafOf(t, chain).Raw}, PrivateKey: key}
	bank := mesh.Identity{TrustDomain: "cluster.local", Namespace: "bank", ServiceAccount: "boss"}
	_, csr = newCSR(t, alice)
	chain, err = a.call(cert, "", &securityv1.IstioCertificateRequest{Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := pki.IdentityOf(leafOf(t, chain)); id != alice {
		t.Errorf("the caller %s got a certificate for %s", alice, id)
	}
	otherKey, _ := pki.GenerateKey("")
	tmpl, _ := pki.WorkloadTemplate(bank, pki.Validity{NotAfter: time.Now().Add(time.Hour)})
	forged, err := pki.Sign(tmpl, nil, otherKey.Public(), otherKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.call(&tls.Certificate{Certificate: [][]byte{forged.Raw}, PrivateKey: otherKey}, "", &securityv1.IstioCertificateRequest{Csr: csr}); err == nil || status.Code(err) != codes.Unavailable {
		t.Errorf("a certificate of another root: %v", err)
	}
}

func TestMaxTTL(t *testing.T) {
	a := start(t, policy.Limits{DefaultTTL: time.Hour, MaxTTL: 2 * time.Hour})
	_, csr := newCSR(t, alice)
	const tooLong = math.MaxInt64/int64(time.Second) + 1 // for a time.Duration
	for requested, want := range map[int64]time.Duration{60: time.Minute, 0: time.Hour, tooLong: 2 * time.Hour, -tooLong: time.Hour} {
		chain, err := a.call(nil, a.token("shop", "alice", "", time.Now()), &securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: requested})
		if err != nil {
			t.Fatal(err)
		}
		if life := time.Until(leafOf(t, chain).NotAfter); life > want || life < want-time.Minute {
			t.Errorf("requested %d s: lifetime %s, want %s", requested, life, want)
		}
	}
}

func TestErrors(t *testing.T) {
	a := start(t, policy.Limits{})
	_, csr := newCSR(t, alice)
	_, bobs := newCSR(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "bob"})
	good := a.token("shop", "alice", "", time.Now())
	for _, tt := range []struct {
		name, token, csr string
		code             codes.Code
		why              string
	}{
		{"no credentials", "", csr, codes.Unauthenticated, "no credentials"},
		{"wrong audience", a.token("shop", "alice", "bank", time.Now()), csr, codes.Unauthenticated, "wrong audience"},
		{"expired token", a.token("shop", "alice", "", time.Now().Add(-2*time.Hour)), csr, codes.Unauthenticated, "expired: at "},
		{"future token", a.token("shop", "alice", "", time.Now().Add(time.Hour)), csr, codes.Unauthenticated, "not yet valid"},
		{"malformed token", "abc", csr, codes.Unauthenticated, "malformed"},
		{"no CSR", good, "", codes.InvalidArgument, "no PEM block"},
		{"bad CSR", good, strings.Replace(csr, "A", "B", 1), codes.InvalidArgument, "certificate request"},
		{"another identity", good, bobs, codes.PermissionDenied, "spiffe://cluster.local/ns/shop/sa/bob"},
		{"huge CSR", good, strings.Repeat("x", pki.MaxCSR+1), codes.InvalidArgument, "at most 16384"},
	} {
		_, err := a.call(nil, tt.token, &securityv1.IstioCertificateRequest{Csr: tt.csr})
		if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v; want %s %q", tt.name, err, tt.code, tt.why)
		}
	}
	got := map[string]float64{}
	for _, m := range a.server.Metrics() {
		got[m.Name] = m.Value
	}
	for name, want := range map[string]float64{
		"citadel_server_csr_count": 9, "citadel_server_id_extraction_failure_count": 1, "pilothouse_ca_roots": 1, "citadel_server_authentication_failure_count": 5, "citadel_server_csr_parsing_err_count": 3,
		"citadel_server_success_cert_issuance_count": 0, "citadel_server_root_cert_expiry_timestamp": float64(rootOf(t, a.root)[0].NotAfter.Unix()), "citadel_server_cert_chain_expiry_timestamp": float64(rootOf(t, a.root)[0].NotAfter.Unix()),
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if strings.Contains(a.logs.String(), good) {
		t.Error("the log contains a token")
	}
}

// There is one signer, this CA. Whoever asks for another one would get a certificate below another root than
// their peers expect. Istio's agent names the one of ISTIO_META_CERT_SIGNER, and none with an empty text.
func TestOtherSignersAreRefused(t *testing.T) {
	a := start(t, policy.Limits{})
	_, csr := newCSR(t, alice)
	for _, tt := range []struct {
		name  string
		value *structpb.Value
		code  codes.Code
		why   string
	}{
		{"none", structpb.NewStringValue(""), codes.OK, ""},
		{"another signer", structpb.NewStringValue("example.com/foo"), codes.InvalidArgument, `CertSigner "example.com/foo": this CA has no other signers: unset ISTIO_META_CERT_SIGNER`},
		{"not a name", structpb.NewNumberValue(1), codes.InvalidArgument, "invalid CertSigner: want a string"},
		{"a long name", structpb.NewStringValue(strings.Repeat("x", 5000)), codes.InvalidArgument, "xxx"},
	} {
		r := request(csr)
		r.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CertSigner": tt.value}}
		_, err := a.call(nil, a.token("shop", "alice", "", time.Now()), r)
		if status.Code(err) != tt.code || err != nil && (!strings.Contains(err.Error(), tt.why) || len(err.Error()) > 1000) {
			t.Errorf("%s: %v, want %s %q", tt.name, err, tt.code, tt.why)
		}
	}
	if got := strings.Count(a.logs.String(), "certificate issued"); got != 1 {
		t.Errorf("%d certificates issued, want 1", got)
	}
}
