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
		`{}`: "", `null`: "", `"text"`: "", `{"proxyHeaders": null}`: "", `{"proxyHeaders": {}}`: "", `{"proxyHeaders": "x"}`: "",
		`{"drainDuration": "1s", "concurrency": 2, "proxyMetadata": {"tracing": "x"}}`:                      "",
		`{"connectionSettings": {"globalDownstreamConnectionLimit": 7}}`:                                    "",
		`{"connectionSettings": {"globalDownstreamConnectionLimit": 7, "perConnectionBufferLimitBytes":1}}`: "connectionSettings",
		`{"tracing": {"sampling": 1}, "gatewayTopology": {"numTrustedProxies": 2}}`:                         "",
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

func TestTracingOfANode(t *testing.T) {
	for config, want := range map[string]Tracing{
		`{}`: {}, `null`: {}, `{"tracing": null}`: {}, `{"tracing": 1}`: {}, `{"tracing": {"zipkin": null, "sampling": 101, "maxPathTagLength": 1.5, "customTags": []}}`: {},
		`{"tracing": {"zipkin": {"address": "a:1"}, "sampling": 12.5, "maxPathTagLength": 9}}`: {Tracer: true, Sampling: 12.5, MaxPathTagLength: 9},
		`{"tracing": {"enableIstioTags": false}}`:                                              {WithoutIstioTags: true},
		`{"tracing": {"enableIstioTags": true}}`:                                               {},
		`{"tracing": {"openCensusAgent": {}, "customTags": {"b": {"environment": {"name": "B", "defaultValue": "d"}}, "a": {"literal": {"value": "x"}}, "": {"literal": {"value": "x"}}, "c": {"header": {}}}}}`: {
			Tracer: true, Tags: `[{"Name":"a","Literal":"x"},{"Name":"b","Environment":"B","Default":"d"}]`,
		},
		`{"tracing": {"datadog": {}, "customTags": {"a": {"literal": {"value": "` + strings.Repeat("x", maxTracingTags) + `"}}}}}`: {},
	} {
		var v any
		if err := json.Unmarshal([]byte(config), &v); err != nil {
			t.Fatal(err)
		}
		m, err := DecodeMetadata(map[string]any{"PROXY_CONFIG": v})
		if err != nil || m.Tracing != want {
			t.Errorf("%.200s: %+v, error %v; want %+v", config, m.Tracing, err, want)
		}
		if named, tooLong := m.NotApplied == TracingNotApplied, len(config) > maxTracingTags; named != tooLong {
			t.Errorf("%.200s: fields not applied %q", config, m.NotApplied.Names())
		}
	}
	if got := TracingNotApplied.Names(); !slices.Equal(got, []string{tracingKey}) {
		t.Errorf("names %q", got)
	}
}
