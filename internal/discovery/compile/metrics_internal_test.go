package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	telemetry "istio.io/api/telemetry/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Entries of metrics, the objects' in their order, as Istio merges them: what is decided is written as "provider: metric=off
// metric-label metric+label=format", and a provider without metrics as "provider: off".
func TestMergeMetrics(t *testing.T) {
	const client, server = telemetry.WorkloadMode_CLIENT, telemetry.WorkloadMode_SERVER
	const all = "request_bytes-x request_duration_milliseconds-x request_messages_total-x requests_total-x response_bytes-x response_messages_total-x tcp_connections_closed_total-x tcp_connections_opened_total-x tcp_received_bytes_total-x tcp_sent_bytes_total-x"
	for name, tt := range map[string]struct{ entries, client, server string }{
		"nothing":             {"[]", "d:", "d:"},
		"an entry of nothing": {"[{}]", "d:", "d:"},
		"a provider":          {"[{providers: [{name: a}]}]", "a:", "a:"},
		"the last providers":  {"[{providers: [{name: a}], overrides: [{disabled: true}]}, {providers: [{name: b}, {name: c}]}]", "b:, c:", "b:, c:"},
		"of an entry before":  {"[{providers: [{name: a}]}, {overrides: [{match: {metric: REQUEST_COUNT}, disabled: true}]}]", "a: requests_total=off", "a: requests_total=off"},
		"one mode":            {"[{overrides: [{match: {metric: REQUEST_COUNT, mode: SERVER}, disabled: true}]}]", "d:", "d: requests_total=off"},
		"all":                 {"[{overrides: [{tagOverrides: {x: {operation: REMOVE}}}]}]", "d: " + all, "d: " + all},
		"all by name":         {"[{overrides: [{match: {metric: ALL_METRICS, mode: CLIENT}, tagOverrides: {x: {operation: REMOVE}}}]}]", "d: " + all, "d:"},
		"all off":             {"[{overrides: [{disabled: true}]}]", "d: off", "d: off"},
		"all off at clients":  {"[{overrides: [{match: {mode: CLIENT}, disabled: true}]}]", "d: off", "d:"},
		"on again":            {"[{overrides: [{disabled: true}]}, {overrides: [{disabled: false}]}]", "d:", "d:"},
		"on by another":       {"[{overrides: [{disabled: true}]}, {overrides: [{match: {metric: REQUEST_SIZE, mode: CLIENT}, disabled: true}]}]", "d: request_bytes=off", "d: off"},
		"one on again":        {"[{overrides: [{match: {metric: REQUEST_SIZE}, disabled: true}]}, {overrides: [{match: {metric: REQUEST_SIZE, mode: SERVER}, disabled: false}]}]", "d: request_bytes=off", "d:"},
		"off stays":           {"[{overrides: [{match: {metric: REQUEST_SIZE}, disabled: true}]}, {overrides: [{match: {metric: REQUEST_SIZE}, tagOverrides: {x: {operation: REMOVE}}}]}]", "d: request_bytes=off request_bytes-x", "d: request_bytes=off request_bytes-x"},
		"tags by tag":         {"[{overrides: [{match: {metric: REQUEST_COUNT}, tagOverrides: {x: {value: request.host}, z: {value: '''c'''}}}]}, {overrides: [{match: {metric: REQUEST_COUNT}, tagOverrides: {z: {operation: REMOVE}}}]}]", "d: requests_total+x=%CEL(request.host):256% requests_total-z", "d: requests_total+x=%CEL(request.host):256% requests_total-z"},
		"a custom name":       {"[{overrides: [{match: {customMetric: requests_total}, tagOverrides: {x: {operation: REMOVE}}}, {match: {metric: REQUEST_COUNT}, tagOverrides: {x: {value: a}, z: {value: '1'}}}]}]", "d: requests_total-x requests_total+z=1", "d: requests_total-x requests_total+z=1"},
		"beyond Envoy":        {"[{overrides: [{match: {metric: REQUEST_COUNT}, tagOverrides: {x: {value: request.host.lowerAscii()}}}]}]", "d:", "d:"},
	} {
		for mode, want := range map[telemetry.WorkloadMode]string{client: tt.client, server: tt.server} {
			merged := mergeMetrics(metricsEntries(t, tt.entries), []string{"d"}, mode)
			var out []string
			for _, provider := range slices.Sorted(maps.Keys(merged)) {
				parts := append([]string{provider + ":"}, overridesText(overridesOf(merged[provider].metrics))...)
				if merged[provider].disabled {
					parts = []string{provider + ": off"}
				}
				out = append(out, strings.Join(parts, " "))
			}
			if got := strings.Join(out, ", "); got != want {
				t.Errorf("%s: %v has\n%s\nwant\n%s", name, mode, got, want)
			}
		}
	}
}

func metricsEntries(t *testing.T, text string) []*telemetry.Metrics {
	t.Helper()
	json, err := yaml.YAMLToJSON([]byte("metrics: " + text))
	if err != nil {
		t.Fatal(err)
	}
	spec := &telemetry.Telemetry{}
	if err := protojson.Unmarshal(json, spec); err != nil {
		t.Fatal(err)
	}
	return spec.GetMetrics()
}

func overridesText(overrides map[string]listener.MetricOverride) (out []string) {
	for _, metric := range slices.Sorted(maps.Keys(overrides)) {
		if overrides[metric].Disabled {
			out = append(out, metric+"=off")
		}
		for _, tag := range slices.Sorted(maps.Keys(overrides[metric].Tags)) {
			if format := overrides[metric].Tags[tag]; format != "" {
				out = append(out, fmt.Sprintf("%s+%s=%s", metric, tag, format))
			} else {
				out = append(out, metric+"-"+tag)
			}
		}
	}
	return out
}

// Every metric of the API has a name in Envoy.
func TestMetricNames(t *testing.T) {
	for name := range telemetry.MetricSelector_IstioMetric_value {
		if _, ok := mesh.MetricNames[name]; !ok && name != "ALL_METRICS" {
			t.Errorf("%s has no name in Envoy", name)
		}
	}
}
