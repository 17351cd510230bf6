package compile

import (
	"maps"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// Entries of several levels, as Istio merges them.
func TestMergeLogs(t *testing.T) {
	const client, server = telemetry.WorkloadMode_CLIENT, telemetry.WorkloadMode_SERVER
	entry := func(mode telemetry.WorkloadMode, disabled bool, filter string, providers ...string) *telemetry.AccessLogging {
		e := &telemetry.AccessLogging{Match: &telemetry.AccessLogging_LogSelector{Mode: mode}}
		if disabled {
			e.Disabled = wrapperspb.Bool(true)
		}
		if filter != "" {
			e.Filter = &telemetry.AccessLogging_Filter{Expression: filter}
		}
		for _, p := range providers {
			e.Providers = append(e.Providers, &telemetry.ProviderRef{Name: p})
		}
		return e
	}
	type level = []*telemetry.AccessLogging
	for name, tt := range map[string]struct {
		levels         []level
		client, server map[string]logSetting
	}{
		"nothing":            {nil, map[string]logSetting{"d": {}}, map[string]logSetting{"d": {}}},
		"a provider":         {[]level{{entry(0, false, "", "a")}}, map[string]logSetting{"a": {}}, map[string]logSetting{"a": {}}},
		"the default one":    {[]level{{entry(0, false, "x")}}, map[string]logSetting{"d": {filter: "x"}}, map[string]logSetting{"d": {filter: "x"}}},
		"one mode":           {[]level{{entry(server, false, "x", "a", "b")}}, map[string]logSetting{}, map[string]logSetting{"a": {filter: "x"}, "b": {filter: "x"}}},
		"disabled below":     {[]level{{entry(0, false, "", "a")}, {entry(client, true, "")}}, map[string]logSetting{"a": {disabled: true}}, map[string]logSetting{"a": {}}},
		"enabled again":      {[]level{{entry(0, false, "x", "a")}, {entry(0, true, "")}, {entry(0, false, "")}}, map[string]logSetting{"a": {filter: "x"}}, map[string]logSetting{"a": {filter: "x"}}},
		"replaced below":     {[]level{{entry(0, false, "x", "a")}, {entry(0, false, "", "b")}}, map[string]logSetting{"b": {}}, map[string]logSetting{"b": {}}},
		"another filter":     {[]level{{entry(0, false, "x", "a")}, {entry(0, false, "y", "a")}}, map[string]logSetting{"a": {filter: "y"}}, map[string]logSetting{"a": {filter: "y"}}},
		"no filter":          {[]level{{entry(0, false, "x", "a")}, {entry(0, false, "", "a")}}, map[string]logSetting{"a": {}}, map[string]logSetting{"a": {}}},
		"two of one object":  {[]level{{entry(client, false, "", "a"), entry(server, false, "", "b")}}, map[string]logSetting{"a": {}}, map[string]logSetting{"b": {}}},
		"of an entry before": {[]level{{entry(server, false, "", "a")}, {entry(0, true, "")}}, map[string]logSetting{}, map[string]logSetting{"a": {disabled: true}}},
	} {
		for mode, want := range map[telemetry.WorkloadMode]map[string]logSetting{client: tt.client, server: tt.server} {
			if got := mergeLogs(tt.levels, []string{"d"}, mode); !maps.Equal(got, want) {
				t.Errorf("%s: %v has %+v, want %+v", name, mode, got, want)
			}
		}
	}
}
