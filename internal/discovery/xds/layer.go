package xds

import (
	"slices"
	"strings"
)

// Layer is an immutable part of views, which any number of them share. A nil Layer is empty.
type Layer struct{ sets [numTypes]*set }

// With is the layer with upserts of a type added or replaced and removes removed; a name in both
// stays in, and of several upserts of a name the last counts. It returns l itself where nothing
// would change.
func (l *Layer) With(t Type, upserts []*Resource, removes []string) *Layer {
	old := l.of(t)
	changed := old.with(upserts, removes)
	if changed == old {
		return l
	}
	var n Layer
	if l != nil {
		n = *l
	}
	n.sets[t] = changed
	return &n
}

// WithSetOf is the layer with the resources of a type that another layer has, which the two then
// share. It returns l itself where they do so already.
func (l *Layer) WithSetOf(t Type, other *Layer) *Layer {
	if l.of(t) == other.of(t) {
		return l
	}
	var n Layer
	if l != nil {
		n = *l
	}
	n.sets[t] = other.of(t)
	return &n
}

// Equal says whether two layers share the resources of every type.
func (l *Layer) Equal(o *Layer) bool {
	for t := range numTypes {
		if l.of(t) != o.of(t) {
			return false
		}
	}
	return true
}

// Get is the resource of that type and name, or nil.
func (l *Layer) Get(t Type, name string) *Resource { return l.of(t).get(name) }

// Len is the number of resources.
func (l *Layer) Len() (n int) {
	for t := range numTypes {
		n += len(l.of(t).all())
	}
	return n
}

func (l *Layer) of(t Type) *set {
	if l == nil {
		return nil
	}
	return l.sets[t]
}

// set is the resources of one type in one layer, in order of their names. It is immutable. A nil
// set is empty, and every empty set is nil.
type set struct{ list []*Resource }

// all is the set's list, which must not be changed.
func (s *set) all() []*Resource {
	if s == nil {
		return nil
	}
	return s.list
}

// get is the resource of that name, or nil.
func (s *set) get(name string) *Resource {
	if i, ok := slices.BinarySearchFunc(s.all(), name, byName); ok {
		return s.list[i]
	}
	return nil
}

// edit is a name that changes: to a resource, or to nothing.
type edit struct {
	name     string
	resource *Resource
}

// with is as Layer.With.
func (s *set) with(upserts []*Resource, removes []string) *set {
	rest := s.all()
	edits := sortedEdits(upserts, removes)
	list := make([]*Resource, 0, len(rest)+len(upserts))
	changed := false
	for i, e := range edits {
		if i+1 < len(edits) && edits[i+1].name == e.name {
			continue // the last one counts
		}
		at, found := slices.BinarySearchFunc(rest, e.name, byName)
		list, rest = append(list, rest[:at]...), rest[at:]
		var old *Resource
		if found {
			old, rest = rest[0], rest[1:]
		}
		r := e.resource
		switch {
		case r != nil && old != nil && same(old, r) && old.Needs == r.Needs:
			r = old
		case r != old:
			changed = true
		}
		if r != nil {
			list = append(list, r)
		}
	}
	if !changed {
		return s
	}
	if list = append(list, rest...); len(list) == 0 {
		return nil
	}
	return &set{list: slices.Clip(list)}
}

// sortedEdits are in order of names; those of one name are in the order in which they are made.
func sortedEdits(upserts []*Resource, removes []string) []edit {
	out := make([]edit, 0, len(upserts)+len(removes))
	for _, n := range removes {
		out = append(out, edit{name: n})
	}
	for _, r := range upserts {
		out = append(out, edit{r.Name, r})
	}
	slices.SortStableFunc(out, func(a, b edit) int { return strings.Compare(a.name, b.name) })
	return out
}

func byName(r *Resource, name string) int { return strings.Compare(r.Name, name) }

func order(a, b *Resource) int { return strings.Compare(a.Name, b.Name) }

// between is the difference between two sets.
func between(old, cur *set) step {
	a, b := old.all(), cur.all()
	if len(a) == 0 || len(b) == 0 {
		return step{upserts: b, removed: a}
	}
	var d step
	for len(a) > 0 && len(b) > 0 {
		if a[0] == b[0] {
			a, b = a[1:], b[1:]
			continue
		}
		switch c := order(a[0], b[0]); {
		case c < 0:
			d.removed = append(d.removed, a[0])
			a = a[1:]
		case c > 0:
			d.upserts = append(d.upserts, b[0])
			b = b[1:]
		default:
			if !same(a[0], b[0]) {
				d.upserts = append(d.upserts, b[0])
			}
			a, b = a[1:], b[1:]
		}
	}
	d.removed, d.upserts = append(d.removed, a...), append(d.upserts, b...)
	return d
}
