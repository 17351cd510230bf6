package rotation

import (
	"fmt"
	"slices"
	"time"
)

// Report is what one instance of the control plane says about itself and its proxies.
type Report struct {
	// Instance is unique among the instances that have run.
	Instance string `json:"instance"`
	// At is when the report was made.
	At time.Time `json:"at"`
	// Trusted are the IDs of the roots that it distributes.
	Trusted []string `json:"trusted"`
	// Connected is how many proxies are connected to it. Waiting is how many proxies have not
	// acknowledged Trusted, of these and of those that have left since it distributes Trusted; Names
	// are some of them.
	Connected int      `json:"connected"`
	Waiting   int      `json:"waiting"`
	Names     []string `json:"names,omitempty"`
	// Clear is since when it distributes Trusted and Waiting is 0; zero if Waiting is not 0.
	Clear time.Time `json:"clear,omitzero"`
	// Serves is the ID of the root below which it serves webhooks; empty for none.
	Serves string `json:"serves,omitempty"`
}

// Facts are what Step depends on besides the state.
type Facts struct {
	Now time.Time
	// Reports are those of all instances, this one's included. Old ones are ignored.
	Reports []Report
	// SignerEnd is when the chain by which this instance signs ends; zero means that of the root.
	SignerEnd time.Time
	// Lost says that the key of the root that signs is gone, so that the next one cannot wait.
	Lost bool
}

// Policy says when a root is rotated.
type Policy struct {
	// Share is the share of a root's lifetime that is left when its rotation begins, 0–0.5.
	Share float64
	// Margin is how much of its lifetime must be left at least, for the rotation to be over before the
	// root ends: the lifetime of several leaves. It does not make a root rotate in the first half of its lifetime.
	Margin time.Duration
	// Jitter delays the beginning by up to this.
	Jitter time.Duration
}

// Due returns when the rotation of a root begins by itself.
func (p Policy) Due(r Root) time.Time {
	life := r.NotAfter.Sub(r.NotBefore)
	left := max(time.Duration(p.Share*float64(life)), p.Margin)
	due := r.NotAfter.Add(-min(left, life/2))
	return due.Add(min(p.Jitter, left/10))
}

// Decision is what follows from a state besides the next state.
type Decision struct {
	// Begin says that a root is to be made, for Begin; Why is the reason.
	Begin bool
	Why   string
	// Changes says in words what Step has changed.
	Changes []string
	// Next is when to call Step again if no report changes.
	Next time.Time
}

// Step returns the state that follows at the time f.Now.
func (s State) Step(p Policy, f Facts) (State, Decision) {
	var d Decision
	reports := fresh(f)
	s, d.Changes = s.served(reports, f.Now)
	if why := s.ready(reports, f); why != "" {
		d.Changes = append(d.Changes, fmt.Sprintf("root %.16s signs: %s", s.Next.ID, why))
		s = s.promote(reports, f.Now)
	}
	kept := s.Retired[:0:0]
	for _, r := range s.Retired {
		if f.Now.Before(r.Until) && f.Now.Before(r.NotAfter) {
			kept = append(kept, r)
		} else if !s.isFurther(r.ID) {
			d.Changes = append(d.Changes, fmt.Sprintf("root %.16s is not trusted any more: the last leaf that it signed has ended", r.ID))
		}
	}
	s.Retired = kept
	if due := p.Due(s.Signer); !f.Now.Before(due) && s.CanBegin() == nil {
		d.Begin, d.Why = true, fmt.Sprintf("root %.16s ends at %s", s.Signer.ID, s.Signer.NotAfter.UTC().Format(time.RFC3339))
	}
	d.Next = s.wake(p, reports, f)
	return s, d
}

func (s State) isFurther(id string) bool {
	return slices.ContainsFunc(s.Further, func(r Next) bool { return r.ID == id })
}

// fresh returns the reports that count.
func fresh(f Facts) []Report {
	return slices.DeleteFunc(slices.Clone(f.Reports), func(r Report) bool { return f.Now.Sub(r.At) > ReportTTL })
}

