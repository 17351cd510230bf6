package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilothouse/pilothouse/test/wait"
)

// randomNames are names of which some are in views, in a random order, some of them twice.
func randomNames(r *rand.Rand, most int) (out []string) {
	for range r.IntN(most) {
		out = append(out, []string{"", "*", strconv.Itoa(r.IntN(60)), strconv.Itoa(r.IntN(60))}[r.IntN(4)])
	}
	return out
}

// What a client claims is what a map of the claims would say, whatever is in it and in which order, and
// whatever of a layer it has.
func TestClaimsAreReadLikeAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, wait.Seed(t, 7)))
	var shared stepCache
	for step := range 1000 {
		view := &View{}
		for range r.IntN(80) {
			view = view.put(NewCluster(strconv.Itoa(r.IntN(60)), []byte{byte(r.IntN(2))}, ""))
		}
		cur := view.Of(CDS)
		var list versionList
		claimed := map[string]string{}
		claim := func(name, version string) {
			list.add(name, version)
			claimed[name] = version
		}
		keep := r.IntN(3)
		for _, c := range slices.Collect(cur.All()) {
			if keep > 0 || r.IntN(2) == 0 {
				claim(c.Name, c.Version)
			}
		}
		if keep < 2 {
			for _, n := range randomNames(r, 6) {
				claim(n, []string{"", "older"}[r.IntN(2)])
				if c := cur.Get(n); c != nil && r.IntN(2) == 0 {
					claim(n, c.Version)
				}
			}
		}
		trusted := r.IntN(4) > 0
		have, size, _ := NewSub(true, []*stepCache{nil, &shared}[r.IntN(2)]).initialState(list, cur, trusted)
		want := map[string]*Resource{}
		for n, v := range claimed {
			if !trusted {
				v = ""
			}
			want[n] = &Resource{Name: n, Version: v}
		}
		if got := resourcesOf(slices.Collect(have.All())); !slices.Equal(got, resourcesOf(sortedResources(want))) || have.Len() != len(want) {
			t.Fatalf("step %d, trusted %v: %v claimed of %v gives %v", step, trusted, claimed, resourcesOf(slices.Collect(cur.All())), got)
		}
		for h := range have.All() {
			if c := cur.Get(h.Name); trusted && c != nil && c.Version == h.Version && h != c {
				t.Fatalf("step %d: %s is a copy of the view's", step, h.Name)
			}
		}
		for i, p := range have.parts[:NumLayers] {
			if whole := slices.Equal(p.all(), cur.parts[i].all()); whole && p != cur.parts[i] {
				t.Fatalf("step %d: layer %d is a copy of the view's", step, i)
			}
		}
		if (size == 0) != (have.parts[unlayered] == nil && !slices.ContainsFunc(have.parts[:NumLayers], func(p *set) bool { return p != nil && !slices.Contains(cur.parts[:], p) })) {
			t.Fatalf("step %d: %d bytes are the client's own of %v", step, size, resourcesOf(slices.Collect(have.All())))
		}
	}
}

// Sets of names are what maps would be after the same requests, and the same set is the same pointer.
func TestSubscriptionsAreKeptLikeAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(4, wait.Seed(t, 7)))
	var shared stepCache
	subs := []*Sub{NewSub(true, &shared), NewSub(true, &shared), NewSub(true, nil)}
	for _, s := range subs {
		s.cur = (&View{}).put(NewResource(EDS, "7", nil), NewResource(EDS, "8", nil))
	}
	now := make([]*nameSet, len(subs))
	want := map[string]bool{}
	for step := range 1000 {
		add, drop := randomNames(r, 50), randomNames(r, 50)
		for _, n := range add {
			want[n] = true
		}
		for _, n := range drop {
			delete(want, n)
		}
		delete(want, "*")
		expected := slices.Sorted(maps.Keys(want))
		for i, s := range subs {
			r.Shuffle(len(add), func(a, b int) { add[a], add[b] = add[b], add[a] })
			now[i] = s.edited(EDS, now[i], s.nameSet(EDS, namesOf(add...), true), s.nameSet(EDS, namesOf(drop...), true))
			own := 0
			for _, n := range expected {
				if !now[i].has(n) {
					t.Fatalf("step %d: %q is missing in %q", step, n, now[i].all())
				}
				if n != "7" && n != "8" {
					own += costOf(n)
				}
			}
			if !slices.Equal(now[i].all(), expected) || now[i].has("no such") || now[i].ownSize() != own {
				t.Fatalf("step %d: %q of %d bytes of its own, want %q of %d", step, now[i].all(), now[i].ownSize(), expected, own)
			}
		}
		if len(expected) >= minPooled && now[0] != now[1] {
			t.Fatalf("step %d: two streams have two sets of %q", step, expected)
		}
	}
	if n := len(shared.pool.seen); n == 0 {
		t.Error("nothing is shared")
	}
	wait.Until(t, "sets that no stream has are forgotten", func() bool {
		runtime.GC()
		shared.pool.mu.Lock()
		defer shared.pool.mu.Unlock()
		return len(shared.pool.seen) == 0
	})
}

