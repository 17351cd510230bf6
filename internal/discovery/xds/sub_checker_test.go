package xds

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checker watches a Sub from outside and knows only what the package promises. It is given
// every event before the Sub and every effect after it, and keeps its own record of what was
// asked for, what was sent in which order, what was answered.
type checker struct {
	delta   bool
	now     time.Time
	view    *View
	records [numTypes]typeRecord
	// returned is when the client first claimed something from an earlier stream, and claimed when it last claimed something unknown.
	returned, claimed time.Time
	// behind says that the source is, and wasBehind is when it last was.
	behind    bool
	wasBehind time.Time
	// unsentEDS are the clusters that were sent and whose assignment was not sent after them.
	unsentEDS map[string]string // EDS name by cluster
	wake      time.Time
	nonces    map[string]bool
	// lacked are route configurations that the client asked for before virtual hosts, without having them. stale are virtual
	// hosts that it would claim though it has dropped them, since it asks for their route configuration again.
	lacked, stale map[string]bool
	// clusters are those that were sent.
	clusters map[string]*sentCluster
	// known are the resources that were sent, by version.
	known map[string]*Resource
	// unasked: listeners or routes went out since the client did not ask for an assignment in time.
	unasked bool
	// calm is when there last was nothing to do: every wait began after it.
	calm time.Time
}

// typeRecord is what the checker knows of one type.
type typeRecord struct {
	asked, wildcard bool
	names           map[string]bool
	has             map[string]string // versions that the client was sent or claims, by name
	flight          *flown
	// earlier are the responses before the last one that are not answered either.
	earlier []*flown
	refused map[string]refusedVersion
	// anew are the names that were asked for since the last response.
	anew map[string]bool
	// answered says that something was sent since the stream began.
	answered bool
	last     string // nonce
	// unknown are names that the client has claimed at a time and that no view has had since, free says that they may be removed.
	unknown map[string]bool
	claimed time.Time
	free    bool
}

type flown struct {
	Send
	at   time.Time
	told bool // that it is stuck
	// had is what the client had before.
	had      map[string]string
	received bool // something later was answered
	slow     bool
}

// sentCluster is a cluster that was sent and what was answered.
type sentCluster struct {
	*Resource
	cds, eds string // nonces of the responses with it and with its assignment
	acked    bool   // by the answer to the response with it
	assigned bool   // by the answer to the response with its assignment
	given    bool   // nothing waits for it
}

func (c *sentCluster) inForce() bool {
	if c.Needs == "" {
		return c.acked
	}
	return c.assigned && (c.acked || !c.slow)
}

// refusedVersion is a version that the client does not want.
type refusedVersion struct {
	version string
	at      time.Time
	bind    bool
}

func newChecker(delta bool) *checker {
	r := &checker{delta: delta, lacked: map[string]bool{}, stale: map[string]bool{}, unsentEDS: map[string]string{}, nonces: map[string]bool{}, clusters: map[string]*sentCluster{}, known: map[string]*Resource{}}
	for t := range numTypes {
		r.records[t] = typeRecord{names: map[string]bool{}, has: map[string]string{}, refused: map[string]refusedVersion{}, anew: map[string]bool{}, unknown: map[string]bool{}}
	}
	return r
}

// step plays one event and says which promises the machine broke.
func (r *checker) step(s *Sub, ev Event) (effects []Effect, wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	answer := r.see(ev)
	effects = slices.Clone(s.Step(ev))
	for _, e := range effects {
		if f := answer; f != nil {
			// The answer's own effect comes first.
			if got, want := fmt.Sprintf("%T %s", e, nonceOf(e)), fmt.Sprintf("xds.%s %s", *f, ev.(*Request).Nonce); got != want {
				complain("%s, want %s", got, want)
			}
			answer = nil
			continue
		}
		r.judge(e, complain)
	}
	if answer != nil {
		complain("no word of an answer to %s", ev.(*Request).Nonce)
	}
	r.rest(complain)
	return effects, wrong
}

