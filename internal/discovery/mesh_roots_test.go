package discovery

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// otherRoot makes the root of another mesh.
func otherRoot(t *testing.T, organization string) *x509.Certificate {
	t.Helper()
	issuer, err := policy.NewRoot(organization, "", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return issuer.Root()
}

// rootsConfig is mesh configuration in which each entry of caCertificates has these certificates.
func rootsConfig(t *testing.T, entries ...[]*x509.Certificate) string {
	t.Helper()
	var list []map[string]string
	for _, certs := range entries {
		list = append(list, map[string]string{"pem": "text around is ignored\n" + string(pki.EncodeCerts(certs...))})
	}
	text, err := json.Marshal(map[string]any{"caCertificates": list})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// expectBundle takes responses until the trust bundle is the CA's roots and others, in the order of Normalize, and
// only those of the CA are named as its own. It acknowledges what it takes.
func (c *client) expectBundle(own []*x509.Certificate, others ...*x509.Certificate) {
	c.t.Helper()
	var want, ids []string
	for _, r := range pki.Normalize(append(slices.Clone(own), others...)) {
		want = append(want, string(pki.EncodeCerts(r)))
	}
	for _, r := range own {
		ids = append(ids, pki.Fingerprint(r))
	}
	slices.Sort(ids)
	last := "none"
	for limit := time.After(wait.Bound); ; {
		select {
		case r := <-c.got:
			if r.TypeUrl != mesh.TrustBundleType {
				c.take(r)
				continue
			}
			_ = c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
			var m meshv1.ProxyConfig
			if err := r.Resources[0].Resource.UnmarshalTo(&m); err != nil {
				c.t.Fatal(err)
			}
			named := strings.Split(m.GetProxyMetadata()[mesh.CARootsKey], ",")
			slices.Sort(named)
			if slices.Equal(m.GetCaCertificatesPem(), want) && slices.Equal(named, ids) {
				return
			}
			last = fmt.Sprintf("%d certificates, own %q", len(m.GetCaCertificatesPem()), named)
		case err := <-c.err:
			c.t.Fatal(err)
		case <-limit:
			c.t.Fatalf("want a trust bundle of %d certificates, own %q; the last has %s", len(want), ids, last)
		}
	}
}

// caCertificates are trusted by workloads, from the first bundle on, and follow every edit. They are not
// the CA's own, and not in the file with which the control plane is verified.
func TestRootsOfMeshConfigAreDistributed(t *testing.T) {
	b, c, d := otherRoot(t, "b.example"), otherRoot(t, "c.example"), otherRoot(t, "d.example")
	at, log := newPlace(t), &wait.Output{}
	write(t, at.mesh, rootsConfig(t, []*x509.Certificate{c, b}, []*x509.Certificate{b}))
	p := up(t, at.options("", slog.New(slog.NewTextHandler(log, nil))))
	own := p.server.authority.State().Roots
	proxy := p.dial(p.token("shop", "default"), p.root())
	_ = proxy.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: mesh.TrustBundleType})
	proxy.expectBundle(own, b, c)
	if strings.Contains(log.String(), "caCertificates") {
		t.Errorf("the log says that they have no effect:\n%s", log.String())
	}
	if got, err := pki.ParseBundle([]byte(p.root())); err != nil || !slices.EqualFunc(got, own, (*x509.Certificate).Equal) {
		t.Errorf("the file for connections to the control plane has %d roots, want the CA's: %v", len(got), err)
	}
	write(t, at.mesh, rootsConfig(t, []*x509.Certificate{d, own[0]}))
	proxy.expectBundle(own, d)

	// A root of the CA that changes does not drop the others.
	next := otherRoot(t, "cluster.local")
	authority := p.server.authority
	if err := authority.Replace(authority.State().Issuer, []*x509.Certificate{next}); err != nil {
		t.Fatal(err)
	}
	proxy.expectBundle(authority.State().Roots, d)

	// What cannot be used is rejected, and what is in force stays.
	write(t, at.mesh, `{"caCertificates": [{"pem": "nonsense"}]}`)
	wait.Until(t, "the verdict", func() bool {
		vs := p.objects()
		return len(vs) == 1 && vs[0].Severity == "error" && strings.HasSuffix(vs[0].Field, "caCertificates[0].pem")
	})
	write(t, at.mesh, "connectTimeout: 3s\n")
	proxy.expectBundle(authority.State().Roots)
}
