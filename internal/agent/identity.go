package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/run"
)

// Where credentials lie. [agent P17–P20]
const (
	mountedDir  = "./var/run/secrets/workload-spiffe-credentials"
	legacyDir   = "./etc/certs"
	defaultRoot = "./var/run/secrets/istio/root-cert.pem"
	tokenFile   = "./var/run/secrets/tokens/istio-token"
	maxToken    = 64 << 10
	// ownSocket is the name of the socket that this agent serves.
	ownSocket = "socket"
)

// keeper is a source of the workload's secret: secret.Keeper or secret.Files.
type keeper interface {
	sds.Source
	Problem() error
	ClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error)
}

// identity decides where the workload's certificate comes from, and takes its socket.
// Nothing is asked of anybody here: Envoy starts meanwhile and waits by itself.
func (a *Agent) identity() error {
	s := a.o.Settings.Secrets
	log := a.log.With("scope", "secret")
	if files, ok, err := a.certificateFiles(); err != nil {
		return err
	} else if ok {
		f := secret.NewFiles(files, log)
		a.secret = f
		a.serve("certificate", f.Run)
		a.log.Info("the certificate comes from files", "chain", files.Chain)
	} else {
		k, err := a.certificateAuthority()
		if err != nil {
			return err
		}
		a.secret = k
		a.serve("certificate", k.Run)
	}
	if s.OutputDir != "" {
		mode := fs.FileMode(0o600)
		if a.o.Node.Env["KUBERNETES_SERVICE_HOST"] != "" {
			mode = 0o644 // other containers of the Pod run as other users [E39]
		}
		a.serve("certificate output", secret.Output{Dir: s.OutputDir, Mode: mode, Source: a.secret, Log: log}.Run)
	}
	return a.secretSocket()
}

// secretSocket serves the secrets, unless the environment names somebody else's socket.
// [agent E17, S19]
func (a *Agent) secretSocket() error {
	path := a.sdsSocket()
	if !a.ownsSecrets() {
		if st, err := os.Stat(path); err != nil || st.Mode()&fs.ModeSocket == 0 {
			return fmt.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE names %s, and no socket is there: start its server first", path)
		}
		return nil
	}
	server, err := sds.New(path, a.secret, a.log.With("scope", "sds"))
	if err != nil {
		return err
	}
	a.undo.Add("close "+path, server.Close)
	a.files = secret.NewNamed(secret.SystemBundles, a.log.With("scope", "secret"))
	server.ServeFiles(a.files)
	a.serve("file secrets", a.files.Run)
	a.serve("sds", server.Run)
	return nil
}

// ownsSecrets says whether Envoy gets its certificate from this agent.
func (a *Agent) ownsSecrets() bool { return a.o.Settings.Secrets.SocketName == ownSocket }

// certificateFiles finds a mounted identity; the second result says whether there is one.
func (a *Agent) certificateFiles() (secret.FilePaths, bool, error) {
	s := a.o.Settings.Secrets
	if s.FileMounted {
		env := a.o.Node.Env
		p := secret.FilePaths{
			Chain: env["ISTIO_META_TLS_CLIENT_CERT_CHAIN"], Key: env["ISTIO_META_TLS_CLIENT_KEY"], Roots: env["ISTIO_META_TLS_CLIENT_ROOT_CERT"],
		}
		if p.Chain == "" || p.Key == "" || p.Roots == "" {
			return p, false, errors.New("FILE_MOUNTED_CERTS needs ISTIO_META_TLS_CLIENT_CERT_CHAIN, _KEY and _ROOT_CERT")
		}
		return p, true, nil
	}
	dirs := []string{mountedDir}
	if !a.writesTo(legacyDir) {
		dirs = append(dirs, legacyDir)
	}
	p, ok := secret.FindFiles(dirs...)
	return p, ok, nil
}

// writesTo says whether certificates are written to dir, and so must not be read from it. [agent S15]
func (a *Agent) writesTo(dir string) bool {
	out := a.o.Settings.Secrets.OutputDir
	if out == "" {
		return false
	}
	x, errX := filepath.Abs(out)
	y, errY := filepath.Abs(dir)
	return errX == nil && errY == nil && x == y
}

// certificateAuthority makes the keeper that asks the CA.
func (a *Agent) certificateAuthority() (*secret.Keeper, error) {
	u, s := a.o.Settings.Upstream, a.o.Settings.Secrets
	root, err := a.caRoot()
	if err == nil && !plaintext(u.CA) {
		err = rootExists("CA", u.CA, root)
	}
	if err != nil {
		return nil, err
	}
	var k *secret.Keeper
	ca := secret.NewCA(secret.CAOptions{
		Address: u.CA, RootFile: root, ServerName: u.ServerName, TokenFile: tokenFile, ClusterID: u.ClusterID,
		Headers: u.CAHeaders, CertSigner: s.Signer,
		Certificate: func(i *tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.certificate(k, i) },
	})
	k = secret.NewKeeper(secret.Options{
		Identity: a.o.Node.Identity, KeyKind: s.Key, PKCS8: s.PKCS8, TTL: s.TTL, Ratio: s.GraceRatio, Jitter: s.Jitter,
	}, ca, a.log.With("scope", "secret"))
	return k, nil
}

