package xds

import (
	"testing"
	"time"
)

// securedListener is a listener of inbound connections with a policy.
func securedListener(content string, p Policy) *Resource {
	r := NewResource(LDS, "in", []byte(content))
	r.Policy, r.Closed = &p, NewResource(LDS, "in", []byte("closed"))
	r.Closed.Policy = &Policy{Closed: true}
	return r
}

// A listener that stays as it was because a newer one is refused accepts no connections that the newer
// one would not accept.
func TestRefusedListenerIsClosedWhereItsPolicyIsStricter(t *testing.T) {
	strict := map[uint32]bool{80: true}
	for name, c := range map[string]struct {
		before, after Policy
		closed        bool
	}{
		"the same":                 {Policy{}, Policy{}, false},
		"stricter":                 {Policy{}, Policy{Strict: true}, true},
		"less strict":              {Policy{Strict: true}, Policy{}, false},
		"a port stricter":          {Policy{}, Policy{Ports: strict}, true},
		"a port less strict":       {Policy{Ports: strict}, Policy{}, false},
		"a port of strict ones":    {Policy{Strict: true}, Policy{Strict: true, Ports: strict}, false},
		"an exception is taken up": {Policy{Strict: true, Ports: map[uint32]bool{80: false}}, Policy{Strict: true}, true},
		"all closed":               {Policy{Strict: true}, Policy{Closed: true}, true},
		"nothing closed any more":  {Policy{Closed: true}, Policy{Strict: true}, false},
	} {
		for _, delta := range []bool{true, false} {
			s := NewSub(delta, nil)
			has, nonce := "", ""
			step := func(ev Event) (sent int) {
				for _, e := range s.Step(ev) {
					if e, ok := e.(Send); ok && e.Type == LDS {
						nonce = e.Nonce
						sent++
						for _, r := range e.Upserts {
							if r.Name == "in" {
								has = content(r)
							}
						}
					}
				}
				return sent
			}
			step(Now{T: time.Unix(1e9, 0)})
			before, after := securedListener("1", c.before), securedListener("2", c.after)
			v := (&View{}).put(before)
			step(Moved{View: v})
			step(&Request{Type: LDS})
			step(&Request{Type: LDS, Nonce: nonce})
			v = v.put(after)
			step(Moved{View: v})
			if has != "2" {
				t.Fatalf("%s: sent %q, want the newer listener", name, has)
			}
			sent := step(&Request{Type: LDS, Nonce: nonce, Refused: true, Message: "in: bad"})
			if got := sent == 1 && has == "closed"; got != c.closed {
				t.Errorf("%s, delta %v: a closed listener sent: %v, want %v", name, delta, got, c.closed)
			}
			if sent == 1 {
				step(&Request{Type: LDS, Nonce: nonce})
			}
			// Something else changes: the refused one is not sent again.
			v = v.put(NewResource(LDS, "other", []byte("1")))
			step(Moved{View: v})
			step(&Request{Type: LDS, Nonce: nonce})
			for _, r := range s.Refusals() {
				if r.Resource != after {
					t.Errorf("%s: refused %q, want the newer listener", name, content(r.Resource))
				}
			}
			if n := len(s.Refusals()); n != 1 {
				t.Errorf("%s, delta %v: %d refusals, want 1", name, delta, n)
			}
			// A newer one is tried, and replaces it.
			step(Moved{View: v.put(securedListener("3", c.after))})
			if has != "3" {
				t.Errorf("%s, delta %v: after another version the client has %q, want that", name, delta, has)
			}
			step(&Request{Type: LDS, Nonce: nonce})
			if n := len(s.Refusals()); n != 0 {
				t.Errorf("%s, delta %v: %d refusals of what is accepted", name, delta, n)
			}
		}
	}
}
