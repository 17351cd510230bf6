package xds

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// togetherClient is a Sub whose client answers at once, but for the response with a cluster that warms.
type togetherClient struct {
	sub  *Sub
	sent []string // VHDS
	// refuses is the name of a virtual host that it refuses.
	refuses string
}

func (c *togetherClient) step(ev Event) {
	var answers []*Request
	for _, e := range c.sub.Step(ev) {
		e, ok := e.(Send)
		if !ok {
			continue
		}
		answer := &Request{Type: e.Type, Nonce: e.Nonce}
		if e.Type == VHDS {
			var names []string
			for _, r := range e.Upserts {
				names = append(names, r.Name)
				if r.Name == c.refuses {
					answer.Refused, answer.Message = true, r.Name+": bad"
				}
			}
			for _, n := range e.Removed {
				names = append(names, "-"+n)
			}
			c.sent = append(c.sent, strings.Join(names, " "))
		}
		if !slices.ContainsFunc(e.Upserts, func(r *Resource) bool { return r.slow }) {
			answers = append(answers, answer)
		}
	}
	for _, a := range answers {
		c.step(a)
	}
}

// A domain moves from one virtual host to another in one response, though one of the two waits for a cluster; others do
// not wait.
func TestVirtualHostsThatShareADomainAreHeldTogether(t *testing.T) {
	base := (&View{}).put(NewCluster("a", nil, ""), separateRoutes(t, "80"),
		hostResource(t, forwards("80/one", "a", "one.test", "moves.test")), hostResource(t, forwards("80/two", "a", "two.test")), hostResource(t, forwards("80/other", "a", "other.test")))
	warming := slowCluster("warming", "1")
	other := hostResource(t, forwards("80/other", "a", "other.test", "more.test"))
	for name, c := range map[string]struct {
		view    *View
		refuses string
		// first is what is sent at once, then what follows the bound of the wait.
		first, then string
	}{
		"what loses it waits": {
			view:  base.put(warming, other, hostResource(t, forwards("80/one", "warming", "one.test")), hostResource(t, forwards("80/two", "a", "two.test", "moves.test"))),
			first: "80/other", then: "80/one 80/two",
		},
		"what takes it waits": {
			view:  base.put(warming, other, hostResource(t, forwards("80/one", "a", "one.test")), hostResource(t, forwards("80/two", "warming", "two.test", "moves.test"))),
			first: "80/other", then: "80/one 80/two",
		},
		"what takes it waits, and the other goes": {
			view:  base.put(warming, other, hostResource(t, forwards("80/two", "warming", "two.test", "moves.test"))).drop(VHDS, "80/one"),
			first: "80/other", then: "80/two -80/one",
		},
		"a chain": {
			view:  base.put(warming, other, hostResource(t, forwards("80/one", "warming", "one.test")), hostResource(t, forwards("80/two", "a", "moves.test")), hostResource(t, forwards("80/three", "a", "two.test"))),
			first: "80/other", then: "80/one 80/three 80/two",
		},
		"of another route configuration": {
			view:  base.put(warming, hostResource(t, forwards("80/one", "warming", "one.test")), separateRoutes(t, "90"), hostResource(t, forwards("90/two", "a", "moves.test"))),
			first: "90/two", then: "80/one",
		},
		"what loses it was refused": {
			view:    base.put(hostResource(t, forwards("80/one", "a", "one.test"))),
			refuses: "80/one",
			first:   "80/one",
		},
	} {
		cl := &togetherClient{sub: NewSub(true, nil)}
		now := time.Unix(1e9, 0)
		cl.step(Now{T: now})
		cl.step(Moved{View: base})
		cl.step(&Request{Type: CDS})
		cl.step(&Request{Type: LDS})
		cl.step(&Request{Type: RDS, Names: namesOf("80", "90")})
		cl.step(&Request{Type: VHDS})
		if want := "80/one 80/other 80/two"; strings.Join(cl.sent, ", ") != want {
			t.Fatalf("%s: sent %q at the start, want %q", name, cl.sent, want)
		}
		cl.sent, cl.refuses = nil, c.refuses
		cl.step(Moved{View: c.view})
		if got := strings.Join(cl.sent, ", "); got != c.first {
			t.Errorf("%s: sent %q first, want %q", name, got, c.first)
		}
		cl.sent = nil
		if c.refuses != "" {
			// What takes the domain follows once the other is mended.
			taken := c.view.put(hostResource(t, forwards("80/two", "a", "two.test", "moves.test")))
			cl.step(Moved{View: taken})
			if len(cl.sent) > 0 {
				t.Errorf("%s: sent %q while the client has the domain elsewhere", name, cl.sent)
			}
			cl.refuses = ""
			cl.step(Moved{View: taken.put(hostResource(t, forwards("80/one", "a", "mended.test")))})
			c.then = "80/one 80/two"
		} else {
			cl.step(Now{T: now.Add(holdLimit)})
		}
		if got := strings.Join(cl.sent, ", "); got != c.then {
			t.Errorf("%s: sent %q then, want %q", name, got, c.then)
		}
	}
}

// Envoy does not say which virtual host it refuses. One that takes a domain is tried again once the one that it is taken
// from has given it up, though it was refused by itself before.
func TestVirtualHostThatTakesADomainIsTriedAgain(t *testing.T) {
	view := (&View{}).put(separateRoutes(t, "80"), hostResource(t, answers("80/z", "1", "b.test", "moves.test")))
	s := NewSub(true, nil)
	has := map[string][]string{} // domains, by name
	var step func(ev Event)
	step = func(ev Event) {
		for _, e := range slices.Clone(s.Step(ev)) {
			e, ok := e.(Send)
			if !ok {
				continue
			}
			next := maps.Clone(has)
			for _, r := range e.Upserts {
				next[r.Name] = r.domains()
			}
			all := slices.Concat(slices.Collect(maps.Values(next))...)
			slices.Sort(all)
			answer := &Request{Type: e.Type, Nonce: e.Nonce}
			if slices.Contains(all, "bad.test") || len(slices.Compact(slices.Clone(all))) != len(all) {
				answer.Refused, answer.Message = true, "refused"
			} else {
				has = next
			}
			step(answer)
		}
	}
	step(Now{T: time.Unix(1e9, 0)})
	step(Moved{View: view})
	for _, r := range []*Request{{Type: CDS}, {Type: LDS}, {Type: RDS, Names: namesOf("80")}, {Type: VHDS}} {
		step(r)
	}
	step(Moved{View: view.put(hostResource(t, answers("80/a", "1", "a.test", "moves.test")), hostResource(t, answers("80/z", "2", "b.test")),
		hostResource(t, answers("80/c", "1", "bad.test")), hostResource(t, answers("80/d", "1", "d.test")))})
	if got, want := slices.Sorted(maps.Keys(has)), []string{"80", "80/a", "80/d", "80/z"}; !slices.Equal(got, want) {
		t.Errorf("the client has %q, want %q", got, want)
	}
	if got, want := s.Refused(VHDS), []string{"80/c"}; !slices.Equal(got, want) {
		t.Errorf("refused %q, want %q", got, want)
	}
}