func nonceOf(e Effect) string {
	switch e := e.(type) {
	case Acked:
		return e.Nonce
	case Nacked:
		return e.Nonce
	}
	return ""
}

// see takes note of an event and returns which effect it must have at once, if any.
func (r *checker) see(ev Event) (effect *string) {
	switch ev := ev.(type) {
	case Now:
		r.now, r.behind = ev.T, ev.Behind
		if r.behind {
			r.wasBehind = r.now
		}
		for t := range r.records {
			b := &r.records[t]
			b.free = b.free || !b.claimed.IsZero() && !r.behind && !r.now.Before(b.claimed.Add(unknownLimit))
		}
		r.observe()
		if !r.now.Before(r.wake) {
			r.wake = time.Time{}
		}
	case Moved:
		r.view = ev.View
		for t := range numTypes {
			b := &r.records[t]
			maps.DeleteFunc(b.unknown, func(n string, _ bool) bool { return r.view.Of(t).Get(n) != nil })
			maps.DeleteFunc(b.refused, func(n string, f refusedVersion) bool {
				u := r.view.Of(t).Get(n)
				return u == nil || u.Version != f.version
			})
		}
	case *Request:
		return r.request(ev)
	}
	return nil
}

func (r *checker) request(q *Request) (effect *string) {
	b := &r.records[q.Type]
	if f := b.answers(q.Nonce); f != nil {
		effect = r.answer(b, q, f)
		if b.flight != nil && !r.delta {
			return effect // the names are older than the next answer's
		}
	} else if !r.delta && b.asked && q.Nonce != "" && q.Nonce != b.last {
		return nil // stale
	}
	if !b.asked {
		b.asked = true
		for n, v := range q.Initial.table() {
			b.has[n] = v
			if r.delta && !types[q.Type].lasting && (r.view == nil || r.view.Of(q.Type).Get(n) == nil) {
				b.unknown[n], b.claimed, r.claimed = true, r.now, r.now
			}
		}
		early := q.Type == EDS && !r.records[CDS].asked || (q.Type == RDS || q.Type == ECDS) && !r.records[LDS].asked || q.Type == VHDS && !r.records[RDS].asked
		if r.delta && (early || q.Initial.n > 0) && r.returned.IsZero() {
			r.returned = r.now
		}
		b.wildcard = types[q.Type].wildcard && q.Names.n == 0
		if q.Type == VHDS {
			for n := range r.lacked {
				r.forgetHosts(n)
			}
			clear(r.lacked)
		}
	}
	if r.delta && q.Type == RDS {
		r.forget(q)
	}
	before := len(b.names)
	defer func() { r.unasked = r.unasked && (q.Type != EDS || len(b.names) <= before) }()
	old := maps.Clone(b.names)
	if !r.delta {
		clear(b.names)
	}
	for _, n := range q.Names.strings() {
		if r.delta || !old[n] {
			b.anew[n] = true
		}
		b.names[n] = true
		if r.delta {
			delete(b.refused, n) // it asks for it again
		}
	}
	if !r.delta && !b.wildcard {
		maps.DeleteFunc(b.has, func(n, _ string) bool { return !b.names[n] })
	}
	for _, n := range q.Unsubscribe.strings() {
		delete(b.names, n)
		delete(b.unknown, n)
		if !b.wildcard {
			delete(b.has, n)
		}
	}
	for n := range b.refused {
		// An assignment of a SotW stream that is not in the view is none: it says so.
		if !b.subscribed(n) || r.view.Of(q.Type).Get(n) == nil && q.Type == EDS {
			delete(b.refused, n)
		}
	}
	return effect
}

// answers is the response that is answered by a nonce, or nil.
func (b *typeRecord) answers(nonce string) *flown {
	if b.flight != nil && b.flight.Nonce == nonce {
		return b.flight
	}
	for _, f := range b.earlier {
		if f.Nonce == nonce {
			return f
		}
	}
	return nil
}

