package xds

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// resourcesOf are name and version of everything in a set.
func resourcesOf(list []*Resource) (out []string) {
	for _, r := range list {
		out = append(out, r.Name+"="+r.Version+"/"+r.Needs)
	}
	return out
}

func sortedResources(m map[string]*Resource) (out []*Resource) {
	for _, n := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[n])
	}
	return out
}

func randomCluster(r *rand.Rand) *Resource {
	n := strconv.Itoa(r.IntN(12))
	return NewCluster(n, []byte{byte(r.IntN(3))}, []string{"", n}[r.IntN(2)])
}

// A layer is what a map would be after the same edits, and stays the same where they change nothing.
func TestLayersAreEditedLikeMaps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, wait.Seed(t, 7)))
	var layer *Layer
	want := map[string]*Resource{}
	for step := range 3000 {
		var up []*Resource
		var removes []string
		before, old := layer, maps.Clone(want)
		for range r.IntN(5) {
			removes = append(removes, strconv.Itoa(r.IntN(12)))
		}
		for range r.IntN(5) {
			up = append(up, randomCluster(r))
		}
		for _, n := range removes {
			delete(want, n)
		}
		for _, u := range up {
			want[u.Name] = u
		}
		layer = layer.With(CDS, up, removes)
		expected := resourcesOf(sortedResources(want))
		if got := resourcesOf(layer.of(CDS).all()); !slices.Equal(got, expected) || layer.Len() != len(want) {
			t.Fatalf("step %d: layer is %v, want %v", step, got, expected)
		}
		unchanged := slices.Equal(expected, resourcesOf(sortedResources(old)))
		if unchanged != (layer == before) {
			t.Fatalf("step %d: the layer is the one before: %v, its content: %v", step, layer == before, unchanged)
		}
		if got := resourcesOf(before.of(CDS).all()); !slices.Equal(got, resourcesOf(sortedResources(old))) {
			t.Fatalf("step %d: the layer before has become %v", step, got)
		}
	}
}

// A difference found layer by layer is that of the whole sets, also where a name has moved from one
// layer to another, and whether what a client has is a view, more than that, or its own claims.
func TestDifferencesByLayerAreThoseOfTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(2, wait.Seed(t, 7)))
	var cache stepCache
	view, have := &View{}, TypeView{}
	for step := range 3000 {
		for range r.IntN(4) {
			if c := randomCluster(r); r.IntN(3) > 0 {
				view = view.put(c)
			} else {
				view = view.drop(CDS, c.Name)
			}
		}
		if r.IntN(10) == 0 {
			var claims []*Resource
			for range r.IntN(12) {
				claims = append(claims, randomCluster(r))
			}
			have = newTypeView(claims)
		}
		cur := view.Of(CDS)
		d := diff(have, cur, cache.between)
		old, now := slices.Collect(have.All()), slices.Collect(cur.All())
		var up, removed []*Resource
		union := map[string]*Resource{}
		for _, c := range now {
			union[c.Name] = c
			if i, ok := slices.BinarySearchFunc(old, c.Name, byName); !ok || old[i].Version != c.Version {
				up = append(up, c)
			}
		}
		for _, c := range old {
			if union[c.Name] == nil {
				removed = append(removed, c)
				union[c.Name] = c
			}
		}
		for what, lists := range map[string][2][]*Resource{
			"upserts": {d.Upserts, up}, "removed": {d.Removed, removed}, "union": {slices.Collect(cur.and(d.Removed).All()), sortedResources(union)},
		} {
			if got, want := resourcesOf(lists[0]), resourcesOf(lists[1]); !slices.Equal(got, want) {
				t.Fatalf("step %d: %s %v, want %v", step, what, got, want)
			}
		}
		if cur.and(d.Removed).Len() != len(union) {
			t.Fatalf("step %d: the union has %d resources, want %d", step, cur.and(d.Removed).Len(), len(union))
		}
		for n, c := range union {
			if cur.and(d.Removed).Get(n) != c {
				t.Fatalf("step %d: the union has another resource %s", step, n)
			}
		}
		have = []TypeView{have, cur, cur.and(d.Removed)}[r.IntN(3)]
	}
}

