package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	slashpath "path"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A library reads the certificate's files this often, in parts of its lifetime, and at most each maxRefresh.
const (
	refreshes  = 20
	maxRefresh = 900 * time.Second
)

// Proxyless returns the bootstrap of gRPC libraries, as JSON: they get their configuration from the agent's socket, and the
// certificate from the files in OUTPUT_CERTS. Relative paths are completed with the working directory, since an application has
// another one. Equal arguments give equal bytes. [agent G1–G3]
func Proxyless(s *spec.Spec, workingDir string) ([]byte, error) {
	full := func(p string) string {
		if slashpath.IsAbs(p) {
			return p
		}
		return slashpath.Join(workingDir, p)
	}
	metadata := maps.Clone(s.Node.Metadata)
	metadata["GENERATOR"] = mesh.GeneratorGRPC
	b := map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri":      "unix://" + full(s.Paths.XDSSocket),
			"channel_creds":   []any{map[string]any{"type": "insecure"}},
			"server_features": []any{"xds_v3"},
		}},
		"node": map[string]any{
			"id": s.Node.ID.String(), "cluster": s.Node.Cluster, "metadata": metadata,
			"locality": map[string]any{"region": s.Node.Locality.Region, "zone": s.Node.Locality.Zone, "sub_zone": s.Node.Locality.Subzone},
		},
		"server_listener_resource_name_template": mesh.ProxylessListenerPrefix + "%s",
	}
	if dir := s.Certificates.OutputDir; dir != "" {
		metadata[mesh.ProxylessCertificatesKey] = "true"
		refresh := min(maxRefresh, max(time.Second, s.Certificates.TTL/refreshes))
		b["certificate_providers"] = map[string]any{mesh.ProxylessProvider: map[string]any{
			"plugin_name": "file_watcher",
			"config": map[string]any{
				"certificate_file": full(slashpath.Join(dir, "cert-chain.pem")), "private_key_file": full(slashpath.Join(dir, "key.pem")),
				"ca_certificate_file": full(slashpath.Join(dir, "root-cert.pem")), "refresh_interval": fmt.Sprintf("%.0fs", refresh.Seconds()),
			},
		}}
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the bootstrap of gRPC libraries: %w", err)
	}
	return append(text, '\n'), nil
}