// certificate is what the agent shows upstream: the workload's own certificate while it
// is valid, else the provisioned one, else none (and its token speaks for it).
func (a *Agent) certificate(own keeper, i *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	c, err := own.ClientCertificate(i)
	if err == nil && len(c.Certificate) > 0 {
		return c, nil
	}
	if dir := a.o.Settings.Secrets.ProvisionedDir; dir != "" {
		p, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem"))
		if err == nil && p.Leaf != nil && time.Now().Before(p.Leaf.NotAfter) {
			return &p, nil
		}
	}
	return &tls.Certificate{}, nil
}

// discovery takes the socket for Envoy's configuration.
func (a *Agent) discovery() error {
	u := a.o.Settings.Upstream
	root, err := a.discoveryRoot()
	if err == nil && !plaintext(u.Discovery) {
		err = rootExists("control plane", u.Discovery, root)
	}
	if err != nil {
		return err
	}
	a.xds, err = xdsproxy.New(xdsproxy.Config{
		Socket: a.xdsSocket(), Address: u.Discovery, Headers: u.DiscoveryHeaders, ClusterID: u.ClusterID,
		Log: a.log.With("scope", "xdsproxy"),
		Credentials: xdsproxy.Credentials{
			RootFile: root, ServerName: u.ServerName, Token: readToken,
			Certificate: func() *tls.Certificate {
				c, err := a.certificate(a.secret, nil)
				if err != nil || len(c.Certificate) == 0 {
					return nil
				}
				return c
			},
		},
	})
	if err != nil {
		return err
	}
	a.serve("xds", a.xds.Run)
	return nil
}

// plaintext: this port of a control plane is served without TLS. [agent S8]
func plaintext(address string) bool { return strings.HasSuffix(address, ":15010") }

// readToken reads the bearer token anew: the kubelet replaces it. [agent S6]
func readToken() (string, error) {
	text, err := os.ReadFile(tokenFile)
	if err != nil {
		return "", err
	}
	if len(text) > maxToken {
		return "", fmt.Errorf("%s has %d bytes, at most %d are taken", tokenFile, len(text), maxToken)
	}
	return strings.TrimSpace(string(text)), nil
}

var errNoRoot = errors.New("PILOT_CERT_PROVIDER is none: say where the root certificate is with XDS_ROOT_CA and CA_ROOT_CA")

// discoveryRoot finds the roots that the control plane's certificate must lead to. [agent S9]
func (a *Agent) discoveryRoot() (string, error) {
	u, s := a.o.Settings.Upstream, a.o.Settings.Secrets
	legacy := filepath.Join(legacyDir, "root-cert.pem")
	switch {
	case u.DiscoveryRoot != "":
		return u.DiscoveryRoot, nil
	case !a.writesTo(legacyDir) && exists(legacy):
		return legacy, nil
	case s.ProvisionedDir != "":
		return filepath.Join(s.ProvisionedDir, "root-cert.pem"), nil
	case s.FileMounted:
		return a.o.Node.Env["ISTIO_META_TLS_CLIENT_ROOT_CERT"], nil
	case u.CertProvider == "none":
		return "", errNoRoot
	}
	return defaultRoot, nil
}

// caRoot finds those of the CA's. [agent S9]
func (a *Agent) caRoot() (string, error) {
	u, s := a.o.Settings.Upstream, a.o.Settings.Secrets
	switch {
	case u.CARoot != "":
		return u.CARoot, nil
	case u.CertProvider == "custom":
		return filepath.Join(legacyDir, "root-cert.pem"), nil
	case s.ProvisionedDir != "":
		return filepath.Join(s.ProvisionedDir, "root-cert.pem"), nil
	case u.CertProvider == "none":
		return "", errNoRoot
	}
	return defaultRoot, nil
}

// rootExists finds a missing root at the start, where a person looks. [agent L14]
func rootExists(who, address, file string) error {
	if file == secret.SystemRoots {
		return nil
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("find the root certificate of the %s %s: %w", who, address, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// serve adds a server; it runs until Envoy has ended.
func (a *Agent) serve(name string, runs func(context.Context) error) {
	a.servers = append(a.servers, run.Task{Name: name, Run: runs})
}
