package discovery

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
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

// VirtualServices for one host are a gap only where sidecars of some namespace see both.
func TestDuplicateDomains(t *testing.T) {
	const of = "web.shop.svc.cluster.local"
	for name, c := range map[string]struct {
		first, second string // what follows "hosts: [...], " of two VirtualServices in namespaces shop and other
		byDefault     []string
		want          bool
	}{
		"both for all":                   {"http: [{}]", "http: [{}]", nil, true},
		"private to two namespaces":      {"exportTo: [.], http: [{}]", "exportTo: [.], http: [{}]", nil, false},
		"private by default":             {"http: [{}]", "http: [{}]", []string{"."}, false},
		"one for all, one private":       {"http: [{}]", "exportTo: [.], http: [{}]", nil, true},
		"one private, one for all":       {"exportTo: [.], http: [{}]", "exportTo: ['*'], http: [{}]", nil, true},
		"one private, one for the same":  {"exportTo: [.], http: [{}]", "exportTo: [third, shop], http: [{}]", nil, true},
		"one for a gateway only":         {"http: [{}]", "gateways: [door], http: [{}]", nil, false},
		"one for a gateway and sidecars": {"http: [{}]", "gateways: [door, mesh], http: [{}]", nil, true},
		"one without HTTP routes":        {"http: [{}]", "tcp: [{}]", nil, false},
		"one alone, with the host twice": {"http: [{}]", "exportTo: [none], tcp: [{}]", nil, false},
		"for different namespaces":       {"exportTo: [a, b], http: [{}]", "exportTo: [c], http: [{}]", nil, false},
	} {
		objects := []*object.Object{virtualService(t, "shop", "web, "+of, c.first), virtualService(t, "other", of, c.second)}
		for range 2 {
			found := map[string]bool{}
			duplicateDomains(objects, "cluster.local", c.byDefault, found)
			if want := map[string]bool{of: true}; c.want && !maps.Equal(found, want) || !c.want && len(found) > 0 {
				t.Errorf("%s: %v, want duplicates: %v", name, found, c.want)
			}
			slices.Reverse(objects)
		}
	}
}

func virtualService(t *testing.T, namespace, hosts, rest string) *object.Object {
	t.Helper()
	res := decode.Documents("v.yaml", []byte("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: "+namespace+"}\nspec: {hosts: ["+hosts+"], "+rest+"}\n"))
	if len(res.Objects) != 1 {
		t.Fatalf("%+v", res)
	}
	return &res.Objects[0]
}

// It runs in the loop's goroutine when metrics are asked for after a change.
func BenchmarkClustersWithoutEndpoints(b *testing.B) {
	views := gapViews(500, 3000)
	b.ReportAllocs()
	for b.Loop() {
		clustersWithoutEndpoints(views, map[string]bool{})
	}
}
