package ca_test

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
)

func newRoot(t testing.TB) *policy.Issuer {
	t.Helper()
	root, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// A root is replaced with overlap while the CA serves: one client trusts only the old root, then only
// the new one, and its certificate is of the old root, then of the new one.
func TestReplaceWhileServing(t *testing.T) {
	a := start(t, policy.Limits{})
	old := a.root.State().Issuer
	key, csr := newCSR(t, alice)
	token := a.token("shop", "alice", "", time.Now())
	request := &securityv1.IstioCertificateRequest{Csr: csr}
	chain, err := a.call(nil, token, request)
	if err != nil {
		t.Fatal(err)
	}
	oldLeaf := &tls.Certificate{Certificate: [][]byte{leafOf(t, chain).Raw}, PrivateKey: key}

	next := newRoot(t)
	_, changed := a.root.Watch()
	if err := a.root.Replace(old, []*x509.Certificate{next.Root()}); err != nil {
		t.Fatal(err)
	}
	<-changed
	if chain, err = a.call(oldLeaf, "", request); err != nil {
		t.Fatal(err)
	}
	trusted := parse(t, chain[1])
	if leaf := parse(t, chain[0])[0]; len(trusted) != 2 || leaf.CheckSignatureFrom(old.Root()) != nil {
		t.Errorf("while the new root is distributed: %d roots, leaf signed by %s", len(trusted), leaf.Issuer)
	}

	if err := a.root.Replace(next, []*x509.Certificate{old.Root()}); err != nil {
		t.Fatal(err)
	}
	if chain, err = a.call(oldLeaf, "", request); err != nil {
		t.Fatalf("a certificate of the old root during the overlap: %v", err)
	}
	newLeaf := parse(t, chain[0])[0]
	if newLeaf.CheckSignatureFrom(next.Root()) != nil || !equal(parse(t, chain[1]), trusted) {
		t.Errorf("after the switch: leaf signed by %s, roots changed: %v", newLeaf.Issuer, !equal(parse(t, chain[1]), trusted))
	}

	if err := a.root.Replace(next, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.call(oldLeaf, "", request); err == nil {
		t.Error("a certificate of the old root was accepted after the overlap")
	}
	if _, err := a.call(&tls.Certificate{Certificate: [][]byte{newLeaf.Raw}, PrivateKey: key}, "", request); err != nil {
		t.Errorf("a certificate of the new root: %v", err)
	}
}

func TestReplaceTellsWatchers(t *testing.T) {
	first, second := newRoot(t), newRoot(t)
	a, err := ca.NewAuthority(first)
	if err != nil {
		t.Fatal(err)
	}
	before, changed := a.Watch()
	if err := a.Replace(first, []*x509.Certificate{first.Root(), first.Root()}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
		t.Error("told of a change although nothing changed")
	default:
	}
	many := make([]*x509.Certificate, 64)
	for i := range many {
		many[i] = newRoot(t).Root()
	}
	if err := a.Replace(second, many); err == nil || !strings.Contains(err.Error(), "65 certificates, want at most 64") {
		t.Errorf("a bundle that is too large: %v", err)
	}
	if err := a.Replace(second, []*x509.Certificate{first.Root()}); err != nil {
		t.Fatal(err)
	}
	<-changed
	after := a.State()
	if after.Issuer != second || len(after.Roots) != 2 || before.Issuer != first || len(before.Roots) != 1 {
		t.Errorf("state before: %v, %d roots; after: %v, %d roots", before.Issuer, len(before.Roots), after.Issuer, len(after.Roots))
	}
}

func parse(t *testing.T, text string) []*x509.Certificate {
	t.Helper()
	certs, err := pki.ParseBundle([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return certs
}

func equal(a, b []*x509.Certificate) bool {
	return string(pki.EncodeCerts(a...)) == string(pki.EncodeCerts(b...))
}
