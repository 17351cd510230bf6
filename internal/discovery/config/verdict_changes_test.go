package config

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/object"
)

// After any history, the sum of all VerdictChanges equals Verdicts.
func TestVerdictChangesEqualVerdicts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s, followed := NewStore(), map[Verdict]int{}
	for step := range 2000 {
		var changes []object.Change
		for range r.IntN(4) {
			k := object.Key{Kind: object.VirtualService, Namespace: "default", Name: fmt.Sprint(r.IntN(6))}
			c := object.Change{Key: k}
			if r.IntN(4) > 0 {
				destination := &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: "web"}, Weight: int32(r.IntN(3) - 1)}
				c.Object = &object.Object{Key: k, Origin: object.Origin{File: "a.yaml", Line: r.IntN(3)}, Spec: &networking.VirtualService{
					Hosts: []string{"web"}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{destination, destination}}},
				}}
			}
			changes = append(changes, c)
		}
		s.Apply(changes)
		if r.IntN(3) == 0 {
			continue // several calls of Apply before one of VerdictChanges
		}
		added, removed := s.VerdictChanges()
		for _, v := range added {
			followed[v]++
		}
		for _, v := range removed {
			if followed[v]--; followed[v] == 0 {
				delete(followed, v)
			}
		}
		want := map[Verdict]int{}
		for _, v := range s.Verdicts() {
			want[v]++
		}
		if !maps.Equal(followed, want) {
			t.Fatalf("step %d: followed %v, the store says %v", step, followed, want)
		}
	}
}

func TestUnchangedVerdictsAreNotReported(t *testing.T) {
	s := NewStore()
	k := object.Key{Kind: object.VirtualService, Namespace: "default", Name: "a"}
	o := &object.Object{Key: k, Spec: &networking.VirtualService{}}
	s.Apply([]object.Change{{Key: k, Object: o}})
	if added, removed := s.VerdictChanges(); len(added) == 0 || len(removed) > 0 {
		t.Fatalf("first: added %v, removed %v", added, removed)
	}
	s.Apply([]object.Change{{Key: k, Object: o}})
	if added, removed := s.VerdictChanges(); len(added)+len(removed) > 0 {
		t.Errorf("the same again: added %v, removed %v", added, removed)
	}
	s.Apply([]object.Change{{Key: k}})
	if added, removed := s.VerdictChanges(); len(added) > 0 || len(removed) == 0 {
		t.Errorf("gone: added %v, removed %v", added, removed)
	}
}
