package discovery

import (
	"crypto"
	"crypto/x509"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// The page of secrets has names, issuers and ends, and no key.
func TestThePageOfSecretsHasNoKeys(t *testing.T) {
	p := start(t)
	serving, err := p.server.authority.ServerCertificate([]string{"shop.example"})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := serving.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.EncodeKey(cert.PrivateKey.(crypto.Signer), true)
	if err != nil {
		t.Fatal(err)
	}
	credential, err := credentials.Parse(map[string][]byte{"tls.crt": pki.EncodeCerts(cert.Leaf), "tls.key": key})
	if err != nil {
		t.Fatal(err)
	}
	p.server.loop.secrets.Put("shop", "front", credential)
	c := xds.Connection{
		Node: mesh.Node{NodeID: mesh.NodeID{ID: "edge.shop", IP: netip.MustParseAddr("10.0.0.1")}}, Peer: "10.0.0.1:4000",
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "edge"}, NotBefore: time.Unix(1, 0), NotAfter: time.Unix(1e9, 0),
		SecretsRefused: map[string]bool{"kubernetes://other": true},
	}
	caller := credentials.Caller{Identity: c.Identity}
	list := p.server.ownSecrets(c)
	for _, name := range []string{"kubernetes://front", "kubernetes://absent", "file:x"} {
		list = append(list, p.server.servedSecret(c, caller, name))
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); strings.Contains(s, "PRIVATE") || strings.Contains(s, "BEGIN") {
		t.Errorf("the page has contents: %s", s)
	}
	root := p.server.authority.State().Roots[0]
	for i, want := range []secretEntry{
		{"default", secretShown, []namedCertificate{{certificateEntry{term: term{c.NotBefore, c.NotAfter}}, []string{c.Identity.SPIFFE()}}}},
		{"ROOTCA", secretTrusted, describeAll([]*x509.Certificate{root})},
		{"kubernetes://front", secretServed, describeAll([]*x509.Certificate{cert.Leaf})},
		{"kubernetes://absent", "not served: there is no such Secret", []namedCertificate{}},
		{"file:x", "not served: want a name such as kubernetes://NAME", []namedCertificate{}},
	} {
		a, _ := json.Marshal(list[i])
		b, _ := json.Marshal(want)
		if string(a) != string(b) {
			t.Errorf("%s\nwant %s", a, b)
		}
	}
	c.SecretsRefused["kubernetes://front"] = true
	if got := p.server.servedSecret(c, caller, "kubernetes://front"); got.State != secretRefused {
		t.Errorf("%+v", got)
	}
}
