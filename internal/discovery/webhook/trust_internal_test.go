package webhook

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
)

func newRoots(t *testing.T, n int) (out []*x509.Certificate) {
	t.Helper()
	for range n {
		i, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, i.Root())
	}
	return out
}

// A root that the mesh does not trust any more stays in a bundle as long as a replica serves below it, and is not added to
// another one; what others have put there goes.
func TestOldRootStaysWhileAReplicaServesBelowIt(t *testing.T) {
	r := newRoots(t, 3)
	old, next, other := r[0], r[1], r[2]
	for name, tt := range map[string]struct {
		has    []*x509.Certificate
		served []*x509.Certificate
		want   []*x509.Certificate
	}{
		"served":              {[]*x509.Certificate{old}, []*x509.Certificate{old}, []*x509.Certificate{old, next}},
		"both":                {[]*x509.Certificate{old, next}, []*x509.Certificate{old, next}, []*x509.Certificate{old, next}},
		"not served any more": {[]*x509.Certificate{old, next}, []*x509.Certificate{next}, []*x509.Certificate{next}},
		"not in the bundle":   {nil, []*x509.Certificate{old}, []*x509.Certificate{next}},
		"of others":           {[]*x509.Certificate{other, old}, []*x509.Certificate{old}, []*x509.Certificate{old, next}},
	} {
		target := target
		target.Bundle = pki.EncodeCerts(next)
		target.Served = func(id string) bool {
			for _, c := range tt.served {
				if pki.Fingerprint(c) == id {
					return true
				}
			}
			return false
		}
		has := service("istio-system", "istiod", "/validate")
		has.CABundle = pki.EncodeCerts(tt.has...)
		if got, want := target.bundle(has), pki.EncodeCerts(pki.Normalize(tt.want)...); !bytes.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// The API server trusts a root if all webhooks whose requests arrive here have it.
func TestTrusts(t *testing.T) {
	r := newRoots(t, 2)
	hookOf := func(name string, roots ...*x509.Certificate) configuration {
		c := service("istio-system", "istiod", "/validate")
		c.CABundle = pki.EncodeCerts(roots...)
		return configuration{kind: validating, name: name, revision: "canary", hooks: []hook{{name: "a", client: c}}}
	}
	elsewhere := configuration{kind: mutating, revision: "canary", hooks: []hook{{name: "b", client: urlOf("https://elsewhere.example.com/inject")}}}
	foreign := hookOf("x")
	foreign.revision = "other"
	broken := hookOf("y")
	broken.hooks[0].client.CABundle = []byte("no PEM")
	for name, tt := range map[string]struct {
		all  []configuration
		want bool
	}{
		"no webhook":         {nil, true},
		"those of others":    {[]configuration{elsewhere, foreign}, true},
		"all":                {[]configuration{hookOf("a", r[0], r[1]), hookOf("b", r[0]), elsewhere}, true},
		"one lacks it":       {[]configuration{hookOf("a", r[0], r[1]), hookOf("b", r[1])}, false},
		"no bundle":          {[]configuration{hookOf("a")}, false},
		"one that is no PEM": {[]configuration{broken}, false},
	} {
		if got := target.trusts(tt.all, r[0]); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
