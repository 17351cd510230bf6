package cluster_test

import (
	"bytes"
	"slices"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The mesh's mutual TLS is put together from encoded parts as if it were encoded at once.
func TestMutualTLSIsEncodedAsOneMessage(t *testing.T) {
	settings := []*meshv1.MeshConfig_TLSConfig{
		nil, {}, {MinProtocolVersion: meshv1.MeshConfig_TLSConfig_TLSV1_3}, {EcdhCurves: []string{"P-256"}}, {CipherSuites: []string{"ECDHE-RSA-AES256-GCM-SHA384"}},
	}
	for _, sans := range [][]string{nil, {"spiffe://td/ns/a/sa/b"}, {"spiffe://td/ns/a/sa/b", "spiffe://td/ns/a/sa/c"}} {
		for _, s := range settings {
			for _, caps := range []mesh.Capability{0, mesh.IPv4 | mesh.FIPS1402, mesh.PQC} {
				for _, protocol := range []mesh.Protocol{mesh.TCP, mesh.HTTP2} {
					m := mesh.DefaultMeshConfig()
					m.MeshMTLS = s
					c := cluster.Build(cluster.Input{
						Service: cluster.Service{Host: "a.b"}, Port: 80, Protocol: protocol, Mesh: m, Caps: caps, SANs: sans,
						Policy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL, Sni: "own.sni"}},
					})
					value := c.GetTransportSocket().GetTypedConfig().GetValue()
					var got tlsv3.UpstreamTlsContext
					if err := proto.Unmarshal(value, &got); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(value, marshal.Must(&got)) {
						t.Errorf("settings %v, capabilities %x, %v: not encoded as one message", s, caps, protocol)
					}
					common := got.GetCommonTlsContext()
					if want := cluster.TLSParams(s, caps); !proto.Equal(common.GetTlsParams(), want) {
						t.Errorf("settings %v, capabilities %x: parameters %v, want %v", s, caps, common.GetTlsParams(), want)
					}
					if want := cluster.Secret(mesh.SecretDefault, caps); len(common.GetTlsCertificateSdsSecretConfigs()) != 1 || !proto.Equal(common.GetTlsCertificateSdsSecretConfigs()[0], want) {
						t.Errorf("capabilities %x: certificates %v, want %v", caps, common.GetTlsCertificateSdsSecretConfigs(), want)
					}
					if want := cluster.Secret(mesh.SecretRoot, caps); !proto.Equal(common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig(), want) {
						t.Errorf("capabilities %x: roots %v, want %v", caps, common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig(), want)
					}
					if h2 := slices.Contains(common.GetAlpnProtocols(), "h2"); h2 != (protocol == mesh.HTTP2) {
						t.Errorf("%v: ALPN %v", protocol, common.GetAlpnProtocols())
					}
					names := common.GetCombinedValidationContext().GetDefaultValidationContext().GetMatchSubjectAltNames() //nolint:staticcheck // the form that is sent
					if got.GetSni() != "own.sni" || len(names) != len(sans) || len(sans) > 0 && names[len(names)-1].GetExact() != sans[len(sans)-1] {
						t.Errorf("SNI %q and names %v, want own.sni and %v", got.GetSni(), names, sans)
					}
				}
			}
		}
	}
}