// served notes that all instances distribute the next root, or a further one.
func (s State) served(reports []Report, now time.Time) (State, []string) {
	var changes []string
	note := func(n Next) Next {
		if !n.Served.IsZero() || !distributedByAll(n.ID, reports) {
			return n
		}
		n.Served, n.Deadline = now, now
		for _, end := range append(s.ends(), s.LastLeaf) {
			if end.After(n.Deadline) {
				n.Deadline = end
			}
		}
		changes = append(changes, fmt.Sprintf("root %.16s is distributed by all %d instances", n.ID, len(reports)))
		return n
	}
	if s.Next != nil {
		next := note(*s.Next)
		s.Next = &next
	}
	s.Further = slices.Clone(s.Further)
	for i, r := range s.Further {
		if s.Next != nil && r.ID == s.Next.ID {
			s.Further[i].Served, s.Further[i].Deadline = s.Next.Served, s.Next.Deadline
			continue
		}
		s.Further[i] = note(r)
	}
	return s, changes
}

// ends are the ends of the last leaves of the retired roots.
func (s State) ends() []time.Time {
	var out []time.Time
	for _, r := range s.Retired {
		out = append(out, r.Until)
	}
	return out
}

func distributedByAll(id string, reports []Report) bool {
	return len(reports) > 0 && !slices.ContainsFunc(reports, func(r Report) bool { return !slices.Contains(r.Trusted, id) })
}

// ready returns why the next root can sign now, "" if it cannot.
func (s State) ready(reports []Report, f Facts) string {
	now := f.Now
	switch {
	case s.Next == nil || now.Before(s.Next.NotBefore):
		return ""
	case f.Lost:
		return fmt.Sprintf("the key of the CA below root %.16s is gone", s.Signer.ID)
	case !now.Before(s.signerEnd(f).Add(-forcedBefore)):
		return "the CA before it ends"
	case s.Next.Served.IsZero() || !distributedByAll(s.Next.ID, reports):
		return ""
	case !now.Before(s.Next.Deadline):
		return "every leaf that was issued before it was distributed has ended"
	}
	if at, ok := s.acknowledged(reports); ok && !now.Before(at) {
		return "every connected proxy has acknowledged it"
	}
	return ""
}

// signerEnd is when the root that signs, or the chain below it, ends.
func (s State) signerEnd(f Facts) time.Time {
	if !f.SignerEnd.IsZero() && f.SignerEnd.Before(s.Signer.NotAfter) {
		return f.SignerEnd
	}
	return s.Signer.NotAfter
}

// acknowledged returns when the acknowledgements suffice, if they remain; false if one is missing.
func (s State) acknowledged(reports []Report) (time.Time, bool) {
	since := s.Next.Served
	if since.IsZero() {
		return time.Time{}, false
	}
	for _, r := range reports {
		if r.Waiting > 0 || r.Clear.IsZero() {
			return time.Time{}, false
		}
		if r.Clear.After(since) {
			since = r.Clear
		}
	}
	if s.Next.Plugged {
		return since.Add(HoldFiles), true
	}
	return since.Add(Hold), true
}

// promote makes the next root the one that signs.
func (s State) promote(reports []Report, now time.Time) State {
	seen := now.Add(ReportTTL)
	if len(reports) == 1 { // this instance is alone
		seen = now
	}
	s = s.retire(seen)
	s.Signer, s.LastLeaf, s.Next = s.Next.Root, time.Time{}, nil
	return s
}

// retire adds the root that signs to those that have signed. Until seen, instances may sign below it that have not seen the change.
func (s State) retire(seen time.Time) State {
	old := Retired{Root: s.Signer, Until: seen}
	if s.LastLeaf.After(seen) {
		old.Until = s.LastLeaf
	}
	if old.Until.After(old.NotAfter) {
		old.Until = old.NotAfter
	}
	s.Retired = append(slices.Clone(s.Retired), old)
	return s
}

// wake returns when time alone changes something next.
func (s State) wake(p Policy, reports []Report, f Facts) time.Time {
	now := f.Now
	times := []time.Time{s.signerEnd(f).Add(-forcedBefore)}
	for _, r := range s.Retired {
		times = append(times, r.Until, r.NotAfter)
	}
	switch {
	case s.Next == nil && !s.Signer.Plugged:
		times = append(times, p.Due(s.Signer))
	case s.Next != nil:
		times = append(times, s.Next.NotBefore, s.Next.Deadline)
		if at, ok := s.acknowledged(reports); ok {
			times = append(times, at)
		}
	}
	var first time.Time
	for _, t := range times {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
