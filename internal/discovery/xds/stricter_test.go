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
