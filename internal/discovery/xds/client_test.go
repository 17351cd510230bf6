package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// modelClient behaves like Envoy as far as it matters for order: it takes a new or changed
// cluster into use when its endpoints have come, acknowledges clusters only when none is
// warming, subscribes to the routes of its listeners, and checks that no route in use
// leads to a cluster that is not.
type modelClient struct {
	delta  bool
	have   [numTypes]map[string]*Resource
	subs   [numTypes]map[string]bool
	nonces [numTypes]string
	asked  [numTypes]bool
	// warming clusters wait for endpoints; active ones have had them.
	warming, active map[string]bool
	owed            string // the nonce of the CDS response to be acknowledged after warming
	refuses         func(Send) bool
	out             []Request
	wrong           []string
}

func newModelClient(delta bool) *modelClient {
	c := &modelClient{delta: delta, warming: map[string]bool{}, active: map[string]bool{}, refuses: func(Send) bool { return false }}
	for t := range numTypes {
		c.have[t], c.subs[t] = map[string]*Resource{}, map[string]bool{}
	}
	c.ask(CDS, Request{})
	c.ask(LDS, Request{})
	return c
}

func (c *modelClient) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// ask sends a request; in SotW it always carries all names.
func (c *modelClient) ask(t Type, r Request) {
	r.Type = t
	if !c.delta {
		r.Names, r.Unsubscribe = slices.Sorted(maps.Keys(c.subs[t])), nil
		if r.Nonce == "" {
			r.Nonce = c.nonces[t]
		}
	}
	c.asked[t] = true
	c.out = append(c.out, r)
}

func (c *modelClient) subscribe(t Type, name string) {
	if !c.subs[t][name] {
		c.subs[t][name] = true
		c.ask(t, Request{Names: []string{name}})
	}
}

func (c *modelClient) unsubscribe(t Type, name string) {
	if c.subs[t][name] {
		delete(c.subs[t], name)
		delete(c.have[t], name)
		c.ask(t, Request{Unsubscribe: []string{name}})
	}
}

func (c *modelClient) take(s Send) {
	c.nonces[s.Type] = s.Nonce
	if c.refuses(s) {
		c.ask(s.Type, Request{Nonce: s.Nonce, Refused: true, Message: "no"})
		return
	}
	removed := s.Removed
	if !c.delta && types[s.Type].wildcard {
		for n := range c.have[s.Type] {
			if !slices.ContainsFunc(s.Upserts, func(r *Resource) bool { return r.Name == n }) {
				removed = append(removed, n)
			}
		}
		slices.Sort(removed)
	}
	for _, n := range removed {
		c.remove(s.Type, n)
	}
	for _, r := range s.Upserts {
		c.upsert(r)
	}
	if s.Type == CDS {
		c.owed = s.Nonce
	} else {
		c.ask(s.Type, Request{Nonce: s.Nonce})
	}
	if c.owed != "" && len(c.warming) == 0 {
		c.ask(CDS, Request{Nonce: c.owed})
		c.owed = ""
	}
}

func (c *modelClient) upsert(r *Resource) {
	t := r.Type
	old := c.have[t][r.Name]
	if old != nil && same(old, r) && t != EDS && c.delta {
		c.fail("%s %s sent again unchanged", t, r.Name)
	}
	if t == EDS || t == RDS {
		if !c.subs[t][r.Name] {
			return // crossed an unsubscription
		}
	}
	c.have[t][r.Name] = r
	switch t {
	case CDS:
		if old == nil || !same(old, r) {
			c.warming[r.Name] = true
			c.subscribe(EDS, r.Needs)
		}
	case EDS:
		if strings.HasPrefix(content(r), "\n") && old != nil && c.inUse(r.Name) {
			c.fail("endpoints of cluster %s in use are taken away", r.Name)
		}
		if c.warming[r.Name] {
			delete(c.warming, r.Name)
			c.active[r.Name] = true
		}
	case LDS:
		c.subscribe(RDS, content(r))
	case RDS:
		c.check("after route " + r.Name)
	}
}

func (c *modelClient) remove(t Type, name string) {
	if t == EDS && !c.warming[name] && c.inUse(name) {
		c.fail("endpoints of cluster %s in use are removed", name)
	}
	if t == EDS && c.warming[name] {
		delete(c.warming, name)
		c.active[name] = true
	}
	if t == EDS || t == RDS {
		return // Envoy keeps what it has
	}
	old := c.have[t][name]
	delete(c.have[t], name)
	switch {
	case old == nil:
		c.fail("%s %s removed, but never there", t, name)
	case t == CDS:
		delete(c.warming, name)
		delete(c.active, name)
		c.unsubscribe(EDS, name)
		c.check("after removal of cluster " + name)
	case t == LDS:
		c.unsubscribe(RDS, content(old))
	}
}

// targets are the clusters that routes in use lead to, by route.
func (c *modelClient) targets() map[string]string {
	out := map[string]string{}
	for _, l := range c.have[LDS] {
		if r := c.have[RDS][content(l)]; r != nil {
			out[r.Name], _, _ = strings.Cut(content(r), "#")
		}
	}
	return out
}

func (c *modelClient) inUse(cluster string) bool {
	return slices.Contains(slices.Collect(maps.Values(c.targets())), cluster)
}

