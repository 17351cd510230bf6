package policy

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// ErrNames is a request for a certificate that the caller may not have, such as one of another
// identity or of a CA. It is an ErrRequest too.
var ErrNames = fmt.Errorf("%w: not for the caller", ErrRequest)

// Object identifiers of extensions, and of the uses of TLS.
var (
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidAlternativeNames = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidExtendedKeyUsage = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidServerAuth       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
	oidClientAuth       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 2}
)

// Bits of the extension keyUsage.
const (
	bitCertSign = 5
	bitCRLSign  = 6
)

// checkRequested returns an error if a request asks for what the caller may not have. The certificate
// would not have it in any case: an honest agent does not ask for it. Names are compared with the caller
// without their trust domain, which must be the caller's, one of domains, or the default, which agents
// use that were not told another one. Other extensions and the subject have no effect.
func checkRequested(csr *x509.CertificateRequest, caller mesh.Identity, domains []string) error {
	// None is there twice: the parser refuses that.
	for _, e := range csr.Extensions {
		var err error
		switch {
		case e.Id.Equal(oidAlternativeNames):
			err = checkNames(e.Value, csr, caller, domains)
		case e.Id.Equal(oidBasicConstraints):
			err = checkConstraints(e.Value)
		case e.Id.Equal(oidKeyUsage):
			err = checkUsage(e.Value)
		case e.Id.Equal(oidExtendedKeyUsage):
			err = checkExtendedUsage(e.Value)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNames, err)
		}
	}
	return nil
}

// checkNames checks the subject alternative names. Names of types that crypto/x509 does not know must not
// be there either, so that they are counted.
func checkNames(value []byte, csr *x509.CertificateRequest, caller mesh.Identity, domains []string) error {
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(value, &names); err != nil || len(rest) > 0 {
		return errors.New("invalid subject alternative names")
	}
	if len(names) != len(csr.URIs) {
		return fmt.Errorf("it has names that are not URIs (%d DNS names, %d addresses, %d others): want %s or none",
			len(csr.DNSNames), len(csr.IPAddresses), len(names)-len(csr.DNSNames)-len(csr.IPAddresses)-len(csr.URIs), caller)
	}
	for _, u := range csr.URIs {
		known := u.Host == caller.TrustDomain || u.Host == mesh.DefaultTrustDomain || slices.Contains(domains, u.Host)
		if !known || !namesCaller(u, caller) {
			return fmt.Errorf("it has the name %.300q: want %s or none", u, caller)
		}
	}
	return nil
}

// namesCaller reports whether a URI is the caller's SPIFFE ID in any trust domain, or could be with its
// empty parts filled in: there are agents that do not know their account.
func namesCaller(u *url.URL, caller mesh.Identity) bool {
	parts := strings.Split(u.Path, "/")
	return u.Scheme == "spiffe" && u.User == nil && u.RawQuery == "" && u.Fragment == "" && u.Opaque == "" &&
		len(parts) == 5 && parts[0] == "" && parts[1] == "ns" && parts[3] == "sa" &&
		(parts[2] == "" || parts[2] == caller.Namespace) && (parts[4] == "" || parts[4] == caller.ServiceAccount)
}

func checkConstraints(value []byte) error {
	var c struct {
		IsCA bool `asn1:"optional"`
		Path int  `asn1:"optional,default:-1"`
	}
	if rest, err := asn1.Unmarshal(value, &c); err != nil || len(rest) > 0 {
		return errors.New("invalid basic constraints")
	}
	if c.IsCA {
		return errors.New("it asks for a CA certificate: want one of a workload")
	}
	return nil
}

func checkUsage(value []byte) error {
	var bits asn1.BitString
	if rest, err := asn1.Unmarshal(value, &bits); err != nil || len(rest) > 0 {
		return errors.New("invalid key usage")
	}
	if bits.At(bitCertSign) != 0 || bits.At(bitCRLSign) != 0 {
		return errors.New("it asks for a key usage of CAs: want digitalSignature and keyEncipherment, or none")
	}
	return nil
}

func checkExtendedUsage(value []byte) error {
	var uses []asn1.ObjectIdentifier
	if rest, err := asn1.Unmarshal(value, &uses); err != nil || len(rest) > 0 {
		return errors.New("invalid extended key usage")
	}
	for _, u := range uses {
		if !u.Equal(oidServerAuth) && !u.Equal(oidClientAuth) {
			return fmt.Errorf("it asks for the extended key usage %s: want serverAuth and clientAuth, or none", u)
		}
	}
	return nil
}