// fleetView is a view of 3,000 clusters with endpoints in layers as compiling makes them, and their names.
func fleetView() (*View, []string) {
	var cds, eds []*Resource
	var names []string
	for i := range 3000 {
		n := fmt.Sprintf("outbound|8080||service-%04d.namespace-%d.svc.cluster.local", i, i%20)
		names = append(names, n)
		cds, eds = append(cds, NewCluster(n, []byte("c"), n)), append(eds, NewResource(EDS, n, []byte("e")))
	}
	return benchView(cds, eds, []*Resource{NewResource(LDS, "l", nil)}, nil), names
}

// follow is a machine with a view at the start.
func follow(delta bool, cache *stepCache, v *View) *Sub {
	s := NewSub(delta, cache)
	s.Step(Now{T: time.Unix(1e9, 0)})
	s.Step(Moved{View: v})
	return s
}

// A client that comes back with what it has costs a few allocations, whatever the number of names, is sent nothing,
// and has the layers themselves and the names that others have. With one of them in another version it is sent that one.
func TestWhoComesBackUnchangedIsSentNothing(t *testing.T) {
	v, names := fleetView()
	var shared stepCache
	requests := func(other string) (out []*Request) {
		for _, typ := range []Type{CDS, EDS, LDS} {
			versions := map[string]string{}
			for r := range v.Of(typ).All() {
				versions[r.Name] = r.Version
			}
			if typ == EDS && other != "" {
				versions[other] = "older"
			}
			q := &Request{Type: typ, Initial: versionsOf(versions)}
			if typ == EDS {
				q.Names = namesOf(names...)
			}
			out = append(out, q)
		}
		return out
	}
	comeBack := func(list []*Request) (s *Sub, sent []*Resource) {
		s = follow(true, &shared, v)
		for _, q := range list {
			for _, e := range s.Step(q) {
				if e, ok := e.(Send); ok {
					sent = append(sent, e.Upserts...)
				}
			}
		}
		return s, sent
	}
	same := requests("")
	first, sent := comeBack(same)
	if len(sent) > 0 {
		t.Errorf("%d resources are sent to a client that has everything", len(sent))
	}
	for _, typ := range []Type{CDS, EDS, LDS} {
		if c := first.states[typ]; c.have != v.Of(typ) || c.own {
			t.Errorf("%s: it holds something of its own", typ)
		}
	}
	second, _ := comeBack(same)
	if a, b := first.states[EDS].names, second.states[EDS].names; a != b || a.len() != len(names) {
		t.Error("two streams have two sets of names")
	}
	if n := testing.AllocsPerRun(20, func() { comeBack(same) }); n > 100 {
		t.Errorf("coming back takes %v allocations for %d names", n, 2*len(names))
	}
	changed := requests(names[70])
	if _, sent := comeBack(changed); len(sent) != 1 || sent[0].Name != names[70] {
		t.Errorf("with one in another version %d resources are sent, want that one", len(sent))
	}
	if n := testing.AllocsPerRun(20, func() { comeBack(changed) }); n > 150 {
		t.Errorf("coming back with one difference takes %v allocations for %d names", n, 2*len(names))
	}
	runtime.KeepAlive(first)
}

