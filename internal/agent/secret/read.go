package secret

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// maxFile is the maximum size of a file, in bytes.
	maxFile = 1 << 20
	// maxCertificates is the maximum number of certificates in a bundle.
	maxCertificates = 4096
)

// read reads the files and checks them. Only certificates, revocation lists and keys are passed to Envoy,
// so that a name cannot expose any other file.
func (s source) read() (*pki.Secret, error) {
	if s.key != "" {
		return s.readPair()
	}
	for _, path := range s.bundles {
		text, err := readFile(path)
		if errors.Is(err, fs.ErrNotExist) && len(s.bundles) > 1 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read trust bundle %s: %w", path, err)
		}
		roots, err := s.filter(text)
		if err != nil {
			return nil, fmt.Errorf("read trust bundle %s: %w", path, err)
		}
		return &pki.Secret{Roots: roots, Version: pki.VersionOf(roots)}, nil
	}
	return nil, fmt.Errorf("read the system's trust bundle: none of %v exists", s.bundles)
}

func (s source) readPair() (*pki.Secret, error) {
	chain, err := readFile(s.chain)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", s.chain, err)
	}
	certs, err := pki.ParseBundle(chain)
	if err == nil {
		err = whole(chain)
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", s.chain, err)
	}
	key, err := readFile(s.key)
	if err != nil {
		return nil, fmt.Errorf("read private key %s: %w", s.key, err)
	}
	signer, err := pki.ParseKey(key)
	if err != nil {
		return nil, fmt.Errorf("read private key %s: %w", s.key, err)
	}
	if !pki.KeyMatches(signer, certs[0]) {
		return nil, fmt.Errorf("read private key %s: certificate %s is for another key", s.key, s.chain)
	}
	chain = pki.EncodeCerts(certs...)
	term := pki.ValidityOf(certs)
	return &pki.Secret{Key: key, Chain: chain, Version: pki.VersionOf(key, chain), NotBefore: term.NotBefore, NotAfter: term.NotAfter}, nil
}

// filter keeps the certificates and revocation lists of a bundle.
func (s source) filter(text []byte) ([]byte, error) {
	var out bytes.Buffer
	certs := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			if _, err := x509.ParseCertificate(block.Bytes); err != nil {
				if s.lenient {
					continue
				}
				return nil, fmt.Errorf("certificate %d: %w", certs+1, err)
			}
			if certs++; certs > maxCertificates {
				return nil, fmt.Errorf("more than %d certificates", maxCertificates)
			}
		} else if block.Type != "X509 CRL" {
			continue
		}
		// Writing to a buffer fails for bad headers only, and there are none.
		_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
	}
	if err := whole(text); err != nil && !s.lenient {
		return nil, err
	}
	if certs == 0 {
		return nil, errors.New("no PEM block of a certificate")
	}
	return out.Bytes(), nil
}

// whole detects a PEM text that is incomplete because it is still being written:
// the decoder skips an incomplete block.
func whole(text []byte) error {
	begun := bytes.Count(text, []byte("-----BEGIN "))
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		begun--
	}
	if begun != 0 {
		return errors.New("a PEM block is incomplete")
	}
	return nil
}

// readFile reads a regular file of bounded size. The error does not name it.
func readFile(path string) ([]byte, error) {
	// Not blocking: the path may be that of a pipe without a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, cause(err)
	case !st.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case st.Size() > maxFile:
		return nil, fmt.Errorf("%d bytes, want at most %d", st.Size(), maxFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("want at most %d bytes", maxFile)
	}
	return text, nil
}

// cause returns an error without operation and path, which the caller adds.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
