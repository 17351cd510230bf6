package incr

import "testing"

// checkEdges fails unless the two entries of every edge refer to each other, and every reader of
// an input has it among its deps.
func (w *fixture) checkEdges(t *testing.T) {
	t.Helper()
	edges := map[*input]int{}
	visit := func(n *node) {
		for i, d := range n.deps {
			if d.at >= len(d.input.readers) || d.input.readers[d.at] != (reader{n, i}) {
				t.Fatalf("dep %d of a value of %T has index %d of %d readers, where it is not", i, n.evaluator, d.at, len(d.input.readers))
			}
			edges[d.input]++
		}
	}
	for _, e := range w.strict.nodes {
		visit(&e.node)
	}
	for _, e := range w.owner.nodes {
		visit(&e.node)
	}
	for _, e := range w.out.nodes {
		visit(&e.node)
	}
	for c, n := range edges {
		if len(c.readers) != n {
			t.Fatalf("an input has %d readers, but %d values have read it", len(c.readers), n)
		}
	}
}

func TestReplaceDeps(t *testing.T) {
	g := New()
	rows := NewTable[[]string](g, "rows")
	all := Derive(g, 1, "all", func(r *Reader, key string) int {
		names, _ := Get(r, rows, key)
		sum := 0
		for _, n := range append(names, names...) { // two reads of a row are one dep
			v, _ := Get(r, rows, n)
			sum += len(v)
		}
		return sum
	})
	for _, k := range []string{"p", "q", "r"} {
		rows.Put(k, []string{"a", "b", "c"})
		all.Want(k)
	}
	rows.Put("a", []string{"x"})
	rows.Put("p", []string{"c", "a", "d"})
	rows.Put("q", nil)
	g.Run()
	for _, e := range all.nodes {
		for i, d := range e.deps {
			if d.input.readers[d.at] != (reader{&e.node, i}) {
				t.Errorf("dep %d of %s has the wrong index", i, e.key)
			}
		}
	}
	if got, _ := all.Value("p"); got != 2 {
		t.Errorf("p is %d, want 2", got)
	}
	if q := all.nodes["q"]; len(q.deps) != 1 {
		t.Errorf("q has %d deps, want its own row only", len(q.deps))
	}
	if b := rows.rows["b"]; b == nil || len(b.readers) != 1 {
		t.Error("want r as the only reader of the absent row b")
	}
}
