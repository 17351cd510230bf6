package incr

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestCausesOfWhatMoves(t *testing.T) {
	w := newFixture()
	for _, n := range []string{"x/a", "x/b", "y/c"} {
		w.out.Want(n)
	}
	change := func(cause int, f func()) {
		w.g.Cause(1 << cause)
		f()
	}
	check := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, m := range w.g.Run() {
			got = append(got, fmt.Sprintf("%v %b", m.Key, m.Causes))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: moved %q, want %q", what, got, want)
		}
	}
	change(0, func() { w.services.Put("x/a", "ann:1", "x") })
	change(1, func() { w.policies.Put("y/p", "strict", "y") })
	check("two changes of different values", "x/a 1", "y/c 10")
	change(0, func() { w.services.Put("x/a", "bob:1", "x") })
	change(1, func() { w.policies.Put("x/p", "strict", "x") })
	check("two changes of one value", "x/a 11", "x/b 10")
	change(0, func() { w.services.Put("x/a", "bob:2", "x") })
	change(1, func() { w.policies.Put("x/p", "lax", "x") })
	check("a change that ends at a cut-off, and another", "x/a 10", "x/b 10")
	change(0, func() { w.services.Delete("x/a") })
	check("a removal", "x/a 1")
	w.services.Put("x/a", "bob", "x")
	check("a change without a cause", "x/a 0")
	change(2, func() { w.policies.Put("x/p", "strict", "x") })
	check("none is left of the change before", "x/a 100", "x/b 100")
}

// A value that changes what it reads depends on what has changed there, too, whether a rule was run for
// it before or not.
func TestCausesOfWhatIsReadAnew(t *testing.T) {
	g := New()
	names, texts := NewTable[string](g, "names"), NewTable[string](g, "texts")
	text := Derive(g, 1, "text", func(r *Reader, k string) string { v, _ := Get(r, texts, k); return v })
	out := Derive(g, 2, "out", func(r *Reader, k string) string { n, _ := Get(r, names, k); return text.Of(r, n) })
	names.Put("a", "first")
	out.Want("a")
	g.Cause(1)
	names.Put("a", "second")
	g.Cause(2)
	texts.Put("second", "the text")
	g.Cause(4)
	texts.Put("third", "of no concern")
	if moved := g.Run(); len(moved) != 1 || moved[0].Causes != 3 {
		t.Errorf("moved %v, want one value because of 1 and 2", moved)
	}
}

// The causes of a value are the changed rows that it was made from, before or after.
func TestCausesAreTheChangedRowsThatWereRead(t *testing.T) {
	r := rand.New(rand.NewPCG(wait.Seed(t, 3), 5))
	keys := []string{"a", "b", "c", "d", "e", "f"}
	for i := range 300 {
		g := New()
		g.Parallel(1+i%2*3, 2)
		rows := NewTable[[]string](g, "rows") // the keys of the rows that are read next, as text
		serial := 0
		put := func(k string) {
			serial++
			rows.Put(k, append([]string{fmt.Sprint(serial)}, keys[r.IntN(3)], keys[3+r.IntN(3)]))
		}
		leaf := Derive(g, 1, "leaf", func(r *Reader, k string) string { v, _ := Get(r, rows, k); return strings.Join(v, " ") })
		inner := Derive(g, 2, "inner", func(r *Reader, k string) string { // no two states give the same text
			v := leaf.Of(r, k)
			if words := strings.Fields(v); len(words) > 0 {
				v += "(" + leaf.Of(r, words[1]) + ")"
			}
			return v
		})
		value := Derive(g, 3, "value", func(r *Reader, k string) string {
			v := inner.Of(r, k)
			if words := strings.Fields(v); len(words) > 0 {
				last := words[len(words)-1]
				v += inner.Of(r, last[:1])
			}
			return v
		})
		for _, k := range keys {
			put(k)
		}
		wanted := keys[:1+r.IntN(len(keys))]
		for _, k := range wanted {
			value.Want(k)
		}
		reads := func(k string) (out []string) {
			for read := range value.Reads(k) {
				out = append(out, read.Table+" "+read.Key)
			}
			return out
		}
		for range 10 {
			before := map[string][]string{}
			for _, k := range wanted {
				before[k] = reads(k)
			}
			changed := map[string]Causes{}
			for i := range 1 + r.IntN(3) {
				k := keys[r.IntN(len(keys))]
				if changed[k] != 0 {
					continue
				}
				changed[k] = 1 << i
				g.Cause(1 << i)
				put(k)
			}
			got := map[string]Causes{}
			for _, m := range g.Run() {
				got[m.Key.(string)] = m.Causes
			}
			for _, k := range wanted {
				var want Causes
				for row, c := range changed {
					if read := "rows " + row; slices.Contains(before[k], read) || slices.Contains(reads(k), read) {
						want |= c
					}
				}
				// What is read anew may have moved because of what it does not read any more.
				if want&^got[k] != 0 || got[k] != want && slices.Equal(before[k], reads(k)) {
					t.Fatalf("%s moved because of %b, want %b (changed %v, read %q, then %q)", k, got[k], want, changed, before[k], reads(k))
				}
			}
		}
	}
}
