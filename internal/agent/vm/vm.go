// Package vm decides what is on a virtual machine of the mesh: its files, its service, and how its agent is started.
//
// A machine joins by a join token ([FromBundle]) or by the files that Istio's tool writes for it
// ([FromFiles]); both give a [Membership], of which [Membership.Files] are the files to write. [Start] turns the
// environment files into the arguments and the environment of pilot-agent proxy, by the rules of Istio's
// istio-start.sh. Everything is pure; cmd/pilot-agent reads, writes and runs. [agent V1–V6, V10]
package vm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/join"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Paths on the machine, below its root. [agent V1, V5]
const (
	SidecarEnv = "var/lib/istio/envoy/sidecar.env" // of the administrator; never written
	ClusterEnv = "var/lib/istio/envoy/cluster.env"
	MeshFile   = "etc/istio/config/mesh"
	CertDir    = "etc/certs"
	ProxyDir   = "etc/istio/proxy"
	TokenFile  = "var/run/secrets/tokens/istio-token"
	SocketDir  = "var/run/secrets/workload-spiffe-uds"
	HostsFile  = "etc/hosts"
	// RecordFile says that the machine has joined, and what was written for it.
	RecordFile = "var/lib/istio/joined.json"
	// PendingFile has the key of a join that has not ended, so that it can be repeated with the same token.
	PendingFile = "var/lib/istio/joining.json"
	// PackagedUnit is the unit of the packages, OwnUnit the one that join writes if there are no packages.
	PackagedUnit = "lib/systemd/system/istio.service"
	OwnUnit      = "etc/systemd/system/istio.service"
	// StartScript and LogFile are for machines without systemd.
	StartScript = "etc/istio/start.sh"
	LogFile     = "var/log/istio/pilot-agent.log"
	// PIDFile has the process that runs.
	PIDFile = "var/run/istio/pilot-agent.pid"

	// DefaultEnvoy is where the packages have Envoy.
	DefaultEnvoy = "/usr/local/bin/envoy"
	// ProxyUser is the user and the group of the proxy.
	ProxyUser = "istio-proxy"
	// Service is the name of the unit.
	Service = "istio.service"
)

// Files of the certificate in CertDir.
const (
	ChainFile = CertDir + "/cert-chain.pem"
	KeyFile   = CertDir + "/key.pem"
	RootsFile = CertDir + "/root-cert.pem"
)

// Defaults of the environment that Istio's tool writes. [agent V4]
const (
	defaultInbound  = "*"
	defaultExcluded = "22,15090,15021,15020"
	defaultServices = "*"
)

// Membership is what is known of a machine's place in the mesh.
type Membership struct {
	Identity mesh.Identity
	// CA is host:port of the certificate authority, ServerName the name in its certificate (empty for its host), ClusterID the
	// cluster that reviews the token.
	CA, ServerName, ClusterID string
	// Roots are PEM.
	Roots []byte
	// Token is the credential for the first certificate; empty if there is none.
	Token string
	// Env is the text of ClusterEnv, Mesh that of MeshFile (empty for none).
	Env, Mesh string
	// Hosts are addresses by host name, for HostsFile.
	Hosts []Host
	// Group is the WorkloadGroup that registers the machine; empty for none.
	Group string
	// Notes say what was given and has no effect.
	Notes []string
}

// Host is a line of HostsFile.
type Host struct{ Address, Name string }

// File is a file to write.
type File struct {
	// Path is below the machine's root.
	Path string
	Mode fs.FileMode
	// Proxy says that the proxy's user owns it; else root does.
	Proxy bool
	// Secret says that the text must not be shown.
	Secret bool
	Text   []byte
}