// hadBefore is what a client had before a response, or, of what that brought unchanged, before those that are answered
// together with it.
func (b *typeRecord) hadBefore(f *flown) map[string]string {
	had := maps.Clone(f.had)
	for _, o := range slices.Backward(b.earlier) {
		for _, u := range f.Upserts {
			if number(o.Nonce) > number(f.Nonce) || had[u.Name] != u.Version {
				continue
			}
			if had[u.Name] = o.had[u.Name]; had[u.Name] == "" {
				delete(had, u.Name)
			}
		}
	}
	return had
}

// answer takes note of the answer to a response and returns which effect it must have at once.
func (r *checker) answer(b *typeRecord, q *Request, f *flown) *string {
	kind := "Acked"
	if q.Refused {
		kind = "Nacked"
	}
	if !r.delta {
		f.had = b.hadBefore(f)
	}
	for _, u := range f.Upserts {
		if b.refused[u.Name].version == u.Version {
			delete(b.refused, u.Name)
		}
		if !q.Refused || !strings.HasPrefix(q.Message, u.Name+":") || f.had[u.Name] == u.Version {
			continue // of what it has already, it may say what it likes
		}
		var again *flown
		for _, later := range append(slices.Clone(b.earlier), b.flight) {
			if later == nil || number(later.Nonce) <= number(f.Nonce) {
				continue
			}
			if later.had[u.Name] == u.Version {
				delete(later.had, u.Name)
				if old, ok := f.had[u.Name]; ok {
					later.had[u.Name] = old
				}
			}
			if i := slices.IndexFunc(later.Upserts, func(o *Resource) bool { return o.Name == u.Name }); i >= 0 || !r.delta || slices.Contains(later.Removed, u.Name) {
				if again = nil; i >= 0 && later.Upserts[i].Version == u.Version {
					again = later
				}
			}
		}
		if again != nil && q.Type == CDS {
			r.clusters[u.Name] = &sentCluster{Resource: u, cds: again.Nonce}
			if u.Needs != "" {
				r.unsentEDS[u.Name] = u.Needs
			}
		}
		if again != nil || b.anew[u.Name] {
			continue // the answer to the later response counts
		}
		if v := r.view.Of(q.Type).Get(u.Name); v != nil && v.Version == u.Version {
			b.refused[u.Name] = refusedVersion{u.Version, r.now, strings.Contains(q.Message, u.Name+": cannot bind")}
		}
		if q.Type == CDS && r.clusters[u.Name] != nil {
			r.clusters[u.Name].given = true
		}
		if b.has[u.Name] == u.Version {
			if old, ok := f.had[u.Name]; ok {
				b.has[u.Name] = old
			} else {
				delete(b.has, u.Name)
			}
		}
	}
	passed := map[string]bool{f.Nonce: true}
	b.earlier = slices.DeleteFunc(b.earlier, func(o *flown) bool {
		passed[o.Nonce] = passed[o.Nonce] || !r.delta && number(o.Nonce) < number(f.Nonce)
		return passed[o.Nonce]
	})
	if b.flight == f {
		b.flight = nil
	}
	for _, c := range r.clusters {
		if q.Type == CDS && passed[c.cds] {
			c.acked = true
		}
		if q.Type == EDS && c.eds == f.Nonce {
			c.assigned = true
		}
	}
	for _, o := range append(slices.Clone(r.records[CDS].earlier), r.records[CDS].flight) {
		if o != nil && number(o.Nonce) < number(f.Nonce) {
			o.received = true
		}
	}
	for _, c := range r.clusters {
		if number(c.cds) < number(f.Nonce) && !c.Resource.slow && c.Needs == "" {
			c.acked = true // it has had it
		}
	}
	return &kind
}

func number(nonce string) int {
	n, _ := strconv.Atoi(nonce)
	return n
}

