package secret

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"log/slog"
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
	leaf, err := f.leaf(csr.PublicKey, pki.Validity{NotBefore: time.Now().Add(-2 * time.Minute), NotAfter: time.Now().Add(ttl)})
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