// FromBundle is the membership of a join token. envoy is the path of the Envoy to run; empty for that of the configuration, else
// DefaultEnvoy.
func FromBundle(b *join.Bundle, envoy string) (*Membership, error) {
	certs, err := b.Certificates()
	if err != nil {
		return nil, err
	}
	name := cmp.Or(b.Group, b.ServiceAccount)
	labels := maps.Clone(b.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for label, value := range map[string]string{
		"service.istio.io/canonical-name": cmp.Or(labels["app.kubernetes.io/name"], labels["app"], name), "service.istio.io/canonical-revision": cmp.Or(labels["version"], "latest"),
		mesh.TLSModeLabel: "istio",
	} {
		if labels[label] == "" {
			labels[label] = value
		}
	}
	labelText, err := json.Marshal(labels)
	if err != nil {
		return nil, err
	}
	env := map[string]string{
		"POD_NAMESPACE": b.Namespace, "SERVICE_ACCOUNT": b.ServiceAccount, "TRUST_DOMAIN": b.TrustDomain,
		"CA_ADDR": b.Discovery, "ISTIOD_SAN": b.ServerName, "ISTIO_SERVICE": name + "." + b.Namespace,
		"CANONICAL_SERVICE": labels["service.istio.io/canonical-name"], "CANONICAL_REVISION": labels["service.istio.io/canonical-revision"],
		"ISTIO_META_CLUSTER_ID": b.Cluster, "ISTIO_META_NETWORK": b.Network, "ISTIO_META_WORKLOAD_NAME": name,
		"ISTIO_META_AUTO_REGISTER_GROUP": b.Group, "ISTIO_META_DNS_CAPTURE": "true", "ISTIO_METAJSON_LABELS": string(labelText),
		"ISTIO_INBOUND_PORTS": defaultInbound, "ISTIO_LOCAL_EXCLUDE_PORTS": defaultExcluded, "ISTIO_SERVICE_CIDR": defaultServices,
		"ISTIO_META_ISTIO_REV": b.Revision,
	}
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" })
	proxy := map[string]any{}
	if b.ProxyConfig != "" {
		if err := yaml.Unmarshal([]byte(b.ProxyConfig), &proxy); err != nil {
			return nil, fmt.Errorf("read the ProxyConfig of the join token: %w", err)
		}
	}
	proxy["discoveryAddress"] = b.Discovery
	if envoy != "" {
		proxy["binaryPath"] = envoy
	}
	meshText, err := yaml.Marshal(map[string]any{"defaultConfig": proxy})
	if err != nil {
		return nil, err
	}
	return &Membership{
		Identity: b.Identity(), CA: b.Discovery, ServerName: b.ServerName, ClusterID: b.Cluster, Roots: pki.EncodeCerts(certs...), Token: b.Token,
		Env: FormatEnv(env), Mesh: string(meshText), Group: b.Group,
	}, nil
}

// Names of the files that Istio's tool writes. [agent V5]
const (
	givenEnv, givenMesh, givenHosts, givenRoots, givenToken = "cluster.env", "mesh.yaml", "hosts", "root-cert.pem", "istio-token"
)

// GivenFiles are the names of the files that FromFiles reads.
func GivenFiles() []string { return []string{givenEnv, givenMesh, givenHosts, givenRoots, givenToken} }

// FromFiles is the membership that files of Istio's tool describe; files has the text of those that exist, by their names.
// cluster.env and root-cert.pem are required. envoy is as for FromBundle.
func FromFiles(files map[string][]byte, envoy string) (*Membership, error) {
	for _, name := range []string{givenEnv, givenRoots} {
		if files[name] == nil {
			return nil, fmt.Errorf("there is no %s: want the files of istioctl x workload entry configure", name)
		}
	}
	env, err := ParseEnv(string(files[givenEnv]))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", givenEnv, err)
	}
	hosts, err := ParseHosts(string(files[givenHosts]))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", givenHosts, err)
	}
	if _, err := pki.ParseBundle(files[givenRoots]); err != nil {
		return nil, fmt.Errorf("%s: %w", givenRoots, err)
	}
	var given struct {
		DefaultConfig map[string]any `json:"defaultConfig"`
	}
	if err := yaml.Unmarshal(files[givenMesh], &given); err != nil {
		return nil, fmt.Errorf("%s: %w", givenMesh, err)
	}
	m := &Membership{
		Roots: files[givenRoots], Token: strings.TrimSpace(string(files[givenToken])), Env: string(files[givenEnv]), Mesh: string(files[givenMesh]), Hosts: hosts,
		Identity: mesh.Identity{
			TrustDomain: cmp.Or(env["TRUST_DOMAIN"], mesh.DefaultTrustDomain), Namespace: cmp.Or(env["POD_NAMESPACE"], env["ISTIO_NAMESPACE"], "default"), ServiceAccount: cmp.Or(env["SERVICE_ACCOUNT"], "default"),
		},
		ServerName: env["ISTIOD_SAN"], ClusterID: env["ISTIO_META_CLUSTER_ID"], Group: env["ISTIO_META_AUTO_REGISTER_GROUP"],
	}
	if err := pki.CheckIdentity(m.Identity); err != nil {
		return nil, fmt.Errorf("%s: %w", givenEnv, err)
	}
	p, notes, err := Start(env, "", nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", givenEnv, err)
	}
	m.Notes = notes
	discovery, _ := given.DefaultConfig["discoveryAddress"].(string)
	m.CA = cmp.Or(firstOf(p.Env["CA_ADDR"]), discovery, mesh.DefaultProxyConfig().GetDiscoveryAddress())
	if meta, ok := given.DefaultConfig["proxyMetadata"].(map[string]any); ok && m.Group == "" {
		m.Group, _ = meta["ISTIO_META_AUTO_REGISTER_GROUP"].(string)
	}
	if envoy != "" {
		if m.Mesh, err = withBinary(files[givenMesh], envoy); err != nil {
			return nil, fmt.Errorf("%s: %w", givenMesh, err)
		}
	}
	return m, nil
}