// needsAssignment says whether a resource is an assignment that is owed.
func (r *checker) needsAssignment(u *Resource) bool {
	for _, needs := range r.unsentEDS {
		if u.Type == EDS && u.Name == needs {
			return true
		}
	}
	return false
}

// target is what the client is to have of a type.
func (r *checker) target(t Type) TypeView {
	if t != VHDS {
		return r.view.Of(t)
	}
	var list []*Resource
	for u := range r.view.Of(t).All() {
		if r.records[RDS].names[routesOf(u.Name)] {
			list = append(list, u)
		}
	}
	return newTypeView(list)
}

func (b *typeRecord) subscribed(name string) bool { return b.asked && (b.wildcard || b.names[name]) }

// judge looks at an effect.
func (r *checker) judge(e Effect, complain func(string, ...any)) {
	switch e := e.(type) {
	case Send:
		r.sent(e, complain)
	case Applied:
		r.applied(e, complain)
	case Wake:
		if !e.At.After(r.now) || e.At.After(r.now.Add(lastRetry)) {
			complain("wake in %s", e.At.Sub(r.now))
		}
		if !r.wake.IsZero() && !e.At.Before(r.wake) {
			complain("wake in %s though one comes in %s", e.At.Sub(r.now), r.wake.Sub(r.now))
		}
		r.wake = e.At
	case Stuck:
		f := r.records[e.Type].answers(e.Nonce)
		if f == nil || f.told || r.now.Sub(f.at) < stuckAfter || !e.Since.Equal(f.at) {
			complain("%s %s is stuck at %v, in flight is %+v", e.Type, e.Nonce, r.now, f)
			return
		}
		f.told = true
	case Acked, Nacked:
		complain("%T %s without an answer", e, nonceOf(e))
	}
}

func (r *checker) sent(e Send, complain func(string, ...any)) {
	b := &r.records[e.Type]
	if !b.asked {
		complain("%s sent unasked", e.Type)
	}
	if f := b.flight; f != nil {
		if e.Type != CDS || !f.received && !f.slow && r.now.Sub(f.at) < holdLimit || len(b.earlier) == maxUnanswered {
			complain("%s %s sent while %s is in flight", e.Type, e.Nonce, f.Nonce)
		}
		b.earlier = append(b.earlier, f)
	}
	had := maps.Clone(b.has)
	if r.nonces[e.Type.String()+e.Nonce] {
		complain("nonce %s sent twice", e.Nonce)
	}
	r.nonces[e.Type.String()+e.Nonce] = true
	if e.Generation != r.view.Generation {
		complain("generation %d sent, the view is of %d", e.Generation, r.view.Generation)
	}
	for _, u := range e.Upserts {
		if e.Type == RDS && r.hasStale(u.Name) {
			complain("%s %s sent before %v are removed", e.Type, u.Name, r.stale)
		}
	}
	r.mayForget(e, complain)
	clear(b.anew)
	if e.Type == VHDS {
		maps.DeleteFunc(r.stale, func(host string, _ bool) bool { return slices.Contains(e.Removed, host) })
	}
	fresh := r.upserts(e, complain)
	gone := r.removals(e)
	if types[e.Type].lasting && len(e.Removed) > 0 {
		complain("%s %s removes %v", e.Type, e.Nonce, e.Removed)
	}
	if len(gone) > 0 {
		r.mayRemove(e.Type, gone, complain)
	}
	for _, u := range fresh {
		r.mayUpdate(u, complain)
	}
	slow := false
	switch e.Type {
	case CDS:
		for _, n := range gone {
			delete(r.unsentEDS, n)
		}
		for _, u := range fresh {
			delete(r.unsentEDS, u.Name)
			if u.Needs != "" {
				r.unsentEDS[u.Name] = u.Needs
			}
			slow = slow || u.slow
		}
		for _, u := range fresh {
			r.clusters[u.Name] = &sentCluster{Resource: u, cds: e.Nonce, acked: slow && !u.slow && u.Needs == ""}
		}
		for _, n := range gone {
			delete(r.clusters, n)
		}
	case EDS:
		told := slices.Clone(e.Removed)
		for _, u := range e.Upserts {
			told = append(told, u.Name)
		}
		for cluster, needs := range r.unsentEDS {
			if slices.Contains(told, needs) {
				delete(r.unsentEDS, cluster)
				r.clusters[cluster].eds, r.clusters[cluster].assigned = e.Nonce, false
			}
		}
	}
	b.flight = &flown{Send: e, at: r.now, had: had, slow: slow}
	b.answered, b.last = true, e.Nonce
}

