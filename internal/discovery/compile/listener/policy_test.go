package listener

import (
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A policy limits what a proxy serves, and replaces the ciphers that others get.
func TestAPolicyLimitsTheServer(t *testing.T) {
	for caps, want := range map[mesh.Capability]*tlsv3.TlsParameters{
		0:             {TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, CipherSuites: ciphers},
		mesh.FIPS1402: {TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, CipherSuites: make([]string, 4), EcdhCurves: []string{"P-256"}},
		mesh.PQC:      {TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, EcdhCurves: []string{"X25519MLKEM768"}},
	} {
		var context tlsv3.DownstreamTlsContext
		if err := (Env{Caps: caps, Mesh: &meshv1.MeshConfig{}}).terminate(nil).GetTypedConfig().UnmarshalTo(&context); err != nil {
			t.Fatal(err)
		}
		got := context.GetCommonTlsContext().GetTlsParams()
		if got.GetTlsMaximumProtocolVersion() != want.GetTlsMaximumProtocolVersion() || len(got.GetCipherSuites()) != len(want.GetCipherSuites()) || len(got.GetEcdhCurves()) != len(want.GetEcdhCurves()) {
			t.Errorf("%s: %v, want %v", caps.CompliancePolicy(), got, want)
		}
	}
}
