package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
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
	// after is as in xds.Refusal: the greatest, since all proxies of the class are sent the same versions.
	after uint64
	// since is when it was quarantined.
	since time.Time
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

// refusalsChanged handles what the proxies of connections refuse now. Each class is published once, however many
// of its proxies refuse something.
func (p *publisher) refusalsChanged(ids []string) {
	changed := map[*publishedClass]struct{}{}
	for _, id := range ids {
		if m := p.proxies[id]; m != nil && p.classes[m.class].refusedBy(id, m, p.now()) {
			changed[p.classes[m.class]] = struct{}{}
		}
	}
	if len(changed) == 0 {
		return
	}
	p.begin()
	for c := range changed {
		p.refresh(c)
		for _, m := range c.proxies {
			m.latest.Publish(c.view)
		}
	}
}

// refusedBy notes what a proxy of the class refuses now, and says whether more is in quarantine by it.
func (c *publishedClass) refusedBy(id string, m *publishedProxy, now time.Time) (changed bool) {
	list := m.latest.Refusals()
	c.forget(id, m, list)
	for _, r := range list {
		at := resourceID{r.Resource.Type, r.Resource.Name}
		if has := c.get(at); has == nil || has.Version != r.Resource.Version {
			continue // a newer one is on its way
		}
		f := c.refused[at]
		if f == nil || f.resource.Version != r.Resource.Version {
			f = &refused{resource: r.Resource, message: r.Message, by: map[string]*xds.Resource{}}
			if c.refused == nil {
				c.refused = map[resourceID]*refused{}
			}
			c.refused[at] = f
		}
		f.after = max(f.after, r.After)
		if _, known := f.by[id]; !known {
			m.refuses = append(m.refuses, at)
		}
		f.by[id] = r.Accepted
		if f.quarantined || f.accepted || len(f.by) < quarantineAt {
			continue
		}
		if f.accepted = c.accepts(r.Resource); !f.accepted {
			f.quarantined, f.instead, f.since = true, f.replacement(), now
			changed = true
		}
	}
	return changed
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

// forget forgets what a proxy has refused, but for those in a list. What is in quarantine stays there until it
// changes.
func (c *publishedClass) forget(id string, m *publishedProxy, but []xds.Refusal) {
	if len(m.refuses) == 0 {
		return
	}
	still := make(map[resourceID]string, len(but)) // versions
	for _, r := range but {
		still[resourceID{r.Resource.Type, r.Resource.Name}] = r.Resource.Version
	}
	m.refuses = slices.DeleteFunc(m.refuses, func(at resourceID) bool {
		f := c.refused[at]
		if f == nil {
			return true
		}
		if _, by := f.by[id]; !by {
			return true // it is another version
		}
		if version, ok := still[at]; f.quarantined || ok && version == f.resource.Version {
			return false
		}
		if delete(f.by, id); len(f.by) == 0 {
			delete(c.refused, at)
		}
		return true
	})
}

// drop ends the record of a refused version.
func (c *publishedClass) drop(at resourceID, f *refused) {
	delete(c.refused, at)
	for id := range f.by {
		if m := c.proxies[id]; m != nil {
			m.refuses = slices.DeleteFunc(m.refuses, func(r resourceID) bool { return r == at })
		}
	}
}

// quarantine has the class's view leave out what is in quarantine. What has changed meanwhile comes
// out of it.
func (p *layers) quarantine(c *publishedClass) {
	for at, f := range c.refused {
		if now := c.get(at); now == nil || now.Version != f.resource.Version {
			c.drop(at, f)
		} else if f.quarantined {
			c.view.Quarantined = append(c.view.Quarantined, xds.Quarantined{
				Type: at.typ, Name: at.name, Gone: f.instead == nil, After: f.after, Since: f.since, Message: f.message,
			})
		}
	}
	if len(c.view.Quarantined) == 0 {
		return
	}
	slices.SortFunc(c.view.Quarantined, func(a, b xds.Quarantined) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	for i, l := range c.view.Layers {
		c.view.Layers[i] = p.without(c, l)
	}
}

// heldLayer is what decides a layer in which resources are replaced or left out.
type heldLayer struct {
	of *xds.Layer
	// held has a line for each of the resources, with the version that is in its place.
	held string
}

// without is a layer with what the class has in place of resources in quarantine. Classes for which it is the same
// share one.
func (p *layers) without(c *publishedClass, l *xds.Layer) *xds.Layer {
	var key strings.Builder
	var changes []difference
	for _, q := range c.view.Quarantined {
		if l.Get(q.Type, q.Name) == nil {
			continue
		}
		for int(q.Type) >= len(changes) {
			changes = append(changes, difference{})
		}
		instead := c.refused[resourceID{q.Type, q.Name}].instead
		changes[q.Type].set(q.Name, instead)
		version := ""
		if instead != nil {
			version = instead.Version
		}
		fmt.Fprintf(&key, "%d %q %q\n", q.Type, q.Name, version)
	}
	if key.Len() == 0 {
		return l
	}
	at := heldLayer{l, key.String()}
	held := p.held[at]
	if held == nil {
		held = l
		for t, d := range changes {
			held = held.With(xds.Type(t), d.upserts, d.removes)
		}
		if p.held == nil {
			p.held = map[heldLayer]*xds.Layer{}
		}
		p.held[at] = held
	}
	return held
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

// listener is a listener, one that decides who is let in with what takes its place where it is refused.
func (p *layers) listener(k compile.Key, value []byte) *xds.Resource {
	r := xds.NewEncoded(xds.LDS, k.Name, value)
	in, ok := p.compiler.InboundOf(k)
	if !ok {
		return r
	}
	r.Closed = xds.NewEncoded(xds.LDS, k.Name, in.Closed)
	r.Policy, r.Closed.Policy = policyOf(in), &xds.Policy{Closed: true}
	return r
}

// policyOf is the policy of a listener with this security.
func policyOf(in compile.Inbound) *xds.Policy {
	m := in.Modes
	out := &xds.Policy{Closed: m.Closed, Strict: m.Default == mesh.Strict, Authorization: in.Rules}
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

// refusedVersion is a version of a resource that proxies refuse, whatever their classes.
type refusedVersion struct {
	resourceID
	version string
}

// refusal is a version of a resource that proxies refuse.
type refusal struct {
	refusedVersion
	proxies int
	message string // of the first
	// objects are those that brought it about: those that were read for the resource, and that have changed since a
	// version was accepted.
	objects []object.Key
}

// refusals are the versions that proxies refuse, by type and name. Their objects are found out once for each version,
// however many proxies refuse it, and however often somebody asks.
func (l *loop) refusals() []refusal {
	counts, first := map[refusedVersion]int{}, map[refusedVersion]*refused{}
	classes := map[refusedVersion]*publishedClass{} // of those in first
	for _, c := range l.views.classes {
		for at, f := range c.refused {
			v := refusedVersion{at, f.resource.Version}
			counts[v] += len(f.by)
			if old := first[v]; old == nil || cmp.Or(cmp.Compare(old.after, f.after), strings.Compare(f.message, old.message)) < 0 {
				first[v], classes[v] = f, c
			}
		}
	}
	traces := make(map[refusedVersion][]object.Key, len(first))
	var out []refusal
	for v, f := range first {
		objects, traced := l.traces[v]
		if !traced {
			objects = l.causes(classes[v], v.resourceID, f)
		}
		traces[v] = objects
		out = append(out, refusal{v, counts[v], f.message, objects})
	}
	l.traces = traces
	slices.SortFunc(out, func(a, b refusal) int {
		return cmp.Or(cmp.Compare(a.typ, b.typ), strings.Compare(a.name, b.name), strings.Compare(a.version, b.version))
	})
	return out
}

// refusalProblems are the refusals as problems of their objects.
func (l *loop) refusalProblems() []object.Problem {
	var out []object.Problem
	for _, r := range l.refusals() {
		text := fmt.Sprintf("%s %s refused by %d proxies, which go on with the last version that they accepted: %s",
			r.typ, printable.Escape(r.name), r.proxies, printable.Escape(r.message))
		if len(r.objects) == 0 {
			out = append(out, object.Problem{Severity: object.Warning, Text: text})
		}
		for _, k := range r.objects {
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
	for _, k := range l.why(key, maxWhy) {
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
