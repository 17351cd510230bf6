package discovery

import (
	"fmt"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// layers keeps the layers that classes have, each once. It belongs to the loop's goroutine.
type layers struct {
	compiler *compile.Compiler
	// types is the xDS type of each kind of resource.
	types []xds.Type
	pool  xds.Pool
	// commons are what resources are made of that have most in common, by the first byte of that. They are kept until the end of the next
	// update.
	commons map[*byte]*xds.Common
	byKey   map[compile.Layer]*publishedLayer
	// idleBytes is the size of the layers that only idle classes have.
	idleBytes int
	// held are the layers that were made for what is in quarantine in this generation.
	held map[heldLayer]*xds.Layer
	// causes are those of what update is changing, and moves what it has changed so far.
	updating bool
	causes   incr.Causes
	moves    []move
}

// publishedLayer is one layer and the classes that have it.
type publishedLayer struct {
	key compile.Layer
	// made is the generation in which the layer was made.
	made uint64
	// keys are its resources in order; those whose rule gives nothing have no part in layer.
	keys    []compile.Key
	layer   *xds.Layer
	classes map[*publishedClass]struct{}
	// used is how many of the classes have proxies. While it is zero, idleBytes is the layer's size.
	used, idleBytes int
	// pending is what has changed since layer was made, by type.
	pending []difference
	// derivation is set of a derived layer, and derived lists those that have this one as their base.
	derivation *derivation
	derived    map[*publishedLayer]struct{}
}

type difference struct {
	upserts []*xds.Resource
	removes []string
	// absent are names of a derived layer's own that do not exist, whatever its base has.
	absent []string
}

func newLayers(c *compile.Compiler) layers {
	return layers{compiler: c, types: xdsTypes(compile.Kinds(), compile.Kind.TypeURL), byKey: map[compile.Layer]*publishedLayer{}, commons: map[*byte]*xds.Common{}}
}

// xdsTypes is the type of each kind of resource. It panics for a kind whose type is not served.
func xdsTypes(kinds []compile.Kind, url func(compile.Kind) string) []xds.Type {
	out := make([]xds.Type, len(kinds))
	for i, k := range kinds {
		t, ok := xds.ParseType(url(k))
		if !ok {
			panic(fmt.Sprintf("discovery: kind %d makes resources of type %s, which is not served; give it a row in the table of package xds", k, url(k)))
		}
		out[i] = t
	}
	return out
}

// typeOf is the type of a kind's resources. It panics for a kind that is not in compile's table.
func (p *layers) typeOf(k compile.Kind) xds.Type {
	if int(k) >= len(p.types) {
		panic(fmt.Sprintf("discovery: resource of unknown kind %d", k))
	}
	return p.types[k]
}

// enter gives a class a layer, which is made in this generation if no class has it yet.
func (p *layers) enter(key compile.Layer, c *publishedClass, generation uint64) *publishedLayer {
	l := p.get(key, generation)
	l.classes[c] = struct{}{}
	return l
}

// get returns a layer, which is made in this generation if there is none yet.
func (p *layers) get(key compile.Layer, generation uint64) *publishedLayer {
	if l := p.byKey[key]; l != nil {
		return l
	}
	l := &publishedLayer{key: key, made: generation, classes: map[*publishedClass]struct{}{}, derived: map[*publishedLayer]struct{}{}}
	p.byKey[key] = l
	contents := p.compiler.Names().Want(key)
	if contents.Derived {
		base := p.get(contents.Base, generation)
		base.derived[l] = struct{}{}
		l.derivation = &derivation{base: base}
		l.layer = base.layer
	}
	p.setContents(l, contents)
	l.commit(nil)
	return l
}

// use notes that a class that has the layer, or one derived from it, has got proxies; unuse that it has none any
// more.
func (p *layers) use(l *publishedLayer) {
	l.used++
	p.weigh(l)
	if l.derivation != nil {
		p.use(l.derivation.base)
	}
}

func (p *layers) unuse(l *publishedLayer) {
	l.used--
	p.weigh(l)
	if l.derivation != nil {
		p.unuse(l.derivation.base)
	}
}

// weigh counts a layer's size among that of the idle ones if it is one of them.
func (p *layers) weigh(l *publishedLayer) {
	size := 0
	if l.used == 0 {
		size = p.ownSize(l)
	}
	p.idleBytes += size - l.idleBytes
	l.idleBytes = size
}

// ownSize is the size of a layer's resources in bytes, without those that a derived layer has from its base.
func (p *layers) ownSize(l *publishedLayer) (bytes int) {
	if l.derivation == nil {
		return l.layer.Size()
	}
	for _, k := range l.keys {
		if r := l.layer.Get(p.typeOf(k.Kind), k.Name); r != nil {
			bytes += r.OwnSize()
		}
	}
	return bytes
}

// exit takes a layer from a class without proxies, and drops it with the last one.
func (p *layers) exit(l *publishedLayer, c *publishedClass) {
	delete(l.classes, c)
	p.drop(l)
}

// drop drops a layer, and its base, unless a class has it or another layer is derived from it.
func (p *layers) drop(l *publishedLayer) {
	if len(l.classes)+len(l.derived) > 0 {
		return
	}
	p.idleBytes -= l.idleBytes
	for _, k := range l.keys {
		p.compiler.Resource(k.Kind).Unwant(k)
	}
	p.compiler.Names().Unwant(l.key)
	delete(p.byKey, l.key)
	if l.derivation != nil {
		delete(l.derivation.base.derived, l)
		p.drop(l.derivation.base)
	}
}

// update applies what moved in the graph to the layers, and returns the classes that have one that
// changed, and what has changed in which layer.
func (p *layers) update(moved []incr.Moved) (map[*publishedClass]struct{}, []move) {
	p.updating = true
	touched := map[*publishedLayer]struct{}{}
	for _, m := range moved {
		if key, ok := m.Key.(compile.Layer); ok {
			p.causes = m.Causes
			l := p.byKey[key]
			contents, _ := p.compiler.Names().Value(key)
			p.setContents(l, contents)
			touched[l] = struct{}{}
		}
	}
	for _, m := range moved {
		if k, ok := p.compiler.Moved(m); ok {
			p.causes = m.Causes
			if l := p.byKey[k.Layer()]; l != nil && p.replace(l, k) {
				touched[l] = struct{}{}
			}
		}
	}
	changed := map[*publishedClass]struct{}{}
	before := map[*publishedLayer]*xds.Layer{} // of layers that are others now
	commit := func(l *publishedLayer, base []difference) {
		old := l.layer
		another := l.commit(base)
		p.weigh(l)
		if !another {
			return
		}
		before[l] = old
		for c := range l.classes {
			changed[c] = struct{}{}
		}
	}
	// A layer is committed after the one that it is derived from, with what that has committed.
	var commitAll func(l *publishedLayer, base []difference)
	commitAll = func(l *publishedLayer, base []difference) {
		pending := together(together(base, l.pending), l.derivation.touched())
		commit(l, base)
		delete(touched, l)
		for d := range l.derived {
			commitAll(d, pending)
		}
	}
	for depth := 0; len(touched) > 0; depth++ {
		for l := range touched {
			if l.depth() == depth {
				commitAll(l, nil)
			}
		}
	}
	moves := p.movesOf(before)
	p.updating, p.causes, p.moves = false, 0, nil
	clear(p.commons)
	return changed, moves
}

// movesOf returns those of the moves that make a difference to layers as they were before. What moves in a
// base also moves in the layers that are derived from it.
func (p *layers) movesOf(before map[*publishedLayer]*xds.Layer) (out []move) {
	add := func(l *publishedLayer, m move) {
		if old, ok := before[l]; ok && old.Get(m.name.typ, m.name.name) != l.layer.Get(m.name.typ, m.name.name) {
			m.layer = l.key
			out = append(out, m)
		}
	}
	var addAll func(l *publishedLayer, m move)
	addAll = func(l *publishedLayer, m move) {
		add(l, m)
		for d := range l.derived {
			addAll(d, m)
		}
	}
	for _, m := range p.moves {
		addAll(p.byKey[m.layer], m)
	}
	return out
}

// depth is how many layers there are below a layer: 0 for one that is not derived.
func (l *publishedLayer) depth() int {
	if l.derivation == nil {
		return 0
	}
	return 1 + l.derivation.base.depth()
}

// together returns the differences of two lists, by type.
func together(a, b []difference) []difference {
	out := make([]difference, max(len(a), len(b)))
	for _, list := range [][]difference{a, b} {
		for t, d := range list {
			o := &out[t]
			o.upserts = append(o.upserts, d.upserts...)
			o.removes = append(o.removes, d.removes...)
			o.absent = append(o.absent, d.absent...)
		}
	}
	return out
}

// setContents makes a layer have exactly these resources of its own.
func (p *layers) setContents(l *publishedLayer, c compile.Contents) {
	p.setKeys(l, c.Keys)
	if l.derivation != nil {
		p.setHidden(l, c.Hidden)
	}
}

// setKeys makes a layer have exactly these resources, which are in order.
func (p *layers) setKeys(l *publishedLayer, keys []compile.Key) {
	old, rest := l.keys, keys
	l.keys = keys
	var added, removed []compile.Key
	for len(old) > 0 || len(rest) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(rest) == 0:
			order = -1
		default:
			order = old[0].Compare(rest[0])
		}
		if order > 0 {
			added = append(added, rest[0])
		}
		if order < 0 {
			removed = append(removed, old[0])
		}
		if order >= 0 {
			rest = rest[1:]
		}
		if order <= 0 {
			old = old[1:]
		}
	}
	for i, value := range p.compiler.WantAll(added) {
		p.change(l, added[i], value)
	}
	for _, k := range removed {
		p.change(l, k, compile.Body{})
		p.compiler.Resource(k.Kind).Unwant(k)
	}
}

