package xds

import (
	"iter"
	"slices"
	"time"
)

// NumLayers is how many layers a View has.
const NumLayers = 3

// View is everything that proxies of one class shall have: the resources of all its layers, which
// it shares with the views of other classes. No two layers have a resource of one type and name.
// It is immutable.
type View struct {
	// Generation grows with every view of a class.
	Generation uint64
	// Layers have the same places in all views of a class, so that they can be compared; nil is an
	// empty one.
	Layers [NumLayers]*Layer
	// Quarantined are the resources that proxies of the class have refused: the view has their last
	// accepted versions, or nothing. A proxy that has a version of one of these goes on with it.
	Quarantined []Quarantined
	// Names are what agents resolve; nil for nothing.
	Names *NameTable
	// Barrier is what has to wait for policies; nil for nothing.
	Barrier *Barrier
}

// Quarantined names a resource that proxies of a class have refused. Gone says that none of them is
// known to have accepted any version of it.
type Quarantined struct {
	Type Type
	Name string
	Gone bool
	// After is the newest generation of which proxies of the class have accepted the type, so that what they
	// have in place of the resource has all changes up to it. Since is when it was quarantined, Message what a
	// proxy said of it.
	After   uint64
	Since   time.Time
	Message string
}

// keeps says whether clients go on with what they have of a resource that the view has not.
func (v *View) keeps(r *Resource, t Type) bool {
	return slices.ContainsFunc(v.Quarantined, func(q Quarantined) bool { return q.Gone && q.Type == t && q.Name == r.Name })
}

// Of is the view's resources of a type.
func (v *View) Of(t Type) TypeView {
	var out TypeView
	for i, l := range v.Layers {
		out.parts[i] = l.of(t)
	}
	return out
}

// TypeView is an immutable set of resources of one type. Equal values are equal sets. The zero
// TypeView is empty.
type TypeView struct {
	// parts are of a view's layers in their order, and last what is of no layer: what a client
	// has that its view has not. No two have the same name.
	parts [NumLayers + 1]*set
}

// unlayered is the index of the part that is of no layer.
const unlayered = NumLayers

// newTypeView is a set of resources that are of no layer.
func newTypeView(resources []*Resource) (v TypeView) {
	v.parts[unlayered] = (*set)(nil).with(resources, nil)
	return v
}

// and is the set with others, of whose names it has none; they are in order of their names.
func (v TypeView) and(others []*Resource) TypeView {
	if len(others) > 0 {
		v.parts[unlayered] = v.parts[unlayered].with(others, nil)
	}
	return v
}

// isLayered says whether the set has of each layer what another has.
func (v TypeView) isLayered(o TypeView) bool {
	v.parts[unlayered], o.parts[unlayered] = nil, nil
	return v == o
}

// Len is the number of resources.
func (v TypeView) Len() (n int) {
	for _, p := range v.parts {
		n += p.len()
	}
	return n
}

// Get is the resource of that name, or nil.
func (v TypeView) Get(name string) *Resource {
	for _, p := range v.parts {
		if r := p.get(name); r != nil {
			return r
		}
	}
	return nil
}

// All ranges over the resources in order of their names.
func (v TypeView) All() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		rest := v.starts()
		for {
			first := -1
			for i := range rest {
				if r := rest[i].head(); r != nil && (first < 0 || r.Name < rest[first].head().Name) {
					first = i
				}
			}
			if first < 0 || !yield(rest[first].head()) {
				return
			}
			rest[first].next()
		}
	}
}

// starts are the places of the first resource of each part.
func (v TypeView) starts() (out [NumLayers + 1]cursor) {
	for i, p := range v.parts {
		out[i] = p.start()
	}
	return out
}

// framed are the places of the first resources of the sets whose chunks are sent.
func (v TypeView) framed() (out [NumLayers + 1]cursor) {
	for i, p := range v.parts {
		if p != nil && p.base != nil {
			p = p.base
		}
		out[i] = p.start()
	}
	return out
}

