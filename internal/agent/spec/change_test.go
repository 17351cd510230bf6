package spec

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func TestChanges(t *testing.T) {
	old := mesh.DefaultProxyConfig()
	next := proto.CloneOf(old)
	next.Concurrency = wrapperspb.Int32(4)
	next.DrainDuration = durationpb.New(time.Second)
	next.DiscoveryAddress = "elsewhere:15012"
	next.ProxyMetadata = map[string]string{"A": "b"}
	if got := changedFields(old, next, Warm); !slices.Equal(got, []string{"concurrency", "drainDuration"}) {
		t.Errorf("warm: %v", got)
	}
	if got := changedFields(old, next, Cold); !slices.Equal(got, []string{"discoveryAddress", "proxyMetadata"}) {
		t.Errorf("cold: %v", got)
	}
	w := keepFixed(old, next)
	if w.GetDiscoveryAddress() != old.GetDiscoveryAddress() || len(w.GetProxyMetadata()) != 0 || w.GetConcurrency().GetValue() != 4 {
		t.Errorf("got %v", w)
	}
	if len(changedFields(next, next, Warm)) != 0 || !proto.Equal(keepFixed(old, old), old) {
		t.Error("equal configurations differ")
	}
}

func TestClassesNameExistingFields(t *testing.T) {
	fields := (&meshv1.ProxyConfig{}).ProtoReflect().Descriptor().Fields()
	for _, name := range slices.Concat(cold, nothing) {
		if fields.ByName(name) == nil {
			t.Errorf("ProxyConfig has no field %s", name)
		}
	}
}

func TestOwners(t *testing.T) {
	for owner, want := range map[string]bool{
		"kubernetes://apis/batch/v1/namespaces/n/jobs/once":       true,
		"kubernetes://apis/apps/v1/namespaces/n/deployments/jobs": false,
		"": false,
	} {
		if ofJob(owner) != want {
			t.Errorf("%q: %v", owner, !want)
		}
	}
}

// TestClassesAreDocumented checks the table of the documentation.
func TestClassesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/agent-restarts.md")
	if err != nil {
		t.Fatal(err)
	}
	fields := (&meshv1.ProxyConfig{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		row := "| `" + fields.Get(i).JSONName() + "` | " + string(ClassOf(fields.Get(i).Name())) + " |\n"
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/agent-restarts.md lacks the row %s", row)
		}
	}
}