// replace gives a resource's new bytes to its layer; false where it is not in it any more, because
// its name was dropped in the same commit.
func (p *layers) replace(l *publishedLayer, k compile.Key) bool {
	if !l.has(k) {
		return false
	}
	value, _ := p.compiler.Resource(k.Kind).Value(k)
	p.change(l, k, value)
	return true
}

// has reports whether a resource is one of the layer's own.
func (l *publishedLayer) has(k compile.Key) bool {
	_, ok := slices.BinarySearchFunc(l.keys, k, compile.Key.Compare)
	return ok
}

// change notes that a resource has another value.
func (p *layers) change(l *publishedLayer, k compile.Key, value compile.Body) {
	p.note(l, k)
	d := l.pendingOf(p.typeOf(k.Kind))
	r := p.resource(k, value)
	if r == nil && l.derivation != nil && l.has(k) {
		d.absent = append(d.absent, k.Name)
	} else {
		d.set(k.Name, r)
	}
}

// note notes that a resource of a layer changes because of the current causes.
func (p *layers) note(l *publishedLayer, k compile.Key) {
	if p.updating {
		p.moves = append(p.moves, move{layer: l.key, name: resourceName{p.typeOf(k.Kind), k.Name}, causes: p.causes})
	}
}

// pendingOf is what is pending of a type.
func (l *publishedLayer) pendingOf(t xds.Type) *difference {
	for int(t) >= len(l.pending) {
		l.pending = append(l.pending, difference{})
	}
	return &l.pending[t]
}

