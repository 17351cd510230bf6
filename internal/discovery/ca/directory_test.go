package ca_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/wait"
)

// signer is a CA certificate with its key.
type signer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// newSigner creates a CA certificate that parent signs, or itself if parent is the zero signer.
func newSigner(t *testing.T, name string, parent signer, kind pki.KeyKind) signer {
	t.Helper()
	key, err := pki.GenerateKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	with := key
	if parent.cert != nil {
		with = parent.key
	}
	cert, err := pki.Sign(pki.RootTemplate(name, pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour)}), parent.cert, key.Public(), with)
	if err != nil {
		t.Fatal(err)
	}
	return signer{cert, key}
}

func (s signer) keyPEM(t *testing.T) []byte {
	t.Helper()
	text, err := pki.EncodeKey(s.key, true)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// istio are the files of a CA with Istio's names: signs is the last of chain's CAs below root.
func istio(t *testing.T, root signer, chain ...signer) map[string][]byte {
	t.Helper()
	signs := root
	var certs []*x509.Certificate
	for _, s := range chain {
		certs, signs = append([]*x509.Certificate{s.cert}, certs...), s
	}
	return map[string][]byte{
		"ca-cert.pem": pki.EncodeCerts(signs.cert), "ca-key.pem": signs.keyPEM(t),
		"cert-chain.pem": pki.EncodeCerts(append(certs, root.cert)...), "root-cert.pem": pki.EncodeCerts(root.cert),
	}
}

// tlsStyle are the files of a CA as cert-manager writes them.
func tlsStyle(t *testing.T, root signer, chain ...signer) map[string][]byte {
	t.Helper()
	files := istio(t, root, chain...)
	certs := files["cert-chain.pem"]
	if len(chain) > 0 {
		certs = certs[:len(certs)-len(files["root-cert.pem"])]
	}
	return map[string][]byte{"tls.crt": certs, "tls.key": files["ca-key.pem"], "ca.crt": files["root-cert.pem"]}
}

// secret is a directory that is written as the kubelet mounts a Secret: files are links into a folder
// that is replaced by swapping a link, and readable by a group.
type secret struct {
	t     *testing.T
	dir   string
	count int
}

func (s *secret) swap(files map[string][]byte) {
	s.t.Helper()
	s.count++
	version := "..v" + string(rune('0'+s.count))
	s.check(os.Mkdir(filepath.Join(s.dir, version), 0o755))
	for name, text := range files {
		s.check(os.WriteFile(filepath.Join(s.dir, version, name), text, 0o640))
		if _, err := os.Lstat(filepath.Join(s.dir, name)); err != nil {
			s.check(os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)))
		}
	}
	s.check(os.Symlink(version, filepath.Join(s.dir, "..next")))
	s.check(os.Rename(filepath.Join(s.dir, "..next"), filepath.Join(s.dir, "..data")))
}

