package discovery

import (
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
	pool     xds.Pool
	held     map[compile.Key]*held
	classes  map[mesh.Class]*classState
	members  map[string]*member
	byKey    map[model.ProxyKey]map[string]*member
	// generation counts the commits that moved something.
	generation uint64
}

// held is one resource and the classes that have it.
type held struct {
	resource *xds.Resource // nil while its rule gives nothing
	classes  map[mesh.Class]*classState
}

type classState struct {
	keys    []compile.Key
	view    *xds.View
	members map[string]*member
	// pending is what has changed since view was made.
	pending map[xds.Type]*difference
}

type difference struct {
	upserts []*xds.Resource
	removes []string
}

// member is one connected proxy.
type member struct {
	key   model.ProxyKey
	class mesh.Class
	cell  *xds.Cell
}

func newPublisher(g *incr.Graph, m *model.Model, c *compile.Compiler) *publisher {
	return &publisher{
		graph: g, compiler: c, classify: m.Classify(),
		held: map[compile.Key]*held{}, classes: map[mesh.Class]*classState{},
		members: map[string]*member{}, byKey: map[model.ProxyKey]map[string]*member{},
	}
}

// join adds a proxy and returns the cell where its views will appear; the first is there already.
func (p *publisher) join(id string, key model.ProxyKey) *xds.Cell {
	m := &member{key: key, class: p.classify.Want(key), cell: xds.NewCell(nil)}
	p.members[id] = m
	if p.byKey[key] == nil {
		p.byKey[key] = map[string]*member{}
	}
	p.byKey[key][id] = m
	p.enter(id, m)
	return m.cell
}

// leave forgets a proxy, and its class if it was the last one.
func (p *publisher) leave(id string) {
	m := p.members[id]
	if m == nil {
		return
	}
	delete(p.members, id)
	if delete(p.byKey[m.key], id); len(p.byKey[m.key]) == 0 {
		delete(p.byKey, m.key)
	}
	p.exit(id, m)
	p.classify.Unwant(m.key)
	p.graph.Run() // drop what nobody wants any more
}

// enter puts a member into its class and shows it the class's view.
func (p *publisher) enter(id string, m *member) {
	c := p.classes[m.class]
	if c == nil {
		c = &classState{view: &xds.View{}, members: map[string]*member{}, pending: map[xds.Type]*difference{}}
		p.classes[m.class] = c
		p.setKeys(m.class, c, p.compiler.Names().Want(m.class))
		p.generation++
		c.commit(p.generation)
	}
	c.members[id] = m
	m.cell.Publish(c.view)
}

func (p *publisher) exit(id string, m *member) {
	c := p.classes[m.class]
	if delete(c.members, id); len(c.members) > 0 {
		return
	}
	p.setKeys(m.class, c, nil)
	p.compiler.Names().Unwant(m.class)
	delete(p.classes, m.class)
}

// setKeys makes a class have exactly these resources.
func (p *publisher) setKeys(class mesh.Class, c *classState, keys []compile.Key) {
	old := make(map[compile.Key]bool, len(c.keys))
	for _, k := range c.keys {
		old[k] = true
	}
	for _, k := range keys {
		if old[k] {
			delete(old, k)
			continue
		}
		h := p.held[k]
		if h == nil {
			h = &held{classes: map[mesh.Class]*classState{}}
			p.held[k] = h
			h.resource = p.resource(k, p.compiler.Resource(k.Kind).Want(k))
		}
		h.classes[class] = c
		if h.resource != nil {
			c.change(typeOf(k.Kind)).upserts = append(c.change(typeOf(k.Kind)).upserts, h.resource)
		}
	}
	for k := range old {
		h := p.held[k]
		delete(h.classes, class)
		c.change(typeOf(k.Kind)).removes = append(c.change(typeOf(k.Kind)).removes, k.Name)
		if len(h.classes) == 0 {
			delete(p.held, k)
			p.compiler.Resource(k.Kind).Unwant(k)
		}
	}
	c.keys = keys
}

// update takes what moved in the graph into the views, publishes those that changed, and
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
			for id, member := range p.byKey[key] {
				p.exit(id, member)
				member.class = class
				p.enter(id, member)
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
		}
		changed++
		c.commit(p.generation)
		for _, m := range c.members {
			m.cell.Publish(c.view)
		}
	}
	p.graph.Run()
	return changed
}

// replace takes a resource's new bytes into the classes that have it.
func (p *publisher) replace(k compile.Key) {
	h := p.held[k]
	if h == nil {
		return // its class dropped it in the same commit
	}
	value, _ := p.compiler.Resource(k.Kind).Value(k)
	h.resource = p.resource(k, value)
	for _, c := range h.classes {
		d := c.change(typeOf(k.Kind))
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
	t := typeOf(k.Kind)
	if t != xds.CDS {
		return p.pool.Intern(xds.NewResource(t, k.Name, value))
	}
	needs := ""
	if k.EDS {
		needs = k.Name
	}
	return p.pool.Intern(xds.NewCluster(k.Name, value, needs))
}

func typeOf(k compile.Kind) xds.Type {
	switch k {
	case compile.Endpoints:
		return xds.EDS
	case compile.Listener, compile.ListenerInbound:
		return xds.LDS
	case compile.Route:
		return xds.RDS
	}
	return xds.CDS
}

func (c *classState) change(t xds.Type) *difference {
	d := c.pending[t]
	if d == nil {
		d = &difference{}
		c.pending[t] = d
	}
	return d
}

func (c *classState) commit(generation uint64) {
	v := c.view
	for t, d := range c.pending {
		v = v.With(t, d.upserts, d.removes)
	}
	clear(c.pending)
	c.view = v.At(generation)
}
