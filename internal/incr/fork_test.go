package incr

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// on is the random graph's fork f.
func (w *random) on(f *Graph) *random {
	out := &random{seed: w.seed, g: f, rows: w.rows.On(f), have: maps.Clone(w.have)}
	for i, u := range w.rules {
		out.rules = append(out.rules, u.On(f))
		out.want = append(out.want, maps.Clone(w.want[i]))
	}
	return out
}

// check fails the test unless every wanted value, what it was made from and the dependents of every row are those
// of a graph made from scratch.
func (w *random) check(t *testing.T, what string) {
	t.Helper()
	fresh := newRandom(w.seed, 1)
	for _, key := range slices.Sorted(maps.Keys(w.have)) {
		fresh.put(key, w.have[key])
	}
	for i, u := range fresh.rules {
		for k := range w.want[i] {
			u.Want(k)
		}
	}
	if w.rows.Len() != len(w.have) {
		t.Fatalf("%s: %d rows, want %d", what, w.rows.Len(), len(w.have))
	}
	for i, u := range w.rules {
		for k := range w.want[i] {
			got, ok := u.Value(k)
			want, _ := fresh.rules[i].Value(k)
			if !ok || !slices.Equal(got, want) {
				t.Fatalf("%s: %s of %d is %v (kept %v), from scratch %v", what, u.name, k, got, ok, want)
			}
			if got, want := texts(u.Reads(k)), texts(fresh.rules[i].Reads(k)); !slices.Equal(got, want) {
				t.Fatalf("%s: %s of %d was made from %v, from scratch from %v", what, u.name, k, got, want)
			}
		}
	}
	for row := range randomRows {
		if got, want := dependents(w.rows, row), dependents(fresh.rows, row); !slices.Equal(got, want) {
			t.Fatalf("%s: row %d has the dependents %v, from scratch %v", what, row, got, want)
		}
	}
	for _, m := range w.g.verify() {
		t.Fatalf("%s: %s", what, m)
	}
}

func dependents(rows *Table[int], row int) (out []string) {
	for d := range rows.Dependents(fmt.Sprint(row)) {
		out = append(out, fmt.Sprint(d))
	}
	slices.Sort(out)
	return out
}

// verify is Verify for graphs of which there may be no fork.
func (g *Graph) verify() []Mismatch {
	if g.fork != nil {
		return nil
	}
	return g.Verify()
}

func TestForks(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			forksEqualFromScratch(t, seed, 40)
		})
	}
}

func FuzzForks(f *testing.F) {
	f.Add(uint64(1), 20)
	f.Fuzz(func(t *testing.T, seed uint64, steps int) { forksEqualFromScratch(t, seed, min(steps, 60)) })
}

// forksEqualFromScratch edits a graph and up to three forks of it at random; all of them must always be as a graph
// made from scratch with what each should have.
func forksEqualFromScratch(t *testing.T, seed uint64, steps int) {
	t.Helper()
	dice := rand.New(rand.NewPCG(seed, 2))
	original := newRandom(seed, 1+dice.IntN(2))
	all := []*random{original}
	for step := range steps {
		switch {
		case len(all) < 4 && dice.IntN(4) == 0:
			if dice.IntN(2) == 0 {
				original.edit(dice) // the fork has it to run
			}
			all = append(all, original.on(original.g.Fork()))
		case len(all) > 1 && dice.IntN(6) == 0:
			last := len(all) - 1
			all[last].g.Close()
			all = all[:last]
		default:
			w := all[dice.IntN(len(all))]
			for range 1 + dice.IntN(3) {
				w.edit(dice)
			}
		}
		for i, w := range all {
			w.g.Run()
			if i > 0 && dice.IntN(3) > 0 {
				continue // what the fork has not looked at is to change in the original
			}
			w.check(t, fmt.Sprintf("step %d, graph %d of %d", step, i, len(all)))
		}
	}
}

