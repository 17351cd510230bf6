package discovery

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// newFiles writes the files of a new self-signed CA to a directory, and returns the ID of its root.
func newFiles(t *testing.T, dir, name string) string {
	t.Helper()
	issuer, err := policy.NewRoot(name, "", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := issuer.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	cert := pki.EncodeCerts(issuer.Root())
	for name, text := range map[string][]byte{"ca-cert.pem": cert, "root-cert.pem": cert, "ca-key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pki.Fingerprint(issuer.Root())
}

// The files of the CA are replaced while the control plane is not running. /debug/ca has the overlap, root-cert.pem both roots, and
// the state folder no key of either.
func TestPluggedInRootsOverlapAcrossARestart(t *testing.T) {
	dir, state := t.TempDir(), wait.Folder(t)
	first := newFiles(t, dir, "first")
	plugged := func(o *Options) { o.StateDir, o.CA.Directory = state, dir }
	p := start(t, plugged)
	p.issue()
	if code, body := p.rotate(); code != http.StatusNotImplemented || !strings.Contains(body, "replace them to rotate it") {
		t.Errorf("a rotation on request: %d %s", code, body)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	second := newFiles(t, dir, "second")
	p = start(t, plugged)
	code, body := p.get(p.addr.HTTP, "/debug/ca")
	var s ca.RotationStatus
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if s.Phase != rotation.Overlap || !s.PluggedIn || len(s.Roots) != 2 || s.Roots[0].SHA256 != second || s.Roots[1].SHA256 != first || s.Roots[1].Role != "retired" {
		t.Errorf("want %.8s to sign, and %.8s to be trusted: %s", second, first, body)
	}
	p.issue()
	if certs, err := pki.ParseBundle([]byte(p.root())); err != nil || len(certs) != 2 {
		t.Errorf("root-cert.pem has %d roots, %v", len(certs), err)
	}
	keys, err := filepath.Glob(filepath.Join(state, "ca*", "ca-key.pem"))
	if err != nil || len(keys) > 0 {
		t.Errorf("keys in the state folder: %v, %v", keys, err)
	}
}
