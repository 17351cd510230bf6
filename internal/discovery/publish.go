package discovery

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// publisher keeps the views of the classes that have proxies, from what the graph says
// has moved. It belongs to the loop's goroutine.
type publisher struct {
	graph    *incr.Graph
	compiler *compile.Compiler
	classify *incr.Rule[model.ProxyKey, mesh.Class]
	// types is the xDS type of each kind of resource.
	types     []xds.Type
	pool      xds.Pool
	resources map[compile.Key]*publishedResource
	classes   map[mesh.Class]*publishedClass
	proxies   map[string]*publishedProxy // by connection
	byKey     map[model.ProxyKey]map[string]*publishedProxy
	// generation counts the commits that moved something.
	generation uint64
	// current is the last snapshot, nil once anything in it has changed.
	current *viewsSnapshot
}

// publishedResource is one resource and the classes that have it.
type publishedResource struct {
	resource *xds.Resource // nil while its rule gives nothing
	classes  map[mesh.Class]*publishedClass
}

type publishedClass struct {
	keys    []compile.Key
	view    *xds.View
	proxies map[string]*publishedProxy
	// pending is what has changed since view was made.
	pending map[xds.Type]*difference
}

type difference struct {
	upserts []*xds.Resource
	removes []string
}

// publishedProxy is one connected proxy.
type publishedProxy struct {
	key    model.ProxyKey
	class  mesh.Class
	latest *xds.LatestView
}

// viewsSnapshot is what proxies shall have at one moment. It and all that it refers to are
// immutable.
type viewsSnapshot struct {
	generation uint64
	// resources is the number of different ones.
	resources int
	// proxies are by connection.
	proxies map[string]proxySnapshot
	classes map[mesh.Class]classSnapshot
}

type proxySnapshot struct {
	class mesh.Class
	view  *xds.View
}

type classSnapshot struct {
	proxies   []string // connections, sorted
	resources int
}

