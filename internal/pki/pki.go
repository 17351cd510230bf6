// Package pki makes and checks keys, certificate requests, certificates and SPIFFE names, for the CA and for the agent alike.
//
// It is pure: no file, no socket, no clock (times are arguments) and no state; any
// goroutine may call anything here. Its only outside input is the system's randomness,
// because since Go 1.26 the crypto packages take no other. What peers send is bounded
// before it is parsed, and errors say which bound or which check it failed.
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

// KeyKind is a kind of private key. The zero value stands for ECDSAP256.
type KeyKind string

// The kinds of key that workloads may have. [agent E15, S22]
const (
	ECDSAP256 KeyKind = "ecdsa-p256"
	ECDSAP384 KeyKind = "ecdsa-p384"
	RSA2048   KeyKind = "rsa-2048"
	RSA3072   KeyKind = "rsa-3072"
	RSA4096   KeyKind = "rsa-4096"
)

// Bounds on keys in certificate requests, in bits: shorter RSA keys are broken, longer
// ones cost whoever meets them more than they are worth.
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

// maxKeyPEM bounds a private key file, in bytes.
const maxKeyPEM = 64 << 10

// ChooseKeyKind reads the agent's three settings: a signature algorithm ("" or "ECDSA"),
// its curve ("", "P256" or "P384") and, where the algorithm is "RSA" or rsaBits is given
// without an algorithm, a size (0 means 2048). All empty is ECDSA P-256.
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
		return "", fmt.Errorf("RSA key size %d: want 2048, 3072 or 4096", rsaBits)
	}
	if algorithm != "" && algorithm != "ECDSA" {
		return "", fmt.Errorf("signature algorithm %q: want ECDSA or RSA", algorithm)
	}
	switch curve {
	case "", "P256":
		return ECDSAP256, nil
	case "P384":
		return ECDSAP384, nil
	}
	return "", fmt.Errorf("ECDSA curve %q: want P256 or P384", curve)
}

// GenerateKey makes a private key. RSA takes tenths of a second, ECDSA microseconds.
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
	return nil, fmt.Errorf("key kind %q is not known", kind)
}

// EncodeKey writes a key as PEM: PKCS #8 where asked for, else the older form of its kind.
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

// ParseKey reads the first private key in a PEM text, in any of the three usual forms.
// Its errors never quote the text.
func ParseKey(text []byte) (crypto.Signer, error) {
	if len(text) > maxKeyPEM {
		return nil, fmt.Errorf("private key: %d bytes, at most %d are taken", len(text), maxKeyPEM)
	}
	for rest := text; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return nil, errors.New("private key: no PEM block of a private key")
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
			continue // "EC PARAMETERS" stands before the key in what openssl writes
		}
		if err != nil {
			return nil, fmt.Errorf("private key: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("private key: a %T cannot sign", key)
		}
		return signer, nil
	}
}

// KeyMatches says whether the certificate is for the key.
func KeyMatches(key crypto.Signer, cert *x509.Certificate) bool {
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(cert.PublicKey)
}

// checkPublicKey refuses keys that the mesh does not sign.
func checkPublicKey(pub any) error {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
		return fmt.Errorf("ECDSA key on curve %s: want P-256 or P-384", k.Curve.Params().Name)
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits || n > maxRSABits {
			return fmt.Errorf("RSA key of %d bits: want %d to %d", n, minRSABits, maxRSABits)
		}
		return nil
	}
	return fmt.Errorf("key of type %T: want ECDSA or RSA", pub)
}
