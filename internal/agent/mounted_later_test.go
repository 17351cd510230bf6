package agent

import (
	"context"
	"crypto"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/wait"
)

// authority is a self-signed root with its key.
type authority struct {
	root *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T, organization string) authority {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	term := pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	root, err := pki.Sign(pki.RootTemplate(organization, term), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{root, key}
}

// mount writes the files of a certificate that a has signed, in the folder where platforms mount them.
func (a authority) mount(t *testing.T, roots ...*x509.Certificate) {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	term := pki.Validity{NotBefore: a.root.NotBefore, NotAfter: a.root.NotAfter}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "cluster.local", Namespace: "a", ServiceAccount: "b"}, term)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.Sign(template, a.root, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := pki.EncodeKey(key, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"cert-chain.pem": pki.EncodeCerts(leaf), "key.pem": text, "root-cert.pem": pki.EncodeCerts(roots...)} {
		path := filepath.Join(identity.MountedDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Files that are mounted after the start take over from the CA: the report names them, and their roots are for
// other workloads, not for the control plane, even if the CA's root is among them.
func TestRootsMountedLaterDoNotVerifyTheControlPlane(t *testing.T) {
	t.Chdir(t.TempDir())
	ours, others := newAuthority(t, "cluster.local"), newAuthority(t, "platform.example")
	if err := os.WriteFile("root.pem", pki.EncodeCerts(ours.root), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := options(t, map[string]string{"CA_ADDR": "127.0.0.1:1", "CA_ROOT_CA": "root.pem", "XDS_ROOT_CA": "root.pem"})
	if err != nil {
		t.Fatal(err)
	}
	follower := filewatch.NewFollower(filewatch.FollowerOptions{Log: slog.New(slog.DiscardHandler)})
	c, err := newCertificates(o.Spec, follower, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.trust.SetBundle([]string{string(pki.EncodeCerts(ours.root))}, []string{pki.Fingerprint(ours.root)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run.Group(ctx, append(slices.Clone(c.tasks), run.Task{Name: "follower", Run: follower.Run})...)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if got := c.report(o.Spec).Source; got != "CA 127.0.0.1:1" {
		t.Errorf("without files: source %q", got)
	}
	others.mount(t, others.root, ours.root)
	wait.Until(t, "the files are used, with their roots", func() bool {
		s, _ := c.trust.Current()
		return s != nil && len(c.trust.Roots()) == 2
	})
	file := []*x509.Certificate{ours.root}
	if got := c.trust.ControlPlane(file); !slices.EqualFunc(got, file, (*x509.Certificate).Equal) {
		t.Errorf("the control plane is verified with %d roots, want that of the file alone", len(got))
	}
	r := c.report(o.Spec)
	if want := "files " + filepath.Join(identity.MountedDir, "cert-chain.pem"); r.Source != want || r.Held == nil || r.Token != nil || !r.Next.IsZero() || r.Failures != 0 {
		t.Errorf("%+v, want source %q alone", r, want)
	}
}
