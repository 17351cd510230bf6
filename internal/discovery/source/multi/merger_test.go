package multi

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

func change(k object.Key, origin string) object.Change {
	return object.Change{Key: k, Object: &object.Object{Key: k, Origin: object.Origin{File: origin}}}
}

var (
	service = object.Key{Kind: object.Service, Namespace: "shop", Name: "api"}
	route   = object.Key{Kind: object.VirtualService, Namespace: "shop", Name: "api"}
	far     = object.Key{Kind: object.Service, Namespace: "shop", Name: "api", Cluster: "two"}
)

// show returns "key from origin", or "key gone", for each change, and "synced".
func show(b object.Batch) (out []string) {
	for _, c := range b.Changes {
		if c.Object == nil {
			out = append(out, c.Key.String()+" gone")
		} else {
			out = append(out, c.Key.String()+" from "+c.Object.Origin.File)
		}
	}
	if b.Synced {
		out = append(out, "synced")
	}
	return out
}

func wantBatch(t *testing.T, what string, m *merger, want ...string) object.Batch {
	t.Helper()
	b := m.batch()
	if got := show(b); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
	return b
}

// The first batch waits for every source, and has what is in force of each.
func TestFirstBatchWaitsForAll(t *testing.T) {
	m := newMerger("list")
	m.add("first", part{accepts: everything})
	m.add("dir", part{rank: 1, accepts: istioKinds, refusal: "not used"})
	m.apply("first", object.Batch{Changes: []object.Change{change(service, "first")}, Synced: true})
	wantBatch(t, "without dir", m)
	m.apply("dir", object.Batch{Changes: []object.Change{change(route, "dir"), change(service, "dir")}, Synced: true})
	wantBatch(t, "without the list", m)
	m.known("list")
	wantBatch(t, "with all", m, "Service shop/api from first", "VirtualService shop/api from dir", "synced")
	wantBatch(t, "nothing new", m)
}

// Of an object in two sources the first is in force, and the other one when it is gone; what is not taken from a source
// is a warning.
func TestFirstSourceWins(t *testing.T) {
	m := newMerger()
	m.add("first", part{accepts: everything})
	m.add("dir", part{rank: 1, accepts: istioKinds, refusal: "not used"})
	m.apply("first", object.Batch{Changes: []object.Change{change(route, "first")}, Synced: true})
	m.apply("dir", object.Batch{Changes: []object.Change{change(route, "dir"), change(service, "dir")}, Synced: true})
	b := wantBatch(t, "both", m, "VirtualService shop/api from first", "synced")
	if len(b.Problems) != 1 || b.Problems[0].Key != service || b.Problems[0].Severity != object.Warning {
		t.Errorf("problems %v, want a warning about the Service in the directory", b.Problems)
	}
	m.apply("first", object.Batch{Changes: []object.Change{{Key: route}}})
	wantBatch(t, "gone from the first", m, "VirtualService shop/api from dir")
	m.apply("first", object.Batch{Changes: []object.Change{change(route, "first")}})
	wantBatch(t, "back in the first", m, "VirtualService shop/api from first")
	m.change("first", 0, notIstioKinds)
	wantBatch(t, "Istio's kinds of the first are not used", m, "VirtualService shop/api from dir")
	m.drop("dir")
	if b := wantBatch(t, "without dir", m, "VirtualService shop/api gone"); b.Problems == nil || len(b.Problems) > 0 {
		t.Errorf("problems %v, want none any more", b.Problems)
	}
}

// A source that is given up does not hold up the others; what is remembered of it is in force until it has been read,
// and what it then has not is gone. A source in its place keeps what is in force until it has been read.
func TestLateSource(t *testing.T) {
	m := newMerger()
	other := far
	other.Name = "other"
	m.add("first", part{accepts: everything})
	m.add("two", part{rank: 9, accepts: everything, remembered: []object.Object{*change(far, "saved").Object, *change(other, "saved").Object}})
	m.apply("first", object.Batch{Changes: []object.Change{change(service, "first")}, Synced: true})
	wantBatch(t, "before the time", m)
	m.giveUp("two", "late")
	b := wantBatch(t, "after it", m, "Service shop/api from first", "Service shop/api in cluster two from saved", "Service shop/other in cluster two from saved", "synced")
	if len(b.Problems) != 1 || b.Problems[0].Text != "late" {
		t.Errorf("problems %v, want that it is late", b.Problems)
	}
	m.apply("two", object.Batch{Changes: []object.Change{change(far, "two")}, Synced: true})
	b = wantBatch(t, "when it has been read", m, "Service shop/api in cluster two from two", "Service shop/other in cluster two gone")
	if b.Problems == nil || len(b.Problems) > 0 {
		t.Errorf("problems %v, want none any more", b.Problems)
	}
	m.add("two", part{rank: 9, accepts: everything})
	wantBatch(t, "with another source in its place", m)
	m.apply("two", object.Batch{Synced: true})
	wantBatch(t, "that has nothing", m, "Service shop/api in cluster two gone")
}

func TestPlan(t *testing.T) {
	got, problems := plan([]Secret{
		{Name: "b", Data: map[string][]byte{"two": []byte("s3cret"), "three": []byte("x"), "one": []byte("x"), "empty": nil, "large": make([]byte, maxKubeconfig+1)}},
		{Name: "a", Data: map[string][]byte{"two": []byte("first")}},
	}, "one")
	if len(got) != 2 || got["two"].secret != "a" || got["three"].secret != "b" {
		t.Errorf("clusters %v, want two of Secret a and three of Secret b", got)
	}
	want := []string{"data.empty", "data.large", "data.one", "data.two"}
	var fields []string
	for _, p := range problems {
		fields = append(fields, p.Field)
		if p.Origin.File != "Secret b" || strings.Contains(p.Error(), "s3cret") {
			t.Errorf("problem %q, want one that names the Secret and has nothing of its value", p.Error())
		}
	}
	if !slices.Equal(fields, want) {
		t.Errorf("problems %v, want those of %v", problems, want)
	}
	many := Secret{Name: "many", Data: map[string][]byte{}}
	for i := range maxClusters + 1 {
		many.Data[strings.Repeat("x", i+1)] = []byte("x")
	}
	if got, problems := plan([]Secret{many}, "one"); len(got) != maxClusters || len(problems) != 1 {
		t.Errorf("%d clusters and %d problems, want %d and 1", len(got), len(problems), maxClusters)
	}
}

func TestConfigSources(t *testing.T) {
	for _, tt := range []struct {
		addresses, dirs []string
		cluster         bool
	}{
		{nil, nil, true},
		{[]string{"fs:///a", "fs:///a", "fs:///b"}, []string{"/a", "/b"}, false},
		{[]string{"k8s://", "fs:///a", "xds://x"}, []string{"/a"}, true},
	} {
		if dirs, cluster := configSources(tt.addresses); !slices.Equal(dirs, tt.dirs) || cluster != tt.cluster {
			t.Errorf("%q: %q %v, want %q %v", tt.addresses, dirs, cluster, tt.dirs, tt.cluster)
		}
	}
}
