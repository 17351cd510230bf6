package incr

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// random is a graph of random rules: what a value reads depends on its key and on what it has read
// before. Rules of level 1 to 4 read rows, buckets, absent ones among them, and values of lower levels.
type random struct {
	seed  uint64
	g     *Graph
	rows  *Table[int]
	have  map[string]randomRow
	rules []*Rule[int, []int]
	want  []map[int]int // by rule
}

type randomRow struct {
	value   int
	buckets [2]string
}

func (w *random) put(key string, row randomRow) {
	w.have[key] = row
	w.rows.Put(key, row.value, row.buckets[:]...)
}

const randomRows, randomKeys, randomLevels = 20, 30, 4

func newRandom(seed uint64, workers int) *random {
	w := &random{seed: seed, g: New(), have: map[string]randomRow{}}
	w.g.Parallel(workers, 1)
	w.rows = NewTable[int](w.g, "rows")
	for level := 1; level <= randomLevels; level++ {
		fn := func(r *Reader, key int) []int {
			dice := rand.New(rand.NewPCG(seed, uint64(100*level+key)))
			out := []int{level}
			for range 1 + dice.IntN(6) {
				n := dice.IntN(1000) + out[len(out)-1]
				switch pick := dice.IntN(6); {
				case pick == 0:
					v, ok := Get(r, w.rows, fmt.Sprint(n%randomRows))
					if ok {
						out = append(out, v)
					}
				case pick == 1:
					for _, v := range In(r, w.rows, fmt.Sprint("b", n%5)) {
						out = append(out, v)
					}
				case pick == 2:
					out = append(out, len(Keys(r, w.rows, fmt.Sprint("b", n%5))))
				case level == 1:
				case pick == 3:
					lower := w.rules[n%(level-1)]
					for _, v := range lower.OfAll(r, []int{n % randomKeys, (n + 1) % randomKeys, (n + 7) % randomKeys}) {
						out = append(out, v[len(v)-1]%100)
					}
				default:
					v := w.rules[n%(level-1)].Of(r, n%randomKeys)
					out = append(out, v[len(v)-1]%100)
				}
			}
			if dice.IntN(3) == 0 {
				return out[:1] // a cut-off
			}
			return out
		}
		w.rules = append(w.rules, Derive(w.g, level, fmt.Sprint("level ", level), fn))
		w.want = append(w.want, map[int]int{})
	}
	return w
}

// edit makes one random change to rows or to what is wanted.
func (w *random) edit(dice *rand.Rand) {
	key := fmt.Sprint(dice.IntN(randomRows))
	switch dice.IntN(5) {
	case 0:
		delete(w.have, key)
		w.rows.Delete(key)
	case 1, 2:
		w.put(key, randomRow{dice.IntN(10), [2]string{fmt.Sprint("b", dice.IntN(5)), fmt.Sprint("b", dice.IntN(5))}})
	case 3:
		i := dice.IntN(randomLevels)
		keys := []int{dice.IntN(randomKeys), dice.IntN(randomKeys), dice.IntN(randomKeys), dice.IntN(randomKeys)}
		w.rules[i].WantAll(keys)
		for _, k := range keys {
			w.want[i][k]++
		}
	case 4:
		i := dice.IntN(randomLevels)
		for _, k := range slices.Sorted(maps.Keys(w.want[i])) {
			if dice.IntN(3) == 0 {
				w.rules[i].Unwant(k)
				if w.want[i][k]--; w.want[i][k] == 0 {
					delete(w.want[i], k)
				}
			}
		}
	}
}

// state is everything of the graph that can be seen, and the order of its values.
func (w *random) state() string {
	var out strings.Builder
	stats := w.g.Stats()
	for i, u := range w.rules {
		fmt.Fprintln(&out, u.name, stats[u.name])
		for _, k := range slices.Sorted(maps.Keys(u.nodes)) {
			e := u.nodes[k]
			fmt.Fprintln(&out, " ", k, e.seq, e.value, w.want[i][k], texts(u.Reads(k)))
			for _, r := range e.readers {
				rule, key := r.node.evaluator.label()
				fmt.Fprintln(&out, "    read by", rule, key)
			}
		}
	}
	fmt.Fprintln(&out, len(w.rows.rows), len(w.rows.buckets))
	for k := range randomRows {
		for d := range w.rows.Dependents(fmt.Sprint(k)) {
			fmt.Fprintln(&out, " ", k, d)
		}
	}
	return out.String()
}

