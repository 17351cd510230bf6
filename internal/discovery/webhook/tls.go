package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// Certificate returns the certificate for a new connection. It is a tls.Config.GetCertificate.
type Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// TLSConfig returns the configuration of the HTTPS port: the given version of TLS or later, but at least 1.2. The
// API server has no certificate that could be asked for.
func TLSConfig(get Certificate, minVersion uint16) *tls.Config {
	return &tls.Config{
		MinVersion: max(minVersion, tls.VersionTLS12), GetCertificate: get, NextProtos: []string{"h2", "http/1.1"},
		// A session could be resumed although its certificate has been replaced.
		SessionTicketsDisabled: true,
	}
}

// maxPEM bounds each file, in bytes.
const maxPEM = 1 << 20

// Files are a certificate, its key and the roots that verify it, in files that are followed: a new connection has
// what is in them now. Files that cannot be used leave what was in force. It is safe for concurrent use.
type Files struct {
	paths [3]string // certificate, key, roots
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	sigs    [3]filewatch.Sig
	current *tls.Certificate
	roots   []byte
	changed chan struct{}
	failing string
}

// OpenFiles reads a certificate and its key, and, if ca is not empty, the roots that verify it. The error names the
// file.
func OpenFiles(cert, key, ca string, log *slog.Logger) (*Files, error) {
	if cert == "" || key == "" {
		return nil, errors.New("certificate of the HTTPS port: want both --tlsCertFile and --tlsKeyFile, or none")
	}
	f := &Files{paths: [3]string{cert, key, ca}, log: log, changed: make(chan struct{})}
	f.sigs = f.stat()
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// stat returns the identities of the files; the zero value of one that is not there.
func (f *Files) stat() (out [3]filewatch.Sig) {
	for i, p := range f.paths {
		if p != "" {
			out[i], _ = filewatch.Stat(p) // read reports it
		}
	}
	return out
}

// read reads the files. On an error nothing has changed.
func (f *Files) read() error {
	var text [3][]byte
	for i, p := range f.paths {
		if p == "" {
			continue
		}
		var err error
		if text[i], err = filewatch.ReadFile(p, maxPEM); err != nil {
			return fmt.Errorf("certificate of the HTTPS port: %w", err)
		}
	}
	pair, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return fmt.Errorf("certificate of the HTTPS port, %s and %s: %w", f.paths[0], f.paths[1], err)
	}
	if roots := text[2]; f.paths[2] != "" && !x509.NewCertPool().AppendCertsFromPEM(roots) {
		return fmt.Errorf("roots of the HTTPS port, %s: no certificate in PEM", f.paths[2])
	}
	f.current = &pair
	if !bytes.Equal(f.roots, text[2]) {
		f.roots = text[2]
		close(f.changed)
		f.changed = make(chan struct{})
	}
	return nil
}

// look reads the files if they have changed. The caller holds the lock.
func (f *Files) look() {
	sigs := f.stat()
	if sigs == f.sigs {
		return
	}
	f.sigs = sigs
	err := f.read()
	switch {
	case err == nil:
		f.failing = ""
		f.log.Info("certificate of the HTTPS port replaced", "file", f.paths[0], "until", f.current.Leaf.NotAfter)
	case err.Error() != f.failing:
		f.failing = err.Error()
		f.log.Error("the certificate before stays in use", "error", err)
	}
}

// Get returns the certificate. It is a Certificate.
func (f *Files) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.current, nil
}

// Bundle returns the roots in PEM, nothing without a file of them, and a channel that is closed when they have
// changed. They are looked at when a connection is made.
func (f *Files) Bundle() ([]byte, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.roots, f.changed
}
