package bootstrap

import (
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/grpc/xds"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The bootstrap of gRPC libraries is one that grpc-go takes, names absolute paths, and refers to certificates only if there are files.
func TestProxyless(t *testing.T) {
	for _, c := range []struct {
		name, output, file, refresh string
		ttl                         time.Duration
	}{
		{"no certificates", "", "", "", time.Hour},
		{"certificates", "/var/lib/istio/data", "/var/lib/istio/data/cert-chain.pem", "900s", 24 * time.Hour},
		{"in a relative folder, of a minute", "./certs", "/srv/certs/cert-chain.pem", "3s", time.Minute},
		{"of a second", "certs", "/srv/certs/cert-chain.pem", "1s", time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sidecar(func(s *spec.Spec) { s.Certificates.OutputDir, s.Certificates.TTL = c.output, c.ttl })
			text, err := Proxyless(s, "/srv")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := xds.NewXDSResolverWithConfigForTesting(text); err != nil {
				t.Errorf("grpc-go: %v", err)
			}
			var b struct {
				Servers []struct {
					URI string `json:"server_uri"`
				} `json:"xds_servers"`
				Node struct {
					ID       string
					Metadata map[string]any
				}
				Template  string `json:"server_listener_resource_name_template"`
				Providers map[string]struct {
					Config struct {
						Certificate string `json:"certificate_file"`
						Refresh     string `json:"refresh_interval"`
					}
				} `json:"certificate_providers"`
			}
			if err := json.Unmarshal(text, &b); err != nil {
				t.Fatal(err)
			}
			p, given := b.Providers["default"]
			if given != (c.file != "") || p.Config.Certificate != c.file || p.Config.Refresh != c.refresh || (b.Node.Metadata[mesh.ProxylessCertificatesKey] != nil) != given {
				t.Errorf("provider %+v, metadata %v; want %s, read every %s", p, b.Node.Metadata, c.file, c.refresh)
			}
			if got := b.Servers[0].URI; got != "unix:///srv/etc/istio/proxy/XDS" {
				t.Errorf("server %s", got)
			}
			if b.Node.ID != s.Node.ID.String() || b.Node.Metadata["GENERATOR"] != "grpc" || b.Template != "xds.istio.io/grpc/lds/inbound/%s" {
				t.Errorf("node %+v, template %s", b.Node, b.Template)
			}
			if s.Node.Metadata["GENERATOR"] != nil {
				t.Error("Envoy's metadata is changed")
			}
		})
	}
}
