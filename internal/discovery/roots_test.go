package discovery

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Links and pipes where the trust bundle is written are replaced: not followed, and not waited for.
func TestTheTrustBundleIsWrittenToAFileOfItsOwn(t *testing.T) {
	target := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(dir string) error{
		"a link at the temporary path of older releases": func(dir string) error { return os.Symlink(target, filepath.Join(dir, rootsFile+".new")) },
		"a link at the path":                             func(dir string) error { return os.Symlink(target, filepath.Join(dir, rootsFile)) },
		"a pipe at the path":                             func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, rootsFile), 0o600) },
	} {
		dir := wait.Folder(t)
		if err := plant(dir); err != nil {
			t.Fatal(err)
		}
		p := start(t, func(o *Options) { o.StateDir = dir })
		path := filepath.Join(dir, rootsFile)
		if fi, err := os.Lstat(path); err != nil || fi.Mode() != 0o644 {
			t.Errorf("%s: %s: %v, %v, want a file of mode 0644", name, path, fi.Mode(), err)
		}
		if got, want := p.root(), string(p.server.authority.State().RootsPEM()); got != want {
			t.Errorf("%s: the file does not have the trust bundle", name)
		}
		if got, err := os.ReadFile(target); err != nil || string(got) != "precious" {
			t.Errorf("%s: the link's target holds %q, %v", name, got, err)
		}
	}
}

func TestTheTrustBundleIsWrittenWhenItChanges(t *testing.T) {
	p := start(t)
	next, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	authority := p.server.authority
	if err := authority.Replace(authority.State().Issuer, []*x509.Certificate{next.Root()}); err != nil {
		t.Fatal(err)
	}
	want := string(authority.State().RootsPEM())
	wait.Until(t, "the file has both roots", func() bool { return p.root() == want })
}

// A state folder that is refused is left as it is: once its mode is mended, what was saved there is used.
func TestARefusedStateFolderIsLeftAlone(t *testing.T) {
	state := t.TempDir()
	saved := filepath.Join(state, savedFile)
	if err := os.WriteFile(saved, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(state, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), Options{ConfigDir: t.TempDir(), StateDir: state, Names: Names{Domain: "cluster.local", Namespace: "istio-system"}, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "mode 0777 lets others write it") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(saved); err != nil {
		t.Error(err)
	}
}

// Streams go on while the certificate of the secure port is replaced; new connections get the new one.
func TestStreamsOutliveTheServingCertificate(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	c := p.dial(p.token("shop", "default"), p.root()).open()
	c.expect("RDS", "9080")
	first := p.serverCertificate()
	if !first.Equal(p.serverCertificate()) {
		t.Error("the certificate is not the same for two connections")
	}
	next, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.server.servingAuthority.Replace(next, nil); err != nil {
		t.Fatal(err)
	}
	second := p.serverCertificate()
	if second.Equal(first) || second.CheckSignatureFrom(next.Root()) != nil {
		t.Errorf("a new connection gets a certificate of %s", second.Issuer)
	}
	p.emit(strings.ReplaceAll(shop, "9080", "9081"), true)
	c.expect("CDS", "outbound|9081||reviews.shop.svc.cluster.local")
}

// serverCertificate is what the secure port presents to a new connection.
func (p *plane) serverCertificate() *x509.Certificate {
	p.t.Helper()
	conn, err := tls.Dial("tcp", p.addr.SecureGRPC, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // the test looks at the certificate
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// Certificates are served at the plaintext port only if asked for, and not at all if they are off.
func TestPortsOfTheCA(t *testing.T) {
	for _, tt := range []struct {
		off, plaintext    bool
		inPlain, inSecure codes.Code
	}{
		{false, false, codes.Unimplemented, codes.OK},
		{false, true, codes.OK, codes.OK},
		{true, true, codes.Unimplemented, codes.Unimplemented},
	} {
		p := start(t, func(o *Options) { o.CA.Off, o.CA.Plaintext = tt.off, tt.plaintext })
		if got := p.certificateCode(p.addr.GRPC, insecure.NewCredentials()); got != tt.inPlain {
			t.Errorf("%+v: plaintext port: %s", tt, got)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(p.root()))
		if got := p.certificateCode(p.addr.SecureGRPC, credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc"})); got != tt.inSecure {
			t.Errorf("%+v: secure port: %s", tt, got)
		}
	}
}

// certificateCode is the status of a request for a certificate, and checks that without a token there is none.
func (p *plane) certificateCode(addr string, creds credentials.TransportCredentials) codes.Code {
	p.t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	key, err := pki.GenerateKey("")
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "default"})
	if err != nil {
		p.t.Fatal(err)
	}
	client, r := securityv1.NewIstioCertificateServiceClient(conn), &securityv1.IstioCertificateRequest{Csr: string(csr)}
	if _, err := client.CreateCertificate(p.t.Context(), r); status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.Unimplemented {
		p.t.Errorf("%s without a token: %v", addr, err)
	}
	_, err = client.CreateCertificate(metadata.AppendToOutgoingContext(p.t.Context(), "authorization", "Bearer "+p.token("shop", "default")), r)
	return status.Code(err)
}