// upserts takes the resources of a response into the records and returns those that make a
// difference to the client.
func (r *checker) upserts(e Send, complain func(string, ...any)) (fresh []*Resource) {
	b := &r.records[e.Type]
	for i, u := range e.Upserts {
		if i > 0 && e.Upserts[i-1].Name >= u.Name {
			complain("%s %s has %s after %s", e.Type, e.Nonce, u.Name, e.Upserts[i-1].Name)
		}
		if !b.subscribed(u.Name) || e.Type == VHDS && !r.records[RDS].names[routesOf(u.Name)] {
			complain("%s %s sent, which is not subscribed to", e.Type, u.Name)
		}
		if f, ok := b.refused[u.Name]; ok && f.version == u.Version && r.delta && !r.needsAssignment(u) {
			if wait := r.now.Sub(f.at); !f.bind || wait < firstRetry {
				complain("%s %s sent again %s after it was refused", e.Type, u.Name, wait)
			}
		}
		if v := r.view.Of(e.Type).Get(u.Name); v == nil || b.refused[u.Name].version != v.Version {
			delete(b.refused, u.Name)
		}
		if r.delta || b.has[u.Name] != u.Version {
			fresh = append(fresh, u)
		}
		b.has[u.Name] = u.Version
		r.known[u.Version] = u
	}
	return fresh
}

// removals takes what a response removes out of the records.
func (r *checker) removals(e Send) (gone []string) {
	b := &r.records[e.Type]
	told := e.Removed
	if !r.delta && types[e.Type].wildcard {
		for n := range b.has {
			if !hasResource(e.Upserts, n) {
				told = append(told, n)
			}
		}
	}
	for _, n := range told {
		if b.has[n] != "" {
			gone = append(gone, n)
		}
		delete(b.has, n)
		delete(b.refused, n)
	}
	return gone
}

// observe notes whether there is nothing to do.
func (r *checker) observe() {
	for t := range numTypes {
		if r.records[t].flight != nil || len(r.records[t].earlier) > 0 || len(r.differences(t)) > 0 {
			return
		}
	}
	if len(r.unsentEDS) == 0 {
		r.calm = r.now
	}
}

// bounded says whether a wait may have reached its bound.
func (r *checker) bounded() bool { return !r.now.Before(r.calm.Add(holdLimit)) }

// mayRemove checks that what others may refer to goes after them, but for the bounds.
func (r *checker) mayRemove(t Type, gone []string, complain func(string, ...any)) {
	if t == EDS {
		// A cluster that was sent waits even for the word that there are no endpoints.
		for _, needs := range r.unsentEDS {
			gone = slices.DeleteFunc(gone, func(n string) bool { return n == needs })
		}
		if len(gone) == 0 {
			return
		}
	}
	for _, ref := range map[Type][]Type{CDS: {ECDS, LDS, RDS, VHDS}, EDS: {CDS}, RDS: {LDS}, VHDS: {LDS, RDS}}[t] {
		b := &r.records[ref]
		if (ref == VHDS || ref == ECDS) && r.view.Of(ref).Len() == 0 && !b.asked {
			continue
		}
		switch {
		case !b.asked && !r.returned.IsZero() && r.now.Before(r.returned.Add(holdLimit)):
			complain("%s %v removed before %s was asked for", t, gone, ref)
		case t == CDS:
			r.mayRemoveClusters(ref, gone, complain)
		case b.flight != nil && !r.bounded():
			complain("%s %v removed while %s %s is in flight", t, gone, ref, b.flight.Nonce)
		case b.asked && t != EDS && len(r.differences(ref)) > 0:
			complain("%s %v removed before %s %v are sent", t, gone, ref, r.differences(ref))
		}
	}
}

