package main

import (
	"strings"
	"testing"
)

// What a wait says to a sequence of responses.
func TestWaiting(t *testing.T) {
	object := func(generation uint64, applied, proxies int, behind ...behindProxy) appliedAnswer {
		return appliedAnswer{Started: "a", Objects: []appliedObject{{
			Kind: "VirtualService", Namespace: "shop", Name: "v", State: stateInForce, Generation: generation, Applied: applied, Proxies: proxies, Behind: behind,
		}}}
	}
	lacks := func(name string) behindProxy {
		return behindProxy{Proxy: name, Types: []behindType{{Type: "CDS", State: "not acknowledged"}}}
	}
	with := func(a appliedAnswer, change func(*appliedAnswer)) appliedAnswer {
		change(&a)
		return a
	}
	state := func(s string) appliedAnswer {
		return with(object(3, 1, 1), func(a *appliedAnswer) { a.Objects[0].State = s })
	}
	for name, c := range map[string]struct {
		w       waiting
		answers []appliedAnswer
		want    []string // of each response: done, or what is missing, or the error after "!"
		asked   string   // the proxies that the next request names
	}{
		"one after the other": {
			answers: []appliedAnswer{object(3, 0, 2, lacks("a.shop"), lacks("b.shop")), object(3, 1, 2, lacks("b.shop")), object(3, 2, 2)},
			want:    []string{"0 of 2 proxies have it; waiting for a.shop, b.shop", "1 of 2 proxies have it; waiting for b.shop", "done"},
		},
		"one that had it and is gone": {
			answers: []appliedAnswer{object(3, 0, 2, lacks("a.shop"), lacks("b.shop")), object(3, 1, 2, lacks("b.shop"))},
			want:    []string{"waiting for a.shop, b.shop", "waiting for b.shop"},
			asked:   "b.shop",
		},
		"one that disconnects and comes back": {
			answers: []appliedAnswer{
				object(3, 0, 1, lacks("a.shop")), with(object(3, 0, 0), func(a *appliedAnswer) { a.Disconnected = []string{"a.shop"} }), object(3, 1, 1),
			},
			want: []string{"waiting for a.shop", "no proxy is concerned", "done"},
		},
		"many": {
			answers: []appliedAnswer{object(3, 1, 8, lacks("a"), lacks("b"), lacks("c"), lacks("d"), lacks("e"), lacks("f"), lacks("g"))},
			want:    []string{"waiting for a, b, c, d, e and 2 more"},
			asked:   "a b c d e f g",
		},
		"not served": {
			answers: []appliedAnswer{with(object(3, 0, 0), func(a *appliedAnswer) { a.NotServed = "not read yet" }), object(3, 1, 1)},
			want:    []string{"no proxy is served: not read yet", "done"},
		},
		"a later generation": {w: waiting{least: 4}, answers: []appliedAnswer{object(3, 1, 1), object(4, 1, 1)}, want: []string{"the newest change is in generation 3", "done"}},
		"a restart":          {answers: []appliedAnswer{object(3, 0, 1, lacks("a")), with(object(1, 1, 1), func(a *appliedAnswer) { a.Started = "b" })}, want: []string{"waiting for a", "done"}},
		"a restart while waiting for a generation": {
			w:       waiting{least: 4},
			answers: []appliedAnswer{object(3, 0, 1), with(object(4, 1, 1), func(a *appliedAnswer) { a.Started = "b" })},
			want:    []string{"in generation 3", "!pilot-discovery has restarted"},
		},
		"a file that is read":       {w: waiting{file: "f"}, answers: []appliedAnswer{state(stateOther), state(stateRemoved), state(stateInForce)}, want: []string{"not in force yet", "not in force yet", "done"}},
		"a file that is rejected":   {w: waiting{file: "f"}, answers: []appliedAnswer{state(stateRejected)}, want: []string{"!VirtualService shop/v is rejected"}},
		"a removal":                 {w: waiting{removed: true}, answers: []appliedAnswer{state(stateRejected), state(stateInForce), state(stateRemoved)}, want: []string{"still in force", "still in force", "done"}},
		"a removal nobody knows of": {w: waiting{removed: true}, answers: []appliedAnswer{state(stateUnknown)}, want: []string{"!not known"}},
		"removed meanwhile":         {answers: []appliedAnswer{object(3, 0, 1, lacks("a")), state(stateRemoved)}, want: []string{"waiting for a", "!was removed in generation 3"}},
		"refused": {
			answers: []appliedAnswer{object(3, 0, 2, lacks("a"), behindProxy{Proxy: "b", Refused: true, Types: []behindType{{Type: "RDS", State: "refused", Resources: []string{"80"}, Message: "no"}}})},
			want:    []string{"!a: CDS not acknowledged\n  b: RDS refused (80): no"}, asked: "a b",
		},
	} {
		for i, a := range c.answers {
			done, err := c.w.step(a)
			got := c.w.progress
			switch {
			case err != nil:
				got = "!" + err.Error()
			case done:
				got = "done"
			}
			want := c.want[i]
			if text, isError := strings.CutPrefix(want, "!"); isError != (err != nil) || done != (want == "done") || !strings.Contains(got, text) {
				t.Errorf("%s, response %d: %q, want %q", name, i, got, want)
			}
		}
		if got := strings.Join(c.w.proxies(), " "); got != c.asked {
			t.Errorf("%s: the next request asks for %q, want %q", name, got, c.asked)
		}
	}
}

// A listener that cannot be bound is refused like others, and the output says what is different about it.
func TestWaitSaysThatAListenerCannotBeBound(t *testing.T) {
	refused := func(message string) string {
		w := waiting{}
		_, err := w.step(appliedAnswer{Started: "a", Objects: []appliedObject{{
			Kind: "Service", Namespace: "shop", Name: "s", State: stateInForce, Generation: 3, Proxies: 1, Behind: []behindProxy{{
				Proxy: "a.shop", Refused: true, Types: []behindType{{Type: "LDS", State: "refused", Resources: []string{"10.0.0.1_80"}, Message: message}},
			}},
		}}})
		if err == nil {
			t.Fatal("the wait goes on")
		}
		return err.Error()
	}
	const note = "the listener is sent again until it can be"
	if text := refused("10.0.0.1_80: cannot bind '10.0.0.1:80': Address already in use\n"); !strings.Contains(text, "Address already in use (an address that cannot be bound counts as refused; "+note) {
		t.Errorf("it says only\n%s", text)
	}
	if text := refused("10.0.0.1_80: no such filter"); strings.Contains(text, note) {
		t.Errorf("of a listener that is invalid it says\n%s", text)
	}
}
