// Package credentials has the certificates and keys of gateways: Secrets that their servers and DestinationRules name.
//
// [Parse] reads a Secret, and [ParseName] the name by which a proxy asks for a part of it. Nothing here prints contents: an
// error names the key of the Secret, never a value. The package is pure.
package credentials

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ocsp"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The forms of the names by which proxies ask for Secrets. [control-plane 1.9.6]
const (
	// Prefix begins the name of a Secret of the proxy's namespace, or NAMESPACE/NAME.
	Prefix = "kubernetes://"
	// GatewayPrefix begins NAMESPACE/NAME of a Secret that a Gateway of the Gateway API names.
	GatewayPrefix = "kubernetes-gateway://"
	// CASuffix ends the name of the certificates of the CA that belong to a Secret.
	CASuffix = "-cacert"
)

// MaxBytes bounds what is read of one Secret, in bytes: as much as the API server stores.
const MaxBytes = 1 << 20

// Name is a part of a Secret that a proxy asks for.
type Name struct {
	Namespace, Secret string
	// Reference is set if a Gateway of the Gateway API names it, which may be in another namespace.
	Reference bool
	// CA is set for the certificates of its CA.
	CA bool
}

// ParseName parses the name of an SDS resource, asked for by a proxy of a namespace. It returns false for other names.
func ParseName(resource, namespace string) (Name, bool) {
	rest, ok := strings.CutPrefix(resource, Prefix)
	if !ok {
		if rest, ok = strings.CutPrefix(resource, GatewayPrefix); !ok || !strings.Contains(rest, "/") {
			return Name{}, false
		}
	}
	n := Name{Namespace: namespace, Secret: rest, Reference: strings.HasPrefix(resource, GatewayPrefix)}
	if ns, name, both := strings.Cut(rest, "/"); both {
		n.Namespace, n.Secret = ns, name
	}
	n.Secret, n.CA = strings.CutSuffix(n.Secret, CASuffix)
	return n, n.Namespace != "" && n.Secret != "" && !strings.Contains(n.Secret, "/")
}

// Reference is a Secret that Gateways of the Gateway API in a namespace name and may use: it is in the same namespace, or a
// ReferenceGrant in the Secret's own permits it.
type Reference struct{ From, Namespace, Secret string }

// State is what is known of a Secret that a proxy asks for.
type State int

// The states.
const (
	// Missing is a Secret that does not exist, is not usable, or lacks the part that was asked for.
	Missing State = iota
	// Forbidden is a Secret that the proxy must not read.
	Forbidden
	// Found is a Secret that the proxy may have.
	Found
	// Pending is a Secret of which it is not known yet whether it exists, or whether the proxy may read it.
	Pending
)

// Caller is a proxy that asks for Secrets.
type Caller struct {
	// Identity is what it has proved.
	Identity mesh.Identity
	// Cluster is the one that it says it runs in; empty if it says none.
	Cluster string
}

// Answer is what a caller gets of a Secret.
type Answer struct {
	State State
	// Credential is set if the State is Found.
	Credential *Credential
	// Why says why nothing was found, without contents; empty if there is no more to say than the State.
	Why string
}

// Credential is what a Secret has for TLS. It is immutable. Its fields must not be printed.
type Credential struct {
	// Chain and Key are a certificate with its chain and its key, in PEM; both are empty if the Secret has only those of a CA.
	Chain, Key []byte
	// CA are the certificates that the other side's certificates are verified with, and CRL a list of revoked ones, in PEM.
	CA, CRL []byte
	// OCSP is an OCSP response for the certificate, in DER.
	OCSP []byte
	// Version identifies the contents, and is safe to print.
	Version string
}

// String implements fmt.Stringer: it has no contents.
func (c *Credential) String() string { return "credential " + c.Version }

// GoString implements fmt.GoStringer: it has no contents.
func (c *Credential) GoString() string { return c.String() }

// The keys of a Secret, those of the type kubernetes.io/tls first. [control-plane 1.9.6]
var (
	chainKeys = []string{"tls.crt", "cert"}
	keyKeys   = []string{"tls.key", "key"}
	caKeys    = []string{"ca.crt", "cacert"}
	crlKeys   = []string{"ca.crl", "crl"}
	ocspKeys  = []string{"tls.ocsp-staple"}
)

// errOther is returned for a Secret that is not for TLS.
var errOther = errors.New("none of the keys tls.crt, cert, ca.crt and cacert")

// IsOther reports whether an error of Parse says that the Secret is not for TLS.
func IsOther(err error) bool { return errors.Is(err, errOther) }

