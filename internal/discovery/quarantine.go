package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// quarantineAt is how many proxies of a class must have refused a version of a resource, none of them
// having accepted it, until no further proxy of the class is sent it.
const quarantineAt = 2

// resourceID names a resource of a class.
type resourceID struct {
	typ  xds.Type
	name string
}

// refused is a version of a resource that proxies of a class refuse.
type refused struct {
	resource *xds.Resource
	message  string // of the first
	// after and generation are as in xds.Refusal, of the first.
	after, generation uint64
	// by are the connections whose proxies have refused it, with what each goes on with.
	by map[string]*xds.Resource
	// accepted: a proxy of the class has accepted it. quarantined: the class has instead in its place,
	// nothing if that is nil.
	accepted, quarantined bool
	instead               *xds.Resource
}

// replacement is what a class gets in place of a refused resource, nil for nothing.
func (f *refused) replacement() *xds.Resource {
	for _, id := range slices.Sorted(maps.Keys(f.by)) {
		if r := f.by[id]; r != nil && len(r.Body) > 0 {
			return xds.InPlaceOf(f.resource, r)
		}
	}
	return nil
}

// refusalsChanged handles what the proxy of a connection refuses now.
func (p *publisher) refusalsChanged(id string) {
	m := p.proxies[id]
	if m == nil {
		return
	}
	c := p.classes[m.class]
	list := m.latest.Refusals()
	c.forget(id, list)
	changed := false
	for _, r := range list {
		at := resourceID{r.Resource.Type, r.Resource.Name}
		if now := c.get(at); now == nil || now.Version != r.Resource.Version {
			continue // a newer one is on its way
		}
		f := c.refused[at]
		if f == nil || f.resource.Version != r.Resource.Version {
			f = &refused{resource: r.Resource, message: r.Message, after: r.After, generation: r.Generation, by: map[string]*xds.Resource{}}
			if c.refused == nil {
				c.refused = map[resourceID]*refused{}
			}
			c.refused[at] = f
		}
		f.by[id] = r.Accepted
		if f.quarantined || f.accepted || len(f.by) < quarantineAt {
			continue
		}
		if f.accepted = c.accepts(r.Resource); !f.accepted {
			f.quarantined, f.instead = true, f.replacement()
			changed = true
		}
	}
	if !changed {
		return
	}
	p.current = nil
	p.generation++
	c.refresh(p.generation)
	for _, m := range c.proxies {
		m.latest.Publish(c.view)
	}
}

// get is what the layers of the class have, whatever is in quarantine.
func (c *publishedClass) get(at resourceID) *xds.Resource {
	for _, l := range c.layers {
		if r := l.layer.Get(at.typ, at.name); r != nil {
			return r
		}
	}
	return nil
}

// accepts says whether a proxy of the class has accepted a resource.
func (c *publishedClass) accepts(r *xds.Resource) bool {
	for _, m := range c.proxies {
		if m.latest.Accepts(r) {
			return true
		}
	}
	return false
}

// forget forgets what the proxy of a connection has refused, but for those in a list. What is in
// quarantine stays there until it changes.
func (c *publishedClass) forget(id string, but []xds.Refusal) {
	for at, f := range c.refused {
		if f.quarantined || slices.ContainsFunc(but, func(r xds.Refusal) bool {
			return r.Resource.Version == f.resource.Version && r.Resource.Name == at.name
		}) {
			continue
		}
		if delete(f.by, id); len(f.by) == 0 {
			delete(c.refused, at)
		}
	}
}