// mayRemoveClusters checks that nothing of a type which the client has names the clusters.
func (r *checker) mayRemoveClusters(ref Type, gone []string, complain func(string, ...any)) {
	b := &r.records[ref]
	if !b.asked {
		return
	}
	for _, cluster := range gone {
		for n, version := range b.has {
			u := r.view.Of(ref).Get(n)
			if u == nil && r.stays(ref, n) && r.bounded() {
				continue // for how long is not known
			}
			if had := r.known[version]; b.subscribed(n) && had != nil && had.refers.has(cluster) && (u == nil && (r.delta || types[ref].wildcard) && !types[ref].lasting || u != nil && u.Version != version) {
				complain("CDS %s removed, which %s %s names that the client has", cluster, ref, n)
			}
		}
		f := b.flight
		if f == nil || r.bounded() {
			continue
		}
		for n, version := range f.had {
			if had := r.known[version]; had != nil && had.refers.has(cluster) && b.has[n] != version && b.subscribed(n) {
				complain("CDS %s removed before the answer to %s %s, which takes the place of %s", cluster, ref, f.Nonce, n)
			}
		}
	}
}

// mayUpdate checks that a listener or route configuration goes after the clusters that it names.
func (r *checker) mayUpdate(u *Resource, complain func(string, ...any)) {
	if types[u.Type].references == nil || u.refers.none() {
		return
	}
	for _, ref := range []Type{CDS, EDS} {
		if !r.records[ref].asked && !r.returned.IsZero() && r.now.Before(r.returned.Add(holdLimit)) && r.view.Of(ref).Len() > 0 {
			complain("%s %s sent before %s was asked for", u.Type, u.Name, ref)
		}
	}
	for n, c := range r.clusters {
		if !u.refers.has(n) || c.given || c.inForce() {
			continue
		}
		asked := r.records[EDS].subscribed(c.Needs)
		waits := c.Needs == "" || asked || !r.unasked
		if waits && !r.bounded() {
			complain("%s %s sent, which names cluster %s that is not acknowledged", u.Type, u.Name, n)
		}
		r.unasked = r.unasked || c.acked && c.Needs != "" && !asked && r.bounded()
	}
	if unsent := r.unsent(u); len(unsent) > 0 && !r.bounded() {
		complain("%s %s sent, which names clusters %v that are not sent", u.Type, u.Name, unsent)
	}
}

// unsent are the clusters that a resource names, and that are still to be sent.
func (r *checker) unsent(u *Resource) (out []string) {
	if !r.records[CDS].asked {
		return nil
	}
	for c := range r.view.Of(CDS).All() {
		b := &r.records[CDS]
		if u.refers.has(c.Name) && b.subscribed(c.Name) && b.has[c.Name] != c.Version && b.refused[c.Name].version != c.Version {
			out = append(out, c.Name)
		}
	}
	return out
}

// unrelated checks that nothing is kept back that names no cluster which is to be waited for.
func (r *checker) unrelated(t Type, complain func(string, ...any)) {
	b := &r.records[t]
	if b.flight != nil || !b.answered && b.wildcard || !r.returned.IsZero() && r.now.Before(r.returned.Add(holdLimit)) {
		return
	}
	for _, n := range r.differences(t) {
		u := r.view.Of(t).Get(n)
		if u == nil || b.refused[n].version == u.Version || u.refers.unknown {
			continue
		}
		free := len(r.unsent(u)) == 0 && !(t == RDS && r.hasStale(n) && r.records[VHDS].flight != nil)
		for _, n := range u.refers.names {
			if c := r.clusters[n]; c != nil && !c.inForce() || r.view.Of(CDS).Get(n) == nil {
				free = false
			}
		}
		if free {
			complain("%s %s is kept back for nothing", t, n)
		}
	}
}

