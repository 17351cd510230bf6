package discovery

import (
	"maps"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// publisher keeps the views of the classes that have proxies, and for a while of those that had,
// from what the graph says has moved. A view's layers are made once for all classes that have them.
// It belongs to the loop's goroutine.
type publisher struct {
	graph    *incr.Graph
	compiler *compile.Compiler
	classify *incr.Rule[model.ProxyKey, mesh.Class]
	hosts    *incr.Rule[model.ProxyKey, string]
	layers   layers
	barriers barriers
	// names are the name tables of scopes whose applications' DNS queries are answered by agents.
	names   map[mesh.Scope]*publishedNames
	classes map[mesh.Class]*publishedClass
	idle    idleClasses
	now     func() time.Time
	proxies map[string]*publishedProxy // by connection
	byKey   map[model.ProxyKey]map[string]*publishedProxy
	// generation is the number of the last commit that changed the configuration. Proxies that
	// join do not raise it.
	generation uint64
	// published is how many proxies got another view in the last update.
	published int
	// onRefusal is called from any goroutine when what the proxy of a connection refuses has changed.
	onRefusal func(id string)
	// onApplied is called from any goroutine with the generations of changes that a proxy has applied, and onGone with those
	// that one has left without.
	onApplied, onGone func(generations []uint64)
	// onListeners is called from any goroutine when the proxy of a connection has answered listeners that are awaited.
	onListeners func(id string)
	// onMove is called when proxies have come or gone, or have another class.
	onMove func()
	// before and steps are what update fills, empty between its calls.
	before map[*publishedClass]*xds.View
	steps  []publishedStep
	// current is the last snapshot, nil once anything in it has changed.
	current *viewsSnapshot
}

type publishedClass struct {
	class   mesh.Class
	layers  [compile.NumLayers]*publishedLayer
	names   *publishedNames // nil for none
	view    *xds.View
	proxies map[string]*publishedProxy
	// refused are the resources that proxies of the class refuse.
	refused map[resourceID]*refused
}

// refresh makes a class's view of its layers.
func (p *publisher) refresh(c *publishedClass) {
	c.view = &xds.View{Generation: p.generation}
	for i, l := range c.layers {
		c.view.Layers[i] = l.layer
	}
	if c.names != nil {
		c.view.Names = c.names.table
	}
	c.view.Barrier = barrierFor(c.class, p.barriers.open)
	if len(c.refused) > 0 {
		p.layers.quarantine(c)
	}
}

// resources is how many resources the class has.
func (c *publishedClass) resources() (n int) {
	for _, l := range c.layers {
		n += l.layer.Len()
	}
	return n
}

// publishedProxy is one connected proxy.
type publishedProxy struct {
	key    model.ProxyKey
	class  mesh.Class
	latest *xds.LatestView
	joined uint64 // the generation at that time
	// refuses are those of the class's refused resources that it refuses.
	refuses []resourceID
}

// viewsSnapshot is what proxies shall have at one moment. It and all that it refers to are
// immutable.
type viewsSnapshot struct {
	generation uint64
	// resources is the number of different ones.
	resources int
	// proxies are by connection.
	proxies map[string]proxySnapshot
	// classes are those with proxies.
	classes map[mesh.Class]classSnapshot
	// idleClasses is how many classes without proxies are kept, idleBytes the size of the resources
	// that only they have.
	idleClasses, idleBytes int
	// quarantined is how many resources are in quarantine, by type, each for each class.
	quarantined map[xds.Type]int
}

type proxySnapshot struct {
	class  mesh.Class
	view   *xds.View
	latest *xds.LatestView
}

// progress is how far the proxy is. It has not applied what is in quarantine in its view.
func (p proxySnapshot) progress() xds.Progress {
	out := p.latest.Progress()
	for _, q := range p.view.Quarantined {
		if lacks := q.After + 1; out.Missing == 0 || lacks < out.Missing {
			out.Missing, out.Since = lacks, q.Since
		}
	}
	return out
}

// applied is the newest generation up to which the proxy has applied everything that was for it, as of
// its progress.
func (s *viewsSnapshot) applied(p xds.Progress) uint64 {
	if p.Missing == 0 {
		return s.generation
	}
	return min(p.Missing-1, s.generation)
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
		s.resources = p.layers.pool.Len() // it shrinks by itself
		return &s
	}
	s := &viewsSnapshot{
		generation: p.generation, resources: p.layers.pool.Len(), idleClasses: len(p.idle.list), idleBytes: p.layers.idleBytes,
		quarantined: p.countQuarantined(),
		proxies:     make(map[string]proxySnapshot, len(p.proxies)), classes: make(map[mesh.Class]classSnapshot, len(p.classes)),
	}
	for class, c := range p.classes {
		if len(c.proxies) == 0 {
			continue
		}
		s.classes[class] = classSnapshot{proxies: slices.Sorted(maps.Keys(c.proxies)), resources: c.resources()}
		for id := range c.proxies {
			s.proxies[id] = proxySnapshot{class: class, view: c.view, latest: c.proxies[id].latest}
		}
	}
	p.current = s
	return s
}

