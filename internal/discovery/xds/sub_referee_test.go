package xds

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// referee watches a Sub from outside and knows only what the package promises. It is told
// every event before the Sub and every effect after it, and keeps books of its own: what was
// asked for, what was sent in which order, what was answered.
type referee struct {
	delta bool
	now   time.Time
	view  *View
	books [numTypes]book
	// returned is when the client first claimed something from an earlier stream.
	returned time.Time
	// unpaid are the clusters that were sent and whose assignment was not sent after them.
	unpaid map[string]string // EDS name by cluster
	wake   time.Time
	nonces map[string]bool
	// given are unpaid clusters that were refused once; nothing waits for their assignments.
	given map[string]bool
	// calm is when there last was nothing to do: every wait began after it.
	calm time.Time
}

// book is what the referee knows of one type.
type book struct {
	asked, wildcard bool
	names           map[string]bool
	has             map[string]string // versions that the client was sent or claims, by name
	flight          *flown
	refused         map[string]refusedVersion
}

type flown struct {
	Send
	at   time.Time
	told bool // that it is stuck
}

// refusedVersion is a version that the client does not want.
type refusedVersion struct {
	version string
	at      time.Time
	bind    bool
}

func newReferee(delta bool) *referee {
	r := &referee{delta: delta, unpaid: map[string]string{}, nonces: map[string]bool{}, given: map[string]bool{}}
	for t := range numTypes {
		r.books[t] = book{names: map[string]bool{}, has: map[string]string{}, refused: map[string]refusedVersion{}}
	}
	return r
}

