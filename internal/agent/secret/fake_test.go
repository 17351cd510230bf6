package secret

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

var alice = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "alice"}

var quiet = slog.New(slog.DiscardHandler)

// fakeCA signs every request unless fail is set.
type fakeCA struct {
	root *x509.Certificate
	key  crypto.Signer

	mu    sync.Mutex
	fail  error
	asked []time.Time
}

func newFakeCA(t testing.TB) *fakeCA {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	term := pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1e6 * time.Second)}
	root, err := pki.Sign(pki.RootTemplate("cluster.local", term), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeCA{root: root, key: key}
}

// renewRoot replaces the root by one of the same key that ends after a time.
func (f *fakeCA) renewRoot(t testing.TB, left time.Duration) {
	t.Helper()
	term := pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left)}
	root, err := pki.Sign(pki.RootTemplate("cluster.local", term), nil, f.key.Public(), f.key)
	if err != nil {
		t.Fatal(err)
	}
	f.root = root
}

// lines is a log that a test reads.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (f *fakeCA) Sign(_ context.Context, text []byte, ttl time.Duration) (chain, roots []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, time.Now())
	if f.fail != nil {
		return nil, nil, f.fail
	}
	csr, err := pki.ParseCSR(text)
	if err != nil {
		return nil, nil, err
	}
	end := time.Now().Add(ttl)
	if end.After(f.root.NotAfter) {
		end = f.root.NotAfter
	}
	leaf, err := f.leaf(csr.PublicKey, pki.Validity{NotBefore: time.Now().Add(-2 * time.Minute), NotAfter: end})
	if err != nil {
		return nil, nil, err
	}
	return pki.EncodeCerts(leaf, f.root), pki.EncodeCerts(f.root), nil
}

func (f *fakeCA) leaf(pub crypto.PublicKey, term pki.Validity) (*x509.Certificate, error) {
	tmpl, err := pki.WorkloadTemplate(alice, term)
	if err != nil {
		return nil, err
	}
	return pki.Sign(tmpl, f.root, pub, f.key)
}

func (f *fakeCA) setFail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeCA) calls() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.asked...)
}

var errDown = errors.New("the CA is down")
