package bootstrap

import (
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// What discovery changes is added to what the agent builds, also what the agent has no types of.
func TestMerged(t *testing.T) {
	unknown := &anypb.Any{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte("x")}
	text := encode(t, &bootstrapv3.Bootstrap{
		StaticResources:     &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{Name: "extra"}}},
		BootstrapExtensions: []*corev3.TypedExtensionConfig{{Name: "e", TypedConfig: unknown}},
		StatsFlush:          &bootstrapv3.Bootstrap_StatsFlushOnAdmin{StatsFlushOnAdmin: true},
	})
	s := sidecar(func(*spec.Spec) {})
	alone, err := Build(s)
	if err != nil {
		t.Fatal(err)
	}
	want, err := alone.Complete()
	if err != nil {
		t.Fatal(err)
	}
	want = proto.CloneOf(want)
	want.StaticResources.Clusters = append(want.StaticResources.Clusters, &clusterv3.Cluster{Name: "extra"})
	want.BootstrapExtensions = append(want.BootstrapExtensions, &corev3.TypedExtensionConfig{Name: "e", TypedConfig: unknown})
	want.StatsFlush = &bootstrapv3.Bootstrap_StatsFlushOnAdmin{StatsFlushOnAdmin: true}
	b, err := Build(s)
	if err != nil {
		t.Fatal(err)
	}
	got := &bootstrapv3.Bootstrap{}
	out, err := b.Merged(text)
	if err != nil || proto.Unmarshal(out, got) != nil || !proto.Equal(got, want) {
		t.Errorf("%v: got\n%v\nwant\n%v", err, got, want)
	}
}

// A duration is one value: half a second of the agent's does not stay beside two seconds.
func TestMergedDurations(t *testing.T) {
	b := &Bootstrap{Message: &bootstrapv3.Bootstrap{StatsFlushInterval: durationpb.New(1500e6)}}
	got := &bootstrapv3.Bootstrap{}
	out, err := b.Merged(encode(t, &bootstrapv3.Bootstrap{StatsFlushInterval: durationpb.New(2e9)}))
	if err != nil || proto.Unmarshal(out, got) != nil || got.GetStatsFlushInterval().AsDuration() != 2e9 {
		t.Errorf("%v, %v", got.GetStatsFlushInterval(), err)
	}
}

func TestDifferencesThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		text       []byte
	}{
		{"nothing", "", nil},
		{"node", "node must not be changed: the agent says who the proxy is", encode(t, &bootstrapv3.Bootstrap{Node: &corev3.Node{Id: "x"}})},
		{"admin", "admin must not be changed", encode(t, &bootstrapv3.Bootstrap{Admin: &bootstrapv3.Admin{}})},
		{"configuration", "dynamic_resources must not be changed", encode(t, &bootstrapv3.Bootstrap{DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{}})},
		{"a later field", "fields that the agent does not know", protowire.AppendString(protowire.AppendTag(nil, 9999, protowire.BytesType), "x")},
		{"no message", "parse a bootstrap", []byte("\xff")},
		{"too much", "want at most", make([]byte, mesh.MaxBootstrap+1)},
	} {
		if err := CheckDifferences(tt.text); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

// The names that discovery refuses are those that the agent's bootstraps have.
func TestOwnNamesAreKnownToDiscovery(t *testing.T) {
	for _, name := range []string{xdsCluster, sdsCluster, mesh.SDSFilesCluster, agentCluster, prometheusCluster, localCluster, zipkinCluster, datadogCluster, metricsCluster, mesh.AccessLogServiceCluster} {
		if !mesh.OwnBootstrapName(name) {
			t.Errorf("cluster %s is not in the table of package mesh", name)
		}
	}
	b, err := Build(sidecar(func(*spec.Spec) {}))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range b.Message.GetLayeredRuntime().GetLayers() {
		if !mesh.OwnBootstrapName(l.GetName()) {
			t.Errorf("runtime layer %s is not in the table of package mesh", l.GetName())
		}
	}
	for _, c := range b.Message.GetStaticResources().GetClusters() {
		if !mesh.OwnBootstrapName(c.GetName()) {
			t.Errorf("cluster %s is not in the table of package mesh", c.GetName())
		}
	}
}