// snapshot is what proxies shall have now. It is made when it is asked for, and again only
// after something has changed.
func (p *publisher) snapshot() *viewsSnapshot {
	if p.current != nil {
		s := *p.current
		s.resources = p.pool.Len() // it shrinks by itself
		return &s
	}
	s := &viewsSnapshot{
		generation: p.generation, resources: p.pool.Len(),
		proxies: make(map[string]proxySnapshot, len(p.proxies)), classes: make(map[mesh.Class]classSnapshot, len(p.classes)),
	}
	for class, c := range p.classes {
		s.classes[class] = classSnapshot{proxies: slices.Sorted(maps.Keys(c.proxies)), resources: len(c.keys)}
		for id := range c.proxies {
			s.proxies[id] = proxySnapshot{class: class, view: c.view}
		}
	}
	p.current = s
	return s
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
func (p *publisher) typeOf(k compile.Kind) xds.Type {
	if int(k) >= len(p.types) {
		panic(fmt.Sprintf("discovery: resource of unknown kind %d", k))
	}
	return p.types[k]
}

func newPublisher(g *incr.Graph, m *model.Model, c *compile.Compiler) *publisher {
	return &publisher{
		graph: g, compiler: c, classify: m.Classify(), types: xdsTypes(compile.Kinds(), compile.Kind.TypeURL),
		resources: map[compile.Key]*publishedResource{}, classes: map[mesh.Class]*publishedClass{},
		proxies: map[string]*publishedProxy{}, byKey: map[model.ProxyKey]map[string]*publishedProxy{},
	}
}

// join adds a proxy and returns where its views will appear; the first is there already.
func (p *publisher) join(id string, key model.ProxyKey) *xds.LatestView {
	m := &publishedProxy{key: key, class: p.classify.Want(key), latest: xds.NewLatestView(nil)}
	p.proxies[id] = m
	if p.byKey[key] == nil {
		p.byKey[key] = map[string]*publishedProxy{}
	}
	p.byKey[key][id] = m
	p.enter(id, m)
	return m.latest
}

// leave forgets a proxy, and its class if it was the last one.
func (p *publisher) leave(id string) {
	m := p.proxies[id]
	if m == nil {
		return
	}
	delete(p.proxies, id)
	if delete(p.byKey[m.key], id); len(p.byKey[m.key]) == 0 {
		delete(p.byKey, m.key)
	}
	p.exit(id, m)
	p.classify.Unwant(m.key)
	p.graph.Run() // drop what is not wanted any more
}

// enter puts a proxy into its class and shows it the class's view.
func (p *publisher) enter(id string, m *publishedProxy) {
	p.current = nil
	c := p.classes[m.class]
	if c == nil {
		c = &publishedClass{view: &xds.View{}, proxies: map[string]*publishedProxy{}, pending: map[xds.Type]*difference{}}
		p.classes[m.class] = c
		p.setKeys(m.class, c, p.compiler.Names().Want(m.class))
		p.generation++
		c.commit(p.generation)
	}
	c.proxies[id] = m
	m.latest.Publish(c.view)
}

func (p *publisher) exit(id string, m *publishedProxy) {
	p.current = nil
	c := p.classes[m.class]
	if delete(c.proxies, id); len(c.proxies) > 0 {
		return
	}
	p.setKeys(m.class, c, nil)
	p.compiler.Names().Unwant(m.class)
	delete(p.classes, m.class)
}

// setKeys makes a class have exactly these resources.
func (p *publisher) setKeys(class mesh.Class, c *publishedClass, keys []compile.Key) {
	old := make(map[compile.Key]bool, len(c.keys))
	for _, k := range c.keys {
		old[k] = true
	}
	for _, k := range keys {
		if old[k] {
			delete(old, k)
			continue
		}
		h := p.resources[k]
		if h == nil {
			h = &publishedResource{classes: map[mesh.Class]*publishedClass{}}
			p.resources[k] = h
			h.resource = p.resource(k, p.compiler.Resource(k.Kind).Want(k))
		}
		h.classes[class] = c
		if h.resource != nil {
			c.change(p.typeOf(k.Kind)).upserts = append(c.change(p.typeOf(k.Kind)).upserts, h.resource)
		}
	}
	for k := range old {
		h := p.resources[k]
		delete(h.classes, class)
		c.change(p.typeOf(k.Kind)).removes = append(c.change(p.typeOf(k.Kind)).removes, k.Name)
		if len(h.classes) == 0 {
			delete(p.resources, k)
			p.compiler.Resource(k.Kind).Unwant(k)
		}
	}
	c.keys = keys
}

// update applies what moved in the graph to the views, publishes those that changed, and
// returns how many classes did.
func (p *publisher) update(moved []incr.Moved) int {
	for _, m := range moved {
		if class, ok := m.Key.(mesh.Class); ok {
			keys, _ := p.compiler.Names().Value(class)
			p.setKeys(class, p.classes[class], keys)
		}
	}
	for _, m := range moved {
		if k, ok := p.compiler.Moved(m); ok {
			p.replace(k)
		}
	}
	for _, m := range moved {
		if key, ok := m.Key.(model.ProxyKey); ok {
			class, _ := p.classify.Value(key)
			for id, proxy := range p.byKey[key] {
				p.exit(id, proxy)
				proxy.class = class
				p.enter(id, proxy)
			}
		}
	}
	changed := 0
	for _, c := range p.classes {
		if len(c.pending) == 0 {
			continue
		}
		if changed == 0 {
			p.generation++
			p.current = nil
		}
		changed++
		c.commit(p.generation)
		for _, m := range c.proxies {
			m.latest.Publish(c.view)
		}
	}
	p.graph.Run()
	return changed
}

// replace gives a resource's new bytes to the classes that have it.
func (p *publisher) replace(k compile.Key) {
	h := p.resources[k]
	if h == nil {
		return // its class dropped it in the same commit
	}
	value, _ := p.compiler.Resource(k.Kind).Value(k)
	h.resource = p.resource(k, value)
	for _, c := range h.classes {
		d := c.change(p.typeOf(k.Kind))
		if h.resource == nil {
			d.removes = append(d.removes, k.Name)
		} else {
			d.upserts = append(d.upserts, h.resource)
		}
	}
}

func (p *publisher) resource(k compile.Key, value []byte) *xds.Resource {
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

func (c *publishedClass) change(t xds.Type) *difference {
	d := c.pending[t]
	if d == nil {
		d = &difference{}
		c.pending[t] = d
	}
	return d
}

func (c *publishedClass) commit(generation uint64) {
	v := c.view
	for t, d := range c.pending {
		v = v.With(t, d.upserts, d.removes)
	}
	clear(c.pending)
	c.view = v.At(generation)
}
