package policy

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Extensions of a request by which it asks for a CA certificate.
var (
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
)

// Bits of the key usage extension, from the first.
const (
	bitCertSign = 5
	bitCRLSign  = 6
)

// checkNames returns an error if the request names anybody but its caller. The certificate would not have
// the name, but who asks for it is misconfigured or an attacker. A request without names, or in which
// the trust domain differs (as it does while that of the mesh is changed) or a part is empty, is valid:
// the certificate has the caller's identity. The subject is ignored.
func checkNames(csr *x509.CertificateRequest, caller mesh.Identity) error {
	for _, u := range csr.URIs {
		if !namesCaller(u, caller) {
			return fmt.Errorf("URI SAN %.300q: want none, or the caller's identity %s", u, caller.SPIFFE())
		}
	}
	for kind, n := range map[string]int{"DNS": len(csr.DNSNames), "IP address": len(csr.IPAddresses), "email": len(csr.EmailAddresses)} {
		if n > 0 {
			return fmt.Errorf("%d SANs of the type %s: want none, since a workload's certificate has its SPIFFE ID only", n, kind)
		}
	}
	return nil
}

// namesCaller reports whether a URI is the caller's SPIFFE ID in any trust domain, or could be with its
// empty parts filled in.
func namesCaller(u *url.URL, caller mesh.Identity) bool {
	parts := strings.Split(u.Path, "/")
	return u.Scheme == "spiffe" && u.User == nil && u.RawQuery == "" && u.Fragment == "" && u.Opaque == "" &&
		len(parts) == 5 && parts[0] == "" && parts[1] == "ns" && parts[3] == "sa" &&
		(parts[2] == "" || parts[2] == caller.Namespace) && (parts[4] == "" || parts[4] == caller.ServiceAccount)
}

// checkNoCA returns an error if the request asks for a CA certificate. Other extensions are ignored:
// the policy alone decides the usage of the key.
func checkNoCA(csr *x509.CertificateRequest) error {
	for _, e := range csr.Extensions {
		switch {
		case e.Id.Equal(oidBasicConstraints):
			var c struct {
				IsCA       bool `asn1:"optional"`
				MaxPathLen int  `asn1:"optional,default:-1"`
			}
			if rest, err := asn1.Unmarshal(e.Value, &c); err != nil || len(rest) != 0 {
				return errors.New("malformed basic constraints")
			}
			if c.IsCA {
				return errors.New("basic constraints ask for a CA certificate: workloads get none")
			}
		case e.Id.Equal(oidKeyUsage):
			var bits asn1.BitString
			if rest, err := asn1.Unmarshal(e.Value, &bits); err != nil || len(rest) != 0 {
				return errors.New("malformed key usage")
			}
			if bits.At(bitCertSign) != 0 || bits.At(bitCRLSign) != 0 {
				return errors.New("the key usage asks for signing certificates: workloads may not")
			}
		}
	}
	return nil
}