func newPublisher(g *incr.Graph, m *model.Model, c *compile.Compiler) *publisher {
	return &publisher{
		graph: g, compiler: c, classify: m.Classify(), hosts: m.Hosts(), layers: newLayers(c), names: map[mesh.Scope]*publishedNames{}, classes: map[mesh.Class]*publishedClass{},
		idle: idleClasses{limits: defaultIdleLimits}, now: time.Now, onRefusal: func(string) {}, onListeners: func(string) {}, onMove: func() {},
		onApplied: func([]uint64) {}, onGone: func([]uint64) {}, before: map[*publishedClass]*xds.View{},
		proxies: map[string]*publishedProxy{}, byKey: map[model.ProxyKey]map[string]*publishedProxy{},
	}
}

// begin begins the next generation: what is updated from now on belongs to it.
func (p *publisher) begin() {
	p.generation++
	p.current = nil
	p.layers.held = nil
}

// join adds a proxy and returns where its views will appear; the first is there already.
func (p *publisher) join(id string, key model.ProxyKey) *xds.LatestView {
	m := &publishedProxy{key: key, class: p.classify.Want(key), joined: p.generation}
	p.proxies[id] = m
	if p.byKey[key] == nil {
		p.byKey[key] = map[string]*publishedProxy{}
	}
	p.byKey[key][id] = m
	m.latest = xds.NewLatestView(p.enter(id, m).view)
	m.latest.OnRefusal(func() { p.onRefusal(id) })
	m.latest.OnListeners(func() { p.onListeners(id) })
	m.latest.OnApplied(func(generations []uint64) { p.onApplied(generations) })
	return m.latest
}

// leave forgets a proxy. Its class is kept for a while, even if it was the last one.
func (p *publisher) leave(id string) {
	m := p.proxies[id]
	if m == nil {
		return
	}
	delete(p.proxies, id)
	if delete(p.byKey[m.key], id); len(p.byKey[m.key]) == 0 {
		delete(p.byKey, m.key)
	}
	p.exit(id, m.class)
	p.classify.Unwant(m.key)
	p.dropIdle()
	p.onGone(m.latest.Awaited())
}

// enter puts a proxy into its class.
func (p *publisher) enter(id string, m *publishedProxy) *publishedClass {
	p.current = nil
	p.onMove()
	c := p.classes[m.class]
	if c == nil {
		c = &publishedClass{class: m.class, proxies: map[string]*publishedProxy{}}
		for i, l := range compile.Layers(m.class) {
			c.layers[i] = p.layers.enter(l, c, p.generation)
		}
		p.enterNames(c)
		p.refresh(c)
		p.classes[m.class] = c
	}
	if len(c.proxies) == 0 {
		p.idle.remove(c)
		for _, l := range c.layers {
			p.layers.use(l)
		}
	}
	c.proxies[id] = m
	return c
}

