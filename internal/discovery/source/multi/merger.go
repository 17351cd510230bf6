package multi

import (
	"cmp"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// merger joins what several sources report to the changes of one. Of an object that several have, the first of them
// is in force, in the order of their ranks. Its result depends on the sequence of calls only.
type merger struct {
	parts   map[string]*part
	emitted map[object.Key]*object.Object
	changed map[object.Key]bool // since the last batch
	synced  bool
	// awaited are what the first batch waits for, besides parts: names of lists of parts that are not known yet.
	awaited  map[string]bool
	findings map[string][]object.Problem // by what has found them, such as the list of remote clusters
	problems []object.Problem            // as emitted last
	stale    bool                        // problems may have changed
}

// part is one source.
type part struct {
	rank int
	// accepts reports whether objects of a kind are taken from it; refusal says why others are not, and is empty if
	// that goes without saying.
	accepts func(object.Kind) bool
	refusal string
	// remembered are what an earlier process had read of it. They are in force if the source is given up.
	remembered []object.Object
	objects    map[object.Key]*object.Object
	// inherited are the objects that the source itself has not reported: those remembered, and those of the source that
	// had its place. They are gone if it has not when it is synced.
	inherited map[object.Key]bool
	problems  []object.Problem
	synced    bool
	late      string // why the first batch does not wait for it any more
}

func newMerger(awaited ...string) *merger {
	m := &merger{
		parts: map[string]*part{}, emitted: map[object.Key]*object.Object{}, changed: map[object.Key]bool{},
		awaited: map[string]bool{}, findings: map[string][]object.Problem{},
	}
	for _, what := range awaited {
		m.awaited[what] = true
	}
	return m
}

// everything is what the first source is taken for.
func everything(object.Kind) bool { return true }

// istioKinds is what directories are taken for.
func istioKinds(k object.Kind) bool { return decode.Defined(k) }

// notIstioKinds is what a cluster is taken for if Istio's kinds are read elsewhere only.
func notIstioKinds(k object.Kind) bool { return !istioKinds(k) }

// add adds a source. What a source with that name has reported before stays until the new one is synced.
func (m *merger) add(name string, p part) {
	if old := m.parts[name]; old != nil {
		p.objects, p.problems, p.late = old.objects, old.problems, old.late
		p.inherited = make(map[object.Key]bool, len(p.objects))
		for k := range p.objects {
			p.inherited[k] = true
		}
		if old.synced {
			p.remembered = nil
		}
	}
	if p.objects == nil {
		p.objects, p.inherited = map[object.Key]*object.Object{}, map[object.Key]bool{}
	}
	m.parts[name] = &p
	m.recompute(&p)
}

// recompute has all objects of a part looked at again.
func (m *merger) recompute(p *part) {
	for k := range p.objects {
		m.changed[k] = true
	}
	m.stale = true
}

// change changes which kinds are taken from a source, and its rank.
func (m *merger) change(name string, rank int, accepts func(object.Kind) bool) {
	if p := m.parts[name]; p != nil {
		p.rank, p.accepts = rank, accepts
		m.recompute(p)
	}
}

// drop removes a source and its objects.
func (m *merger) drop(name string) {
	if p := m.parts[name]; p != nil {
		m.recompute(p)
		delete(m.parts, name)
	}
}

// known says that a list of parts that was awaited is known, or is not waited for any more.
func (m *merger) known(what string) { delete(m.awaited, what) }

// find replaces the problems that something else than a source has found.
func (m *merger) find(what string, problems []object.Problem) {
	m.findings[what], m.stale = problems, true
}

// apply takes a batch of a source.
func (m *merger) apply(name string, b object.Batch) {
	p := m.parts[name]
	if p == nil {
		return
	}
	for _, c := range b.Changes {
		delete(p.inherited, c.Key)
		m.set(p, c.Key, c.Object)
	}
	if b.Synced {
		for k := range p.inherited {
			m.set(p, k, nil)
		}
		p.synced, p.late, p.remembered, p.inherited, m.stale = true, "", nil, nil, true
	}
	if b.Problems != nil {
		p.problems, m.stale = b.Problems, true
	}
}

// giveUp says that the first batch does not wait for a source that is not synced. What an earlier process had read of
// it is in force until it is.
func (m *merger) giveUp(name, why string) {
	p := m.parts[name]
	if p == nil || p.synced {
		return
	}
	for i := range p.remembered {
		p.inherited[p.remembered[i].Key] = true
		m.set(p, p.remembered[i].Key, &p.remembered[i])
	}
	p.remembered, p.late, m.stale = nil, why, true
}

func (m *merger) set(p *part, k object.Key, o *object.Object) {
	if o == nil {
		delete(p.objects, k)
	} else {
		p.objects[k] = o
	}
	if p.refusal != "" && !p.accepts(k.Kind) {
		m.stale = true
	}
	m.changed[k] = true
}

// owner returns the version of an object that is in force, nil for none.
func (m *merger) owner(k object.Key) *object.Object {
	var best *part
	for _, p := range m.parts {
		if p.objects[k] != nil && p.accepts(k.Kind) && (best == nil || p.rank < best.rank) {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	return best.objects[k]
}

// whole reports whether everything that is waited for has been read.
func (m *merger) whole() bool {
	for _, p := range m.parts {
		if !p.synced && p.late == "" {
			return false
		}
	}
	return len(m.awaited) == 0
}

// batch returns what has changed since the last one. Before everything has been read it has no changes.
func (m *merger) batch() (b object.Batch) {
	if !m.synced && m.whole() {
		m.synced, b.Synced = true, true
	}
	if m.synced {
		for k := range m.changed {
			now := m.owner(k)
			if m.emitted[k] == now {
				continue
			}
			if b.Changes = append(b.Changes, object.Change{Key: k, Object: now}); now == nil {
				delete(m.emitted, k)
			} else {
				m.emitted[k] = now
			}
		}
		clear(m.changed)
		slices.SortFunc(b.Changes, func(a, b object.Change) int { return compareKeys(a.Key, b.Key) })
	}
	if m.stale {
		m.stale = false
		if all := m.current(); !slices.Equal(all, m.problems) {
			m.problems, b.Problems = all, append([]object.Problem{}, all...)
		}
	}
	return b
}

// current returns the problems of all sources in the order of their ranks.
func (m *merger) current() (all []object.Problem) {
	names := make([]string, 0, len(m.parts))
	for name := range m.parts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(m.parts[a].rank, m.parts[b].rank), cmp.Compare(a, b))
	})
	for _, name := range names {
		p := m.parts[name]
		all = append(all, p.problems...)
		if p.late != "" {
			all = append(all, object.Problem{Origin: object.Origin{File: name}, Text: p.late})
		}
		if p.refusal != "" {
			all = append(all, p.refused()...)
		}
	}
	found := make([]string, 0, len(m.findings))
	for what := range m.findings {
		found = append(found, what)
	}
	slices.Sort(found)
	for _, what := range found {
		all = append(all, m.findings[what]...)
	}
	return all
}

// refused returns a warning for each object of a kind that is not taken from a source.
func (p *part) refused() (out []object.Problem) {
	for k, o := range p.objects {
		if !p.accepts(k.Kind) {
			out = append(out, object.Problem{Origin: o.Origin, Key: k, Text: p.refusal, Severity: object.Warning})
		}
	}
	slices.SortFunc(out, func(a, b object.Problem) int { return compareKeys(a.Key, b.Key) })
	return out
}

func compareKeys(a, b object.Key) int {
	return cmp.Or(cmp.Compare(order[a.Kind], order[b.Kind]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cluster, b.Cluster))
}

// order is the position of each kind in listings.
var order = func() map[object.Kind]int {
	out := map[object.Kind]int{}
	for i, k := range object.Kinds() {
		out[k] = i
	}
	return out
}()
