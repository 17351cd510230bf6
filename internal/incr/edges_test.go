package incr

import "testing"

// checkEdges fails unless both ends of every edge between a value and what it has read
// name each other, and no cell has a reader that has not read it.
func (w *world) checkEdges(t *testing.T) {
	t.Helper()
	edges := map[*cell]int{}
	visit := func(n *node) {
		for i, d := range n.deps {
			if d.at >= len(d.cell.readers) || d.cell.readers[d.at] != (reader{n, i}) {
				t.Fatalf("read %d of a value of rule %T stands at %d among its cell's %d readers, and is not there", i, n.maker, d.at, len(d.cell.readers))
			}
			edges[d.cell]++
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
			t.Fatalf("a cell has %d readers, but %d values have read it", len(c.readers), n)
		}
	}
}

func TestReadsMayChangePlacesAndEnd(t *testing.T) {
	g := New()
	rows := NewTable[[]string](g, "rows")
	all := Derive(g, 1, "all", func(r *Reader, key string) int {
		names, _ := Get(r, rows, key)
		sum := 0
		for _, n := range append(names, names...) { // each twice: it is one read
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
			if d.cell.readers[d.at] != (reader{&e.node, i}) {
				t.Errorf("read %d of %s has lost its place", i, e.key)
			}
		}
	}
	if got, _ := all.Value("p"); got != 2 {
		t.Errorf("p is %d, want 2", got)
	}
	if q := all.nodes["q"]; len(q.deps) != 1 {
		t.Errorf("q has %d reads, want its own row only", len(q.deps))
	}
	if b := rows.rows["b"]; b == nil || len(b.readers) != 1 {
		t.Error("the absent row b is read by r alone")
	}
}