func TestForkRunsOnlyWhatItsChangesAffect(t *testing.T) {
	w := newFixture()
	for _, n := range []string{"x/a", "x/b", "y/c"} {
		w.services.Put(n, "ann:1", n[:1])
		w.out.Want(n)
	}
	f := w.g.Fork()
	defer f.Close()
	on := &fixture{services: w.services.On(f), policies: w.policies.On(f), out: w.out.On(f)}
	forked := func(what string, ran, moved []string) {
		t.Helper()
		w.ran = nil
		var got []string
		for _, m := range f.Run() {
			got = append(got, fmt.Sprintf("%s %v", m.Rule, m.Key))
		}
		slices.Sort(w.ran)
		if !slices.Equal(w.ran, ran) || !slices.Equal(got, moved) {
			t.Errorf("%s: ran %q moved %q, want ran %q moved %q", what, w.ran, got, ran, moved)
		}
	}
	forked("nothing changed", nil, nil)
	on.services.Put("x/b", "bob:1", "x")
	forked("an owner changes", []string{"out x/b", "owner x/b"}, []string{"out x/b"})
	on.policies.Put("x/p", "lax", "x")
	forked("a policy without effect", []string{"strict x"}, nil)
	on.services.Delete("y/c")
	forked("a service ends", []string{"out y/c", "owner y/c"}, []string{"out y/c"})

	w.run(t, "the original did not change", nil, nil)
	for key, want := range map[string][2]string{"x/a": {"ann", "ann"}, "x/b": {"ann", "bob"}, "y/c": {"ann", "nobody"}} {
		got, _ := w.out.Value(key)
		forked, _ := on.out.Value(key)
		if !strings.Contains(string(got), want[0]) || !strings.Contains(string(forked), want[1]) {
			t.Errorf("%s is %q and on the fork %q, want the owners %q", key, got, forked, want)
		}
	}
	w.ran = nil
	if got := string(on.out.Want("x/new")); !strings.Contains(got, "nobody") {
		t.Errorf("a new value of the fork is %q", got)
	}
	if want := []string{"out x/new", "owner x/new"}; !slices.Equal(w.ran, want) {
		t.Errorf("a new value of the fork ran %q, want %q", w.ran, want)
	}
	if _, ok := w.out.Value("x/new"); ok {
		t.Error("the original has a value that only the fork wants")
	}
	w.services.Put("x/b", "cyd:1", "x")
	w.run(t, "the original changes", []string{"out x/b", "owner x/b"}, []string{"out x/b"})
	forked("not the fork", nil, nil)
}

// TestForkTakesConstantTime counts what a fork allocates, however many rows and values there are.
func TestForkTakesConstantTime(t *testing.T) {
	allocations := func(rows int) float64 {
		w := newFixture()
		for i := range rows {
			name := fmt.Sprint("x/", i)
			w.services.Put(name, "ann:1", "x")
			w.out.Want(name)
		}
		return testing.AllocsPerRun(10, func() { w.g.Fork().Close() })
	}
	if few, many := allocations(10), allocations(5000); few != many {
		t.Errorf("a fork of 10 rows allocates %v times, one of 5,000 rows %v times", few, many)
	}
}

func TestMisuseOfForks(t *testing.T) {
	w := newFixture()
	f, other := w.g.Fork(), newFixture()
	closed := w.g.Fork()
	closedRows := w.services.On(closed)
	closed.Close()
	for want, use := range map[string]func(){
		"incr: new fork of a fork":                      func() { f.Fork() },
		"incr: new table rows of a fork":                func() { NewTable[int](f, "rows") },
		"incr: new rule sum of a fork":                  func() { Derive(f, 1, "sum", func(*Reader, int) int { return 1 }) },
		"incr: Close of a graph that is not a fork":     func() { w.g.Close() },
		"incr: table services belongs to another graph": func() { w.services.On(other.g) },
		"incr: rule out belongs to another graph":       func() { other.out.On(f) },
		"incr: use of a closed fork":                    func() { closedRows.Put("x/a", "ann:1") },
		"incr: Verify of a graph with changes that Run has not seen": func() {
			other.out.Want("x/a")
			other.services.Put("x/a", "ann:1", "x")
			other.g.Verify()
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got panic %v, want %q", got, want)
				}
			}()
			use()
		}()
	}
}

func TestVerify(t *testing.T) {
	g := New()
	rows := NewTable[string](g, "rows")
	hidden, choice := "before", "a"
	Derive(g, 1, "honest", func(r *Reader, key string) string { v, _ := Get(r, rows, key); return v }).Want("a")
	low := Derive(g, 1, "low", func(r *Reader, key string) string { return key })
	secret := Derive(g, 2, "secret", func(r *Reader, key string) string {
		v, _ := Get(r, rows, key)
		return v + low.Of(r, key) + hidden // not read through r
	})
	for _, k := range []string{"a", "b"} {
		secret.Want(k)
	}
	Derive(g, 2, "chooses", func(r *Reader, _ string) int {
		Get(r, rows, choice)
		return len(low.Of(r, choice))
	}).Want("key")
	above := Derive(g, 3, "above", func(r *Reader, key string) string { return secret.Of(r, key) })
	above.Want("b")
	verify := func(want ...string) {
		t.Helper()
		before := g.Stats()
		var got []string
		for _, m := range g.Verify() {
			got = append(got, m.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if !maps.Equal(before, g.Stats()) {
			t.Error("Verify has changed the graph's counters")
		}
	}
	verify()
	const because = "; the rule depends on what its Reader does not give it"
	hidden = "after"
	verify("rule secret of a: a rerun over the same inputs found another value"+because,
		"rule secret of b: a rerun over the same inputs found another value"+because)
	hidden, choice = "before", "b"
	verify("rule chooses of key: a rerun over the same inputs found reads that were not recorded: rows b, low b; not the recorded reads: rows a, low a" + because)
	choice = "a"
	rows.Put("b", "text")
	g.Run()
	verify()
}
