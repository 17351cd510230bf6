package discovery

import (
	"fmt"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// layers keeps the layers that classes have, each once. It belongs to the loop's goroutine.
type layers struct {
	compiler *compile.Compiler
	// types is the xDS type of each kind of resource.
	types []xds.Type
	pool  xds.Pool
	byKey map[compile.Layer]*publishedLayer
}

// publishedLayer is one layer and the classes that have it.
type publishedLayer struct {
	key compile.Layer
	// keys are its resources in order; those whose rule gives nothing have no part in layer.
	keys    []compile.Key
	layer   *xds.Layer
	classes map[*publishedClass]struct{}
	// pending is what has changed since layer was made, by type.
	pending []difference
}

type difference struct {
	upserts []*xds.Resource
	removes []string
}

func newLayers(c *compile.Compiler) layers {
	return layers{compiler: c, types: xdsTypes(compile.Kinds(), compile.Kind.TypeURL), byKey: map[compile.Layer]*publishedLayer{}}
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

// enter gives a class a layer, which is made if no class has it yet.
func (p *layers) enter(key compile.Layer, c *publishedClass) *publishedLayer {
	l := p.byKey[key]
	if l == nil {
		l = &publishedLayer{key: key, classes: map[*publishedClass]struct{}{}}
		p.byKey[key] = l
		p.setKeys(l, p.compiler.Names().Want(key))
		l.commit()
	}
	l.classes[c] = struct{}{}
	return l
}

// exit takes a layer from a class, and drops it with the last one.
func (p *layers) exit(l *publishedLayer, c *publishedClass) {
	if delete(l.classes, c); len(l.classes) > 0 {
		return
	}
	for _, k := range l.keys {
		p.compiler.Resource(k.Kind).Unwant(k)
	}
	p.compiler.Names().Unwant(l.key)
	delete(p.byKey, l.key)
}

// update applies what moved in the graph to the layers, and returns the classes that have one that
// changed.
func (p *layers) update(moved []incr.Moved) map[*publishedClass]struct{} {
	touched := map[*publishedLayer]struct{}{}
	for _, m := range moved {
		if key, ok := m.Key.(compile.Layer); ok {
			l := p.byKey[key]
			keys, _ := p.compiler.Names().Value(key)
			p.setKeys(l, keys)
			touched[l] = struct{}{}
		}
	}
	for _, m := range moved {
		if k, ok := p.compiler.Moved(m); ok {
			if l := p.byKey[k.Layer()]; l != nil && p.replace(l, k) {
				touched[l] = struct{}{}
			}
		}
	}
	changed := map[*publishedClass]struct{}{}
	for l := range touched {
		if l.commit() {
			for c := range l.classes {
				changed[c] = struct{}{}
			}
		}
	}
	return changed
}

// setKeys makes a layer have exactly these resources, which are in order.
func (p *layers) setKeys(l *publishedLayer, keys []compile.Key) {
	old, rest := l.keys, keys
	l.keys = keys
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
		if order >= 0 {
			if k := rest[0]; order > 0 {
				p.change(l, k, p.compiler.Resource(k.Kind).Want(k))
			}
			rest = rest[1:]
		}
		if order <= 0 {
			if k := old[0]; order < 0 {
				p.change(l, k, nil)
				p.compiler.Resource(k.Kind).Unwant(k)
			}
			old = old[1:]
		}
	}
}

// replace gives a resource's new bytes to its layer; false where it is not in it any more, because
// its name was dropped in the same commit.
func (p *layers) replace(l *publishedLayer, k compile.Key) bool {
	if _, ok := slices.BinarySearchFunc(l.keys, k, compile.Key.Compare); !ok {
		return false
	}
	value, _ := p.compiler.Resource(k.Kind).Value(k)
	p.change(l, k, value)
	return true
}

// change notes that a resource has another value; nil is none.
func (p *layers) change(l *publishedLayer, k compile.Key, value []byte) {
	t := p.typeOf(k.Kind)
	for int(t) >= len(l.pending) {
		l.pending = append(l.pending, difference{})
	}
	d := &l.pending[t]
	if r := p.resource(k, value); r != nil {
		d.upserts = append(d.upserts, r)
	} else {
		d.removes = append(d.removes, k.Name)
	}
}

// resource is a value on the wire, nil where there is none.
func (p *layers) resource(k compile.Key, value []byte) *xds.Resource {
	if value == nil {
		return nil
	}
	t := p.typeOf(k.Kind)
	if t != xds.CDS {
		return p.pool.Intern(xds.NewResource(t, k.Name, value))
	}
	needs := ""
	if k.EDS {
		needs = k.Name
	}
	return p.pool.Intern(xds.NewCluster(k.Name, value, needs))
}

// commit makes the layer anew of what is pending, and says whether it is another one.
func (l *publishedLayer) commit() bool {
	before := l.layer
	for t, d := range l.pending {
		l.layer = l.layer.With(xds.Type(t), d.upserts, d.removes)
	}
	l.pending = nil
	return l.layer != before
}
