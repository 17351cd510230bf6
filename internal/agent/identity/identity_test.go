package identity

import (
	"path"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

// decide is for a sidecar whose working directory is / and holds these files.
func decide(c spec.Certificates, u spec.Upstream, mounted spec.CertificateFiles, files ...string) (Plan, error) {
	c.Mounted = mounted
	return Decide(&spec.Spec{Certificates: c, Upstream: u}, Host{WorkingDir: "/", IsFile: func(p string) bool {
		return slices.ContainsFunc(files, func(f string) bool { return path.Clean(f) == path.Clean(p) })
	}})
}

func TestRoots(t *testing.T) {
	const legacy = "etc/certs/root-cert.pem"
	tests := []struct {
		name          string
		secrets       spec.Certificates
		upstream      spec.Upstream
		mounted       spec.CertificateFiles
		files         []string
		discovery, ca string
	}{
		{name: "default", discovery: DefaultRoot, ca: DefaultRoot},
		{name: "named", upstream: spec.Upstream{DiscoveryRoot: "SYSTEM", CARoot: "/ca"}, files: []string{legacy}, discovery: "SYSTEM", ca: "/ca"},
		{name: "legacy mount", files: []string{legacy}, discovery: legacy, ca: DefaultRoot},
		{name: "output in the legacy folder", secrets: spec.Certificates{OutputDir: "etc/certs/"}, files: []string{legacy}, discovery: DefaultRoot, ca: DefaultRoot},
		{name: "the same by its absolute path", secrets: spec.Certificates{OutputDir: "/etc/certs"}, files: []string{legacy}, discovery: DefaultRoot, ca: DefaultRoot},
		{name: "provisioned", secrets: spec.Certificates{ProvisionedDir: "/p"}, discovery: "/p/root-cert.pem", ca: "/p/root-cert.pem"},
		{name: "file-mounted", secrets: spec.Certificates{FileMounted: true}, mounted: named, discovery: "/r", ca: DefaultRoot},
		{name: "custom", upstream: spec.Upstream{CertProvider: "custom"}, discovery: DefaultRoot, ca: legacy},
		{name: "none", upstream: spec.Upstream{CertProvider: "none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := decide(tt.secrets, tt.upstream, tt.mounted, tt.files...)
			if err != nil || p.DiscoveryRoot != tt.discovery || p.CARoot != tt.ca {
				t.Errorf("got %+v, %v, want roots %q and %q", p, err, tt.discovery, tt.ca)
			}
		})
	}
}

var named = spec.CertificateFiles{Chain: "/c", Key: "/k", Roots: "/r"}

func TestMounted(t *testing.T) {
	mounted := []string{MountedDir + "/cert-chain.pem", MountedDir + "/key.pem", MountedDir + "/root-cert.pem"}
	gke := []string{MountedDir + "/certificates.pem", MountedDir + "/private_key.pem", MountedDir + "/ca_certificates.pem"}
	legacy := []string{"etc/certs/cert-chain.pem", "etc/certs/key.pem", "etc/certs/root-cert.pem"}
	tests := []struct {
		name    string
		secrets spec.Certificates
		files   []string
		want    string // the chain's file; empty means the CA
	}{
		{name: "the CA"},
		{name: "mounted", files: mounted, want: "var/run/secrets/workload-spiffe-credentials/cert-chain.pem"},
		{name: "mounted by GKE", files: gke, want: "var/run/secrets/workload-spiffe-credentials/certificates.pem"},
		{name: "half mounted", files: mounted[:2]},
		{name: "half of each", files: []string{mounted[0], mounted[1], gke[2]}},
		{name: "legacy", files: legacy, want: "etc/certs/cert-chain.pem"},
		{name: "mounted goes before legacy", files: slices.Concat(legacy, mounted), want: "var/run/secrets/workload-spiffe-credentials/cert-chain.pem"},
		{name: "output in the legacy folder", secrets: spec.Certificates{OutputDir: "./etc/certs"}, files: legacy},
		{name: "named", secrets: spec.Certificates{FileMounted: true}, files: mounted, want: "/c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := decide(tt.secrets, spec.Upstream{}, named, tt.files...)
			got := ""
			if p.Mounted != nil {
				got = p.Mounted.Chain
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %q", p.Mounted, err, tt.want)
			}
		})
	}
	if _, err := decide(spec.Certificates{FileMounted: true}, spec.Upstream{}, spec.CertificateFiles{}); err == nil {
		t.Error("FILE_MOUNTED_CERTS without the names of the files is accepted")
	}
}
