package kube

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// entry is one object as it was decoded.
type entry struct {
	key object.Key
	// object is nil if it has problems of severity Error.
	object   *object.Object
	problems []object.Problem
}

// merger converts what the API server reports to changes of objects. It removes an object only if that was
// reported: by a whole list of its kind without it, by an event of a watch, or by the removal of its kind. Its
// result depends on the sequence of calls and the times given only.
type merger struct {
	place    string // the cluster, for origins
	remote   bool   // it is not the control plane's own
	patience time.Duration
	kinds    map[object.Kind]*kindState
	// complete is set when it is known which kinds are served.
	complete bool
	// api is how finding out which kinds are served goes.
	api     health
	objects map[object.Key]*held
	// own is the ConfigMap with the mesh configuration; named are those that policies name.
	own      object.Key
	named    named
	broken   map[object.Key]bool // objects with problems
	changed  map[object.Key]bool // since the last batch
	synced   bool
	problems []object.Problem // as emitted last
	stale    bool             // problems may have changed
}

// held is one object.
type held struct {
	good, emitted *object.Object
	problems      []object.Problem
	// exists is set if the API server has it; otherwise it is remembered, or was removed.
	exists bool
}

// kindState is how reading the objects of one kind goes.
type kindState struct {
	served bool // it is to be read
	whole  bool // a whole list of it has been read
	// unreadable is set while no version that is read is served, or the permission for it is missing; without is set if it is not waited for then.
	unreadable, without bool
	health
}

// health is whether something is read at present.
type health struct {
	// behind is since when changes may be missing; zero if they are not.
	behind time.Time
	fault  fault
	since  time.Time // of the fault
}

// fault is why something cannot be read.
type fault struct {
	text string
	// lasting is set if it does not end by itself, such as a missing permission.
	lasting bool
}

func newMerger(place string, patience time.Duration, remembered []object.Object, now time.Time) *merger {
	m := &merger{
		place: place, patience: patience, kinds: map[object.Kind]*kindState{}, objects: map[object.Key]*held{},
		broken: map[object.Key]bool{}, changed: map[object.Key]bool{}, api: health{behind: now}, named: named{of: map[object.Key]*namedMap{}},
	}
	for i := range remembered {
		o := remembered[i]
		o.Origin = object.Origin{File: place}
		m.objects[o.Key] = &held{good: &o}
	}
	return m
}

// state returns the state of a kind.
func (m *merger) state(k object.Kind) *kindState {
	s := m.kinds[k]
	if s == nil {
		s = &kindState{}
		m.kinds[k] = s
	}
	return s
}

// serve says that a kind is to be read.
func (m *merger) serve(k object.Kind, now time.Time) {
	s := m.state(k)
	if !s.served {
		*s = kindState{served: true, health: health{behind: now}}
	}
	s.unreadable = false
}

// unreadable says that a kind is defined, and why it cannot be read: no version that can, or no permission. Objects that have been read stay in force. Without any,
// nothing is served before a kind that enforces something can be read, while others are not waited for.
func (m *merger) unreadable(k object.Kind, enforces bool, text string, now time.Time) {
	s := m.state(k)
	if !s.served {
		*s = kindState{served: true}
	}
	s.unreadable, s.without = true, !enforces
	if s.fault.text != text {
		s.fault = fault{} // another one replaces it
	}
	m.fail(&s.health, fault{text: text, lasting: true}, now)
}

// without says that an optional kind cannot be read, and why. It is waited for as long as another kind has not been read: when the API server
// has just started, or the role has just been made, it may refuse what it allows soon. It ends with a whole list of the kind.
func (m *merger) without(k object.Kind, text string, now time.Time) {
	s := m.state(k)
	m.fail(&s.health, fault{text: text, lasting: true}, now)
	if !s.unreadable && m.wholeBut(optional) {
		s.unreadable, s.without, m.stale = true, true, true
	}
}

// withdraw says that a kind is not served any more. Its objects are removed.
func (m *merger) withdraw(k object.Kind) {
	*m.state(k) = kindState{}
	m.replace(k, nil)
	m.state(k).whole = false
	m.stale = true
}

// known says that every kind that is served has been announced.
func (m *merger) known() { m.complete = true }

// replace says that these are all objects of a kind.
func (m *merger) replace(k object.Kind, all []entry) {
	m.state(k).whole, m.state(k).unreadable = true, false
	listed := make(map[object.Key]bool, len(all))
	for _, e := range all {
		listed[e.key] = true
		m.put(e)
	}
	for key := range m.objects {
		if key.Kind == k && !listed[key] && (k != object.ConfigMap || key == m.own) {
			m.remove(key)
		}
	}
}