func (s *secret) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// plugIn opens the authority with the directory, and follows it.
func plugIn(t *testing.T, dir string, limits policy.Limits) (*ca.Authority, *ca.Directory, *wait.Output) {
	t.Helper()
	logs := &wait.Output{}
	store, log := ca.NewFolder(filepath.Join(wait.Folder(t), "state")), slog.New(slog.NewTextHandler(logs, nil))
	a, d, err := ca.Open(t.Context(), ca.Options{Directory: dir, Store: store, TrustDomain: "cluster.local", Limits: limits, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	r, err := ca.OpenRotator(t.Context(), a, ca.RotatorOptions{
		Store: store, Organization: "cluster.local", TTL: limits.Lifetime(), MaxTTL: limits.Longest(), Plugged: d.Plugged(), Poll: 100 * time.Millisecond, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- run.Group(ctx,
			run.Task{Name: "files", Run: func(ctx context.Context) error { return d.Run(ctx, r.Plug) }},
			run.Task{Name: "rotation", Run: r.Run},
		)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a, d, logs
}

func TestPluggedIn(t *testing.T) {
	root := newSigner(t, "root", signer{}, pki.ECDSAP256)
	upper := newSigner(t, "upper", root, pki.RSA2048)
	lower := newSigner(t, "lower", upper, pki.ECDSAP384)
	for name, files := range map[string]map[string][]byte{
		"Istio's names":                      istio(t, root, upper, lower),
		"Istio's names, self-signed":         istio(t, root),
		"names of kubernetes.io/tls":         tlsStyle(t, root, upper, lower),
		"names of kubernetes.io/tls, 1 root": tlsStyle(t, root),
	} {
		s := &secret{t: t, dir: wait.Folder(t)}
		s.swap(files)
		a, _, _ := plugIn(t, s.dir, policy.Limits{})
		st := startWith(t, a, policy.Limits{})
		key, csr := newCSR(t, alice)
		chain, err := st.call(nil, st.token("shop", "alice", "", time.Now()), request(csr))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var certs []*x509.Certificate
		for _, text := range chain[:len(chain)-1] {
			certs = append(certs, parse(t, text)...)
		}
		roots := parse(t, chain[len(chain)-1])
		if len(roots) != 1 || !roots[0].Equal(root.cert) {
			t.Errorf("%s: %d roots in the last element", name, len(roots))
		}
		if err := pki.VerifyChain(certs, roots, x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := st.call(tlsCertificate(certs, key), "", request(csr)); err != nil {
			t.Errorf("%s: renewal with the certificate: %v", name, err)
		}
	}
}

func TestPluggedInErrors(t *testing.T) {
	root, other := newSigner(t, "root", signer{}, ""), newSigner(t, "other", signer{}, "")
	for _, tt := range []struct {
		name, why string
		change    func(dir string) error
	}{
		{"no key", "file ca-key.pem is missing: a CA needs [ca-cert.pem ca-key.pem cert-chain.pem root-cert.pem], or none of them", func(dir string) error { return os.Remove(filepath.Join(dir, "ca-key.pem")) }},
		{"no root", "file root-cert.pem is missing", func(dir string) error { return os.Remove(filepath.Join(dir, "root-cert.pem")) }},
		{"another key", "ca-key.pem: not the key of", func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca-key.pem"), other.keyPEM(t), 0o600) }},
		{"a named pipe as the key", "want a regular file", func(dir string) error {
			return join(os.Remove(filepath.Join(dir, "ca-key.pem")), syscall.Mkfifo(filepath.Join(dir, "ca-key.pem"), 0o600))
		}},
		{"an endless file", "want a regular file", func(dir string) error {
			return join(os.Remove(filepath.Join(dir, "root-cert.pem")), os.Symlink("/dev/zero", filepath.Join(dir, "root-cert.pem")))
		}},
		{"a huge file", "more than 1048576 bytes", func(dir string) error { return os.Truncate(filepath.Join(dir, "root-cert.pem"), 1<<40) }},
	} {
		dir := wait.Folder(t)
		for name, text := range istio(t, root) {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := tt.change(dir); err != nil {
			t.Fatal(err)
		}
		_, _, err := ca.Open(t.Context(), ca.Options{Directory: dir, Store: ca.NewFolder(wait.Folder(t)), TrustDomain: "cluster.local", Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), tt.why) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		}
	}
}

func join(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestPluggedInFilesAreReloaded(t *testing.T) {
	root := newSigner(t, "root", signer{}, "")
	first, second := newSigner(t, "first", root, ""), newSigner(t, "second", root, "")
	s := &secret{t: t, dir: wait.Folder(t)}
	s.swap(istio(t, root, first))
	a, d, logs := plugIn(t, s.dir, policy.Limits{})
	signs := func(c signer) func() bool {
		return func() bool { return a.State().Issuer.Certificate().Equal(c.cert) }
	}
	wait.Until(t, "the first signs", signs(first))

	broken := istio(t, root, second)
	broken["ca-key.pem"] = first.keyPEM(t)
	s.swap(broken)
	wait.Until(t, "the mistake is logged", func() bool { return strings.Contains(logs.String(), "ca-key.pem: not the key of") })
	if !signs(first)() || !d.Rejected() {
		t.Errorf("after a mistake %v signs, rejected %v", a.State().Issuer, d.Rejected())
	}
	if m := d.Metrics(); len(m) != 1 || m[0].Value != 1 {
		t.Errorf("metrics %v", m)
	}
	s.swap(istio(t, root, second))
	wait.Until(t, "the second signs", signs(second))
	if len(a.State().Roots) != 1 || d.Rejected() {
		t.Errorf("%d roots, rejected %v", len(a.State().Roots), d.Rejected())
	}
	if err := os.Remove(filepath.Join(s.dir, "..data")); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the missing files are logged", func() bool { return strings.Contains(logs.String(), "all its files are gone") })
	if !signs(second)() {
		t.Errorf("without files %v signs", a.State().Issuer)
	}
	if strings.Contains(logs.String(), "PRIVATE KEY") {
		t.Error("the log has a key")
	}
}

// A CA with another root is plugged in while the CA serves: at the start there was none, so that the first
// root is self-signed. A client that renews all the time never meets a certificate that it does not trust.
func TestAnotherRootIsPluggedInWithoutAFailedHandshake(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		limits := policy.Limits{DefaultTTL: 10 * time.Minute}
		a := ok(t)(ca.OpenRoot(dir, "cluster.local", 0, ""))
		r, err := ca.OpenRotator(t.Context(), a, ca.RotatorOptions{
			Store: ca.NewFolder(dir), Organization: "cluster.local", TTL: limits.Lifetime(), MaxTTL: limits.Longest(), Poll: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		st := startWith(t, a, limits)
		selfSigned := a.State().Issuer.Root()
		root := newSigner(t, "root", signer{}, "")
		files := tlsStyle(t, root, newSigner(t, "below", root, ""))
		plugged, err := policy.LoadFiles(policy.Files{Cert: files["tls.crt"], Key: files["tls.key"], Roots: files["ca.crt"]}, policy.TLSNames, limits, time.Now())
		if err != nil {
			t.Fatal(err)
		}

		key, csr := newCSR(t, alice)
		chain, err := st.call(nil, st.token("shop", "alice", "", time.Now()), request(csr))
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		for range 100 {
			certs, roots := parse(t, strings.Join(chain[:len(chain)-1], "")), parse(t, chain[len(chain)-1])
			state := "self-signed signs"
			if len(certs) == 2 {
				state = "plugged in signs"
			}
			if slices.ContainsFunc(roots, selfSigned.Equal) {
				state += ", self-signed trusted"
			}
			if slices.ContainsFunc(roots, root.cert.Equal) {
				state += ", plugged in trusted"
			}
			if len(seen) == 0 {
				if err := r.Plug(t.Context(), plugged); err != nil {
					t.Fatal(err)
				}
			}
			if len(seen) == 0 || seen[len(seen)-1] != state {
				seen = append(seen, state)
			}
			if state == "plugged in signs, plugged in trusted" {
				break
			}
			<-time.After(time.Minute)
			// The client trusts the roots of its last answer, and presents its certificate.
			if chain, err = st.callTrusting(roots, tlsCertificate(certs, key), request(csr)); err != nil {
				t.Fatalf("after %q: %v", seen, err)
			}
		}
		want := []string{"self-signed signs, self-signed trusted", "self-signed signs, self-signed trusted, plugged in trusted", "plugged in signs, self-signed trusted, plugged in trusted", "plugged in signs, plugged in trusted"}
		if !slices.Equal(seen, want) {
			t.Errorf("states %q, want %q", seen, want)
		}
	})
}
