// Package identity decides where a workload's certificate comes from and which root certificates verify its control plane.
//
// Decide is a pure function of the agent's Spec and of which files exist. It reads no file;
// the packages that use a file read it again each time. Names and order are Istio's. [agent P17–P20, S9]
package identity

import (
	"errors"
	"path"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

// Paths of credentials, relative to the agent's working directory. [agent P17–P20]
const (
	// MountedDir is where a platform mounts a certificate that the platform renews.
	MountedDir = "./var/run/secrets/workload-spiffe-credentials"
	// LegacyDir is where certificates were mounted before there was an agent.
	LegacyDir = "./etc/certs"
	// DefaultRoot is the root certificate if no setting names another.
	DefaultRoot = "./var/run/secrets/istio/root-cert.pem"
)

// rootName is the name of a root certificate in a folder of credentials.
const rootName = "root-cert.pem"

// mountedNames are the file names of chain, key and roots that Istio and GKE use.
var mountedNames = [][3]string{
	{"cert-chain.pem", "key.pem", rootName},
	{"certificates.pem", "private_key.pem", "ca_certificates.pem"},
}

// Host is what Decide needs to know about the file system.
type Host struct {
	// WorkingDir is absolute.
	WorkingDir string
	// IsFile reports whether a path exists and is not a directory.
	IsFile func(path string) bool
}

// Plan says where the certificate and the roots come from.
type Plan struct {
	// Mounted are the files of a certificate that the platform renews; nil if this agent
	// requests its certificate from the certificate authority.
	Mounted *spec.CertificateFiles
	// Later are the files of such a certificate that may be mounted later, in their order, if Mounted is nil.
	Later []spec.CertificateFiles
	// DiscoveryRoot and CARoot are the files of the root certificates that verify the servers',
	// upstream.SystemRoots, or empty if no setting names a root. They are needed only for connections with TLS. Later,
	// DiscoveryRoot may be another one: the package's function of this name says which.
	DiscoveryRoot, CARoot string
}

// ErrNoRoot says that PILOT_CERT_PROVIDER is none and that no variable names a root.
var ErrNoRoot = errors.New("PILOT_CERT_PROVIDER is none: name the root certificates in XDS_ROOT_CA and CA_ROOT_CA")

// Decide makes the plan. The only error is FILE_MOUNTED_CERTS without the names of the files.
func Decide(s *spec.Spec, h Host) (Plan, error) {
	in := &input{Upstream: s.Upstream, Certificates: s.Certificates, Host: h}
	candidates, err := in.mounted()
	if err != nil {
		return Plan{}, err
	}
	var mounted *spec.CertificateFiles
	for _, f := range candidates {
		if in.FileMounted || in.IsFile(f.Chain) && in.IsFile(f.Key) && in.IsFile(f.Roots) {
			mounted, candidates = &f, nil
			break
		}
	}
	return Plan{Mounted: mounted, Later: candidates, DiscoveryRoot: in.discoveryRoot(), CARoot: in.caRoot()}, nil
}

// DiscoveryRoot returns the file of the root certificates that verify discovery, as Plan.DiscoveryRoot, by the files that exist now.
func DiscoveryRoot(s *spec.Spec, h Host) string {
	return (&input{Upstream: s.Upstream, Certificates: s.Certificates, Host: h}).discoveryRoot()
}

// input holds what Decide depends on.
type input struct {
	spec.Upstream
	spec.Certificates
	Host
}

// mounted returns the files that a mounted certificate may have, in their order.
func (in *input) mounted() ([]spec.CertificateFiles, error) {
	if in.FileMounted {
		f := in.Mounted
		if f.Chain == "" || f.Key == "" || f.Roots == "" {
			return nil, errors.New("FILE_MOUNTED_CERTS needs ISTIO_META_TLS_CLIENT_CERT_CHAIN, _KEY and _ROOT_CERT")
		}
		return []spec.CertificateFiles{f}, nil
	}
	dirs := []string{MountedDir}
	if !in.writesToLegacy() {
		dirs = append(dirs, LegacyDir)
	}
	var out []spec.CertificateFiles
	for _, dir := range dirs {
		for _, names := range mountedNames {
			out = append(out, spec.CertificateFiles{Chain: path.Join(dir, names[0]), Key: path.Join(dir, names[1]), Roots: path.Join(dir, names[2])})
		}
	}
	return out, nil
}

// writesToLegacy reports whether this agent writes certificates to LegacyDir, and so must not read them from it. [agent S15]
func (in *input) writesToLegacy() bool {
	out := in.OutputDir
	return out != "" && in.absolute(out) == in.absolute(LegacyDir)
}

func (in *input) absolute(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(in.WorkingDir, p)
}

// discoveryRoot is empty if no setting names a root. [agent S9]
func (in *input) discoveryRoot() string {
	legacy := path.Join(LegacyDir, rootName)
	switch {
	case in.DiscoveryRoot != "":
		return in.DiscoveryRoot
	case !in.writesToLegacy() && in.IsFile(legacy):
		return legacy
	case in.ProvisionedDir != "":
		return path.Join(in.ProvisionedDir, rootName)
	case in.FileMounted:
		return in.Mounted.Roots
	case in.CertProvider == "none":
		return ""
	}
	return DefaultRoot
}

// caRoot is empty if no setting names a root. [agent S9]
func (in *input) caRoot() string {
	switch {
	case in.CARoot != "":
		return in.CARoot
	case in.CertProvider == "custom":
		return path.Join(LegacyDir, rootName)
	case in.ProvisionedDir != "":
		return path.Join(in.ProvisionedDir, rootName)
	case in.CertProvider == "none":
		return ""
	}
	return DefaultRoot
}