// put says that an object exists, and what it is. Objects with problems keep their last good value.
func (m *merger) put(e entry) {
	h := m.objects[e.key]
	if h == nil {
		h = &held{}
		m.objects[e.key] = h
	}
	h.exists = true
	if len(h.problems)+len(e.problems) > 0 {
		m.stale = true
		h.problems = e.problems
		if delete(m.broken, e.key); len(e.problems) > 0 {
			m.broken[e.key] = true
		}
	}
	if e.object == nil || h.good != nil && equal(h.good, e.object) {
		return
	}
	h.good = e.object
	m.changed[e.key] = true
	m.named.moved(e.key)
}

// remove says that an object does not exist.
func (m *merger) remove(key object.Key) {
	h := m.objects[key]
	if h == nil {
		return
	}
	m.named.moved(key)
	if m.broken[key] {
		delete(m.broken, key)
		m.stale = true
	}
	if h.good, h.problems, h.exists = nil, nil, false; h.emitted == nil {
		delete(m.objects, key)
		delete(m.changed, key)
		return
	}
	m.changed[key] = true
}

// reading says that something is read without delay.
func (m *merger) reading(h *health) {
	if h.fault != (fault{}) {
		m.stale = true
	}
	*h = health{}
}

// late says that changes may be missing from now on.
func (h *health) late(now time.Time) {
	if h.behind.IsZero() {
		h.behind = now
	}
}

// fail says that something cannot be read. The first fault stays until reading succeeds or its nature changes, so
// that its text does not change with each attempt.
func (m *merger) fail(h *health, f fault, now time.Time) {
	h.late(now)
	if h.fault == (fault{}) || h.fault.lasting != f.lasting {
		h.fault, h.since, m.stale = f, now, true
	}
}

// batch returns what has changed since the last batch, and when to call it again even if nothing is reported; zero
// for never. Before everything has been read it has no changes.
func (m *merger) batch(now time.Time) (b object.Batch, again time.Time) {
	if !m.synced && m.whole() {
		m.synced, m.stale, b.Synced = true, true, true
		for k, h := range m.objects {
			if s := m.state(k.Kind); h.good != nil && (h.exists || !s.served || s.unreadable || m.named.unreadable(k)) {
				m.changed[k] = true
			}
		}
	}
	if m.synced {
		b.Changes = m.changes()
	}
	if m.stale {
		var p []object.Problem
		if p, again = m.current(now); !slices.Equal(p, m.problems) {
			m.problems = p
			b.Problems = append([]object.Problem{}, p...)
		}
		m.stale = !again.IsZero()
	}
	return b, again
}

// whole reports whether everything that is served has been read.
func (m *merger) whole() bool {
	return m.wholeBut(func(object.Kind) bool { return false }) && m.named.whole()
}

// wholeBut is whole for the kinds of which but is false.
func (m *merger) wholeBut(but func(object.Kind) bool) bool {
	if !m.complete {
		return false
	}
	for k, s := range m.kinds {
		if s.served && !s.whole && !(s.unreadable && s.without) && !but(k) {
			return false
		}
	}
	return true
}

func (m *merger) changes() []object.Change {
	var out []object.Change
	var waiting []object.Key
	for k := range m.changed {
		h := m.objects[k]
		if h.emitted == h.good {
			continue
		}
		if m.named.waits(h.good) {
			waiting = append(waiting, k)
			continue
		}
		m.named.moved(k)
		out = append(out, object.Change{Key: k, Object: h.good})
		if h.emitted = h.good; h.good == nil {
			delete(m.objects, k)
		}
	}
	clear(m.changed)
	for _, k := range waiting {
		m.changed[k] = true
	}
	sortChanges(out)
	return out
}

