package discovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/discovery/statuswriter"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds of what observing costs.
const (
	// observePause is the shortest time between two looks at the loop, observeLimit the longest while proxies are behind.
	observePause, observeLimit = time.Second, 5 * time.Second
	// observedAtOnce is how many objects the loop is asked about at a time.
	observedAtOnce = 50
	// behindAtOnce is how many proxies that are behind are looked at in a round for objects that have not changed.
	behindAtOnce = 50_000
	// recountAfter is how long after proxies have come or gone those of all objects are counted, recountShare how many times
	// as long as the last count took, if that is longer.
	recountAfter, recountShare = 5 * time.Second, 20
	// maxRefusalText bounds what is said of one refusal, in bytes, and maxRefusals how many are reported of one object.
	maxRefusalText, maxRefusals = 400, 5
)

// observer knows how far the objects with statuses have come among the proxies of this replica. It asks the loop
// about those that have changed, and about those with proxies that are behind. Its methods are safe for concurrent use.
type observer struct {
	loop       *loop
	connection func(id string) (xds.Connection, bool)
	// changed is called with the objects of which something else is known, from one goroutine.
	changed func([]object.Key)

	mu      sync.Mutex // guards known and version
	known   map[object.Key]objectstatus.Observation
	version uint64 // counts the looks at which known has changed
	// What follows is used by Run only.
	pending []object.Key  // with proxies that are behind, those first that were looked at longest ago
	recount time.Time     // when all are counted again; zero for not
	took    time.Duration // to count all the last time
	closed  bool          // no proxies were served at the last look
}

// newObserver returns an observer of a loop that does not run yet.
func newObserver(l *loop, connection func(id string) (xds.Connection, bool), changed func([]object.Key)) *observer {
	l.touched = newTouched()
	l.views.onMove = l.touched.move
	return &observer{loop: l, connection: connection, changed: changed, known: map[object.Key]objectstatus.Observation{}}
}

// Keys implements statuswriter.Local.
func (o *observer) Keys() []object.Key {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.known))
}

// Version implements statuswriter.Local.
func (o *observer) Version() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

// Reports implements statuswriter.Local.
func (o *observer) Reports() map[object.Key]objectstatus.Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[object.Key]objectstatus.Report, len(o.known))
	for k, x := range o.known {
		out[k] = x.Report()
	}
	return out
}

// of returns what is known of an object on this replica.
func (o *observer) of(k object.Key) (objectstatus.Observation, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, ok := o.known[k]
	return out, ok
}

// ofAll is what all replicas know of the objects.
type ofAll struct {
	*observer
	replicas *statuswriter.Replicas
}

// Of implements statuswriter.Observations.
func (a ofAll) Of(k object.Key) (objectstatus.Observation, int, bool) {
	if o, ok := a.of(k); ok {
		return a.replicas.Join(k, o)
	}
	return objectstatus.Observation{}, 0, false
}

// Run observes until ctx ends, then returns nil. While nothing changes and no proxy is behind, it does nothing.
func (o *observer) Run(ctx context.Context) error {
	pause := observePause
	for {
		var again <-chan time.Time
		switch {
		case len(o.pending) > 0 || o.closed:
			again = time.After(pause)
		case !o.recount.IsZero():
			again = time.After(time.Until(o.recount))
		}
		select {
		case <-o.loop.touched.wake:
			pause = observePause
		case <-again:
			pause = min(2*pause, observeLimit)
		case <-ctx.Done():
			return nil
		}
		changed, ok := o.look()
		if !ok {
			<-ctx.Done() // the loop has ended
			return nil
		}
		if len(changed) > 0 {
			pause = observePause
			o.mu.Lock()
			o.version++
			o.mu.Unlock()
			o.changed(changed)
		}
		select {
		case <-time.After(observePause):
		case <-ctx.Done():
			return nil
		}
	}
}