// withBinary sets the path of Envoy in a mesh configuration.
func withBinary(text []byte, envoy string) (string, error) {
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return "", err
	}
	if all == nil {
		all = map[string]any{}
	}
	proxy, ok := all["defaultConfig"].(map[string]any)
	if !ok {
		proxy = map[string]any{}
	}
	proxy["binaryPath"], all["defaultConfig"] = envoy, proxy
	out, err := yaml.Marshal(all)
	return string(out), err
}

// firstOf is the first element of a list with commas in between.
func firstOf(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(first)
}

// Envoy is the path of the Envoy that is run.
func (m *Membership) Envoy() string {
	var given struct {
		DefaultConfig struct {
			BinaryPath string `json:"binaryPath"`
		} `json:"defaultConfig"`
	}
	_ = yaml.Unmarshal([]byte(m.Mesh), &given) // its text was parsed before
	return cmp.Or(given.DefaultConfig.BinaryPath, DefaultEnvoy)
}

// Files are the files to write, without those of the certificate. unit is the text of OwnUnit, script that of StartScript; empty
// for none.
func (m *Membership) Files(unit, script string) []File {
	files := []File{{Path: ClusterEnv, Mode: 0o644, Text: []byte(m.Env)}}
	if m.Mesh != "" {
		files = append(files, File{Path: MeshFile, Mode: 0o644, Text: []byte(m.Mesh)})
	}
	if unit != "" {
		files = append(files, File{Path: OwnUnit, Mode: 0o644, Text: []byte(unit)})
	}
	if script != "" {
		files = append(files, File{Path: StartScript, Mode: 0o755, Text: []byte(script)})
	}
	return files
}

// Certificate are the files of a certificate with its key.
func Certificate(s *pki.Secret) []File {
	return []File{
		{Path: KeyFile, Mode: 0o600, Proxy: true, Secret: true, Text: s.Key},
		{Path: ChainFile, Mode: 0o644, Proxy: true, Text: s.Chain},
		{Path: RootsFile, Mode: 0o644, Proxy: true, Text: s.Roots},
	}
}

// Record says that the machine has joined: the text of RecordFile.
type Record struct {
	Identity string `json:"identity"`
	CA       string `json:"ca"`
	// Written are the paths that join wrote, below the machine's root; Hosts says that it added lines to HostsFile.
	Written []string `json:"written"`
	Hosts   bool     `json:"hosts,omitempty"`
}

// maxRecord bounds the text of a Record, in bytes.
const maxRecord = 64 << 10

// ParseRecord reads the text of RecordFile. Paths that could lead out of the machine's root are an error.
func ParseRecord(text []byte) (*Record, error) {
	r := &Record{}
	err := json.Unmarshal(text, r)
	if err == nil && len(text) > maxRecord {
		err = fmt.Errorf("%d bytes, want at most %d", len(text), maxRecord)
	}
	for _, p := range r.Written {
		if err == nil && !slices.Contains([]string{ClusterEnv, MeshFile, OwnUnit, StartScript, KeyFile, ChainFile, RootsFile}, p) {
			err = fmt.Errorf("unknown file %q", p)
		}
	}
	if err == nil && r.Identity == "" {
		err = errors.New("no identity")
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of the join: %w", err)
	}
	return r, nil
}
