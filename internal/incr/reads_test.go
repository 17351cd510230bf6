package incr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func texts(seq func(func(Read) bool)) []string {
	var out []string
	for r := range seq {
		text := r.String()
		if !r.Present {
			text += " absent"
		}
		if r.Indirect {
			text += " indirect"
		}
		out = append(out, text)
	}
	return out
}

func TestReads(t *testing.T) {
	w := newFixture()
	w.policies.Put("x/p", "strict", "x")
	w.out.Want("x/a")
	w.out.Want("y/a")
	for key, want := range map[string][]string{
		"x/a": {"services x/a absent", "policies [x]", "policies x/p"},
		"y/a": {"services y/a absent", "policies [y] absent"},
		"z/a": nil, // not kept
	} {
		if got := texts(w.out.Reads(key)); !slices.Equal(got, want) {
			t.Errorf("%s: reads %q, want %q", key, got, want)
		}
	}
	for range w.out.Reads("x/a") {
		break // an iteration can be stopped
	}
}

// choosing is a graph in which an index reads all rows, and others read what it names.
type choosing struct {
	g    *Graph
	rows *Table[string] // "owner text"
	owns *Rule[string, []string]
	text *Rule[string, string]
}

func newChoosing() *choosing {
	w := &choosing{g: New()}
	w.rows = NewTable[string](w.g, "rows")
	w.owns = Derive(w.g, 1, "owns", func(r *Reader, owner string) (out []string) {
		for key, v := range In(r, w.rows, "all") {
			if strings.HasPrefix(v, owner+" ") {
				out = append(out, key)
			}
		}
		return out
	}).AsIndex()
	w.text = Derive(w.g, 2, "text", func(r *Reader, owner string) string {
		out := ""
		for _, key := range w.owns.Of(r, owner) {
			v, _ := Get(r, w.rows, key)
			out += v
		}
		return out
	})
	for i, owner := range []string{"ann", "bob", "ann", "cyd"} {
		w.rows.Put(fmt.Sprint(i), owner+" text", "all")
	}
	for _, owner := range []string{"cyd", "bob", "ann"} {
		w.text.Want(owner)
	}
	return w
}

func TestReadsThroughAnIndexComeLast(t *testing.T) {
	w := newChoosing()
	got := texts(w.text.Reads("ann"))
	want := []string{"rows 0", "rows 2", "rows [all] indirect", "rows 1 indirect", "rows 3 indirect"}
	if !slices.Equal(got, want) {
		t.Errorf("reads %q, want %q", got, want)
	}
}

func TestDependents(t *testing.T) {
	w := newChoosing()
	list := func(key string) (out []string) {
		for d := range w.rows.Dependents(key) {
			out = append(out, fmt.Sprintf("%s %v %v", d.Rule, d.Key, d.Indirect))
		}
		return out
	}
	for key, want := range map[string][]string{
		"1":      {"text bob false", "text cyd true", "text ann true"},
		"2":      {"text ann false", "text cyd true", "text bob true"},
		"absent": nil,
	} {
		if got := list(key); !slices.Equal(got, want) {
			t.Errorf("%s: dependents %q, want %q", key, got, want)
		}
	}
	w.rows.Put("1", "ann text", "all")
	w.text.Unwant("cyd")
	w.g.Run()
	if got, want := list("1"), []string{"text ann false", "text bob true"}; !slices.Equal(got, want) {
		t.Errorf("after the row has changed: dependents %q, want %q", got, want)
	}
	for range w.rows.Dependents("1") {
		break
	}
}
