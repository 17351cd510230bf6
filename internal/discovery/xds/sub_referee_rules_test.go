package xds

import (
	"slices"
)

// look notes whether there is nothing to do.
func (r *referee) look() {
	for t := range numTypes {
		if r.books[t].flight != nil || len(r.differences(t)) > 0 {
			return
		}
	}
	if len(r.unpaid) == 0 {
		r.calm = r.now
	}
}

// bounded says whether a wait may have reached its bound.
func (r *referee) bounded() bool { return !r.now.Before(r.calm.Add(holdLimit)) }

// mayRemove checks that what others may refer to goes after them, but for the bounds.
func (r *referee) mayRemove(t Type, gone []string, complain func(string, ...any)) {
	if t == EDS {
		// A cluster that was sent waits even for the word that there are no endpoints.
		for _, needs := range r.unpaid {
			gone = slices.DeleteFunc(gone, func(n string) bool { return n == needs })
		}
		if len(gone) == 0 {
			return
		}
	}
	for _, ref := range map[Type][]Type{CDS: {LDS, RDS}, EDS: {CDS}, RDS: {LDS}}[t] {
		b := &r.books[ref]
		switch {
		case !b.asked && !r.returned.IsZero() && r.now.Before(r.returned.Add(holdLimit)):
			complain("%s %v removed before %s was asked for", t, gone, ref)
		case b.flight != nil && !r.bounded():
			complain("%s %v removed while %s %s is in flight", t, gone, ref, b.flight.Nonce)
		case b.asked && t != EDS && len(r.differences(ref)) > 0:
			complain("%s %v removed before %s %v are sent", t, gone, ref, r.differences(ref))
		}
	}
}

// mayUpdate checks that listeners and routes go after what they lead to.
func (r *referee) mayUpdate(t Type, complain func(string, ...any)) {
	for _, ref := range []Type{CDS, EDS} {
		b := &r.books[ref]
		switch {
		case !b.asked && !r.returned.IsZero() && r.now.Before(r.returned.Add(holdLimit)) && r.view.Of(ref).Len() > 0:
			complain("%s sent before %s was asked for", t, ref)
		case b.flight != nil && !r.bounded():
			complain("%s sent while %s %s is in flight", t, ref, b.flight.Nonce)
		}
	}
	for cluster := range r.unpaid {
		if !r.given[cluster] && !r.bounded() {
			complain("%s sent while the assignment of %s is owed", t, cluster)
		}
	}
}

// differences are the names of what the client subscribes to and has otherwise than the view.
func (r *referee) differences(t Type) (out []string) {
	b := &r.books[t]
	if !b.asked || r.view == nil {
		return nil
	}
	for u := range r.view.Of(t).All() {
		if b.subscribed(u.Name) && b.has[u.Name] != u.Version {
			out = append(out, u.Name)
		}
	}
	for n := range b.has {
		if b.subscribed(n) && r.view.Of(t).Get(n) == nil && (r.delta || types[t].wildcard) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// applied checks that it is true.
func (r *referee) applied(e Applied, complain func(string, ...any)) {
	if e.Generation != r.view.Generation {
		complain("generation %d applied, the view is of %d", e.Generation, r.view.Generation)
	}
	for t := range numTypes {
		b := &r.books[t]
		switch {
		case !b.asked && (t == LDS || r.books[LDS].wildcard && r.view.Of(t).Len() > 0):
			complain("applied before %s was asked for", t)
		case b.flight != nil:
			complain("applied while %s %s is in flight", t, b.flight.Nonce)
		case len(b.refused) > 0:
			complain("applied while %s %v are refused", t, b.refused)
		case len(r.differences(t)) > 0:
			complain("applied without %s %v", t, r.differences(t))
		}
	}
	if len(r.unpaid) > 0 {
		complain("applied while the assignments of %v are owed", r.unpaid)
	}
}

// rest checks what must hold between events.
func (r *referee) rest(complain func(string, ...any)) {
	if r.view == nil {
		return
	}
	eds := &r.books[EDS]
	for cluster, needs := range r.unpaid {
		if eds.flight == nil && eds.subscribed(needs) {
			complain("the assignment of cluster %s is owed and not sent", cluster)
		}
	}
	flying := false
	for t := range numTypes {
		f := r.books[t].flight
		flying = flying || f != nil
		if f != nil && !f.told && !r.now.Before(f.at.Add(stuckAfter)) {
			complain("%s %s is unanswered since %s and not told", t, f.Nonce, r.now.Sub(f.at))
		}
		if f != nil && !f.told && (r.wake.IsZero() || r.wake.After(f.at.Add(stuckAfter))) {
			complain("no wake for %s %s that may be stuck", t, f.Nonce)
		}
		for n, u := range r.books[t].refused {
			if t == LDS && f == nil && u.bind && (r.wake.IsZero() || r.wake.After(u.at.Add(lastRetry))) {
				complain("no wake for listener %s that could not be bound", n)
			}
		}
	}
	// What is kept back needs somebody to let it go: an answer, or a wake.
	for t := range numTypes {
		if d := r.differences(t); len(d) > 0 && !flying && r.wake.IsZero() {
			complain("%s %v are kept back for nothing", t, d)
		}
	}
}