// current returns all problems, and when one more is to be shown.
func (m *merger) current(now time.Time) (all []object.Problem, again time.Time) {
	shown := func(h *health) bool {
		at := h.since.Add(m.patience)
		switch {
		case h.fault == (fault{}):
			return false
		case h.fault.lasting || !now.Before(at):
			return true
		case again.IsZero() || at.Before(again):
			again = at
		}
		return false
	}
	var unreachable *health // the first that could not be read, so that the text stays the same
	list := func(what string, h *health, read bool) {
		switch {
		case !shown(h):
		case h.fault.lasting:
			all = append(all, m.problem(what+" cannot be read: "+h.fault.text, read))
		case unreachable == nil || h.since.Before(unreachable.since):
			unreachable = h
		}
	}
	list("the kinds that are served", &m.api, m.complete)
	anything := m.complete
	all = append(all, m.refused()...)
	for _, k := range object.Kinds() {
		switch s := m.kinds[k]; {
		case s == nil || !s.served:
		case optional(k) && !s.whole && s.fault.lasting: // told in one line, once it is certain
		case s.unreadable && s.without && !s.whole:
			all = append(all, m.withoutEffect(string(k), s.fault.text, m.remembers(k)))
		default:
			list(string(k)+" objects", &s.health, s.whole)
			anything = anything && s.whole
		}
	}
	for _, k := range m.named.sorted() {
		list("ConfigMap "+k.Namespace+"/"+k.Name, &m.named.of[k].health, true)
	}
	if unreachable != nil {
		all = append([]object.Problem{m.problem("the API server cannot be read: "+unreachable.fault.text, anything)}, all...)
	}
	if !m.synced {
		return all, again // those of objects come with the objects
	}
	first := len(all)
	for k := range m.broken {
		all = append(all, m.objects[k].problems...)
	}
	slices.SortStableFunc(all[first:], func(a, b object.Problem) int {
		return cmp.Or(compareKeys(a.Key, b.Key), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Text, b.Text))
	})
	return all, again
}

// refused says which kinds that are not waited for cannot be read, in one line: one permission allows them all.
func (m *merger) refused() []object.Problem {
	var kinds, faults []string
	remembered := false
	for _, k := range object.Kinds() {
		if s := m.kinds[k]; s != nil && s.unreadable && !s.whole && optional(k) {
			kinds, faults = append(kinds, string(k)), append(faults, s.fault.text)
			remembered = remembered || m.remembers(k)
		}
	}
	if kinds == nil {
		return nil
	}
	return []object.Problem{m.withoutEffect(strings.Join(kinds, " and "), strings.Join(faults, "; "), remembered)}
}

// withoutEffect says that objects of some kinds are served without; remembered are those that were read before.
func (m *merger) withoutEffect(kinds, fault string, remembered bool) object.Problem {
	text := kinds + " objects cannot be read: " + fault + "; those of the cluster have no effect"
	if remembered {
		text += ", and what was read before stays in force"
	}
	return object.Problem{Origin: object.Origin{File: m.place}, Text: text}
}

// remembers reports whether there is an object of a kind.
func (m *merger) remembers(k object.Kind) bool {
	for key, h := range m.objects {
		if key.Kind == k && h.good != nil {
			return true
		}
	}
	return false
}

// problem returns a problem of the source itself.
func (m *merger) problem(text string, read bool) object.Problem {
	switch {
	case read:
		text += "; the objects last read stay in force"
	case m.remote:
		text += "; its endpoints are not known until it has been read once"
	default:
		text += "; nothing is served until it has been read once"
	}
	return object.Problem{Origin: object.Origin{File: m.place}, Text: text}
}

// behindSince returns since when changes may be missing; zero if they are not.
func (m *merger) behindSince() time.Time {
	since := m.api.behind
	for _, s := range m.kinds {
		if s.served && !s.behind.IsZero() && (since.IsZero() || s.behind.Before(since)) {
			since = s.behind
		}
	}
	for _, n := range m.named.of {
		if !n.behind.IsZero() && (since.IsZero() || n.behind.Before(since)) {
			since = n.behind
		}
	}
	return since
}

// equal reports whether two values of an object differ at most in what a status changes.
func equal(a, b *object.Object) bool {
	x, y := a.Meta, b.Meta
	return a.Saved.Equal(b.Saved) && a.Origin == b.Origin && x.Created.Equal(y.Created) && x.Generation == y.Generation &&
		sameMap(x.Labels, y.Labels) && sameMap(x.Annotations, y.Annotations) && object.SameSpec(a, b)
}

func sameMap(a, b map[string]string) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}

func compareKeys(a, b object.Key) int {
	return cmp.Or(cmp.Compare(order[a.Kind], order[b.Kind]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// order is the position of each kind in listings.
var order = func() map[object.Kind]int {
	out := map[object.Kind]int{}
	for i, k := range object.Kinds() {
		out[k] = i
	}
	return out
}()

func sortChanges(changes []object.Change) {
	slices.SortFunc(changes, func(a, b object.Change) int { return compareKeys(a.Key, b.Key) })
}