// Parse reads the data of a Secret. The error says which key is wrong and what is expected, without contents.
func Parse(data map[string][]byte) (*Credential, error) {
	size := 0
	for _, v := range data {
		size += len(v)
	}
	if size > MaxBytes {
		return nil, fmt.Errorf("%d bytes: want at most %d", size, MaxBytes)
	}
	get := func(keys []string) (string, []byte) {
		for _, k := range keys {
			if v := data[k]; len(v) > 0 {
				return k, v
			}
		}
		return keys[0], nil
	}
	chainKey, chain := get(chainKeys)
	keyKey, key := get(keyKeys)
	caKey, ca := get(caKeys)
	crlKey, crl := get(crlKeys)
	ocspKey, ocspStaple := get(ocspKeys)
	c := &Credential{CRL: slices.Clone(crl), OCSP: slices.Clone(ocspStaple)}
	switch {
	case chain == nil && key == nil && ca == nil:
		return nil, errOther
	case (chain == nil) != (key == nil):
		return nil, fmt.Errorf("%s without %s: want both", present(chainKey, keyKey, chain), present(keyKey, chainKey, chain))
	case chain != nil:
		// The error may quote what it could not parse, so that it is not passed on.
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: want a certificate in PEM and its private key", chainKey, keyKey)
		}
		if err := serves(pair, chain, ocspStaple); err != nil {
			return nil, fmt.Errorf("%s: %w", chainKey, err)
		}
		if ocspStaple != nil {
			if r, err := ocsp.ParseResponse(ocspStaple, nil); err != nil || r.SerialNumber.Cmp(pair.Leaf.SerialNumber) != 0 {
				return nil, fmt.Errorf("%s: want a successful OCSP response in DER for the certificate of %s", ocspKey, chainKey)
			}
		}
		c.Chain, c.Key = slices.Clone(chain), slices.Clone(key)
	}
	if ca != nil {
		if !certificates(ca) {
			return nil, fmt.Errorf("%s: want certificates in PEM", caKey)
		}
		c.CA = slices.Clone(ca)
	}
	if crl != nil {
		if !all(crl, "X509 CRL", func(der []byte) error { _, err := x509.ParseRevocationList(der); return err }) {
			return nil, fmt.Errorf("%s: want a list of revoked certificates in PEM", crlKey)
		}
	}
	sum := sha256.New()
	for _, part := range [][]byte{c.Chain, c.Key, c.CA, c.CRL, c.OCSP} {
		one := sha256.Sum256(part)
		sum.Write(one[:])
	}
	c.Version = hex.EncodeToString(sum.Sum(nil)[:8])
	return c, nil
}

// present is one of two keys: the first if the chain is there.
func present(a, b string, chain []byte) string {
	if chain != nil {
		return a
	}
	return b
}

// certificates reports whether a text has certificates in PEM.
func certificates(text []byte) bool {
	return all(text, "CERTIFICATE", func(der []byte) error { _, err := x509.ParseCertificate(der); return err })
}

// all reports whether a text has blocks of one type in PEM, and no others, and each can be parsed. Text around them is for people.
func all(text []byte, kind string, parse func(der []byte) error) bool {
	found := 0
	for rest := text; ; found++ {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break // a block that cannot be decoded is skipped, so that they are counted
		}
		if b.Type != kind || parse(b.Bytes) != nil {
			return false
		}
	}
	return found > 0 && found == bytes.Count(text, []byte("-----BEGIN "))
}

// mustStaple is the extension of a certificate that is served only with an OCSP response. [RFC 7633]
var mustStaple = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}

// statusRequest is its contents if the OCSP response of the certificate is meant: a list of one TLS extension. [RFC 6066, 8]
var statusRequest = []byte{0x30, 0x03, 0x02, 0x01, 0x05}

// serves returns why Envoy does not serve a chain whose key fits. It refuses whole responses for such a chain.
// https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/security/ssl
func serves(pair tls.Certificate, chain, staple []byte) error {
	// The leaf's errors have been found: a block that cannot be decoded is left out there without an error, and one that follows is not parsed.
	if bytes.Count(chain, []byte("-----BEGIN CERTIFICATE-----")) != len(pair.Certificate) {
		return errors.New("want certificates in PEM")
	}
	for _, der := range pair.Certificate[1:] {
		if _, err := x509.ParseCertificate(der); err != nil {
			return errors.New("want certificates in PEM")
		}
	}
	switch key := pair.Leaf.PublicKey.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSA {
			return fmt.Errorf("an RSA key of %d bits: want at least %d", key.N.BitLen(), minRSA)
		}
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return fmt.Errorf("an ECDSA key of the curve %s: want P-256, P-384 or P-521", key.Curve.Params().Name)
		}
	}
	if leaf := pair.Leaf; leaf.Subject.CommonName == "" && len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.URIs) == 0 {
		return errors.New("a certificate without a name: want a subject alternative name that is a DNS name, an address or a URI")
	}
	if staple == nil && slices.ContainsFunc(pair.Leaf.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(mustStaple) && bytes.Equal(e.Value, statusRequest) }) {
		return fmt.Errorf("a certificate that must be stapled: want an OCSP response in %s", ocspKeys[0])
	}
	return nil
}

// minRSA is the size of the smallest RSA key that Envoy serves, in bits.
const minRSA = 2048