func TestParallelEqualsSerial(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			parallelEqualsSerial(t, seed, 30)
		})
	}
}

func FuzzParallelEqualsSerial(f *testing.F) {
	f.Add(uint64(1), 20)
	f.Fuzz(func(t *testing.T, seed uint64, steps int) {
		parallelEqualsSerial(t, seed, min(steps, 60))
	})
}

func parallelEqualsSerial(t *testing.T, seed uint64, steps int) {
	t.Helper()
	workers := []int{1, 2, 8}
	var worlds []*random
	var dice []*rand.Rand
	for _, n := range workers {
		worlds, dice = append(worlds, newRandom(seed, n)), append(dice, rand.New(rand.NewPCG(seed, 1)))
	}
	for step := range steps {
		var moved []Moved
		state := ""
		for i, w := range worlds {
			for range 1 + dice[i].IntN(4) {
				w.edit(dice[i])
			}
			got := w.g.Run()
			if i == 0 {
				moved, state = got, w.state()
				continue
			}
			if !slices.Equal(got, moved) {
				t.Fatalf("step %d: %d workers moved %v, one %v", step, workers[i], got, moved)
			}
			if got := w.state(); got != state {
				a, b := strings.Split(got, "\n"), strings.Split(state, "\n")
				for line := range min(len(a), len(b)) {
					if a[line] != b[line] {
						t.Fatalf("step %d: with %d workers there is, in line %d of the graph's state,\n%s\nwith one\n%s", step, workers[i], line, a[line], b[line])
					}
				}
				t.Fatalf("step %d: with %d workers the graph's state has %d lines, with one %d", step, workers[i], len(a), len(b))
			}
		}
	}
}

// TestRulesRunOnAllProcessors has rules that return only when as many as there are workers have started.
func TestRulesRunOnAllProcessors(t *testing.T) {
	const n = 4
	for _, c := range []struct {
		what string
		ask  func(u *Rule[int, int], keys []int)
	}{
		{"WantAll", func(u *Rule[int, int], keys []int) { u.WantAll(keys) }},
		{"Run", func(u *Rule[int, int], keys []int) {
			for _, k := range keys {
				u.Want(k)
			}
		}},
		{"OfAll", func(u *Rule[int, int], keys []int) {
			Derive(u.g, 9, "reader", func(r *Reader, k int) []int { return u.OfAll(r, keys) }).Want(1)
		}},
	} {
		g := New()
		g.Parallel(n, n)
		rows := NewTable[int](g, "rows")
		var together atomic.Bool
		var started atomic.Int64
		all := make(chan struct{})
		u := Derive(g, 1, "meet", func(r *Reader, k int) int {
			v, _ := Get(r, rows, "row")
			if together.Load() {
				if started.Add(1) == n {
					close(all)
				}
				<-all
			}
			return k + v
		})
		keys := []int{1, 2, 3, 4}
		together.Store(c.what != "Run")
		c.ask(u, keys)
		if together.Swap(true); c.what == "Run" {
			rows.Put("row", 1)
			if moved := g.Run(); len(moved) != n {
				t.Errorf("Run moved %v, want all %d", moved, n)
			}
		}
	}
}

// TestOneValueIsComputedOnce has many rules that need the same missing values at the same time.
func TestOneValueIsComputedOnce(t *testing.T) {
	g := New()
	g.Parallel(8, 2)
	rows := NewTable[int](g, "rows")
	base := Derive(g, 1, "base", func(r *Reader, k int) int {
		v, _ := Get(r, rows, fmt.Sprint(k)) // absent
		runtime.Gosched()
		return v + k
	})
	top := Derive(g, 2, "top", func(r *Reader, k int) (sum int) {
		for i := range 10 {
			sum += base.Of(r, (i+k)%10)
		}
		return sum
	})
	keys := make([]int, 200)
	for i := range keys {
		keys[i] = i / 2 // each twice
	}
	for i, sum := range top.WantAll(keys) {
		if sum != 45 {
			t.Fatalf("value %d is %d, want 45", i, sum)
		}
	}
	if s := g.Stats(); s["base"].Runs != 10 || s["top"].Runs != 100 || s["base"].Live != 10 {
		t.Errorf("rules ran %+v, want base 10 and top 100 times", s)
	}
	if len(rows.rows) != 10 {
		t.Errorf("%d absent rows, want one for each of the 10 that were read", len(rows.rows))
	}
}