// step plays one event and says which promises the machine broke.
func (r *referee) step(s *Sub, ev Event) (effects []Effect, wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	answer := r.see(ev)
	effects = slices.Clone(s.Step(ev))
	for _, e := range effects {
		if f := answer; f != nil {
			// The answer's own effect comes first.
			if got, want := fmt.Sprintf("%T %s", e, nonceOf(e)), fmt.Sprintf("xds.%s %s", *f, ev.(Request).Nonce); got != want {
				complain("%s, want %s", got, want)
			}
			answer = nil
			continue
		}
		r.judge(e, complain)
	}
	if answer != nil {
		complain("no word of an answer to %s", ev.(Request).Nonce)
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
func (r *referee) see(ev Event) (effect *string) {
	switch ev := ev.(type) {
	case Now:
		r.now = ev.T
		r.look()
		if !r.now.Before(r.wake) {
			r.wake = time.Time{}
		}
	case Moved:
		r.view = ev.View
	case Request:
		return r.request(ev)
	}
	return nil
}

func (r *referee) request(q Request) (effect *string) {
	b := &r.books[q.Type]
	if f := b.flight; f != nil && q.Nonce == f.Nonce {
		kind := "Acked"
		if q.Refused {
			kind = "Nacked"
		}
		for _, u := range f.Upserts {
			delete(b.refused, u.Name)
			if q.Refused && strings.HasPrefix(q.Message, u.Name+":") {
				b.refused[u.Name] = refusedVersion{u.Version, r.now, strings.Contains(q.Message, u.Name+": cannot bind")}
			}
		}
		for n := range b.refused {
			if q.Type == CDS {
				r.given[n] = true
			}
		}
		effect, b.flight = &kind, nil
	} else if !r.delta && b.asked && q.Nonce != "" && !r.nonces[q.Type.String()+q.Nonce] {
		return nil // stale
	}
	if !b.asked {
		b.asked = true
		for n, v := range q.Initial {
			b.has[n] = v
		}
		early := q.Type == EDS && !r.books[CDS].asked || q.Type == RDS && !r.books[LDS].asked
		if r.delta && (early || len(q.Initial) > 0) && r.returned.IsZero() {
			r.returned = r.now
		}
		b.wildcard = types[q.Type].wildcard && len(q.Names) == 0
	}
	if !r.delta {
		clear(b.names)
	}
	for _, n := range q.Names {
		b.names[n] = true
		if r.delta {
			delete(b.refused, n) // it asks for it again
		}
	}
	for _, n := range q.Unsubscribe {
		delete(b.names, n)
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

// owes says whether a resource is an assignment that is owed.
func (r *referee) owes(u *Resource) bool {
	for _, needs := range r.unpaid {
		if u.Type == EDS && u.Name == needs {
			return true
		}
	}
	return false
}

func (b *book) subscribed(name string) bool { return b.asked && (b.wildcard || b.names[name]) }

// judge looks at an effect.
func (r *referee) judge(e Effect, complain func(string, ...any)) {
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
		f := r.books[e.Type].flight
		if f == nil || f.Nonce != e.Nonce || f.told || r.now.Sub(f.at) < stuckAfter || !e.Since.Equal(f.at) {
			complain("%s %s is stuck at %v, in flight is %+v", e.Type, e.Nonce, r.now, f)
			return
		}
		f.told = true
	case Acked, Nacked:
		complain("%T %s without an answer", e, nonceOf(e))
	}
}

func (r *referee) sent(e Send, complain func(string, ...any)) {
	b := &r.books[e.Type]
	if !b.asked {
		complain("%s sent unasked", e.Type)
	}
	if b.flight != nil {
		complain("%s %s sent while %s is in flight", e.Type, e.Nonce, b.flight.Nonce)
	}
	if r.nonces[e.Type.String()+e.Nonce] {
		complain("nonce %s sent twice", e.Nonce)
	}
	r.nonces[e.Type.String()+e.Nonce] = true
	if e.Generation != r.view.Generation {
		complain("generation %d sent, the view is of %d", e.Generation, r.view.Generation)
	}
	fresh := r.upserts(e, complain)
	gone := r.removals(e)
	if len(gone) > 0 {
		r.mayRemove(e.Type, gone, complain)
	}
	if (e.Type == LDS || e.Type == RDS) && len(fresh) > 0 {
		r.mayUpdate(e.Type, complain)
	}
	switch e.Type {
	case CDS:
		for _, n := range gone {
			delete(r.unpaid, n)
		}
		for _, u := range fresh {
			delete(r.unpaid, u.Name)
			delete(r.given, u.Name)
			if u.Needs != "" {
				r.unpaid[u.Name] = u.Needs
			}
		}
	case EDS:
		told := slices.Clone(e.Removed)
		for _, u := range e.Upserts {
			told = append(told, u.Name)
		}
		for cluster, needs := range r.unpaid {
			if slices.Contains(told, needs) {
				delete(r.unpaid, cluster)
			}
		}
	}
	b.flight = &flown{Send: e, at: r.now}
}

// upserts takes the resources of a response into the books and returns those that make a
// difference to the client.
func (r *referee) upserts(e Send, complain func(string, ...any)) (fresh []*Resource) {
	b := &r.books[e.Type]
	for i, u := range e.Upserts {
		if i > 0 && e.Upserts[i-1].Name >= u.Name {
			complain("%s %s has %s after %s", e.Type, e.Nonce, u.Name, e.Upserts[i-1].Name)
		}
		if !b.subscribed(u.Name) {
			complain("%s %s sent, which is not subscribed to", e.Type, u.Name)
		}
		if f, ok := b.refused[u.Name]; ok && f.version == u.Version && r.delta && !r.owes(u) {
			if wait := r.now.Sub(f.at); !f.bind || wait < firstRetry {
				complain("%s %s sent again %s after it was refused", e.Type, u.Name, wait)
			}
		}
		if b.refused[u.Name].version != u.Version {
			delete(b.refused, u.Name)
		}
		if r.delta || b.has[u.Name] != u.Version {
			fresh = append(fresh, u)
		}
		b.has[u.Name] = u.Version
	}
	return fresh
}

// removals takes what a response removes out of the books.
func (r *referee) removals(e Send) (gone []string) {
	b := &r.books[e.Type]
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
