// Package credentials has the certificates and keys of gateways: Secrets that their servers and DestinationRules name.
//
// [Parse] reads a Secret, and [ParseName] the name by which a proxy asks for a part of it. Nothing here prints contents: an
// error names the key of the Secret, never a value. The package is pure.
package credentials

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	n := Name{Namespace: namespace, Secret: rest}
	if ns, name, both := strings.Cut(rest, "/"); both {
		n.Namespace, n.Secret = ns, name
	}
	n.Secret, n.CA = strings.CutSuffix(n.Secret, CASuffix)
	return n, n.Namespace != "" && n.Secret != "" && !strings.Contains(n.Secret, "/")
}

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
)

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
	_, ocsp := get(ocspKeys)
	c := &Credential{CRL: slices.Clone(crl), OCSP: slices.Clone(ocsp)}
	switch {
	case chain == nil && key == nil && ca == nil:
		return nil, errOther
	case (chain == nil) != (key == nil):
		return nil, fmt.Errorf("%s without %s: want both", present(chainKey, keyKey, chain), present(keyKey, chainKey, chain))
	case chain != nil:
		// The error may quote what it could not parse, so that it is not passed on.
		if _, err := tls.X509KeyPair(chain, key); err != nil {
			return nil, fmt.Errorf("%s and %s: want a certificate in PEM and its private key", chainKey, keyKey)
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
		if b, _ := pem.Decode(crl); b == nil || b.Type != "X509 CRL" {
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

// certificates reports whether a text has certificates in PEM, and nothing else.
func certificates(text []byte) bool {
	found := false
	for rest := bytes.TrimSpace(text); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil || b.Type != "CERTIFICATE" {
			return false
		}
		if _, err := x509.ParseCertificate(b.Bytes); err != nil {
			return false
		}
		found = true
	}
	return found
}
