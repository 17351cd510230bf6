package ca

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

func open(t testing.TB, dir string) *Authority {
	t.Helper()
	a, err := OpenRoot(dir, "cluster.local", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRootIsCreatedOnce(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	roots := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range roots {
		wg.Go(func() {
			if a, err := OpenRoot(dir, "cluster.local", 0, ""); err != nil {
				t.Error(err)
			} else {
				roots[i] = a.State().RootsPEM()
			}
		})
	}
	wg.Wait()
	onDisk, err := os.ReadFile(filepath.Join(dir, rootFolder, rootCert))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roots {
		if !bytes.Equal(r, onDisk) {
			t.Fatal("concurrent calls created two roots")
		}
	}
	root := open(t, dir).State().Issuer.Root()
	if got := root.NotAfter.Sub(root.NotBefore); got != DefaultRootTTL+Backdate || !root.IsCA || root.PublicKeyAlgorithm != x509.ECDSA {
		t.Errorf("root: valid for %s, CA %v, %s", got, root.IsCA, root.PublicKeyAlgorithm)
	}
}

func TestOpenRootErrors(t *testing.T) {
	for _, tt := range []struct {
		name, why string
		change    func(dir string) error
	}{
		{"a key that others can read", "chmod 600", func(dir string) error { return os.Chmod(filepath.Join(dir, rootKey), 0o640) }},
		{"another key", "does not match", func(dir string) error {
			key, _ := pki.GenerateKey("")
			text, _ := pki.EncodeKey(key, true)
			return os.WriteFile(filepath.Join(dir, rootKey), text, 0o600)
		}},
		{"a missing key", "read root key: ", func(dir string) error { return os.Remove(filepath.Join(dir, rootKey)) }},
		{"a missing certificate", "read root certificate: ", func(dir string) error { return os.Remove(filepath.Join(dir, rootCert)) }},
		{"no certificate", "no PEM block", func(dir string) error { return os.WriteFile(filepath.Join(dir, rootCert), []byte("x"), 0o600) }},
		{"a leaf", "not a self-signed CA", func(dir string) error {
			key, _ := pki.GenerateKey("")
			leaf, _ := pki.Sign(pki.ServerTemplate(nil, pki.Validity{NotAfter: time.Now().Add(time.Hour)}), nil, key.Public(), key)
			return os.WriteFile(filepath.Join(dir, rootCert), pki.EncodeCerts(leaf), 0o600)
		}},
	} {
		dir := wait.Folder(t)
		open(t, dir)
		if err := tt.change(filepath.Join(dir, rootFolder)); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenRoot(dir, "cluster.local", 0, ""); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		}
	}
}

func TestRenewalAndExpiry(t *testing.T) {
	dir := wait.Folder(t)
	synctest.Test(t, func(t *testing.T) {
		a, err := OpenRoot(dir, "cluster.local", 30*time.Hour, "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := a.ServerCertificate(ServingNames("istio-system", "", "pilot.example", "192.0.2.7"))
		if err != nil {
			t.Fatal(err)
		}
		get := func() *x509.Certificate {
			c, err := s.Get(nil)
			if err != nil {
				t.Fatal(err)
			}
			return c.Leaf
		}
		first := get()
		for _, name := range []string{"istiod.istio-system.svc", "istiod-remote.istio-system.svc", "istio-pilot.istio-system.svc", "localhost", "::1", "pilot.example", "192.0.2.7"} {
			if err := first.VerifyHostname(name); err != nil {
				t.Error(err)
			}
		}
		<-time.After(11 * time.Hour)
		if !get().Equal(first) {
			t.Error("the serving certificate was renewed before half of its lifetime")
		}
		<-time.After(2 * time.Hour)
		second := get()
		if second.Equal(first) || second.NotAfter.After(a.State().Issuer.Root().NotAfter) {
			t.Errorf("after 13 h the serving certificate ends at %s (root at %s)", second.NotAfter, a.State().Issuer.Root().NotAfter)
		}
		<-time.After(18 * time.Hour)
		if _, err := OpenRoot(dir, "cluster.local", 0, ""); err == nil || !strings.Contains(err.Error(), "expired at") {
			t.Errorf("an expired root: %v", err)
		}
	})
}
