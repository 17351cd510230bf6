package incr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fixture is a small program: two tables, services with an owner and policies in buckets, and
// three levels of rules over them.
type fixture struct {
	g        *Graph
	services *Table[string] // "owner:text"
	policies *Table[string]
	strict   *Rule[string, bool]
	owner    *Rule[string, string]
	out      *Rule[string, []byte]
	ran      []string
}

func newFixture() *fixture {
	w := &fixture{g: New()}
	w.services = NewTable[string](w.g, "services")
	w.policies = NewTable[string](w.g, "policies")
	w.strict = Derive(w.g, 1, "strict", func(r *Reader, ns string) bool {
		w.record("strict", ns)
		for _, p := range In(r, w.policies, ns) {
			if strings.HasPrefix(p, "strict") {
				return true
			}
		}
		return false
	})
	w.owner = Derive(w.g, 2, "owner", func(r *Reader, name string) string {
		w.record("owner", name)
		s, ok := Get(r, w.services, name)
		if !ok {
			return "nobody"
		}
		owner, _, _ := strings.Cut(s, ":")
		return owner
	})
	w.out = Derive(w.g, 3, "out", func(r *Reader, name string) []byte {
		w.record("out", name)
		ns, _, _ := strings.Cut(name, "/")
		return fmt.Appendf(nil, "%s %s %v", name, w.owner.Of(r, name), w.strict.Of(r, ns))
	})
	return w
}

func (w *fixture) record(rule, key string) { w.ran = append(w.ran, rule+" "+key) }

// run calls Run and compares the executed rules and the result.
func (w *fixture) run(t *testing.T, what string, ran, moved []string) {
	t.Helper()
	w.ran = nil
	var got []string
	for _, m := range w.g.Run() {
		got = append(got, fmt.Sprintf("%s %v", m.Rule, m.Key))
	}
	slices.Sort(w.ran)
	if !slices.Equal(w.ran, ran) || !slices.Equal(got, moved) {
		t.Errorf("%s: ran %q moved %q, want ran %q moved %q", what, w.ran, got, ran, moved)
	}
}

func TestOnlyReadersOfWhatChangedRun(t *testing.T) {
	w := newFixture()
	w.services.Put("x/a", "ann:1", "x")
	for _, n := range []string{"x/a", "x/b", "y/c"} {
		w.out.Want(n)
	}
	w.run(t, "nothing changed", nil, nil)

	w.policies.Put("x/p", "strict", "x")
	w.run(t, "a policy appears in an empty bucket", []string{"out x/a", "out x/b", "strict x"}, []string{"out x/a", "out x/b"})
	w.policies.Put("x/p", "strict", "x")
	w.run(t, "the same policy again", nil, nil)
	w.policies.Put("x/p", "strict, with a comment", "x")
	w.run(t, "a field that no rule uses", []string{"strict x"}, nil)
	w.services.Put("x/b", "bob:1", "x")
	w.run(t, "an absent service appears", []string{"out x/b", "owner x/b"}, []string{"out x/b"})
	w.services.Put("x/b", "bob:2", "x")
	w.run(t, "its text changes, its owner does not", []string{"owner x/b"}, nil)
	w.policies.Put("x/p", "strict", "y")
	w.run(t, "the policy moves to another bucket", []string{"out x/a", "out x/b", "out y/c", "strict x", "strict y"}, []string{"out x/a", "out x/b", "out y/c"})
	w.services.Delete("x/a")
	w.run(t, "a service ends", []string{"out x/a", "owner x/a"}, []string{"out x/a"})
}

func TestUnwantedValuesAreDropped(t *testing.T) {
	w := newFixture()
	w.out.Want("x/a")
	w.out.Want("x/a")
	w.out.Unwant("x/a")
	w.policies.Put("x/p", "strict", "x")
	w.run(t, "still wanted once", []string{"out x/a", "strict x"}, []string{"out x/a"})
	w.out.Unwant("x/a")
	w.policies.Put("x/p", "lax", "x")
	w.g.Run()
	for name, s := range w.g.Stats() {
		if s.Live != 0 {
			t.Errorf("rule %s keeps %d values, want none", name, s.Live)
		}
	}
	if len(w.services.rows) != 0 {
		t.Errorf("%d absent rows without readers are kept", len(w.services.rows))
	}
}

func TestReadingAHigherLevelPanics(t *testing.T) {
	g := New()
	high := Derive(g, 2, "high", func(*Reader, int) int { return 1 })
	low := Derive(g, 1, "low", func(r *Reader, k int) int { return high.Of(r, k) })
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	low.Want(1)
}

// FuzzSameAsFromScratch applies random changes and compares every wanted value with that of a
// new graph over the same rows.
func FuzzSameAsFromScratch(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 40, 50, 60, 70, 81, 92, 13, 24, 35})
	f.Add([]byte("a history of changes that goes on for a while, long enough to interact"))
	f.Fuzz(func(t *testing.T, history []byte) {
		w := newFixture()
		names := []string{"x/a", "x/b", "y/a", "y/b", "z/a"}
		spaces := []string{"x", "y", "z"}
		wanted := map[string]bool{}
		services, policies := map[string]string{}, map[string][2]string{}
		for i := 0; i+1 < len(history) && i < 400; i += 2 {
			op, arg := history[i], int(history[i+1])
			name := names[arg%5]
			switch op % 6 {
			case 0:
				v := fmt.Sprintf("o%d:%d", arg%3, arg%2)
				services[name] = v
				w.services.Put(name, v, name[:1])
			case 1:
				delete(services, name)
				w.services.Delete(name)
			case 2:
				v, b := []string{"strict", "lax"}[arg%2], spaces[arg%3]
				policies[name] = [2]string{v, b}
				w.policies.Put(name, v, b)
			case 3:
				delete(policies, name)
				w.policies.Delete(name)
			case 4:
				if !wanted[name] {
					w.out.Want(name)
				}
				wanted[name] = true
			case 5:
				if wanted[name] {
					w.out.Unwant(name)
				}
				delete(wanted, name)
			}
			if op%7 == 0 {
				continue // several changes before one Run
			}
			w.g.Run()
			w.checkEdges(t)
			fresh := newFixture()
			for k, v := range services {
				fresh.services.Put(k, v, k[:1])
			}
			for k, v := range policies {
				fresh.policies.Put(k, v[0], v[1])
			}
			for n := range wanted {
				got, _ := w.out.Value(n)
				if want := fresh.out.Want(n); string(got) != string(want) {
					t.Fatalf("after step %d: %q, from scratch %q", i/2, got, want)
				}
			}
		}
	})
}
