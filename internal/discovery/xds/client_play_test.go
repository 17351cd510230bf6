package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// wires joins a client and a Sub by two queues that are emptied in a random order.
type wires struct {
	rand    *rand.Rand
	falls   *rand.Rand // decides when the source is behind
	delta   bool
	now     time.Time
	since   time.Time // of the stream
	sub     *Sub
	checker *checker
	client  *modelClient
	view    *View
	down    []Send
	up      []*Request
	wake    time.Time
	sent    int
	applied uint64
	wrong   []string
	// separate is set if the views have virtual hosts, behind if the source is.
	separate, behind bool
}

func newWires(r *rand.Rand, delta bool) *wires {
	w := &wires{rand: r, falls: rand.New(rand.NewPCG(1, 2)), delta: delta, client: newModelClient(delta), now: time.Unix(1e9, 0)}
	w.connect()
	return w
}

// connect starts a stream, with the view there already or not.
func (w *wires) connect() {
	w.down, w.up, w.wake, w.applied, w.since = nil, nil, time.Time{}, 0, w.now
	w.sub, w.checker = NewSub(w.delta, nil), newChecker(w.delta)
	w.step(Now{T: w.now, Behind: w.behind})
	if w.view != nil && w.rand.IntN(2) == 0 {
		w.step(Moved{View: w.view})
	}
}

func (w *wires) reconnect() {
	w.client.reconnect(w.rand)
	w.connect()
}

func (w *wires) step(ev Event) {
	effects, wrong := w.checker.step(w.sub, ev)
	w.wrong = append(w.wrong, wrong...)
	for _, e := range effects {
		switch e := e.(type) {
		case Send:
			w.down = append(w.down, e)
			w.sent++
		case Applied:
			w.applied = e.Generation
		case Wake:
			w.wake = e.At
		}
	}
}

// pass lets time pass, or waits for the next wake.
func (w *wires) pass(d time.Duration) {
	w.now = w.now.Add(d)
	if !w.wake.IsZero() && w.wake.Before(w.now) {
		w.now = w.wake
	}
	if !w.now.Before(w.wake) {
		w.wake = time.Time{}
	}
	w.step(Now{T: w.now, Behind: w.behind})
	if w.checker.bounded() || !w.now.Before(w.since.Add(holdLimit)) {
		w.client.blind = true
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
		w.step(r)
	}
	return true
}

// finish delivers everything and waits for whatever there is to wait for.
func (w *wires) finish() {
	w.behind = false
	if w.checker.view != w.view {
		w.step(Moved{View: w.view})
	}
	for most := w.sent + 1000; w.sent < most; {
		switch {
		case w.deliver():
		case !w.wake.IsZero():
			w.pass(time.Hour)
		case len(w.client.warming) > 0:
			w.client.resolved()
			if len(w.client.out) == 0 {
				return
			}
		default:
			return
		}
	}
	w.wrong = append(w.wrong, "no end of it")
}

