package xds

import "testing"

// TestRulesThatDifferAreStricter: an old listener must not stay in place of one with other rules of authorization.
func TestRulesThatDifferAreStricter(t *testing.T) {
	for _, c := range []struct {
		refused, old string
		stricter     bool
	}{
		{"", "", false}, {"a", "a", false}, {"", "a", false}, {"a", "", true}, {"a", "b", true},
	} {
		refused := &Resource{Policy: &Policy{Authorization: c.refused}, Closed: &Resource{}}
		old := &Resource{Policy: &Policy{Authorization: c.old}}
		if got := InPlaceOf(refused, old); (got == refused.Closed) != c.stricter || !c.stricter && got != old {
			t.Errorf("rules %q refused after %q: want closed %v", c.refused, c.old, c.stricter)
		}
	}
}

// TestOldListenerStaysInPlaceOfAnOpenOne: nothing is closed for a listener that lets in everybody, also where the accepted version is one
// from before a restart of the control plane; with rules it is.
func TestOldListenerStaysInPlaceOfAnOpenOne(t *testing.T) {
	unknown := &Resource{}
	if open := (&Resource{Policy: &Policy{}, Closed: &Resource{}}); InPlaceOf(open, unknown) != unknown {
		t.Error("a refused listener without any policy closes what was accepted before")
	}
	for _, p := range []*Policy{nil, {Authorization: "a"}, {Strict: true}, {Closed: true}, {Ports: map[uint32]bool{80: true}}} {
		if refused := (&Resource{Policy: p, Closed: &Resource{}}); InPlaceOf(refused, unknown) != refused.Closed {
			t.Errorf("policy %+v: an unknown older version stays", p)
		}
	}
}
