package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bound = 30 * time.Second

// value is a Source that a test sets.
type value struct {
	mu   sync.Mutex
	s    *pki.Secret
	next chan struct{}
}

func (v *value) Current() (*pki.Secret, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.next == nil {
		v.next = make(chan struct{})
	}
	return v.s, v.next
}

func (v *value) set(s *pki.Secret) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.s = s
	if v.next != nil {
		close(v.next)
	}
	v.next = make(chan struct{})
}

// serve runs a server until the test ends and returns its socket.
func serve(t *testing.T, source Source) string { return serveFiles(t, source, nil) }

func serveFiles(t *testing.T, source Source, files Files) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a", "socket")
	c := config(socket, source)
	c.Files, c.Names = files, anyName{}
	return serveConfig(t, c)
}

// anyName allows every name.
type anyName struct{}

func (anyName) Has(string) bool          { return true }
func (anyName) Changed() <-chan struct{} { return nil }

// config is the configuration of a server for the test's own user.
func config(socket string, source Source) Config {
	return Config{
		Socket: socket, Access: claim.AnyUser, Users: Users{UIDs: []uint32{uint32(os.Getuid())}}, Source: source,
		Log: slog.New(slog.DiscardHandler),
	}
}

// serveConfig runs a server until the test ends and returns its socket.
func serveConfig(t *testing.T, c Config) string {
	t.Helper()
	socket := c.Socket
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return socket
}

// envoy is an Envoy's side of one stream.
type envoy struct {
	t     *testing.T
	st    secretv3.SecretDiscoveryService_StreamSecretsClient
	names []string
}

func dial(t *testing.T, socket string) secretv3.SecretDiscoveryServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return secretv3.NewSecretDiscoveryServiceClient(conn)
}

func open(t *testing.T, socket string, names ...string) envoy {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	st, err := dial(t, socket).StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := envoy{t, st, names}
	c.send(ask("", names...))
	return c
}

func (c envoy) send(r *discoveryv3.DiscoveryRequest) {
	c.t.Helper()
	if err := c.st.Send(r); err != nil {
		c.t.Fatal(err)
	}
}

// next takes one response and acknowledges it.
func (c envoy) next() (*discoveryv3.DiscoveryResponse, []*tlsv3.Secret) {
	c.t.Helper()
	r, err := c.st.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(ask(r.GetNonce(), c.names...))
	return r, secretsIn(c.t, r)
}

func secretsIn(t *testing.T, r *discoveryv3.DiscoveryResponse) []*tlsv3.Secret {
	t.Helper()
	var out []*tlsv3.Secret
	for _, a := range r.GetResources() {
		var s tlsv3.Secret
		if err := a.UnmarshalTo(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, &s)
	}
	return out
}

func namesIn(t *testing.T, r *discoveryv3.DiscoveryResponse) []string {
	t.Helper()
	var out []string
	for _, s := range secretsIn(t, r) {
		out = append(out, s.GetName())
	}
	return out
}

func ask(nonce string, names ...string) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{TypeUrl: TypeURL, ResourceNames: names, ResponseNonce: nonce}
}

func TestEnvoysAreServedAndPushedTo(t *testing.T) {
	source := &value{}
	socket := serve(t, source)
	leaf, roots, both := open(t, socket, LeafName), open(t, socket, RootsName), open(t, socket, LeafName, RootsName)
	source.set(secretA) // the streams above have waited for it
	r, got := leaf.next()
	if c := got[0].GetTlsCertificate(); string(c.GetCertificateChain().GetInlineBytes()) != "ca" || string(c.GetPrivateKey().GetInlineBytes()) != "ka" || r.GetTypeUrl() != TypeURL {
		t.Errorf("leaf: %v", r)
	}
	_, got = roots.next()
	if c := got[0].GetValidationContext(); string(c.GetTrustedCa().GetInlineBytes()) != "r" {
		t.Errorf("roots: %v", got)
	}
	if _, got = both.next(); len(got) != 2 {
		t.Errorf("both: %v", got)
	}
	late := open(t, socket, LeafName)
	first, _ := late.next()
	if first.GetVersionInfo() != r.GetVersionInfo() {
		t.Error("the same secret has two versions")
	}
	source.set(secretB)
	for _, c := range []envoy{leaf, both, late} {
		if r2, _ := c.next(); r2.GetVersionInfo() == r.GetVersionInfo() {
			t.Error("another secret has the same version")
		}
	}
	source.set(secretC) // the stream of the roots gets no response before this one
	if _, got = roots.next(); string(got[0].GetValidationContext().GetTrustedCa().GetInlineBytes()) != "r2" {
		t.Errorf("roots: %v", got)
	}
}

