package mesh

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestFieldsOfProxyConfigThatAreNotAppliedAreNoted(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "", `null`: "", `"text"`: "", `{"tracing": null}`: "", `{"tracing": {}}`: "", `{"tracing": "x"}`: "",
		`{"drainDuration": "1s", "concurrency": 2, "proxyMetadata": {"tracing": "x"}}`:                      "",
		`{"connectionSettings": {"globalDownstreamConnectionLimit": 7}}`:                                    "",
		`{"connectionSettings": {"globalDownstreamConnectionLimit": 7, "perConnectionBufferLimitBytes":1}}`: "connectionSettings",
		`{"tracing": {"sampling": 1}, "gatewayTopology": {"numTrustedProxies": 2}}`:                         "gatewayTopology,tracing",
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