// resource is a value on the wire, nil where there is none.
func (p *layers) resource(k compile.Key, value compile.Body) *xds.Resource {
	if value.None() {
		return nil
	}
	t := p.typeOf(k.Kind)
	if j := value.Joined; j != nil {
		return p.pool.Intern(p.commonOf(t, j).NewJoined(k.Name, j))
	}
	if t == xds.LDS {
		return p.pool.Intern(p.listener(k, value.Bytes))
	}
	if k.SeparateHosts {
		return p.pool.Intern(xds.NewSeparateRoutes(k.Name, value.Bytes))
	}
	if t != xds.CDS {
		return p.pool.Intern(xds.NewEncoded(t, k.Name, value.Bytes))
	}
	needs := ""
	if k.EDS {
		needs = k.Name
	}
	return p.pool.Intern(xds.NewEncodedCluster(k.Name, value.Bytes, needs))
}

// commonOf is what a resource is made of, which is read once for all that are.
func (p *layers) commonOf(t xds.Type, j *marshal.Joined) *xds.Common {
	if len(j.Common) == 0 {
		return xds.NewCommon(t, nil)
	}
	first := &j.Common[0][0]
	if p.commons[first] == nil {
		p.commons[first] = xds.NewCommon(t, j.Common)
	}
	return p.commons[first]
}

// commit makes the layer anew of what is pending, and of a derived one also of what its base has
// committed. It says whether it is another one.
func (l *publishedLayer) commit(base []difference) bool {
	before := l.layer
	if l.derivation != nil {
		l.layer = l.derivation.commit(l.layer, l.pending, base)
	} else {
		for t, d := range l.pending {
			l.layer = l.layer.With(xds.Type(t), d.upserts, d.removes)
		}
	}
	l.pending = nil
	return l.layer != before
}
