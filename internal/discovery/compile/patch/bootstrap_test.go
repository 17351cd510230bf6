package patch_test

import (
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// bootstrapOf applies patches with these values.
func bootstrapOf(t *testing.T, values ...string) (*bootstrapv3.Bootstrap, []patch.Result) {
	t.Helper()
	var patches []*patch.Patch
	for i, v := range values {
		p, faults := patch.Parse(i, read(t, `{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: `+v+`}}`, &networking.EnvoyFilter_EnvoyConfigObjectPatch{}))
		if p == nil {
			t.Fatal(v, faults)
		}
		patches = append(patches, p)
	}
	return patch.Bootstrap(patches)
}

func TestBootstrap(t *testing.T) {
	got, results := bootstrapOf(t,
		`{stats_flush_interval: 1.5s, stats_config: {stats_tags: [{tag_name: a, regex: "(a)"}]}}`,
		`{stats_flush_interval: 2s, stats_config: {stats_tags: [{tag_name: b, fixed_value: x}]}, static_resources: {clusters: [{name: collector, type: STATIC}]}}`)
	want := read(t, `{stats_flush_interval: 2s, stats_config: {stats_tags: [{tag_name: a, regex: "(a)"}, {tag_name: b, fixed_value: x}]}, static_resources: {clusters: [{name: collector, type: STATIC}]}}`, &bootstrapv3.Bootstrap{})
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i, r := range results {
		if !r.Applied || r.Refused != "" {
			t.Errorf("patch %d: %+v", i, r)
		}
	}
}

func TestBootstrapThatWouldBeRefused(t *testing.T) {
	for _, tt := range []struct{ value, want string }{
		{`{stats_flush_interval: 0.0001s}`, "invalid Bootstrap.StatsFlushInterval: value must be inside range [1ms, 5m0s)"},
		{`{static_resources: {clusters: [{name: xds-grpc}]}}`, `there would be two static clusters "xds-grpc", since the agent's bootstrap has one: use another name`},
		{`{static_resources: {clusters: [{name: one}]}}`, `there would be two static clusters "one"`},
		{`{static_resources: {listeners: [{name: l}]}}`, `the static listener "l" has no address`},
		{`{layered_runtime: {layers: [{name: global config, static_layer: {}}]}}`, `there would be two runtime layers "global config", since the agent's bootstrap has one: use another name`},
		{`{layered_runtime: {layers: [{name: mine, admin_layer: {}}]}}`, `the runtime layer "mine" is an admin_layer, of which the agent's bootstrap has the one that there may be`},
		{`{bootstrap_extensions: [{name: b, typed_config: {` + config + `buffer.v3.Buffer}}]}`, `invalid Buffer.MaxRequestBytes: value is required and must not be nil.`},
		{`{header_prefix: "` + strings.Repeat("x", mesh.MaxBootstrap) + `"}`, `what is merged into the bootstrap would have 1048592 bytes: want at most 1048576`},
	} {
		got, results := bootstrapOf(t, `{static_resources: {clusters: [{name: one, type: STATIC}]}}`, tt.value, `{enable_dispatcher_stats: true}`)
		if results[1].Applied || results[1].Refused != tt.want {
			t.Errorf("%.200s: %+v, want %s", tt.value, results[1], tt.want)
		}
		if !results[0].Applied || !results[2].Applied || !got.EnableDispatcherStats || len(got.GetStaticResources().GetClusters()) != 1 {
			t.Errorf("%.200s: with it the other patches are left out: %+v", tt.value, results)
		}
	}
}

// Each field of a bootstrap is either left to EnvoyFilters or the agent's, with a reason.
func TestEveryFieldOfABootstrapIsDecided(t *testing.T) {
	fields := (&bootstrapv3.Bootstrap{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		if mesh.OwnBootstrapField(name) == mesh.OwnBootstrapField("a field of a later version") {
			t.Errorf("%s is not in the table of package mesh: say whether the agent needs it", name)
		}
	}
	if mesh.OwnBootstrapField("a field of a later version") == "" {
		t.Error("a field that nobody has decided about is accepted")
	}
}
