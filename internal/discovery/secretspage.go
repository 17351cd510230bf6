package discovery

import (
	"cmp"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// What secretz says of the state of a secret.
const (
	secretServed  = "served"
	secretRefused = "refused by the proxy"
	secretIssued  = "issued here"
	secretShown   = "shown when the proxy connected"
	secretTrusted = "trusted"
)

// secretEntry is a secret of a proxy: certificates by name, issuer and end. It has no key and no contents.
type secretEntry struct {
	Name         string             `json:"name"`
	State        string             `json:"state"`
	Certificates []namedCertificate `json:"certificates"`
}

// namedCertificate is a certificate with the names that it is for.
type namedCertificate struct {
	certificateEntry
	Names []string `json:"names,omitempty"`
}

// secretz lists what is known of the secrets of a proxy: those that it asks the control plane for, its own certificate and its
// roots, without keys.
func (s *Server) secretz(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("proxyID")
	c, ok := s.xds.Find(id)
	if !ok {
		notConnected(w, id)
		return
	}
	out := append([]secretEntry{}, s.ownSecrets(c)...)
	caller := credentials.Caller{Identity: c.Identity, Cluster: c.Node.Metadata.ClusterID}
	for _, name := range c.Secrets {
		out = append(out, s.servedSecret(c, caller, name))
	}
	writeJSON(w, out)
}

// ownSecrets are the certificate of a workload, as far as it is known, and the roots that it is told to trust.
func (s *Server) ownSecrets(c xds.Connection) (out []secretEntry) {
	state := s.authority.State()
	if c.Identity != (mesh.Identity{}) {
		id, newest, how := c.Identity.SPIFFE(), term{c.NotBefore, c.NotAfter}, secretShown
		for _, i := range s.ca.Issued(time.Now()) {
			if i.Identity == id && i.Address == hostOf(c.Peer) && !i.NotAfter.Before(newest.NotAfter) {
				newest, how = term{i.NotBefore, i.NotAfter}, secretIssued
			}
		}
		if !newest.NotAfter.IsZero() {
			issuer := ""
			if how == secretIssued {
				issuer = state.Issuer.Certificate().Subject.String()
			}
			out = append(out, secretEntry{mesh.SecretDefault, how, []namedCertificate{{certificateEntry{Issuer: issuer, term: newest}, []string{id}}}})
		}
	}
	return append(out, secretEntry{mesh.SecretRoot, secretTrusted, describeAll(state.Roots)})
}

// servedSecret is a secret that a proxy asks for by name.
func (s *Server) servedSecret(c xds.Connection, caller credentials.Caller, name string) secretEntry {
	e := secretEntry{Name: name, Certificates: []namedCertificate{}}
	n, known := credentials.ParseName(name, c.Identity.Namespace)
	switch {
	case !known:
		e.State = "not served: want a name such as kubernetes://NAME"
		return e
	case c.Identity == (mesh.Identity{}):
		e.State = "not served: the proxy is not authenticated"
		return e
	}
	a := s.loop.secrets.Get(caller, n)
	if a.State != credentials.Found {
		e.State = "not served: " + cmp.Or(a.Why, "it is not read yet")
		return e
	}
	e.State = secretServed
	if c.SecretsRefused[name] {
		e.State = secretRefused
	}
	text := a.Credential.Chain
	if n.CA {
		text = a.Credential.CA
	}
	if certs, err := pki.ParseBundle(text); err == nil {
		e.Certificates = describeAll(certs)
	}
	return e
}

// describeAll describes certificates.
func describeAll(certs []*x509.Certificate) []namedCertificate {
	out := []namedCertificate{}
	for _, c := range certs {
		n := namedCertificate{certificateEntry: describe(c), Names: append([]string{}, c.DNSNames...)}
		for _, ip := range c.IPAddresses {
			n.Names = append(n.Names, ip.String())
		}
		for _, u := range c.URIs {
			n.Names = append(n.Names, u.String())
		}
		out = append(out, n)
	}
	return out
}

// describe describes a certificate.
func describe(c *x509.Certificate) certificateEntry {
	return certificateEntry{Subject: c.Subject.String(), Issuer: c.Issuer.String(), SHA256: pki.Fingerprint(c), term: term{c.NotBefore, c.NotAfter}}
}
