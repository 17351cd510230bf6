package rotation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Files of a CA are replaced while the root a signs, whose last leaf ends after a day.
func TestPlug(t *testing.T) {
	const day, sec = 24 * time.Hour, time.Second
	a, b, c := root("a", -year, 9*year), root("b", -year, 9*year), root("c", -year, 9*year)
	for _, r := range []*Root{&a, &b, &c} {
		r.Plugged = true
	}
	type step struct {
		at    time.Duration
		plug  []Root // the one to sign, then all of the file; nil for no change
		acked bool   // by all proxies, since the last step
		// want
		signs, roots string
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"the same root again", []step{{0, []Root{a, a}, false, "a", "a"}, {day, nil, false, "a", "a"}}},
		{"a new root waits for the leaves, and the old one is trusted until its last leaf has ended", []step{
			{0, []Root{b, b}, false, "a", "ab"}, {day - sec, nil, false, "a", "ab"}, {day, nil, false, "b", "ab"},
			{2*day - 2*sec, nil, false, "b", "ab"}, {2*day - sec, nil, false, "b", "b"},
		}},
		{"a new root signs when all proxies have acknowledged it for a while", []step{
			{0, []Root{b, b}, true, "a", "ab"}, {HoldFiles - sec, nil, true, "a", "ab"}, {HoldFiles, nil, true, "b", "ab"}, {day + HoldFiles - sec, nil, true, "b", "b"},
		}},
		{"a root that was added before is not waited for again", []step{
			{0, []Root{a, a, b}, false, "a", "ab"}, {day, []Root{b, a, b}, false, "b", "ab"}, {2 * day, nil, false, "b", "ab"}, {2*day + sec, []Root{b, b}, false, "b", "b"},
		}},
		{"a root that was added recently waits for the rest", []step{
			{0, []Root{a, a, b}, false, "a", "ab"}, {day / 2, []Root{b, b}, false, "a", "ab"}, {day - sec, nil, false, "a", "ab"}, {day, nil, false, "b", "ab"},
		}},
		{"a root is removed", []step{{0, []Root{a, a, b}, false, "a", "ab"}, {sec, []Root{a, a}, false, "a", "a"}}},
		{"back before the new root signs", []step{
			{0, []Root{b, b}, false, "a", "ab"}, {sec, []Root{a, a}, false, "a", "a"}, {2 * day, nil, false, "a", "a"},
		}},
		{"back after the new root signs", []step{
			{0, []Root{b, b}, false, "a", "ab"}, {sec, nil, false, "a", "ab"}, {day, nil, false, "b", "ab"}, {day + sec/2, []Root{a, a}, false, "a", "ab"},
			{2*day - 1, nil, false, "a", "ab"}, {2 * day, nil, false, "a", "a"},
		}},
		{"yet another root before the new one signs", []step{
			{0, []Root{b, b}, false, "a", "ab"}, {sec, []Root{c, c}, false, "a", "ac"}, {day - sec, nil, false, "a", "ac"}, {day, nil, false, "c", "ac"}, {2*day - sec, nil, false, "c", "c"},
		}},
	} {
		s := State{Signer: a, LastLeaf: t0.Add(day), Further: []Next{{Root: a, Served: t0, Deadline: t0}}}
		for i, st := range tt.steps {
			now := t0.Add(st.at)
			if st.plug != nil {
				var err error
				if s, _, err = s.Plug(st.plug[0], st.plug[1:], now); err != nil {
					t.Fatal(err)
				}
			}
			r := Report{Instance: "i", At: now, Connected: 1, Waiting: 1}
			if st.acked {
				r.Waiting, r.Clear = 0, t0
			}
			for _, t := range s.Trusted() {
				r.Trusted = append(r.Trusted, t.ID)
			}
			var d Decision
			s, d = s.Step(tenth, Facts{Now: now, Reports: []Report{r}})
			// Leaves of a day are issued all the time.
			var err error
			if s, _, err = s.Signed(s.Signer.ID, now.Add(day)); err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, r := range s.Trusted() {
				ids = append(ids, r.ID)
			}
			slices.Sort(ids)
			if got := strings.Join(ids, ""); s.Signer.ID != st.signs || got != st.roots || d.Begin {
				t.Errorf("%s: step %d: %s signs, %s trusted; want %s, %s (%q)", tt.name, i, s.Signer.ID, got, st.signs, st.roots, d.Changes)
			}
		}
	}
}

