package config_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// entryAt is a ServiceEntry of resolution NONE made at a second, with HTTP at port 80.
func entryAt(name string, second int64, edit func(*networking.ServiceEntry)) object.Change {
	spec := &networking.ServiceEntry{Hosts: []string{"a.example.com"}, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}}
	if edit != nil {
		edit(spec)
	}
	k := object.Key{Kind: object.ServiceEntry, Namespace: "shop", Name: name}
	return object.Change{Key: k, Object: &object.Object{Key: k, Spec: spec, Meta: object.Meta{Created: time.Unix(second, 0)}}}
}

func texts(s *config.Store) (out []string) {
	for _, v := range s.Verdicts() {
		out = append(out, v.Key.Name+" "+v.Field+": "+v.Text)
	}
	return out
}

// Two ServiceEntries that cannot be one service are told on the younger one, which names the other, in whatever order they come,
// and as long as both are there.
func TestServiceEntriesOfOneHostThatConflict(t *testing.T) {
	s := config.NewStore()
	check := func(what string, want ...string) {
		t.Helper()
		if got := texts(s); !slices.Equal(got, want) {
			t.Fatalf("%s: the verdicts are %q, want %q", what, got, want)
		}
	}
	dns := func(e *networking.ServiceEntry) { e.Resolution = networking.ServiceEntry_DNS }
	internal := func(e *networking.ServiceEntry) {
		e.Hosts, e.Location = []string{"b.example.com", "A.example.com"}, networking.ServiceEntry_MESH_INTERNAL
	}
	const end = "; make the two equal, or remove the host from one"
	conflict := `b spec.hosts[0]: not applied: ServiceEntry shop/a, which comes first, has the host "a.example.com" with another resolution` + end
	s.Apply([]object.Change{entryAt("b", 2, dns)})
	check("one")
	s.Apply([]object.Change{entryAt("a", 1, nil)})
	check("an older one comes", conflict)
	s.Apply([]object.Change{entryAt("b", 2, dns)})
	check("the same again", conflict)
	s.Apply([]object.Change{entryAt("b", 2, nil)})
	check("they are equal")
	s.Apply([]object.Change{entryAt("b", 2, internal)})
	check("another location", `b spec.hosts[1]: not applied: ServiceEntry shop/a, which comes first, has the host "A.example.com" with another location`+end)
	s.Apply([]object.Change{entryAt("b", 2, func(e *networking.ServiceEntry) { e.SubjectAltNames = []string{"x"} })})
	check("other names", `b spec.hosts[0]: not applied: ServiceEntry shop/a, which comes first, has the host "a.example.com" with another subjectAltNames`+end)
	s.Apply([]object.Change{entryAt("b", 2, func(e *networking.ServiceEntry) { e.ExportTo = []string{"."} })})
	check("another exportTo", `b spec.hosts[0]: ServiceEntry shop/a, which comes first, has the host "a.example.com" with another exportTo: clients that see both use only that one; make exportTo equal to join them`)
	s.Apply([]object.Change{entryAt("b", 2, func(e *networking.ServiceEntry) { e.Ports[0].Protocol = "TCP" })})
	check("another protocol", `b spec.ports[0].protocol: TCP is not applied for the host "a.example.com": port 80 is HTTP in ServiceEntry shop/a, which comes first; make the two equal`)
	near := entryAt("b", 2, nil)
	near.Object.Meta.Annotations = map[string]string{"networking.istio.io/traffic-distribution": "PreferSameZone"}
	s.Apply([]object.Change{near})
	check("another annotation", `b metadata.annotations[networking.istio.io/traffic-distribution]: "PreferSameZone" is not applied for the host "a.example.com": ServiceEntry shop/a, which comes first, has ""; make the two equal`)
	s.Apply([]object.Change{entryAt("b", 2, dns)})
	s.Apply([]object.Change{{Key: entryAt("a", 1, nil).Key}})
	check("the older one is gone")
}

// Verdicts after any history are those of a store that reads what is left at once.
func TestVerdictsOnServiceEntriesFollowEveryChange(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	s := config.NewStore()
	left := map[string]object.Change{}
	for range 400 {
		name := string(rune('a' + r.IntN(5)))
		c := entryAt(name, int64(r.IntN(3)), func(e *networking.ServiceEntry) {
			e.Hosts = [][]string{{"a.example.com"}, {"b.example.com"}, {"b.example.com", "a.example.com"}, {""}}[r.IntN(4)]
			e.Resolution = networking.ServiceEntry_Resolution(r.IntN(2) * 2)
			e.ExportTo = [][]string{nil, {"."}, {"shop"}}[r.IntN(3)]
			e.Ports[0].Protocol = []string{"HTTP", "TCP"}[r.IntN(2)]
		})
		if r.IntN(4) == 0 {
			c.Object = nil
		}
		s.Apply([]object.Change{c})
		if o, ok := s.Get(c.Key); ok {
			left[name] = object.Change{Key: c.Key, Object: &o}
		} else {
			delete(left, name)
		}
		var all []object.Change
		for _, n := range []string{"a", "b", "c", "d", "e"} {
			if one, ok := left[n]; ok {
				all = append(all, one)
			}
		}
		fresh := config.NewStore()
		fresh.Apply(all)
		drop := func(list []string) []string { // those on a version that was refused
			return slices.DeleteFunc(list, func(v string) bool { return strings.Contains(v, "invalid host") })
		}
		if got, want := drop(texts(s)), drop(texts(fresh)); !slices.Equal(got, want) {
			t.Fatalf("the verdicts are\n%q, want\n%q", got, want)
		}
	}
}
