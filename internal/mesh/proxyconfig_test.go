package mesh

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"
)

func TestFieldsOfProxyConfigThatAreNotAppliedAreNoted(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "", `null`: "", `"text"`: "", `{"tracing": null}`: "", `{"tracing": {}}`: "", `{"tracing": "x"}`: "",
		`{"drainDuration": "1s", "concurrency": 2, "proxyMetadata": {"tracing": "x"}}`:                      "",
		`{"connectionSettings": {"globalDownstreamConnectionLimit": 7}}`:                                    "",
		`{"connectionSettings": {"globalDownstreamConnectionLimit": 7, "perConnectionBufferLimitBytes":1}}`: "connectionSettings",
		`{"tracing": {"sampling": 1}, "gatewayTopology": {"numTrustedProxies": 2}}`:                         "tracing",
		`{"proxyHeaders": {"server": {}}, "privateKeyProvider": {"cryptomb": {}}}`:                          "proxyHeaders",
	} {
		var v any
		if err := json.Unmarshal([]byte(config), &v); err != nil {
			t.Fatal(err)
		}
		m, err := DecodeMetadata(map[string]any{"PROXY_CONFIG": v})
		if got := m.NotApplied.Names(); err != nil || strings.Join(got, ",") != want || !slices.IsSorted(got) {
			t.Errorf("%s: %q, error %v; want %q", config, got, err, want)
		}
	}
}

// What cannot be read of a topology trusts nobody.
func TestTopologyOfANode(t *testing.T) {
	for config, want := range map[string]Topology{
		`{}`: {}, `null`: {}, `{"gatewayTopology": null}`: {}, `{"gatewayTopology": 1}`: {},
		`{"gatewayTopology": {}}`: {Set: true},
		`{"gatewayTopology": {"numTrustedProxies": 2, "forwardClientCertDetails": "APPEND_FORWARD", "proxyProtocol": {}}}`: {
			Set: true, TrustedProxies: 2, ClientCert: meshv1.ForwardClientCertDetails_APPEND_FORWARD, ProxyProtocol: true,
		},
		`{"gatewayTopology": {"numTrustedProxies": -1, "forwardClientCertDetails": "ALL", "proxyProtocol": true}}`: {Set: true},
		`{"gatewayTopology": {"numTrustedProxies": 1.5, "forwardClientCertDetails": 3}}`:                           {Set: true},
		`{"gatewayTopology": {"numTrustedProxies": 4294967296}}`:                                                   {Set: true},
	} {
		var v any
		if err := json.Unmarshal([]byte(config), &v); err != nil {
			t.Fatal(err)
		}
		if m, err := DecodeMetadata(map[string]any{"PROXY_CONFIG": v}); err != nil || m.Topology != want {
			t.Errorf("%s: %+v, error %v; want %+v", config, m.Topology, err, want)
		}
	}
}