func (w *wires) play(views int) {
	for g := range views {
		w.view = randomView(w.rand, uint64(g)+1, w.separate)
		w.step(Moved{View: w.view})
		for range w.rand.IntN(12) {
			if w.falls.IntN(24) == 0 {
				w.behind = !w.behind
			}
			switch w.rand.IntN(24) {
			case 0:
				w.reconnect()
			case 2:
				w.client.resolved()
			case 1:
				w.pass(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
			default:
				w.deliver()
			}
		}
		if w.rand.IntN(6) == 0 {
			w.reconnect() // and miss the next view
		}
	}
	w.finish()
}

func check(t *testing.T, seed uint64, delta, separate bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWires(r, delta)
	w.falls = rand.New(rand.NewPCG(seed, 2))
	w.separate = separate
	w.play(1 + r.IntN(8))
	w.verify(t, fmt.Sprintf("seed %d, delta %v, separate %v", seed, delta, separate))
}

// verify checks that nothing went wrong and that the client has all of the view.
func (w *wires) verify(t *testing.T, what string) {
	t.Helper()
	for _, m := range append(w.wrong, w.client.wrong...) {
		t.Errorf("%s: %s", what, m)
	}
	if w.applied != w.view.Generation {
		t.Errorf("%s: generation %d applied at the end, want %d", what, w.applied, w.view.Generation)
	}
	if n := len(w.client.warming); n > 0 {
		t.Errorf("%s: %d clusters warm for ever", what, n)
	}
	if len(w.client.bare) > 0 {
		t.Errorf("%s: route configurations %v wait for virtual hosts for ever", what, w.client.bare)
	}
	for typ := range numTypes {
		for res := range w.view.Of(typ).All() {
			if got := w.client.have[typ][res.Name]; got == nil || !same(got, res) {
				t.Errorf("%s: client lacks %s %s", what, typ, res.Name)
			}
		}
		for n := range w.client.have[typ] {
			if w.view.Of(typ).Get(n) == nil && n != "empty" && !types[typ].lasting {
				t.Errorf("%s: client has %s %s still", what, typ, n)
			}
		}
	}
}

// FuzzModelClient plays random histories, with connections that break, against a client
// that is like Envoy.
func FuzzModelClient(f *testing.F) {
	for seed := range uint64(400) {
		f.Add(seed)
	}
	f.Add(uint64(457))   // a route configuration is asked for when it is gone, and its cluster comes back
	f.Add(uint64(11048)) // a route configuration is gone when it is asked for, before clusters are
	f.Add(uint64(18761)) // a client comes back with virtual hosts, of which there are none any more, and asks for clusters first
	f.Add(uint64(1308))  // a route configuration without virtual hosts goes and comes back before the client is told
	f.Add(uint64(1778))  // a route configuration ends and begins again before the client is told that its virtual hosts are gone
	f.Add(uint64(1902))  // the same, and the stream breaks before they come
	f.Add(uint64(22873)) // an assignment is gone when a client comes back that asks for an extension configuration which nothing has
	f.Add(uint64(25245)) // the same, with virtual hosts
	f.Add(uint64(10856)) // a listener that is unknown stays, and a route configuration that was known for a moment goes
	f.Fuzz(func(t *testing.T, seed uint64) {
		check(t, seed, true, false)
		check(t, seed, true, true)
		check(t, seed, false, false)
	})
}

// FuzzRefusals plays random histories against a client that refuses at random, for good or
// because it cannot bind. Sending must come to an end, and nothing that is refused for good
// may be sent twice in a row.
func FuzzRefusals(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	// What these have found is in testdata/sub.
	for _, seed := range []uint64{316, 459, 650, 822, 1376, 1434, 1625, 1657, 2130, 2349, 2542, 2705, 3531, 3544, 3950, 9947, 11518, 12330, 13809, 15361, 23556} {
		f.Add(seed, seed%2 == 0)
		f.Add(seed, seed%2 != 0)
	}
	f.Fuzz(checkRefusals)
}

func checkRefusals(t *testing.T, seed uint64, delta bool) {
	r := rand.New(rand.NewPCG(seed, 2))
	w := newWires(r, delta)
	w.separate = delta && seed%4 == 0
	w.client.hasty = r.IntN(2) == 0 && delta
	w.client.refuses = func(s Send) string {
		if r.IntN(3) > 0 || len(s.Upserts) == 0 {
			return ""
		}
		return s.Upserts[r.IntN(len(s.Upserts))].Name + []string{": cannot bind '0.0.0.0:80': taken", ": bad"}[r.IntN(2)]
	}
	w.play(1 + r.IntN(8))
	for _, m := range append(w.wrong, w.lacking()...) {
		t.Errorf("seed %d: %s", seed, m)
	}
}

// lacking says what the client has otherwise than the view although it does not refuse it.
func (w *wires) lacking() (wrong []string) {
	for typ := range numTypes {
		refused := w.sub.Refused(typ)
		for res := range w.view.Of(typ).All() {
			wants := types[typ].wildcard || w.client.subs[typ][res.Name]
			if typ == VHDS {
				wants = w.client.have[RDS][routesOf(res.Name)] != nil
			}
			if !w.delta && w.client.refused[typ][res.Name] == res.Version {
				continue // of responses that it answers together, it says so of the last only
			}
			if got := w.client.have[typ][res.Name]; wants && !slices.Contains(refused, res.Name) && (got == nil || !same(got, res)) {
				wrong = append(wrong, fmt.Sprintf("client lacks %s %s, which it does not refuse", typ, res.Name))
			}
		}
	}
	return wrong
}