// quarantine has the class's view leave out what is in quarantine. What has changed meanwhile comes
// out of it.
func (c *publishedClass) quarantine() {
	for at, f := range c.refused {
		if now := c.get(at); now == nil || now.Version != f.resource.Version {
			delete(c.refused, at)
			continue
		}
		if !f.quarantined {
			continue
		}
		for i, l := range c.view.Layers {
			switch {
			case l.Get(at.typ, at.name) == nil:
			case f.instead != nil:
				c.view.Layers[i] = l.With(at.typ, []*xds.Resource{f.instead}, nil)
			default:
				c.view.Layers[i] = l.With(at.typ, nil, []string{at.name})
			}
		}
		c.view.Quarantined = append(c.view.Quarantined, xds.Quarantined{Type: at.typ, Name: at.name, Gone: f.instead == nil})
	}
	slices.SortFunc(c.view.Quarantined, func(a, b xds.Quarantined) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
}

// countQuarantined is how many resources are in quarantine, by type, each for each class.
func (p *publisher) countQuarantined() map[xds.Type]int {
	out := map[xds.Type]int{}
	for _, c := range p.classes {
		for at, f := range c.refused {
			if f.quarantined {
				out[at.typ]++
			}
		}
	}
	return out
}

// inbound is a listener of inbound connections with what takes its place where it is refused.
func (p *layers) inbound(k compile.Key, value []byte) *xds.Resource {
	r := xds.NewEncoded(xds.LDS, k.Name, value)
	in, ok := p.compiler.InboundOf(k)
	if !ok {
		return r
	}
	r.Closed = xds.NewEncoded(xds.LDS, k.Name, in.Closed)
	r.Policy, r.Closed.Policy = policyOf(in.Modes), &xds.Policy{Closed: true}
	return r
}

// policyOf is the policy of a listener with these modes.
func policyOf(m model.Modes) *xds.Policy {
	out := &xds.Policy{Closed: m.Closed, Strict: m.Default == mesh.Strict}
	for port, mode := range m.Ports {
		if out.Ports == nil {
			out.Ports = map[uint32]bool{}
		}
		out.Ports[port] = mode == mesh.Strict
	}
	return out
}

// maxBlamed is how many objects a refusal is reported for.
const maxBlamed = 10

// refusalProblems are the resources that proxies refuse, as problems of the objects that brought them
// about: those that were read for the resource, and that have changed since a version was accepted.
func (l *loop) refusalProblems() []object.Problem {
	type id struct {
		resourceID
		version string
	}
	counts, first := map[id]int{}, map[id]*refused{}
	objects := map[id][]object.Key{}
	for _, c := range l.views.classes {
		for at, f := range c.refused {
			i := id{at, f.resource.Version}
			counts[i] += len(f.by)
			if first[i] == nil || f.message < first[i].message {
				first[i] = f
			}
			if objects[i] == nil {
				objects[i] = l.causes(c, at, f)
			}
		}
	}
	var out []object.Problem
	for i, f := range first {
		text := fmt.Sprintf("%s %s refused by %d proxies, which go on with the last version that they accepted: %s",
			i.typ, printable.Escape(i.name), counts[i], printable.Escape(f.message))
		if len(objects[i]) == 0 {
			out = append(out, object.Problem{Severity: object.Warning, Text: text})
		}
		for _, k := range objects[i] {
			p := object.Problem{Severity: object.Warning, Key: k, Text: text}
			if o, ok := l.store.Get(k); ok {
				p.Origin = o.Origin
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}

// causes are the objects that a refused resource of a class was made from and that have changed since
// the last accepted version.
func (l *loop) causes(c *publishedClass, at resourceID, f *refused) (out []object.Key) {
	key, ok := l.views.keyOf(c, at)
	if !ok {
		return nil
	}
	for _, k := range l.views.compiler.Why(key, maxWhy) {
		if l.applied.objects[k].generation > f.after && len(out) < maxBlamed {
			out = append(out, k)
		}
	}
	return out
}

// keyOf is the key of a resource of a class.
func (p *publisher) keyOf(c *publishedClass, at resourceID) (compile.Key, bool) {
	for _, l := range c.layers {
		for l != nil {
			for _, k := range l.keys {
				if k.Name == at.name && p.layers.typeOf(k.Kind) == at.typ {
					return k, true
				}
			}
			if l.derivation == nil {
				break
			}
			l = l.derivation.base
		}
	}
	return compile.Key{}, false
}