// Streams of different workloads take the same step of the layer that they share, computed once.
func TestStreamsShareTheStepsOfALayer(t *testing.T) {
	cluster := func(name, content string) *Resource { return NewCluster(name, []byte(content), "") }
	var scope *Layer
	before := scope.With(CDS, []*Resource{cluster("a", "1"), cluster("b", "1")}, nil)
	after := before.With(CDS, []*Resource{cluster("b", "2")}, nil)
	var cache stepCache
	var first *Delta
	for _, name := range []string{"inbound-1", "inbound-2"} {
		var workload *Layer
		workload = workload.With(CDS, []*Resource{cluster(name, "1")}, nil)
		old, cur := &View{Layers: [NumLayers]*Layer{before, workload}}, &View{Layers: [NumLayers]*Layer{after, workload}}
		d := diff(old.Of(CDS), cur.Of(CDS), cache.between)
		if got := resourcesOf(d.Upserts); !slices.Equal(got, resourcesOf([]*Resource{cluster("b", "2")})) || len(d.Removed) > 0 {
			t.Fatalf("upserts %v, removed %v", got, resourcesOf(d.Removed))
		}
		if first == nil {
			first = d
		} else if &first.Upserts[0] != &d.Upserts[0] {
			t.Error("the step was computed again")
		}
	}
	if len(cache.steps.values) != 1 {
		t.Errorf("%d steps are remembered, want 1", len(cache.steps.values))
	}
}

// A client that comes back with whole layers of its view holds nothing of its own for them.
func TestClaimsOfWholeLayersAreShared(t *testing.T) {
	alone := NewSub(true, nil)
	view := &View{Generation: 1}
	for i := range 30 {
		view = view.put(NewCluster(strconv.Itoa(i), nil, ""))
	}
	cur, all := view.Of(CDS), map[string]string{}
	for r := range cur.All() {
		all[r.Name] = r.Version
	}
	if have, size, _ := alone.initialState(versionsOf(all), cur, true); have != cur || size != 0 {
		t.Errorf("a client that has everything holds %d resources in %d bytes", len(have.parts[unlayered].all()), size)
	}
	one := cur.lists()[1][0]
	all[one.Name], all["no such"] = "older", "v"
	have, size, _ := alone.initialState(versionsOf(all), cur, true)
	if have.parts[0] != cur.parts[0] || have.parts[1] == cur.parts[1] || have.parts[2] != cur.parts[2] || size == 0 {
		t.Error("only the layer with another version is the client's own")
	}
	d := diff(have, cur, between)
	if up := resourcesOf(d.Upserts); !slices.Equal(up, resourcesOf([]*Resource{one})) || len(d.Removed) != 1 || d.Removed[0].Name != "no such" {
		t.Errorf("upserts %v, removed %v", up, resourcesOf(d.Removed))
	}
	if have, size, _ := alone.initialState(versionsOf(all), cur, false); have.Len() != len(all) || have.parts[0] == cur.parts[0] || size == 0 {
		t.Errorf("of claims that do not count %d are kept, want %d", have.Len(), len(all))
	}
	if have, _, _ := alone.initialState(versionList{}, cur, true); have != (TypeView{}) {
		t.Error("a client without claims has something")
	}
}

// A resource is the same whether its message is wrapped here or came wrapped, which takes no copy.
func TestEncodedResources(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 20000} {
		want := NewCluster("c", bytes.Repeat([]byte("x"), n), "c")
		body := slices.Clone(want.Body)
		got := NewEncodedCluster("c", body, "c")
		if !got.equal(want) || got.Version != want.Version || &got.Body[0] != &body[0] {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
	}
}
