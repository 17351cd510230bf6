package discovery

import (
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
)

// derivation is how a derived layer differs from its base. What is in it is proportional to that, and so
// is the cost of a change.
type derivation struct {
	base *publishedLayer
	// hidden are keys of the base's resources that the layer lacks, in order.
	hidden []compile.Key
	types  []derivedType
}

// derivedType is how a derived layer differs from its base in the resources of one type.
type derivedType struct {
	// own are the layer's own resources by name; nil is one that does not exist.
	own    map[string]*xds.Resource
	hidden map[string]struct{}
	// differs are the names that the layer has in another version than its base, or that only one of
	// them has. If there are none, the two share one set.
	differs map[string]struct{}
	// touched are names that are to be compared at the next commit.
	touched map[string]struct{}
}

func (d *derivation) of(t xds.Type) *derivedType {
	for int(t) >= len(d.types) {
		d.types = append(d.types, derivedType{
			own: map[string]*xds.Resource{}, hidden: map[string]struct{}{}, differs: map[string]struct{}{}, touched: map[string]struct{}{},
		})
	}
	return &d.types[t]
}

// setHidden makes a derived layer lack exactly these resources of its base, which are in order.
func (p *layers) setHidden(l *publishedLayer, keys []compile.Key) {
	d := l.derivation
	for _, k := range d.hidden {
		p.note(l, k)
		t := d.of(p.typeOf(k.Kind))
		delete(t.hidden, k.Name)
		t.touched[k.Name] = struct{}{}
	}
	for _, k := range keys {
		p.note(l, k)
		t := d.of(p.typeOf(k.Kind))
		t.hidden[k.Name] = struct{}{}
		t.touched[k.Name] = struct{}{}
	}
	d.hidden = keys
}

// shares reports whether a derived layer has what its base has under a name.
func (d *derivation) shares(n resourceName) bool {
	t := d.of(n.typ)
	_, own := t.own[n.name]
	_, hidden := t.hidden[n.name]
	return !own && !hidden
}

// touched are the names that the next commit compares, also those that only get or lose their place in hidden. They are
// given as ones that are removed, which is the same to a layer that is derived from this one.
func (d *derivation) touched() []difference {
	if d == nil {
		return nil
	}
	out := make([]difference, len(d.types))
	for t := range d.types {
		for name := range d.types[t].touched {
			out[t].removes = append(out[t].removes, name)
		}
	}
	return out
}

// commit returns the layer that follows on l: with own changes of the layer, and with those that its
// base has committed.
func (d *derivation) commit(l *xds.Layer, own, base []difference) *xds.Layer {
	for t, changes := range own {
		d.of(xds.Type(t)).change(changes)
	}
	for t, changes := range base {
		d.of(xds.Type(t)).touch(changes)
	}
	for t := range d.types {
		l = d.types[t].commit(xds.Type(t), l, d.base.layer)
	}
	if l.Equal(d.base.layer) {
		return d.base.layer
	}
	return l
}

// change replaces resources of the layer's own.
func (d *derivedType) change(c difference) {
	for _, name := range c.removes {
		delete(d.own, name)
	}
	for _, name := range c.absent {
		d.own[name] = nil
	}
	for _, r := range c.upserts {
		d.own[r.Name] = r
	}
	d.touch(c)
}

// touch marks everything in a difference.
func (d *derivedType) touch(c difference) {
	for _, name := range c.removes {
		d.touched[name] = struct{}{}
	}
	for _, name := range c.absent {
		d.touched[name] = struct{}{}
	}
	for _, r := range c.upserts {
		d.touched[r.Name] = struct{}{}
	}
}

// commit compares what was touched, and returns l with it.
func (d *derivedType) commit(t xds.Type, l, base *xds.Layer) *xds.Layer {
	shared := len(d.differs) == 0
	var changes difference
	for name := range d.touched {
		r, differs := d.resource(t, name, base)
		if differs {
			d.differs[name] = struct{}{}
		} else {
			delete(d.differs, name)
		}
		changes.set(name, r)
	}
	clear(d.touched)
	switch {
	case len(d.differs) == 0:
		return l.WithSetOf(t, base)
	case !shared:
		return l.WithOver(base, t, changes.upserts, changes.removes)
	}
	changes = difference{}
	for name := range d.differs {
		r, _ := d.resource(t, name, base)
		changes.set(name, r)
	}
	return l.WithSetOf(t, base).WithOver(base, t, changes.upserts, changes.removes)
}

// resource returns the layer's resource of a name, nil for none, and whether it is another than the base's.
func (d *derivedType) resource(t xds.Type, name string, base *xds.Layer) (r *xds.Resource, differs bool) {
	theirs := base.Get(t, name)
	r, own := d.own[name]
	_, hidden := d.hidden[name]
	switch {
	case !own && !hidden:
		return theirs, false
	case r == nil || theirs == nil:
		return r, r != theirs
	case r.Version == theirs.Version && r.Needs == theirs.Needs:
		return theirs, false
	}
	return r, true
}

// set notes that a name has a resource, nil for none.
func (d *difference) set(name string, r *xds.Resource) {
	if r == nil {
		d.removes = append(d.removes, name)
	} else {
		d.upserts = append(d.upserts, r)
	}
}