// look asks the loop, and returns the objects of which something else is known; false if the loop does not answer.
func (o *observer) look() (changed []object.Key, ok bool) {
	var keys []object.Key
	refusals := map[object.Key][]objectstatus.Finding{}
	moved, open := false, false
	if !o.loop.ask(func() {
		if open = o.loop.gate.open.Load(); !open {
			return // nothing is known for certain; what was noted stays noted
		}
		keys, moved = o.loop.touched.take(func() map[object.Key]bool {
			out := map[object.Key]bool{}
			for _, r := range o.loop.refusals() {
				for _, k := range r.objects {
					out[k] = true
				}
			}
			return out
		})
		if len(o.loop.touched.refused) > 0 {
			refusals = refusalFindings(o.loop.refusals())
		}
	}) {
		return nil, !o.loop.ended()
	}
	if o.closed = !open; o.closed {
		return nil, true
	}
	now := time.Now()
	if moved && o.recount.IsZero() {
		o.recount = now.Add(max(recountAfter, recountShare*o.took))
	}
	if o.recount.IsZero() || now.Before(o.recount) {
		return o.count(keys, refusals)
	}
	o.recount = time.Time{}
	changed, ok = o.count(append(keys, o.Keys()...), refusals)
	o.took = time.Since(now)
	return changed, ok
}

// count counts the proxies of objects, and of as many of those that are pending as may be looked at.
func (o *observer) count(keys []object.Key, refusals map[object.Key][]objectstatus.Finding) (changed []object.Key, ok bool) {
	fresh := map[object.Key]bool{}
	for _, k := range keys {
		fresh[k] = true
	}
	pending := slices.DeleteFunc(o.pending, func(k object.Key) bool { return fresh[k] })
	keys = slices.Concat(slices.Collect(maps.Keys(fresh)), pending)
	o.pending = nil
	views, alive := o.loop.viewsSnapshot()
	if !alive {
		o.pending = keys // the next time
		return nil, !o.loop.ended()
	}
	state, budget := standingOf(views), behindAtOnce
	for n := 0; n < len(keys); n += observedAtOnce {
		if n >= len(fresh) && budget <= 0 {
			o.pending = append(keys[n:], o.pending...)
			break
		}
		chunk := keys[n:min(n+observedAtOnce, len(keys))]
		uses, alive := o.loop.usesOf(chunk)
		if !alive {
			o.pending = append(o.pending, keys[n:]...)
			return changed, !o.loop.ended()
		}
		for i, k := range chunk {
			u := &uses[i]
			u.Refusals = refusals[k]
			behind := 0
			u.Counts, behind = state.counts(u, o.connection)
			budget -= behind
			if o.set(k, u) {
				changed = append(changed, k)
			}
			if u.exists && u.Applied < u.Proxies {
				o.pending = append(o.pending, k)
			}
		}
	}
	return changed, true
}

// set notes what is known of an object, and reports whether that differs.
func (o *observer) set(k object.Key, u *use) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.known[k]
	switch {
	case !u.exists && !known, known && u.exists && before.Same(&u.Observation):
		return false
	case !u.exists:
		delete(o.known, k)
		return true
	}
	o.known[k] = u.Observation
	return true
}

// use is who uses an object, and what is known of it but for the numbers of proxies.
type use struct {
	objectstatus.Observation
	exists bool // something is known
	// serves is set for a Gateway of the Gateway API: its proxies are those of the classes that it is true of.
	serves func(mesh.Class) bool
	// change is whom the newest change concerns. Others use the object, too: those with these classes, and these connections.
	change  concern
	classes map[mesh.Class]bool
	proxies map[string]bool
}

// usesOf finds who uses objects; false if the loop does not answer.
func (l *loop) usesOf(keys []object.Key) (out []use, ok bool) {
	ok = l.ask(func() {
		problems := l.problems.of(keys, func(k object.Key) []object.Problem { return append(l.store.VerdictsOf(k), l.keyProblemsOf(k)...) })
		for _, k := range keys {
			out = append(out, l.useOf(k, problems[k]))
		}
	})
	return out, ok
}

