// Package identity decides where a workload's certificate comes from and which roots its control plane must prove itself with.
//
// Decide is a pure function of the agent's settings and of which files exist. It reads no file:
// what a file holds is found out by its users, at each use. Names and order are Istio's. [agent P17–P20, S9]
package identity

import (
	"errors"
	"path"

	"github.com/pilothouse/pilothouse/internal/agent/node"
)

// Where credentials lie, relative to the agent's working directory. [agent P17–P20]
const (
	// MountedDir is where a platform mounts a certificate that it renews itself.
	MountedDir = "./var/run/secrets/workload-spiffe-credentials"
	// LegacyDir is where certificates were mounted before there was an agent.
	LegacyDir = "./etc/certs"
	// DefaultRoot is the root certificate where nothing names another.
	DefaultRoot = "./var/run/secrets/istio/root-cert.pem"
	// TokenFile is the bearer token of the workload's service account.
	TokenFile = "./var/run/secrets/tokens/istio-token"
)

// rootName is the name of a root certificate in a folder of credentials.
const rootName = "root-cert.pem"

// mountedNames are the names of chain, key and roots in a folder: Istio's and GKE's.
var mountedNames = [][3]string{
	{"cert-chain.pem", "key.pem", rootName},
	{"certificates.pem", "private_key.pem", "ca_certificates.pem"},
}

// Input is what decides.
type Input struct {
	Upstream node.Upstream
	Secrets  node.Secrets
	// Env is the environment, proxyMetadata included.
	Env map[string]string
	// WorkingDir is absolute.
	WorkingDir string
	// IsFile says whether there is something at a path that is not a directory.
	IsFile func(path string) bool
}

// Files are those of a mounted certificate.
type Files struct{ Chain, Key, Roots string }

// Plan says where everything comes from.
type Plan struct {
	// Mounted are the files of a certificate that somebody else renews; nil where this agent
	// asks the certificate authority.
	Mounted *Files
	// DiscoveryRoot and CARoot are the files of roots that the servers' certificates must lead
	// to, or upstream.SystemRoots. Use a root only for a connection with TLS.
	DiscoveryRoot, CARoot string
}

// ErrNoRoot says that PILOT_CERT_PROVIDER is none and that no variable names a root.
var ErrNoRoot = errors.New("PILOT_CERT_PROVIDER is none: name the root certificates in XDS_ROOT_CA and CA_ROOT_CA")

// Decide plans. A root that nothing names is empty in the plan: ErrNoRoot, if it is needed.
func Decide(in Input) (Plan, error) {
	mounted, err := in.mounted()
	if err != nil {
		return Plan{}, err
	}
	return Plan{Mounted: mounted, DiscoveryRoot: in.discoveryRoot(), CARoot: in.caRoot()}, nil
}

// mounted finds a mounted certificate, nil where there is none.
func (in *Input) mounted() (*Files, error) {
	if in.Secrets.FileMounted {
		f := &Files{
			Chain: in.Env["ISTIO_META_TLS_CLIENT_CERT_CHAIN"], Key: in.Env["ISTIO_META_TLS_CLIENT_KEY"], Roots: in.Env["ISTIO_META_TLS_CLIENT_ROOT_CERT"],
		}
		if f.Chain == "" || f.Key == "" || f.Roots == "" {
			return nil, errors.New("FILE_MOUNTED_CERTS needs ISTIO_META_TLS_CLIENT_CERT_CHAIN, _KEY and _ROOT_CERT")
		}
		return f, nil
	}
	dirs := []string{MountedDir}
	if !in.writesToLegacy() {
		dirs = append(dirs, LegacyDir)
	}
	for _, dir := range dirs {
		for _, names := range mountedNames {
			f := &Files{Chain: path.Join(dir, names[0]), Key: path.Join(dir, names[1]), Roots: path.Join(dir, names[2])}
			if in.IsFile(f.Chain) && in.IsFile(f.Key) && in.IsFile(f.Roots) {
				return f, nil
			}
		}
	}
	return nil, nil
}

// writesToLegacy says whether certificates are written to LegacyDir, and so must not be read from it. [agent S15]
func (in *Input) writesToLegacy() bool {
	out := in.Secrets.OutputDir
	return out != "" && in.absolute(out) == in.absolute(LegacyDir)
}

func (in *Input) absolute(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(in.WorkingDir, p)
}

// discoveryRoot is empty where nothing names one. [agent S9]
func (in *Input) discoveryRoot() string {
	legacy := path.Join(LegacyDir, rootName)
	switch {
	case in.Upstream.DiscoveryRoot != "":
		return in.Upstream.DiscoveryRoot
	case !in.writesToLegacy() && in.IsFile(legacy):
		return legacy
	case in.Secrets.ProvisionedDir != "":
		return path.Join(in.Secrets.ProvisionedDir, rootName)
	case in.Secrets.FileMounted:
		return in.Env["ISTIO_META_TLS_CLIENT_ROOT_CERT"]
	case in.Upstream.CertProvider == "none":
		return ""
	}
	return DefaultRoot
}

// caRoot is empty where nothing names one. [agent S9]
func (in *Input) caRoot() string {
	switch {
	case in.Upstream.CARoot != "":
		return in.Upstream.CARoot
	case in.Upstream.CertProvider == "custom":
		return path.Join(LegacyDir, rootName)
	case in.Secrets.ProvisionedDir != "":
		return path.Join(in.Secrets.ProvisionedDir, rootName)
	case in.Upstream.CertProvider == "none":
		return ""
	}
	return DefaultRoot
}
