package discovery

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
)

// gapViews are the views of n proxies: two scopes with clusters, a location with assignments, and of each proxy its
// workload's own.
func gapViews(n, clusters int) *viewsSnapshot {
	some, none := []byte{2<<3 | 2, 0}, []byte(nil) // encoded assignments
	var shared, assignments []*xds.Resource
	for i := range clusters {
		name := fmt.Sprint("shared-", i)
		shared = append(shared, xds.NewCluster(name, nil, name))
		assignments = append(assignments, xds.NewResource(xds.EDS, name, some))
	}
	shared = append(shared, xds.NewCluster("no-eds", nil, ""), xds.NewCluster("missing", nil, "missing"),
		xds.NewCluster("empty", nil, "empty"), xds.NewCluster("of-the-workload", nil, "of-the-workload"))
	assignments = append(assignments, xds.NewResource(xds.EDS, "empty", none), xds.NewResource(xds.EDS, "own", some))
	scope := (*xds.Layer)(nil).With(xds.CDS, shared, nil)
	other := scope.With(xds.CDS, []*xds.Resource{xds.NewCluster("other", nil, "other")}, nil)
	location := (*xds.Layer)(nil).With(xds.EDS, assignments, nil)
	out := &viewsSnapshot{proxies: map[string]proxySnapshot{}}
	for i := range n {
		id := fmt.Sprint(i)
		layers := [xds.NumLayers]*xds.Layer{scope, location}
		if i > 0 {
			// The first proxy has no layer of its own, so that it lacks what the others have there.
			layers[2] = (*xds.Layer)(nil).With(xds.CDS, []*xds.Resource{xds.NewCluster("own", nil, "own"), xds.NewCluster("lacks-"+id, nil, "x")}, nil).
				With(xds.EDS, []*xds.Resource{xds.NewResource(xds.EDS, "of-the-workload", some)}, nil)
		}
		if i == 2 {
			layers[0] = other
		}
		out.proxies[id] = proxySnapshot{view: &xds.View{Layers: layers}}
	}
	return out
}

func TestClustersWithoutEndpoints(t *testing.T) {
	for proxies, want := range map[int][]string{
		1: {"empty", "missing", "of-the-workload"},
		2: {"empty", "lacks-1", "missing", "of-the-workload"},
		3: {"empty", "lacks-1", "lacks-2", "missing", "of-the-workload", "other"},
	} {
		found := map[string]bool{}
		clustersWithoutEndpoints(gapViews(proxies, 3), found)
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
			t.Errorf("%d proxies: %q, want %q", proxies, got, want)
		}
	}
	views := gapViews(3, 3)
	delete(views.proxies, "0")
	found := map[string]bool{}
	clustersWithoutEndpoints(views, found)
	if got, want := slices.Sorted(maps.Keys(found)), []string{"empty", "lacks-1", "lacks-2", "missing", "other"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q: an assignment may be in any layer", got, want)
	}
}

// It runs in the loop's goroutine when metrics are asked for after a change.
func BenchmarkClustersWithoutEndpoints(b *testing.B) {
	views := gapViews(500, 3000)
	b.ReportAllocs()
	for b.Loop() {
		clustersWithoutEndpoints(views, map[string]bool{})
	}
}