// list is the resources in order of their names; it must not be changed.
func (v TypeView) list() (out []*Resource) {
	for _, p := range v.parts {
		out = mergeLists(out, p.all())
	}
	return out
}

// lists are the resources of each part.
func (v TypeView) lists() (out resourceLists) {
	for i, p := range v.parts {
		out[i] = p.all()
	}
	return out
}

// resourceLists are resources in several lists, each in order of names; no two have the same name. The lists are shared,
// and must not be changed. A place of a resource counts through all lists, one after the other.
type resourceLists [NumLayers + 1][]*Resource

func (l *resourceLists) len() (n int) {
	for _, list := range l {
		n += len(list)
	}
	return n
}

// at is the resource at a place.
func (l *resourceLists) at(place int) *Resource {
	for _, list := range l {
		if place < len(list) {
			return list[place]
		}
		place -= len(list)
	}
	return nil
}

// find is the place of the resource of that name; false if there is none.
func (l *resourceLists) find(name string) (place int, ok bool) {
	before := 0
	for _, list := range l {
		if i, ok := slices.BinarySearchFunc(list, name, byName); ok {
			return before + i, true
		}
		before += len(list)
	}
	return 0, false
}

// all ranges over the resources with their places.
func (l *resourceLists) all() iter.Seq2[int, *Resource] {
	return func(yield func(int, *Resource) bool) {
		place := 0
		for _, list := range l {
			for _, r := range list {
				if !yield(place, r) {
					return
				}
				place++
			}
		}
	}
}

// only is the resources that a function keeps. It leaves the lists as they are.
func (l *resourceLists) only(keeps func(*Resource) bool) (out resourceLists) {
	for part, list := range l {
		if slices.ContainsFunc(list, func(r *Resource) bool { return !keeps(r) }) {
			list = slices.DeleteFunc(slices.Clone(list), func(r *Resource) bool { return !keeps(r) })
		}
		out[part] = list
	}
	return out
}

// Delta is the difference between two sets of resources. Its lists are in order of names, and may
// be shared.
type Delta struct {
	// Upserts are the resources that the old set lacks or has in another version.
	Upserts []*Resource
	// Removed are the old set's resources that the new one lacks.
	Removed []*Resource
}

// step is the difference between two sets of one layer.
type step struct{ upserts, removed []*Resource }

// diff compares two sets, layer by layer; between compares those of one layer.
func diff(old, cur TypeView, between func(old, cur *set) step) *Delta {
	d := &Delta{}
	for i, part := range cur.parts {
		if old.parts[i] == part {
			continue
		}
		s := between(old.parts[i], part)
		d.Upserts, d.Removed = mergeLists(d.Upserts, s.upserts), mergeLists(d.Removed, s.removed)
	}
	d.Upserts, d.Removed = withoutMoves(d.Upserts, d.Removed)
	return d
}

// mergeLists is two lists without common names as one, in order of names. It leaves both as they are.
func mergeLists(a, b []*Resource) []*Resource {
	if len(a) < len(b) {
		a, b = b, a
	}
	if len(b) == 0 {
		return a
	}
	out := make([]*Resource, 0, len(a)+len(b))
	for _, r := range b {
		i, _ := slices.BinarySearchFunc(a, r.Name, byName)
		out = append(append(out, a[:i]...), r)
		a = a[i:]
	}
	return append(out, a...)
}

// withoutMoves leaves out of both lists what is in both in the same version, because it has only
// moved from one layer to another, and out of removed what is in both in different versions.
func withoutMoves(upserts, removed []*Resource) (up, gone []*Resource) {
	if len(upserts) == 0 || len(removed) == 0 {
		return upserts, removed
	}
	up = make([]*Resource, 0, len(upserts))
	for _, r := range removed {
		i, found := slices.BinarySearchFunc(upserts, r.Name, byName)
		up, upserts = append(up, upserts[:i]...), upserts[i:]
		switch {
		case !found:
			gone = append(gone, r)
		case same(r, upserts[0]):
			upserts = upserts[1:]
		}
	}
	return append(up, upserts...), gone
}