// exit takes a proxy out of a class, which is idle then if it was the last one.
func (p *publisher) exit(id string, class mesh.Class) {
	p.current = nil
	p.onMove()
	c := p.classes[class]
	c.forget(id, c.proxies[id], nil)
	if delete(c.proxies, id); len(c.proxies) > 0 {
		return
	}
	for _, l := range c.layers {
		p.layers.unuse(l)
	}
	p.idle.add(c, p.now())
}

// dropIdle drops the classes that are idle past a limit, and all that is not wanted any more.
func (p *publisher) dropIdle() {
	for c := p.idle.excess(p.layers.idleBytes, p.now()); c != nil; c = p.idle.excess(p.layers.idleBytes, p.now()) {
		p.current = nil
		p.idle.remove(c)
		delete(p.classes, c.class)
		for _, l := range c.layers {
			p.layers.exit(l, c)
		}
		p.exitNames(c)
	}
	p.graph.Run()
}

// update applies what moved in the graph to the views, publishes those that changed, and returns how many
// classes have another view or proxies of another class, and what changed because of what. policies are those among the objects that the commit
// has changed.
func (p *publisher) update(moved []incr.Moved, policies ...object.Key) (classes int, moves []move) {
	p.published = 0
	changed, moves := p.layers.update(moved)
	p.updateNames(moved, changed)
	before := p.before // empty, as steps is: every change of a big mesh needs both
	defer func() {
		clear(before)
		clear(p.steps)
		p.steps = p.steps[:0]
	}()
	if len(changed) > 0 {
		p.current = nil
		for c := range changed {
			before[c] = c.view
			p.refresh(c)
		}
	}
	steps := p.steps
	another := map[string]bool{} // connections with another class
	for _, m := range moved {
		if key, ok := m.Key.(model.ProxyKey); ok {
			class, _ := p.classify.Value(key)
			steps = append(steps, p.reclassify(key, class, before)...)
			for id := range p.byKey[key] {
				another[id] = true
				moves = append(moves, move{proxy: id, causes: m.Causes})
			}
		}
	}
	for c := range changed {
		steps = append(steps, publishedStep{viewStep{c.class, before[c], c.view}, c.proxies, another})
	}
	p.bar(steps, policies)
	p.steps = steps
	entered := map[mesh.Class]bool{} // by proxies of another class
	for id := range another {
		if m := p.proxies[id]; m != nil {
			if c := p.classes[m.class]; before[c] == nil {
				entered[m.class] = true
				p.publish(m, c.view)
			}
		}
	}
	for c := range changed {
		for _, m := range c.proxies {
			p.publish(m, c.view)
		}
	}
	p.dropIdle()
	return len(changed) + len(entered), moves
}

// publish publishes a view to a proxy because of a change.
func (p *publisher) publish(m *publishedProxy, v *xds.View) {
	if m.latest.Await(p.generation) {
		p.published++
	}
	m.latest.PublishAt(v, p.generation)
}

// reclassify moves the proxies of a key to a class, and returns the steps between their views; before has those that
// classes had before the commit, where that changes them.
func (p *publisher) reclassify(key model.ProxyKey, class mesh.Class, before map[*publishedClass]*xds.View) (steps []publishedStep) {
	for id, m := range p.byKey[key] {
		from := p.classes[m.class]
		old := before[from]
		if old == nil {
			old = from.view
		}
		was := m.class
		m.class = class
		c := p.enter(id, m) // before the exit, so that what both classes have stays
		if was != class {
			p.exit(id, was)
		}
		steps = append(steps, publishedStep{viewStep{class, old, c.view}, map[string]*publishedProxy{id: m}, nil})
	}
	return steps
}
