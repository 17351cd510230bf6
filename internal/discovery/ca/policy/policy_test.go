package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

var alice = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "alice"}

func csrFor(t testing.TB, id mesh.Identity) []byte {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, id)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func TestLifetime(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	csr := csrFor(t, alice)
	years := pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(87600 * time.Hour)}
	for _, tt := range []struct {
		name   string
		ttl    time.Duration
		lim    Limits
		signer pki.Validity
		want   time.Duration
	}{
		{"no lifetime", 0, Limits{}, years, 24 * time.Hour},
		{"negative lifetime", -time.Hour, Limits{}, years, 24 * time.Hour},
		{"as requested", time.Hour, Limits{}, years, time.Hour},
		{"more than the limit", 5000 * time.Hour, Limits{}, years, 2160 * time.Hour},
		{"more than a configured limit", 3 * time.Hour, Limits{MaxTTL: 2 * time.Hour}, years, 2 * time.Hour},
		{"a default above the limit", 0, Limits{DefaultTTL: 3 * time.Hour, MaxTTL: 2 * time.Hour}, years, 2 * time.Hour},
		{"past the signer's end", 3 * time.Hour, Limits{}, pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}, time.Hour},
	} {
		ok, err := Workload(Request{Caller: alice, CSR: csr, TTL: tt.ttl}, tt.lim, tt.signer, now)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := ok.template.NotAfter.Sub(now); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if got := ok.template.NotBefore; !got.Equal(now.Add(-Backdate)) {
			t.Errorf("%s: valid from %s", tt.name, got)
		}
	}
	young := pki.Validity{NotBefore: now.Add(-time.Second), NotAfter: now.Add(time.Hour)}
	if ok, err := Workload(Request{Caller: alice, CSR: csr}, Limits{}, young, now); err != nil || !ok.template.NotBefore.Equal(young.NotBefore) {
		t.Errorf("a leaf is valid before its issuer: %v", err)
	}
}

func TestWorkloadErrors(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	signer := pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	csr := csrFor(t, alice)
	for _, tt := range []struct {
		name string
		r    Request
		at   time.Time
		want error
		why  string
	}{
		{"no request", Request{Caller: alice}, now, ErrRequest, "no PEM block"},
		{"no identity", Request{CSR: csr}, now, ErrRequest, "trust domain is empty"},
		{"a name with a slash", Request{Caller: mesh.Identity{TrustDomain: "td", Namespace: "a/sa/b", ServiceAccount: "c"}, CSR: csr}, now, ErrRequest, "namespace"},
		{"an expired issuer", Request{Caller: alice, CSR: csr}, signer.NotAfter, ErrIssuer, "expired at 2026-11-21T13:00:00Z"},
	} {
		_, err := Workload(tt.r, Limits{}, signer, tt.at)
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, want %v %q", tt.name, err, tt.want, tt.why)
		}
	}
}
