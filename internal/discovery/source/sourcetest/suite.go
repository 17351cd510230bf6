package sourcetest

import (
	"maps"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

func empty(t *testing.T, h Harness) {
	r := start(t, h)
	if len(r.state) != 0 || len(r.problems) != 0 {
		t.Errorf("objects %v, problems %v of an empty store", r.state, r.problems)
	}
	r.nothingElse(h, "after the sync")
}

func initial(t *testing.T, h Harness) {
	h.Put(t, service, service80)
	h.Put(t, route, routeGood)
	h.Put(t, other, otherGood)
	r := start(t, h)
	if len(r.state) != 3 || r.port() != 80 {
		t.Errorf("the first batch has %v", slices.Collect(maps.Keys(r.state)))
	}
	if vs, ok := r.state[route].Spec.(*networking.VirtualService); !ok || len(vs.Hosts) != 1 {
		t.Errorf("the route is %v", r.state[route])
	}
}

func edits(t *testing.T, h Harness) {
	r := start(t, h)
	h.Put(t, service, service80)
	r.until("add", func() bool { return r.port() == 80 })
	h.Put(t, service, service81)
	r.until("update", func() bool { return r.port() == 81 })
	h.Put(t, route, routeGood)
	r.until("add another", func() bool { _, ok := r.state[route]; return ok })
	h.Delete(t, service)
	r.until("delete", func() bool { return r.port() == 0 })
	if _, ok := r.state[route]; !ok {
		t.Error("the other object was removed")
	}
	h.Put(t, service, service80)
	r.until("add again", func() bool { return r.port() == 80 })
}

func equal(t *testing.T, h Harness) {
	h.Put(t, service, service80)
	h.Put(t, route, routeGood)
	r := start(t, h)
	h.Put(t, service, service80)
	h.Put(t, route, routeGood)
	r.nothingElse(h, "after equal values")
}

func lastGoodValue(t *testing.T, h Harness) {
	h.Put(t, service, service80)
	h.Put(t, route, routeGood)
	r := start(t, h)
	good := r.state[route]
	h.Put(t, route, routeBad)
	r.until("a problem", func() bool { return r.hasProblem(route) })
	if r.state[route].Spec != good.Spec {
		t.Errorf("the last good value was replaced: %v", r.state[route])
	}
	h.Put(t, service, service81)
	r.until("another object, meanwhile", func() bool { return r.port() == 81 })
	if !r.hasProblem(route) {
		t.Errorf("the problem was removed before the repair: %v", r.problems)
	}
	h.Put(t, route, routeTimed)
	r.until("the end of the problem", func() bool { return len(r.problems) == 0 })
	r.until("the repaired value", func() bool {
		return r.state[route].Spec.(*networking.VirtualService).Http[0].Timeout.GetSeconds() == 5
	})
}

func neverValid(t *testing.T, h Harness) {
	h.Put(t, route, routeBad)
	h.Put(t, service, service80)
	r := start(t, h)
	if _, exists := r.state[route]; exists || r.port() != 80 || !r.hasProblem(route) {
		t.Errorf("state %v, problems %v", r.state, r.problems)
	}
	h.Delete(t, route)
	r.until("the end of the problem", func() bool { return len(r.problems) == 0 })
	h.Put(t, route, routeGood)
	r.until("a good one", func() bool { _, ok := r.state[route]; return ok })
}

func twice(t *testing.T, h Harness) {
	h.Put(t, service, service80)
	h.Put(t, route, routeGood)
	h.Put(t, other, otherGood)
	first := start(t, h)
	first.stop()
	second := start(t, h)
	keys := func(r *recording) []string {
		var out []string
		for k := range r.state {
			out = append(out, k.String())
		}
		slices.Sort(out)
		return out
	}
	if !slices.Equal(keys(first), keys(second)) {
		t.Errorf("first %v, then %v", keys(first), keys(second))
	}
}
