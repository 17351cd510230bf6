package xds

import (
	"iter"
	"slices"
	"strings"
	"sync/atomic"
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

// WithOver is With for a layer that has most of a type from base: responses then share the encoded bytes of base.
func (l *Layer) WithOver(base *Layer, t Type, upserts []*Resource, removes []string) *Layer {
	n := l.With(t, upserts, removes)
	if changed := n.of(t); changed != nil && changed != l.of(t) && changed != base.of(t) {
		changed.base = base.of(t)
	}
	return n
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

// All ranges over the resources of a type in order of their names.
func (l *Layer) All(t Type) iter.Seq[*Resource] { return slices.Values(l.of(t).all()) }

// Count is the number of resources of a type.
func (l *Layer) Count(t Type) int { return l.of(t).len() }

// Len is the number of resources.
func (l *Layer) Len() (n int) {
	for t := range numTypes {
		n += l.of(t).len()
	}
	return n
}

// Size is the size of the resources, in bytes, without what they have in common with those of other layers. It takes time in proportion to their number.
func (l *Layer) Size() (bytes int) {
	for t := range numTypes {
		for _, r := range l.of(t).all() {
			bytes += r.OwnSize()
		}
	}
	return bytes
}

func (l *Layer) of(t Type) *set {
	if l == nil {
		return nil
	}
	return l.sets[t]
}

// maxChunk is the greatest number of resources in a chunk, minChunk the least of one that is not
// joined with the one before it, where the two have room in one.
const (
	maxChunk = 64
	minChunk = maxChunk / 4
)

// set is the resources of one type in one layer, in order of their names. It is immutable. A nil
// set is empty, and every empty set is nil.
//
// The resources are in chunks, which sets share: a set that is made of another by a few changes
// costs the chunks that these are in.
type set struct {
	chunks []*chunk // none is empty
	count  int
	// list is what all returns, made when it is asked for, so that the streams that are sent the
	// whole set share it.
	list atomic.Pointer[[]*Resource]
	// base is a set that has most of the resources, and whose chunks are sent in place of those of this one; nil
	// if there is none. It is set before the set is shared.
	base *set
}

// chunk is a part of a set. Its list is immutable.
type chunk struct {
	list        []*Resource
	delta, sotw sharedFrames
}

// frames are those of the protocol.
func (c *chunk) frames(delta bool) *sharedFrames {
	if delta {
		return &c.delta
	}
	return &c.sotw
}

func (c *chunk) last() string { return c.list[len(c.list)-1].Name }

// setOf is a set of resources that are in order of names, no two with the same.
func setOf(list []*Resource) *set {
	var b setBuilder
	b.add(list)
	return b.set()
}

// setBuilder makes a set of chunks, in order.
type setBuilder struct {
	chunks []*chunk
	count  int
}

// keep adds a chunk of another set.
func (b *setBuilder) keep(c *chunk) {
	b.chunks = append(b.chunks, c)
	b.count += len(c.list)
}

// add adds resources in chunks of their own, or with those that were added last where they are few.
func (b *setBuilder) add(list []*Resource) {
	if end := len(b.chunks) - 1; end >= 0 && len(list) > 0 {
		before := b.chunks[end].list
		if min(len(before), len(list)) < minChunk && len(before)+len(list) <= maxChunk {
			b.chunks, b.count = b.chunks[:end], b.count-len(before)
			list = slices.Concat(before, list)
		}
	}
	b.count += len(list)
	for pieces := (len(list) + maxChunk - 1) / maxChunk; pieces > 0; pieces-- {
		n := len(list) / pieces
		b.chunks = append(b.chunks, &chunk{list: list[:n:n]})
		list = list[n:]
	}
}

func (b *setBuilder) set() *set {
	if b.count == 0 {
		return nil
	}
	return &set{chunks: b.chunks, count: b.count}
}

func (s *set) len() int {
	if s == nil {
		return 0
	}
	return s.count
}

// all is a list of the set's resources, which must not be changed. Any goroutine may ask for it.
func (s *set) all() []*Resource {
	switch {
	case s == nil:
		return nil
	case len(s.chunks) == 1:
		return s.chunks[0].list
	}
	if list := s.list.Load(); list != nil {
		return *list
	}
	out := make([]*Resource, 0, s.count)
	for _, c := range s.chunks {
		out = append(out, c.list...)
	}
	s.list.Store(&out)
	return out
}

// chunkOf is the index of the chunk that a name is in, or is to be added to.
func chunkOf(chunks []*chunk, name string) int {
	i, _ := slices.BinarySearchFunc(chunks, name, func(c *chunk, name string) int { return strings.Compare(c.last(), name) })
	return min(i, len(chunks)-1)
}

// get is the resource of that name, or nil.
func (s *set) get(name string) *Resource {
	if s == nil {
		return nil
	}
	list := s.chunks[chunkOf(s.chunks, name)].list
	if i, ok := slices.BinarySearchFunc(list, name, byName); ok {
		return list[i]
	}
	return nil
}

// cursor is a place in a set. Its zero value is the end of one.
type cursor struct {
	chunks []*chunk
	at     int // in the first of chunks
}

// start is the place of the set's first resource.
func (s *set) start() cursor {
	if s == nil {
		return cursor{}
	}
	return cursor{chunks: s.chunks}
}

// head is the resource at the place, nil at the end.
func (c *cursor) head() *Resource {
	if len(c.chunks) == 0 {
		return nil
	}
	return c.chunks[0].list[c.at]
}

func (c *cursor) next() {
	if c.at++; c.at == len(c.chunks[0].list) {
		c.chunks, c.at = c.chunks[1:], 0
	}
}

// seek moves on to the first resource whose name is not less than one.
func (c *cursor) seek(name string) {
	for len(c.chunks) > 0 && c.chunks[0].last() < name {
		c.chunks, c.at = c.chunks[1:], 0
	}
	if len(c.chunks) > 0 {
		i, _ := slices.BinarySearchFunc(c.chunks[0].list[c.at:], name, byName)
		c.at += i
	}
}

// rest adds to list what is left.
func (c *cursor) rest(list []*Resource) []*Resource {
	for ; len(c.chunks) > 0; c.chunks, c.at = c.chunks[1:], 0 {
		list = append(list, c.chunks[0].list[c.at:]...)
	}
	return list
}

// edit is a name that changes: to a resource, or to nothing.
type edit struct {
	name     string
	resource *Resource
}

// with is as Layer.With.
func (s *set) with(upserts []*Resource, removes []string) *set {
	edits := sortedEdits(upserts, removes)
	if s == nil {
		list, _ := applyEdits(nil, edits)
		return setOf(list)
	}
	b := setBuilder{chunks: make([]*chunk, 0, len(s.chunks)+1)}
	changed := false
	rest := s.chunks
	for len(edits) > 0 {
		i := chunkOf(rest, edits[0].name)
		for _, c := range rest[:i] {
			b.keep(c)
		}
		c := rest[i]
		rest = rest[i+1:]
		n := len(edits)
		if len(rest) > 0 {
			n, _ = slices.BinarySearchFunc(edits, c.last(), func(e edit, name string) int {
				if e.name <= name {
					return -1
				}
				return 1
			})
		}
		if list, other := applyEdits(c.list, edits[:n]); other {
			b.add(list)
			changed = true
		} else {
			b.keep(c)
		}
		edits = edits[n:]
	}
	if !changed {
		return s
	}
	for _, c := range rest {
		b.keep(c)
	}
	return b.set()
}

// applyEdits is a list with edits, which are in order, and whether it is another one.
func applyEdits(rest []*Resource, edits []edit) (list []*Resource, changed bool) {
	list = make([]*Resource, 0, len(rest)+len(edits))
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
	return append(list, rest...), changed
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

// between is the difference between two sets. It costs the chunks that they do not share.
func between(old, cur *set) step {
	if old == nil || cur == nil {
		return step{upserts: cur.all(), removed: old.all()}
	}
	var d step
	a, b := old.start(), cur.start()
	for len(a.chunks) > 0 && len(b.chunks) > 0 {
		if a.at == 0 && b.at == 0 && a.chunks[0] == b.chunks[0] {
			a.chunks, b.chunks = a.chunks[1:], b.chunks[1:]
			continue
		}
		x, y := a.head(), b.head()
		if x == y {
			a.next()
			b.next()
			continue
		}
		switch c := order(x, y); {
		case c < 0:
			d.removed = append(d.removed, x)
			a.next()
		case c > 0:
			d.upserts = append(d.upserts, y)
			b.next()
		default:
			if !same(x, y) {
				d.upserts = append(d.upserts, y)
			}
			a.next()
			b.next()
		}
	}
	d.removed, d.upserts = a.rest(d.removed), b.rest(d.upserts)
	return d
}
