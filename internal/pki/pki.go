// Package pki creates and checks keys, certificate requests, certificates and SPIFFE IDs, for the CA and for the agent.
//
// Apart from crypto/rand it is pure: it does no I/O, takes times as arguments and keeps no
// state, so all of it is safe for concurrent use. The size of what peers send is checked
// before it is parsed.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// KeyKind is an algorithm and size of private key. The zero value means ECDSAP256.
type KeyKind string

// The kinds of key that workloads can have. [agent E15, S22]
const (
	ECDSAP256 KeyKind = "ecdsa-p256"
	ECDSAP384 KeyKind = "ecdsa-p384"
	RSA2048   KeyKind = "rsa-2048"
	RSA3072   KeyKind = "rsa-3072"
	RSA4096   KeyKind = "rsa-4096"
)

// Limits on RSA keys in certificate requests, in bits: shorter keys are not safe, longer ones
// are slow for every peer that verifies them.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

// PEM block types.
const (
	typeCertificate = "CERTIFICATE"
	typeRequest     = "CERTIFICATE REQUEST"
	typeOldRequest  = "NEW CERTIFICATE REQUEST"
	typeKey         = "PRIVATE KEY"
	typeECKey       = "EC PRIVATE KEY"
	typeRSAKey      = "RSA PRIVATE KEY"
)

// maxKeyPEM limits a private key in PEM, in bytes.
const maxKeyPEM = 64 << 10

// ChooseKeyKind returns the kind of key for the agent's three settings: the algorithm ("ECDSA",
// "RSA" or ""), the curve of ECDSA ("P256", "P384", or "" for P256) and the size of RSA in bits
// (2048, 3072, 4096, or 0 for 2048). No algorithm means RSA if a size is given, else ECDSA. Other
// values are errors. [agent E15]
func ChooseKeyKind(algorithm, curve string, rsaBits int) (KeyKind, error) {
	if algorithm == "RSA" || algorithm == "" && rsaBits != 0 {
		switch rsaBits {
		case 0, 2048:
			return RSA2048, nil
		case 3072:
			return RSA3072, nil
		case 4096:
			return RSA4096, nil
		}
		return "", fmt.Errorf("invalid RSA key size %d: want 2048, 3072 or 4096", rsaBits)
	}
	if algorithm != "" && algorithm != "ECDSA" {
		return "", fmt.Errorf("invalid signature algorithm %q: want ECDSA or RSA", algorithm)
	}
	switch curve {
	case "", "P256":
		return ECDSAP256, nil
	case "P384":
		return ECDSAP384, nil
	}
	return "", fmt.Errorf("invalid ECDSA curve %q: want P256 or P384", curve)
}

// GenerateKey generates a private key. RSA takes tenths of a second, ECDSA microseconds. A kind
// that is not known is an error.
func GenerateKey(kind KeyKind) (crypto.Signer, error) {
	switch kind {
	case "", ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	}
	return nil, fmt.Errorf("unknown key kind %q", kind)
}

// KindOf returns the kind of a key, empty for a kind that GenerateKey does not generate.
func KindOf(key crypto.Signer) KeyKind {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		switch k.Curve {
		case elliptic.P256():
			return ECDSAP256
		case elliptic.P384():
			return ECDSAP384
		}
	case *rsa.PrivateKey:
		switch k.N.BitLen() {
		case 2048:
			return RSA2048
		case 3072:
			return RSA3072
		case 4096:
			return RSA4096
		}
	}
	return ""
}

// EncodeKey encodes a key as PEM: as PKCS #8 if pkcs8 is set, else as SEC 1 (ECDSA) or PKCS #1
// (RSA). Other keys are always PKCS #8.
func EncodeKey(key crypto.Signer, pkcs8 bool) ([]byte, error) {
	var der []byte
	var err error
	kind := typeKey
	ec, isEC := key.(*ecdsa.PrivateKey)
	rs, isRSA := key.(*rsa.PrivateKey)
	switch {
	case isEC && !pkcs8:
		kind = typeECKey
		der, err = x509.MarshalECPrivateKey(ec)
	case isRSA && !pkcs8:
		kind = typeRSAKey
		der = x509.MarshalPKCS1PrivateKey(rs)
	default:
		der, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), nil
}

// ParseKey returns the first private key in text, in PEM of at most 64 KiB, as PKCS #8, SEC 1 or
// PKCS #1. Errors never quote the text.
func ParseKey(text []byte) (crypto.Signer, error) {
	if len(text) > maxKeyPEM {
		return nil, fmt.Errorf("private key: %d bytes, want at most %d", len(text), maxKeyPEM)
	}
	for rest := text; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return nil, errors.New("private key: found no PEM block of a private key")
		}
		var key any
		var err error
		switch block.Type {
		case typeKey:
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case typeECKey:
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case typeRSAKey:
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default:
			continue // such as "EC PARAMETERS", which openssl writes before the key
		}
		if err != nil {
			return nil, fmt.Errorf("private key: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("private key: %T cannot sign", key)
		}
		return signer, nil
	}
}

// KeyMatches reports whether key is the private key of the certificate.
func KeyMatches(key crypto.Signer, cert *x509.Certificate) bool {
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(cert.PublicKey)
}

// CheckCAKey returns an error unless a CA with this key can sign certificates of the mesh: ECDSA on a
// curve of at least 256 bits, or RSA of 2048 to 8192 bits. Envoy verifies no others.
func CheckCAKey(pub crypto.PublicKey) error {
	if k, ok := pub.(*ecdsa.PublicKey); ok && k.Curve.Params().BitSize >= 256 {
		return nil
	}
	return checkPublicKey(pub)
}

// checkPublicKey returns an error for a key that the CA does not sign.
func checkPublicKey(pub any) error {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
		return fmt.Errorf("invalid ECDSA key on curve %s: want P-256 or P-384", k.Curve.Params().Name)
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits || n > maxRSABits {
			return fmt.Errorf("invalid RSA key of %d bits: want %d–%d", n, minRSABits, maxRSABits)
		}
		return nil
	}
	return fmt.Errorf("invalid key of type %T: want ECDSA or RSA", pub)
}
