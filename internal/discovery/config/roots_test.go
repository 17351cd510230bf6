package config_test

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// rootAndLeaf makes a root and a certificate of a workload.
func rootAndLeaf(t *testing.T) (root, leaf *x509.Certificate) {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	term := pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if root, err = pki.Sign(pki.RootTemplate("b.example", term), nil, key.Public(), key); err != nil {
		t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "b.example", Namespace: "a", ServiceAccount: "b"}, term)
	if err != nil {
		t.Fatal(err)
	}
	if leaf, err = pki.Sign(template, root, key.Public(), key); err != nil {
		t.Fatal(err)
	}
	return root, leaf
}

// Each row is the list caCertificates; names in capitals stand for certificates. The trust domain in force is in.force, with
// the alias alias.example.
func TestMeshRoots(t *testing.T) {
	one, leaf := rootAndLeaf(t)
	two, _ := rootAndLeaf(t)
	text := func(certs ...*x509.Certificate) string {
		s, err := json.Marshal(string(pki.EncodeCerts(certs...)))
		if err != nil {
			t.Fatal(err)
		}
		return string(s)
	}
	names := strings.NewReplacer("ONE", text(one), "TWO", text(two), "BOTH", text(two, one, two), "LEAF", text(leaf),
		"MANY", text(slices.Repeat([]*x509.Certificate{one}, 129)...), "LARGE", text()[:1]+strings.Repeat("x", 1<<20+1)+`"`)
	for _, tt := range []struct {
		entries string
		want    []*x509.Certificate
		verdict string // beginning; empty for none
	}{
		{"{pem: ONE}", []*x509.Certificate{one}, ""},
		{"{pem: TWO}, {pem: BOTH}", []*x509.Certificate{one, two}, ""},
		{"{pem: ONE, trustDomains: [alias.example, x.example, in.force]}", []*x509.Certificate{one}, ""},
		{"{pem: ONE, trustDomains: [in.force]}, {pem: TWO}", []*x509.Certificate{two},
			`warning data.mesh.caCertificates[0].trustDomains: not applied: the roots are trusted by no proxy, since "alias.example" is missing`},
		{"{pem: TWO}, {pem: ONE, trustDomains: [cluster.local, alias.example]}", []*x509.Certificate{two},
			`warning data.mesh.caCertificates[1].trustDomains: not applied: the roots are trusted by no proxy, since "in.force" is missing`},
		{"{pem: ONE, certSigners: [s]}, {pem: TWO}", []*x509.Certificate{two}, "warning data.mesh.caCertificates[0].certSigners: not applied: "},
		{"{spiffeBundleUrl: 'https://b.example'}, {pem: ONE}", []*x509.Certificate{one}, "warning data.mesh.caCertificates[0].spiffeBundleUrl: not applied: "},
		{"{pem: ONE}, {}", nil, "error data.mesh.caCertificates[1].pem: is empty; want root certificates in PEM"},
		{"{pem: nonsense}", nil, "error data.mesh.caCertificates[0].pem: certificates: found no PEM block of a certificate; want root"},
		{"{pem: LEAF}", nil, "error data.mesh.caCertificates[0].pem: certificate 1 () is not a CA certificate; want root"},
		{"{pem: MANY}", nil, "error data.mesh.caCertificates: more than 128 certificates"},
		{"{pem: LARGE}", nil, "error data.mesh.caCertificates: more than 1048576 bytes of PEM"},
		{"{pem: ONE, trustDomains: [a/b, in.force, alias.example]}", nil, `error data.mesh.caCertificates[0].trustDomains[0]: invalid trust domain "a/b"`},
	} {
		s := config.NewStore()
		s.FixTrustDomain("in.force", true)
		s.Apply([]object.Change{change(meshMap("istio-system", names.Replace("{trustDomainAliases: [alias.example], caCertificates: ["+tt.entries+"]}")))})
		m, _ := s.MeshConfig()
		if got := config.MeshRoots(m); !slices.EqualFunc(got, pki.Normalize(tt.want), (*x509.Certificate).Equal) {
			t.Errorf("%s: %d roots, want %d", tt.entries, len(got), len(tt.want))
		}
		got := ""
		for _, v := range s.Verdicts() {
			got += fmt.Sprintf("%s %s: %s\n", v.Severity, v.Field, v.Text)
		}
		if !strings.HasPrefix(got, tt.verdict) || (got == "") != (tt.verdict == "") || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: %s, want %s", tt.entries, got, tt.verdict)
		}
	}
}