// A state-of-the-world acknowledgement that lists the names of the one before is neither copied nor compared
// name by name.
func TestRepeatedNamesAreNotReadAgain(t *testing.T) {
	v, names := fleetView()
	s := follow(false, nil, v)
	handle := func(nonce string, names []string) (sent string, n int) {
		b := encoded(t, &discoveryv3.DiscoveryRequest{TypeUrl: EDS.URL(), ResourceNames: names, ResponseNonce: nonce})
		buf := mem.BufferSlice{mem.SliceBuffer(b)}
		charge := func(int) error { return nil }
		q := &inbound{charge: charge}
		q.unmarshal(buf)
		if q.err != nil {
			t.Fatal(q.err)
		}
		q.req.Type = EDS
		for _, e := range s.Step(&q.req) {
			if e, ok := e.(Send); ok {
				sent, n = e.Nonce, len(e.Upserts)
			}
		}
		q.release()
		return sent, n
	}
	nonce, n := handle("", names)
	if n != len(names) {
		t.Fatalf("%d assignments are sent, want %d", n, len(names))
	}
	handle(nonce, names)
	before := s.states[EDS].names
	b := encoded(t, &discoveryv3.DiscoveryRequest{TypeUrl: EDS.URL(), ResourceNames: names, ResponseNonce: nonce})
	charge := func(int) error { return nil }
	q := &inbound{}
	if n := testing.AllocsPerRun(20, func() {
		*q = inbound{charge: charge}
		q.unmarshal(mem.BufferSlice{mem.SliceBuffer(b)})
		q.req.Type = EDS
		s.Step(&q.req)
		q.release()
	}); n > 50 {
		t.Errorf("an acknowledgement takes %v allocations for %d names", n, len(names))
	}
	if s.states[EDS].names != before {
		t.Error("the set of names was made again")
	}
	// A request that answers an older response is ignored, with its names.
	handle("no such nonce", names[:10])
	handle(nonce, names)
	if got := s.states[EDS].names; got != before {
		t.Errorf("%d names are subscribed to after a stale request, want %d", got.len(), len(names))
	}
	handle(nonce, names[:10])
	if got := s.states[EDS].names; got.len() != 10 {
		t.Errorf("%d names are subscribed to, want 10", got.len())
	}
}

// A connected stream that has everything holds some pointers, whatever it is subscribed to.
func TestAnIdleStreamHoldsPointers(t *testing.T) {
	v, names := fleetView()
	var shared stepCache
	list := namesOf(names...)
	for _, delta := range []bool{true, false} {
		open := func() *Sub {
			s := follow(delta, &shared, v)
			ask := func(q *Request) {
				for _, e := range slices.Clone(s.Step(q)) {
					if e, ok := e.(Send); ok {
						a := &Request{Type: e.Type, Nonce: e.Nonce}
						if !delta {
							a.Names = q.Names
						}
						s.Step(a)
					}
				}
			}
			ask(&Request{Type: CDS})
			ask(&Request{Type: EDS, Names: list})
			ask(&Request{Type: LDS})
			return s
		}
		streams := []*Sub{open()}
		before := int64(heap())
		for range 100 {
			streams = append(streams, open())
		}
		if size := (int64(heap()) - before) / 100; size > 20<<10 {
			t.Errorf("delta %v: a stream holds %d bytes, want at most 20 KiB", delta, size)
		}
		for _, s := range streams {
			if c := s.states[EDS]; c.have != v.Of(EDS) || c.flight != nil || c.names.len() != len(names) {
				t.Fatalf("delta %v: a stream is not in sync", delta)
			}
		}
	}
}

// What different streams wait for is computed at the same time, and once.
func TestSharedValuesAreComputedAtTheSameTime(t *testing.T) {
	var c onceCache[int, int]
	second := make(chan struct{})
	first := make(chan int)
	runs := 0
	go func() {
		first <- c.get(1, 8, func() int {
			runs++
			<-second
			return 10
		})
	}()
	wait.Until(t, "the first is being computed", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.keys) == 1
	})
	if got := c.get(2, 8, func() int { close(second); return 20 }); got != 20 {
		t.Errorf("the second is %d", got)
	}
	if got := <-first; got != 10 || c.get(1, 8, func() int { return 0 }) != 10 || runs != 1 {
		t.Errorf("the first is %d, computed %d times", got, runs)
	}
	for i := range 20 {
		c.get(i, 8, func() int { return 0 })
	}
	if len(c.keys) != 8 || len(c.values) != 8 {
		t.Errorf("%d values of %d keys are kept, want 8", len(c.values), len(c.keys))
	}
}
