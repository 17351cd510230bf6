package identity

import (
	"path"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/node"
)

// input is that of a sidecar whose working directory is / and holds these files.
func input(s node.Secrets, u node.Upstream, env map[string]string, files ...string) Input {
	return Input{Secrets: s, Upstream: u, Env: env, WorkingDir: "/", IsFile: func(p string) bool {
		return slices.ContainsFunc(files, func(f string) bool { return path.Clean(f) == path.Clean(p) })
	}}
}

func TestRoots(t *testing.T) {
	const legacy = "etc/certs/root-cert.pem"
	tests := []struct {
		name          string
		secrets       node.Secrets
		upstream      node.Upstream
		env           map[string]string
		files         []string
		discovery, ca string
	}{
		{name: "default", discovery: DefaultRoot, ca: DefaultRoot},
		{name: "named", upstream: node.Upstream{DiscoveryRoot: "SYSTEM", CARoot: "/ca"}, files: []string{legacy}, discovery: "SYSTEM", ca: "/ca"},
		{name: "legacy mount", files: []string{legacy}, discovery: legacy, ca: DefaultRoot},
		{name: "output in the legacy folder", secrets: node.Secrets{OutputDir: "etc/certs/"}, files: []string{legacy}, discovery: DefaultRoot, ca: DefaultRoot},
		{name: "the same by its absolute path", secrets: node.Secrets{OutputDir: "/etc/certs"}, files: []string{legacy}, discovery: DefaultRoot, ca: DefaultRoot},
		{name: "provisioned", secrets: node.Secrets{ProvisionedDir: "/p"}, discovery: "/p/root-cert.pem", ca: "/p/root-cert.pem"},
		{name: "file-mounted", secrets: node.Secrets{FileMounted: true}, env: mountedEnv, discovery: "/r", ca: DefaultRoot},
		{name: "custom", upstream: node.Upstream{CertProvider: "custom"}, discovery: DefaultRoot, ca: legacy},
		{name: "none", upstream: node.Upstream{CertProvider: "none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Decide(input(tt.secrets, tt.upstream, tt.env, tt.files...))
			if err != nil || p.DiscoveryRoot != tt.discovery || p.CARoot != tt.ca {
				t.Errorf("got %+v, %v, want roots %q and %q", p, err, tt.discovery, tt.ca)
			}
		})
	}
}

var mountedEnv = map[string]string{
	"ISTIO_META_TLS_CLIENT_CERT_CHAIN": "/c", "ISTIO_META_TLS_CLIENT_KEY": "/k", "ISTIO_META_TLS_CLIENT_ROOT_CERT": "/r",
}

func TestMounted(t *testing.T) {
	mounted := []string{MountedDir + "/cert-chain.pem", MountedDir + "/key.pem", MountedDir + "/root-cert.pem"}
	gke := []string{MountedDir + "/certificates.pem", MountedDir + "/private_key.pem", MountedDir + "/ca_certificates.pem"}
	legacy := []string{"etc/certs/cert-chain.pem", "etc/certs/key.pem", "etc/certs/root-cert.pem"}
	tests := []struct {
		name    string
		secrets node.Secrets
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
		{name: "output in the legacy folder", secrets: node.Secrets{OutputDir: "./etc/certs"}, files: legacy},
		{name: "named", secrets: node.Secrets{FileMounted: true}, files: mounted, want: "/c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Decide(input(tt.secrets, node.Upstream{}, mountedEnv, tt.files...))
			got := ""
			if p.Mounted != nil {
				got = p.Mounted.Chain
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %q", p.Mounted, err, tt.want)
			}
		})
	}
	if _, err := Decide(input(node.Secrets{FileMounted: true}, node.Upstream{}, nil)); err == nil {
		t.Error("FILE_MOUNTED_CERTS is taken without the files' names")
	}
}