func TestPlugErrors(t *testing.T) {
	s := State{Signer: oldRoot, LastLeaf: t0.Add(time.Hour)}
	for i := range MaxTrusted - 1 {
		s.Retired = append(s.Retired, Retired{root(fmt.Sprint(i), 0, year), t0.Add(time.Hour)})
	}
	got, changes, err := s.Plug(newRoot, []Root{newRoot}, t0)
	if !errors.Is(err, ErrTooMany) || len(changes) > 0 || got.Next != nil || len(got.Further) > 0 {
		t.Errorf("too many roots: %+v, %q, %v", got, changes, err)
	}
	if got, _, err = s.Plug(s.Retired[0].Root, nil, t0); err != nil || got.Signer.ID != "0" || len(got.Trusted()) != MaxTrusted || len(s.Retired) != MaxTrusted-1 || s.Retired[0].ID != "0" {
		t.Errorf("one of them again: %+v, %v", got, err)
	}
	plugged := State{Signer: Root{ID: "p", NotAfter: t0.Add(time.Hour), Plugged: true}}
	if _, err := plugged.Begin(newRoot, "a test", t0); !errors.Is(err, ErrPlugged) {
		t.Errorf("a rotation on request of a plugged-in CA: %v", err)
	}
	if _, d := plugged.Step(tenth, Facts{Now: t0.Add(time.Hour - time.Second)}); d.Begin {
		t.Error("the root of a plugged-in CA is rotated by itself")
	}
}

// What the new root waits for does not matter if the CA cannot sign any more: its key is gone, or it ends.
func TestPlugWithoutWaiting(t *testing.T) {
	s := State{Signer: oldRoot, LastLeaf: t0.Add(24 * time.Hour)}
	s, _, err := s.Plug(newRoot, nil, t0)
	if err != nil {
		t.Fatal(err)
	}
	reports := []Report{says("a", 0, 1, 0)}
	for name, f := range map[string]Facts{"lost": {Lost: true}, "the chain ends": {SignerEnd: t0.Add(forcedBefore)}} {
		f.Now, f.Reports = t0, reports
		got, d := s.Step(tenth, f)
		if got.Signer.ID != "new" || len(got.Retired) != 1 || !got.Retired[0].Until.Equal(t0.Add(24*time.Hour)) {
			t.Errorf("%s: %+v (%q)", name, got, d.Changes)
		}
	}
	got, d := s.Step(tenth, Facts{Now: t0, Reports: reports, SignerEnd: t0.Add(forcedBefore + time.Second)})
	if got.Signer.ID != "old" || !d.Next.Equal(t0.Add(time.Second)) {
		t.Errorf("a second before: %s signs, next look at %s", got.Signer.ID, d.Next)
	}
}

// A root that signs for a moment only is trusted until all instances know that it does not, although no leaf of it is known.
func TestARootThatSignsForAMoment(t *testing.T) {
	plugged := func(s State, r Root) State {
		s, _, err := s.Plug(r, nil, t0)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	two := []Report{only(says("i", 0, 1, 0), "old", "new", "other"), only(says("j", 0, 1, 0), "old", "new", "other")}
	served := Next{Root: root("other", -year, year), Added: t0, Served: t0, Deadline: t0}
	for name, change := range map[string]func(State) State{
		"the files are put back": func(s State) State { return plugged(s, oldRoot) },
		"another root signs at once": func(s State) State {
			s.Next = &served
			return s
		},
	} {
		s := change(State{Signer: newRoot, Retired: []Retired{{oldRoot, t0.Add(time.Hour)}}})
		s, _ = s.Step(tenth, Facts{Now: t0, Reports: two})
		if _, _, err := s.Signed("new", t0.Add(time.Hour)); err != nil || s.Signer.ID == "new" {
			t.Errorf("%s: %s signs, and an instance that has not seen it: %v", name, s.Signer.ID, err)
		}
		s, _ = s.Step(tenth, Facts{Now: t0.Add(ReportTTL), Reports: two})
		if _, _, err := s.Signed("new", t0.Add(2*time.Hour)); err == nil {
			t.Errorf("%s: it is trusted for longer", name)
		}
	}
}