// check looks for routes in use to clusters that are not.
func (c *modelClient) check(when string) {
	for route, cluster := range c.targets() {
		if !c.active[cluster] {
			c.fail("%s: route %s leads to cluster %s, which is not active", when, route, cluster)
		}
	}
}

// content is what a test resource was made from.
func content(r *Resource) string {
	return string(r.Body[2+len(r.Type.URL())+2:])
}

// randomView is a consistent view: a listener has its routes, a route its cluster, a
// cluster its endpoints.
func randomView(r *rand.Rand, generation uint64) *View {
	v := &View{Generation: generation}
	add := func(res *Resource) { v = v.With(res.Type, []*Resource{res}, nil) }
	for i := range 3 {
		if n := "l" + strconv.Itoa(i); r.IntN(3) > 0 {
			add(NewResource(LDS, n, []byte("r"+n)))
			cluster := "c" + strconv.Itoa(r.IntN(4))
			add(NewResource(RDS, "r"+n, fmt.Appendf(nil, "%s#%d", cluster, r.IntN(2))))
			add(NewCluster(cluster, nil, cluster))
		}
	}
	for i := range 4 {
		if n := "c" + strconv.Itoa(i); v.Of(CDS).Get(n) != nil || r.IntN(3) == 0 {
			add(NewCluster(n, fmt.Appendf(nil, "%d", r.IntN(2)), n))
			add(NewResource(EDS, n, fmt.Appendf(nil, "%d", r.IntN(2))))
		}
	}
	return v
}

// wires joins a client and a Sub by two queues that are emptied in a random order.
type wires struct {
	rand    *rand.Rand
	sub     *Sub
	client  *modelClient
	down    []Send
	up      []Request
	sent    int
	flying  [numTypes]string
	applied uint64
	wrong   []string
}

func (w *wires) effects(es []Effect) {
	for _, e := range es {
		switch e := e.(type) {
		case Send:
			w.down = append(w.down, e)
			w.sent++
			if f := w.flying[e.Type]; f != "" {
				w.wrong = append(w.wrong, fmt.Sprintf("%s %s sent while %s is in flight", e.Type, e.Nonce, f))
			}
			w.flying[e.Type] = e.Nonce
		case Acked:
			w.flying[e.Type] = ""
		case Nacked:
			w.flying[e.Type] = ""
		case Applied:
			w.applied = e.Generation
		}
	}
}

// deliver moves one message; false if there is none.
func (w *wires) deliver() bool {
	w.up = append(w.up, w.client.out...)
	w.client.out = nil
	switch {
	case len(w.down) == 0 && len(w.up) == 0:
		return false
	case len(w.up) == 0 || len(w.down) > 0 && w.rand.IntN(2) == 0:
		s := w.down[0]
		w.down = w.down[1:]
		w.client.take(s)
	default:
		r := w.up[0]
		w.up = w.up[1:]
		w.effects(w.sub.Step(r))
	}
	return true
}

func (w *wires) play(views int) *View {
	w.effects(w.sub.Step(Now{T: time.Unix(1e9, 0)}))
	var v *View
	for g := range views {
		v = randomView(w.rand, uint64(g)+1)
		w.effects(w.sub.Step(Moved{View: v}))
		for range w.rand.IntN(12) {
			w.deliver()
		}
	}
	for w.deliver() {
		if w.sent > 100*views {
			w.wrong = append(w.wrong, "no end of it")
			break
		}
	}
	return v
}

func check(t *testing.T, seed uint64, delta bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	w := &wires{rand: r, sub: NewSub(delta, nil), client: newModelClient(delta)}
	v := w.play(1 + r.IntN(8))
	for _, m := range append(w.wrong, w.client.wrong...) {
		t.Errorf("seed %d, delta %v: %s", seed, delta, m)
	}
	if w.applied != v.Generation {
		t.Errorf("seed %d, delta %v: generation %d applied at the end, want %d", seed, delta, w.applied, v.Generation)
	}
	for typ := range numTypes {
		for res := range v.Of(typ).All() {
			if got := w.client.have[typ][res.Name]; got == nil || !same(got, res) {
				t.Errorf("seed %d, delta %v: client lacks %s %s", seed, delta, typ, res.Name)
			}
		}
		if n := len(w.client.have[typ]); n != v.Of(typ).Len() {
			t.Errorf("seed %d, delta %v: client has %d %s, want %d", seed, delta, n, typ, v.Of(typ).Len())
		}
	}
}

// FuzzModelClient plays random histories against a client that is like Envoy.
func FuzzModelClient(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		check(t, seed, true)
		check(t, seed, false)
	})
}

// FuzzRefusals plays random histories against a client that refuses at random. Sending
// must come to an end, and nothing refused may have been sent twice in a row.
func FuzzRefusals(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, delta bool) {
		r := rand.New(rand.NewPCG(seed, 2))
		c := newModelClient(delta)
		c.refuses = func(Send) bool { return r.IntN(3) == 0 }
		w := &wires{rand: r, sub: NewSub(delta, nil), client: c}
		w.play(1 + r.IntN(8))
		for _, m := range w.wrong {
			t.Errorf("seed %d: %s", seed, m)
		}
	})
}