// differences are the names of what the client subscribes to and has otherwise than the view.
func (r *checker) differences(t Type) (out []string) {
	b := &r.records[t]
	if !b.asked || r.view == nil {
		return nil
	}
	view := r.target(t)
	for u := range view.All() {
		if b.subscribed(u.Name) && b.has[u.Name] != u.Version && b.refused[u.Name].version != u.Version {
			out = append(out, u.Name)
		}
	}
	for n := range b.has {
		if b.subscribed(n) && view.Get(n) == nil && !types[t].lasting && (r.delta || types[t].wildcard) && !r.stays(t, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// applied checks that it is true.
func (r *checker) applied(e Applied, complain func(string, ...any)) {
	if e.Generation != r.view.Generation {
		complain("generation %d applied, the view is of %d", e.Generation, r.view.Generation)
	}
	for t := range numTypes {
		b := &r.records[t]
		switch {
		case !b.asked && (t == LDS || r.records[LDS].wildcard && t != ECDS && r.target(t).Len() > 0):
			complain("applied before %s was asked for", t)
		case b.flight != nil:
			complain("applied while %s %s is in flight", t, b.flight.Nonce)
		case len(b.refused) > 0:
			complain("applied while %s %v are refused", t, b.refused)
		case len(r.differences(t)) > 0:
			complain("applied without %s %v", t, r.differences(t))
		}
	}
	if len(r.unsentEDS) > 0 {
		complain("applied while the assignments of %v are owed", r.unsentEDS)
	}
}

// rest checks what must hold between events.
func (r *checker) rest(complain func(string, ...any)) {
	if r.view == nil {
		return
	}
	eds := &r.records[EDS]
	for cluster, needs := range r.unsentEDS {
		if eds.flight == nil && eds.subscribed(needs) {
			complain("the assignment of cluster %s is owed and not sent", cluster)
		}
	}
	r.unrelated(ECDS, complain)
	r.unrelated(LDS, complain)
	r.unrelated(RDS, complain)
	flying := false
	for t := range numTypes {
		f := r.records[t].flight
		flying = flying || f != nil
		if f != nil && !f.told && !r.now.Before(f.at.Add(stuckAfter)) {
			complain("%s %s is unanswered since %s and not told", t, f.Nonce, r.now.Sub(f.at))
		}
		if f != nil && !f.told && (r.wake.IsZero() || r.wake.After(f.at.Add(stuckAfter))) {
			complain("no wake for %s %s that may be stuck", t, f.Nonce)
		}
		for n, u := range r.records[t].refused {
			if t == LDS && f == nil && u.bind && (r.wake.IsZero() || r.wake.After(u.at.Add(lastRetry))) {
				complain("no wake for listener %s that could not be bound", n)
			}
		}
	}
	// What is kept back needs somebody to let it go: an answer, or a wake.
	for t := range numTypes {
		for n := range r.records[t].unknown {
			if b := &r.records[t]; b.subscribed(n) && b.has[n] != "" && !b.free && r.wake.IsZero() {
				complain("no wake for %s %s, which stays", t, n)
			}
		}
		d := r.differences(t)
		if len(r.records[ECDS].refused)+len(r.records[LDS].refused)+len(r.records[RDS].refused)+len(r.records[VHDS].refused) > 0 {
			// What the client goes on with in their place may need what is gone.
			d = slices.DeleteFunc(d, func(n string) bool { return t != LDS && r.view.Of(t).Get(n) == nil })
		}
		if len(d) > 0 && !flying && r.wake.IsZero() {
			complain("%s %v are kept back for nothing", t, d)
		}
	}
}