func TestPanicsOfRulesReachTheCaller(t *testing.T) {
	newRule := func(workers int) *Rule[int, int] {
		g := New()
		g.Parallel(workers, 1)
		var high *Rule[int, int]
		low := Derive(g, 1, "low", func(r *Reader, k int) int {
			switch k {
			case 7:
				panic("seven")
			case 8:
				return high.Of(r, 1)
			}
			return k
		})
		high = Derive(g, 2, "high", func(r *Reader, k int) int { return low.Of(r, k) })
		return high
	}
	try := func(f func()) (value any) {
		defer func() { value = recover() }()
		f()
		return nil
	}
	for _, c := range []struct {
		keys []int
		rule string
		want string
	}{
		{[]int{1, 2, 7, 3}, "low", "seven"},
		{[]int{8, 7, 1, 2}, "low", "incr: rule low (level 1) reads rule high (level 2)"},
		{[]int{7, 7, 7, 7}, "low", "seven"},
	} {
		for range 10 {
			high := newRule(4)
			p, ok := try(func() { high.WantAll(c.keys) }).(*RulePanic)
			if !ok || p.Rule != c.rule || p.Value != c.want || !strings.Contains(p.Stack, "parallel_test.go") {
				t.Fatalf("keys %v: got %+v, want the panic %q of %s with its stack", c.keys, p, c.want, c.rule)
			}
			if !strings.Contains(p.Error(), c.want) || !strings.Contains(p.Error(), c.rule) {
				t.Fatalf("the message %q names neither rule nor cause", p)
			}
		}
		high := newRule(1)
		if p := try(func() { high.WantAll(c.keys) }); p != c.want {
			t.Errorf("keys %v on one goroutine: got %v, want %q", c.keys, p, c.want)
		}
	}
}

// TestRuleThatEndsItsGoroutine has a rule that ends the goroutine of a worker, as a failing test does. Others wait for
// its value, and the caller must not take it for computed.
func TestRuleThatEndsItsGoroutine(t *testing.T) {
	g := New()
	g.Parallel(4, 1)
	var caller atomic.Bool
	low := Derive(g, 1, "low", func(r *Reader, k int) int {
		runtime.Goexit()
		return k
	})
	high := Derive(g, 2, "high", func(r *Reader, k int) int { return low.Of(r, 7) + k })
	ended := make(chan any)
	go func() {
		defer func() {
			value := recover()
			caller.Store(value == nil) // the rule ran on the caller's goroutine, and ended that
			ended <- value
		}()
		high.WantAll([]int{1, 2, 3, 4, 5, 6, 7, 8})
		t.Error("WantAll has returned")
	}()
	value := <-ended
	// The end of the goroutine ends the rule that has called low, too: either may be told first.
	if p, ok := value.(*RulePanic); !caller.Load() && (!ok || p.Rule != "low" && p.Rule != "high" || p.Value != nil) {
		t.Errorf("got %v, want a panic that names a rule", value)
	}
	if high.nodes[1] != nil || len(low.nodes) > 0 {
		t.Error("a value that was not computed is kept")
	}
}

func TestReaderMustNotOutliveItsRule(t *testing.T) {
	for _, workers := range []int{1, 4} {
		g := New()
		g.Parallel(workers, 1)
		rows := NewTable[int](g, "rows")
		rows.Put("row", 1, "all")
		kept := make([]*Reader, 4)
		lists := make([]func(func(string, int) bool), 4)
		u := Derive(g, 1, "leak", func(r *Reader, k int) int {
			kept[k], lists[k] = r, In(r, rows, "all")
			return k
		})
		u.WantAll([]int{0, 1, 2, 3})
		for k, r := range kept {
			for what, use := range map[string]func(){
				"Get":  func() { Get(r, rows, "row") },
				"In":   func() { lists[k](func(string, int) bool { return true }) },
				"Keys": func() { Keys(r, rows, "all") },
				"Of":   func() { u.Of(r, 1) },
			} {
				func() {
					defer func() {
						if got, want := recover(), "incr: use of a Reader after its rule has returned"; got != want {
							t.Errorf("%d workers: %s panics with %v, want %q", workers, what, got, want)
						}
					}()
					use()
				}()
			}
		}
	}
}