func TestOtherTypesAreRefused(t *testing.T) {
	socket := serve(t, &value{s: secretA})
	c := open(t, socket)
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: "other"})
	if _, err := c.st.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another type: %v", err)
	}
}

func TestNewPreparesTheSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "deep", "er", "socket")
	stale := func() {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		ln.Close()
	}
	for range 2 {
		s, err := New(config(path, &value{}))
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != 0o666 {
			t.Errorf("socket's mode: %v, %v", st, err)
		}
		if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o750 {
			t.Errorf("folder's mode: %v, %v", st.Mode(), err)
		}
		s.Close()
		stale()
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for why, path := range map[string]string{"not a socket": file, "at most 107": "/" + strings.Repeat("x", 120), "create socket folder": file + "/socket"} {
		if _, err := New(config(path, &value{})); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// rootSigner is a CA of one root.
type rootSigner struct {
	root *x509.Certificate
	sign func(pub any, ttl time.Duration) (*x509.Certificate, error)
}

func (r rootSigner) Sign(_ context.Context, text []byte, ttl time.Duration) (chain, roots []byte, err error) {
	csr, err := pki.ParseCSR(text)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := r.sign(csr.PublicKey, ttl)
	if err != nil {
		return nil, nil, err
	}
	return pki.EncodeCerts(leaf, r.root), pki.EncodeCerts(r.root), nil
}

func newRootSigner(t *testing.T, id mesh.Identity) rootSigner {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Minute)
	root, err := pki.Sign(pki.RootTemplate("td", pki.Validity{NotBefore: begin, NotAfter: begin.Add(time.Hour)}), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return rootSigner{root, func(pub any, ttl time.Duration) (*x509.Certificate, error) {
		tmpl, err := pki.WorkloadTemplate(id, pki.Validity{NotBefore: begin, NotAfter: time.Now().Add(ttl)})
		if err != nil {
			return nil, err
		}
		return pki.Sign(tmpl, root, pub, key)
	}}
}

// TestARenewalReachesEnvoy joins the real keeper and the real server.
func TestARenewalReachesEnvoy(t *testing.T) {
	id := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "alice"}
	k := secret.NewKeeper(secret.NewValue(), secret.Options{Identity: id, TTL: 4 * time.Second, Ratio: 0.75}, newRootSigner(t, id), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := open(t, serve(t, k), LeafName)
	go func() { done <- k.Run(ctx) }()
	defer func() { cancel(); <-done }()
	var last []byte
	for range 3 {
		_, got := c.next()
		chain := got[0].GetTlsCertificate().GetCertificateChain().GetInlineBytes()
		certs, err := pki.ParseBundle(chain)
		if err != nil || bytes.Equal(chain, last) {
			t.Fatalf("no new chain: %v", err)
		}
		if got, err := pki.IdentityOf(certs[0]); err != nil || got != id {
			t.Errorf("identity %v, %v", got, err)
		}
		last = chain
	}
}

// lists is a revocation list that a test sets.
type lists struct {
	mu    sync.Mutex
	text  []byte
	known bool
	next  chan struct{}
}

func (l *lists) Current() ([]byte, bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text, l.known, l.next
}

func (l *lists) set(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text, l.known = []byte(text), true
	close(l.next)
	l.next = make(chan struct{})
}

// TestRootsWaitForTheRevocationList: roots without a list that exists would trust what it revokes. The leaf does not wait.
func TestRootsWaitForTheRevocationList(t *testing.T) {
	l := &lists{next: make(chan struct{})}
	c := config(filepath.Join(t.TempDir(), "socket"), &value{s: secretA})
	c.Lists = l
	st := open(t, serveConfig(t, c), LeafName, RootsName)
	if _, got := st.next(); len(got) != 1 || got[0].GetName() != LeafName {
		t.Fatalf("got %v, want the leaf alone", got)
	}
	for _, want := range []string{"", "one", "two"} {
		l.set(want)
		_, got := st.next()
		if len(got) != 2 || string(got[0].GetValidationContext().GetCrl().GetInlineBytes()) != want {
			t.Errorf("got %v, want the roots with the list %q", got, want)
		}
	}
}

// TestManyClients: each of many connections gets the secret and its successor, once each.
func TestManyClients(t *testing.T) {
	source := &value{s: secretA}
	socket := serve(t, source)
	var all []envoy
	for range 200 {
		all = append(all, open(t, socket, LeafName))
	}
	for _, s := range []*pki.Secret{secretA, secretB} {
		source.set(s)
		for _, c := range all {
			if _, got := c.next(); string(got[0].GetTlsCertificate().GetPrivateKey().GetInlineBytes()) != string(s.Key) {
				t.Fatalf("got %v, want %s", got, s.Key)
			}
		}
	}
}
