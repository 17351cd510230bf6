package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Bounds of files, in bytes.
const (
	maxBundle = 1 << 20
)

// transport performs TLS handshakes.
type transport struct {
	o      *Options
	failed func(error)
}

// authInfo passes the result of a handshake to the calls of its connection.
type authInfo struct {
	credentials.TLSInfo
	// presentedUntil is when the presented client certificate expires; zero if none was presented.
	presentedUntil time.Time
	// available says that there was a client certificate, presented or not.
	available bool
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.handshake(ctx, authority, c)
	if err != nil {
		t.failed(err)
	}
	return conn, info, err
}

func (t *transport) handshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.o.ServerName}
	t.o.TLS.Apply(config)
	var err error
	if config.RootCAs, err = t.o.roots(); err != nil {
		return nil, nil, err
	}
	own := t.o.certificate(time.Now())
	var presentedUntil time.Time
	config.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		// The server would close the connection if the certificate were not of an authority that it accepts.
		if own == nil || request.SupportsCertificate(own) != nil {
			return &tls.Certificate{}, nil
		}
		presentedUntil = leafOf(own).NotAfter
		return own, nil
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, c)
	if err != nil {
		return nil, nil, fmt.Errorf("TLS handshake with the %s: %w%s", t.o.Name, err, t.o.hint(err))
	}
	return conn, authInfo{TLSInfo: info.(credentials.TLSInfo), presentedUntil: presentedUntil, available: own != nil}, nil
}

// hint is what to do about an error of verification, and with which file the certificate was verified; "" for other errors.
func (o *Options) hint(err error) string {
	if errors.As(err, new(x509.HostnameError)) {
		return ": add the name with --servingName of pilot-discovery, or dial one that its certificate has"
	}
	if errors.As(err, new(*tls.CertificateVerificationError)) {
		if file := o.rootFile(); file != SystemRoots {
			return ": the roots are in " + cmp.Or(o.RootsFrom, file)
		}
	}
	return ""
}

// ServerHandshake implements credentials.TransportCredentials. It always fails.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("server handshake with client credentials")
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials { c := *t; return &c }

// OverrideServerName implements credentials.TransportCredentials. It does nothing: the name is Options.ServerName.
func (t *transport) OverrideServerName(string) error { return nil }

// rootFile is the file with the roots, or SystemRoots.
func (o *Options) rootFile() string {
	if o.ChooseRootFile != nil {
		return o.ChooseRootFile()
	}
	return o.RootFile
}

// roots returns the root certificates; nil means the operating system's.
func (o *Options) roots() (*x509.CertPool, error) {
	file := o.rootFile()
	if file == SystemRoots {
		return nil, nil
	}
	text, err := readFile(file, maxBundle)
	if err != nil {
		return nil, fmt.Errorf("read the root certificate of the %s: %w", o.Name, err)
	}
	roots, err := pki.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("read the root certificate of the %s %s: %w", o.Name, file, err)
	}
	if o.Trust != nil {
		roots = o.Trust(roots)
	}
	return pki.Pool(roots), nil
}

// ClientTLS returns the configuration of a client of a server outside of the mesh, whose certificate one of the roots in a file
// has signed, SystemRoots for those of the machine. name is the server's in errors.
func ClientTLS(name, rootFile string, policy pki.TLSPolicy) (*tls.Config, error) {
	roots, err := (&Options{Name: name, RootFile: rootFile}).roots()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	policy.Apply(config)
	return config, nil
}

// certificate returns the client certificate: the workload's, else the provisioned one, else nil. With
// an expired one the server would close the connection. [agent S8]
func (o *Options) certificate(now time.Time) *tls.Certificate {
	if o.Certificate != nil {
		if c := o.Certificate(); valid(c, now) {
			return c
		}
	}
	if o.ProvisionedDir != "" {
		c, err := readKeyPair(filepath.Join(o.ProvisionedDir, "cert-chain.pem"), filepath.Join(o.ProvisionedDir, "key.pem"))
		if err == nil && valid(&c, now) {
			return &c
		}
	}
	return nil
}

// readKeyPair reads a certificate chain and its key.
func readKeyPair(chainFile, keyFile string) (tls.Certificate, error) {
	chain, err := readFile(chainFile, maxBundle)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(keyFile, maxBundle)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(chain, key)
}

func valid(c *tls.Certificate, now time.Time) bool {
	leaf := leafOf(c)
	return leaf != nil && now.Before(leaf.NotAfter)
}

// leafOf returns the leaf certificate, or nil.
func leafOf(c *tls.Certificate) *x509.Certificate {
	switch {
	case c == nil || len(c.Certificate) == 0:
		return nil
	case c.Leaf != nil:
		return c.Leaf
	}
	leaf, _ := x509.ParseCertificate(c.Certificate[0])
	return leaf
}

// callCredentials add the headers and, if needed, the token to calls.
type callCredentials struct {
	o         *Options
	plaintext bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (c *callCredentials) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	md := make(map[string]string, len(c.o.Headers)+2)
	for k, v := range c.o.Headers {
		md[strings.ToLower(k)] = v
	}
	if c.o.ClusterID != "" {
		md["clusterid"] = c.o.ClusterID
	}
	token, err := c.token(ctx)
	if err != nil {
		return nil, err
	}
	if token != "" {
		md["authorization"] = "Bearer " + token
	}
	return md, nil
}

// token returns the token to send, or "". It is sent if no client certificate was presented, or the
// presented one has expired since. A missing token is an error only without a client certificate: a
// server that did not request the certificate may not need a token either.
func (c *callCredentials) token(ctx context.Context) (string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	auth, _ := info.AuthInfo.(authInfo)
	if time.Now().Before(auth.presentedUntil) || c.plaintext && !c.o.PlaintextToken {
		return "", nil
	}
	if c.o.Token == nil {
		return "", nil
	}
	token, err := c.o.Token(ctx)
	if errors.Is(err, fs.ErrNotExist) && auth.available {
		return "", nil
	}
	return token, err
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Headers are sent with plaintext calls too.
func (c *callCredentials) RequireTransportSecurity() bool { return !c.plaintext }

// readFile reads a regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) { return filewatch.ReadFile(path, limit) }
