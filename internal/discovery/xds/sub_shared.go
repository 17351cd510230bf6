package xds

import (
	"slices"
	"strings"
)

// sharer has what the streams of a server compute once for all of them.
type sharer interface {
	// between is the difference between two sets of a layer.
	between(old, cur *set) step
	// index finds the names of a set.
	index(s *set) setIndex
	// names is the set of names in use whose hashes have that sum, nil if there is none.
	names(sum uint64) *nameSet
	// keep returns the set in use that equals n, which is n itself if there is none.
	keep(n *nameSet) *nameSet
}

// unshared is a sharer for a stream alone.
type unshared struct{}

func (unshared) between(old, cur *set) step { return between(old, cur) }
func (unshared) index(s *set) setIndex      { return s.index() }
func (unshared) names(uint64) *nameSet      { return nil }
func (unshared) keep(n *nameSet) *nameSet   { return n }

// setIndex finds the resources of a set by name.
type setIndex struct {
	nameIndex
	// sum is of the names with their versions, as in versionList, and names of the names' hashes.
	sum, names uint64
}

// index makes an index of the set's names.
func (s *set) index() setIndex {
	list := s.all()
	x := setIndex{nameIndex: newNameIndex(len(list), func(i int) string { return list[i].Name })}
	x.sum, x.names = s.sums()
	return x
}

// sums are those of the names with their versions, and of the names' hashes.
func (s *set) sums() (sum, names uint64) {
	for _, r := range s.all() {
		sum += hashOfEntry(r.Name, r.Version)
		names += hashOf(r.Name)
	}
	return sum, names
}

// finder finds the resources of a view by name.
type finder struct {
	lists   [NumLayers][]*Resource
	indexes [NumLayers]nameIndex
	n       int
	// as in setIndex
	sum, names uint64
}

// indexed is the size from which a set is searched by an index.
const indexed = 16

func (s *Sub) finder(view TypeView) (f finder) {
	for i := range f.lists {
		part := view.parts[i]
		f.lists[i] = part.all()
		f.n += len(f.lists[i])
		if len(f.lists[i]) < indexed {
			sum, names := part.sums()
			f.sum, f.names = f.sum+sum, f.names+names
			continue
		}
		x := s.shared.index(part)
		f.indexes[i] = x.nameIndex
		f.sum, f.names = f.sum+x.sum, f.names+x.names
	}
	return f
}

// find is in which layer and at which place of its list the name is that has the hash; -1 if it is in none.
func (f *finder) find(name []byte, hash uint64) (layer, at int) {
	for i, list := range f.lists {
		if len(list) < indexed {
			at = slices.IndexFunc(list, func(r *Resource) bool { return r.Name == string(name) })
		} else {
			at = f.indexes[i].find(hash, func(k int) bool { return list[k].Name == string(name) })
		}
		if at >= 0 {
			return i, at
		}
	}
	return -1, -1
}

// spell is the name as the view spells it, so that streams share one copy, and how many bytes it
// takes if the view has not got it.
func (f *finder) spell(name []byte) (text string, own int) {
	if i, at := f.find(name, hashOfBytes(name)); i >= 0 {
		return f.lists[i][at].Name, 0
	}
	text = string(name)
	return text, costOf(text)
}

// nameSet is the plain names of a list, and the empty one if it is wanted and in the list.
func (s *Sub) nameSet(t Type, l nameList, empty bool) *nameSet {
	empty = empty && l.empty
	if !empty {
		if l.named == 0 {
			return nil
		}
		if known := s.shared.names(l.sum); known.is(l) {
			return known
		}
	}
	f := s.finder(s.view(t))
	list, own := make([]string, 0, l.named+1), 0
	if empty {
		list = append(list, "")
	}
	for b := range l.plain() {
		name, size := f.spell(b)
		list, own = append(list, name), own+size
	}
	slices.Sort(list)
	return s.shared.keep(newNameSet(slices.Compact(list), own))
}

// edited is a set with names added and others dropped.
func (s *Sub) edited(t Type, n, add, drop *nameSet) *nameSet {
	switch {
	case !n.changes(add, drop):
		return n
	case n == nil && drop == nil:
		return add
	}
	sum, size := uint64(0), 0
	for name := range n.union(add, drop) {
		sum += hashOf(name)
		size++
	}
	if known := s.shared.names(sum); known != nil && known.len() == size && equalNames(known.all(), n.union(add, drop)) {
		return known
	}
	f := s.finder(s.view(t))
	list, own := make([]string, 0, size), 0
	for name := range n.union(add, drop) {
		list = append(list, name)
		if _, at := f.find([]byte(name), hashOf(name)); at < 0 {
			own += costOf(name)
		}
	}
	return s.shared.keep(newNameSet(list, own))
}

// lacking are the names of a set that are not in a view, in order.
func (n *nameSet) lacking(v TypeView) (out []string) {
	rest := v.lists()
	for _, name := range n.all() {
		known := false
		for i, l := range rest {
			for len(l) > 0 && l[0].Name < name {
				l = l[1:]
			}
			known = known || len(l) > 0 && l[0].Name == name
			rest[i] = l
		}
		if !known {
			out = append(out, name)
		}
	}
	return out
}

// besides are the names of a set that a list in order of names has not, in order.
func (n *nameSet) besides(list []*Resource) (out []string) {
	for _, name := range n.all() {
		for len(list) > 0 && strings.Compare(list[0].Name, name) < 0 {
			list = list[1:]
		}
		if len(list) == 0 || list[0].Name != name {
			out = append(out, name)
		}
	}
	return out
}