// useOf finds who uses an object. Call it through ask.
func (l *loop) useOf(k object.Key, problems []object.Problem) use {
	u := use{change: l.concernOf(k)}
	if o := u.change.inForce; o != nil {
		u.InForce, u.Generation, u.exists = o.Meta.Generation, o.Meta.Generation, true
		u.Addresses = l.allocated.addressesOf(k)
	}
	if u.GatewayAPI = hasGatewayStatus(k.Kind); u.GatewayAPI {
		u.Gateway = l.gatewayStatuses.of(k)
	}
	gateway, served := k, k.Kind == object.KubernetesGateway
	if o := u.change.inForce; k.Kind == object.ListenerSet && o != nil {
		gateway, served = model.SetGateway(o)
	}
	if served {
		u.serves = func(c mesh.Class) bool { return model.ServesGateway(c.Scope, gateway) }
	}
	for _, p := range problems {
		if f, ok := objectstatus.FindingOf(p); ok {
			u.Findings, u.exists = append(u.Findings, f), true
			u.Generation = max(u.Generation, p.Generation)
		}
	}
	u.classes, u.proxies = map[mesh.Class]bool{}, map[string]bool{}
	if k.Kind == object.Ingress { // no proxies are counted
		u.change = concern{}
		return u
	}
	for d := range l.model.Dependents(k) {
		switch key := d.Key.(type) {
		case compile.Key:
			if layer := l.views.layers.byKey[key.Layer()]; layer != nil {
				layer.since(0, resourceName{l.views.layers.typeOf(key.Kind), key.Name}, func(one *publishedLayer) {
					for c := range one.classes {
						u.classes[c.class] = true
					}
				})
			}
		case model.ProxyKey:
			for id, m := range l.views.byKey[key] {
				if o := u.change.inForce; o == nil || model.Decides(o, m.class) {
					u.proxies[id] = true
				}
			}
		}
	}
	return u
}

// counts counts the proxies that use an object; behind is how many were looked at one by one.
func (s standing) counts(u *use, connection func(id string) (xds.Connection, bool)) (c objectstatus.Counts, behind int) {
	classes, proxies := maps.Clone(u.classes), maps.Clone(u.proxies)
	maps.Copy(classes, u.change.classes)
	maps.Copy(proxies, u.change.proxies)
	for class := range classes {
		if u.serves == nil || u.serves(class) {
			c.Proxies += len(s.byClass[class])
		}
	}
	for id, counts := range proxies {
		if p := s.byID[id]; counts && p != nil && !classes[p.class] && (u.serves == nil || u.serves(p.class)) {
			c.Proxies++
		}
	}
	late, _ := s.behind(u.change)
	c.Applied = max(0, c.Proxies-len(late))
	generation := u.change.change.generation
	for _, p := range late {
		if quarantines(p.view, u.change) {
			c.Refused++
			continue
		}
		if !p.progress.Answered(generation) {
			continue
		}
		state, _ := connection(p.id)
		has, refused := hasChange(p.progress, generation, &u.change.effect, state.Types)
		switch {
		case refused:
			c.Refused++
		case has:
			c.Applied++
		}
	}
	return c, len(late)
}

// refusalFindings are the refusals of each object with a status.
func refusalFindings(refusals []refusal) map[object.Key][]objectstatus.Finding {
	out := map[object.Key][]objectstatus.Finding{}
	for _, r := range refusals {
		f := objectstatus.Finding{
			Code: objectstatus.CodeRefused,
			Text: printable.Clip(fmt.Sprintf("%s %s is refused by proxies, which go on with the last version that they accepted: %s", r.typ, printable.Escape(r.name), printable.Escape(r.message)), maxRefusalText),
		}
		for _, k := range r.objects {
			if hasStatus(k.Kind) && len(out[k]) < maxRefusals {
				out[k] = append(out[k], f)
			}
		}
	}
	return out
}
