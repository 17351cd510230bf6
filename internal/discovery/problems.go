package discovery

import (
	"cmp"
	"math"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// problems has the current problems of the configuration. It is updated by differences, so that the cost
// of a commit depends on the number of changes, not on that of all problems. It belongs to the loop's
// goroutine.
type problems struct {
	// inForce reports whether a valid version of an object is in force; effect describes the effect
	// of an invalid policy without one.
	inForce func(object.Key) bool
	effect  func(object.Problem) string

	source []object.Problem // what the source reports, in its order
	// lines are the lines of the log about current problems, by text.
	lines    map[string]problemLine
	policies map[object.Policy]*brokenPolicy
	// byKey finds the policies whose text depends on whether an object is in force.
	byKey map[object.Key][]object.Policy
	// unenforced has the first problem of each invalid policy without a valid version in force, in the
	// order in which they are shown.
	unenforced []object.Problem
}

// problemLine is the number of problems with the same text, and the first of them.
type problemLine struct {
	count   int
	problem ranked
}

// ranked is a problem with its rank: problems of the source are shown in its order, then those of the
// store.
type ranked struct {
	config.Verdict
	rank int
}

const rankStore = math.MaxInt // after all of the source's

func compareRanked(a, b ranked) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), config.CompareVerdicts(a.Verdict, b.Verdict))
}

// brokenPolicy is an invalid security policy.
type brokenPolicy struct {
	source, store []ranked
	shown         []ranked // with the effect in the text of the first
	unenforced    bool
}

func newProblems(inForce func(object.Key) bool, effect func(object.Problem) string) *problems {
	return &problems{
		inForce: inForce, effect: effect,
		lines: map[string]problemLine{}, policies: map[object.Policy]*brokenPolicy{}, byKey: map[object.Key][]object.Policy{},
	}
}

// problemChanges are the changes since the last update.
type problemChanges struct {
	// source replaces the source's problems; nil if they are unchanged.
	source         []object.Problem
	added, removed []config.Verdict
	// objects are the keys of objects of which the version in force may have changed.
	objects []object.Key
}

// problemUpdate is the result of an update: the problems to be logged as new, in the order in which they
// are shown, the texts to be logged as gone, and whether problems.unenforced may have changed.
type problemUpdate struct {
	raised   []object.Problem
	cleared  []string
	policies bool
}

// update applies changes.
func (p *problems) update(c problemChanges) problemUpdate {
	u := updating{problems: p, before: map[string]problemLine{}, touched: map[object.Policy]bool{}}
	if c.source != nil {
		u.replaceSource(c.source)
	}
	for _, v := range c.removed {
		if isBrokenPolicy(v) {
			b := u.policy(v.Policy)
			if i := slices.IndexFunc(b.store, func(r ranked) bool { return r.Verdict == v }); i >= 0 {
				b.store = slices.Delete(b.store, i, i+1)
			}
		} else {
			u.count(ranked{v, rankStore}, -1)
		}
	}
	for _, v := range c.added {
		if isBrokenPolicy(v) {
			b := u.policy(v.Policy)
			b.store = append(b.store, ranked{v, rankStore})
		} else {
			u.count(ranked{v, rankStore}, 1)
		}
	}
	for _, k := range c.objects {
		for _, policy := range p.byKey[k] {
			u.touched[policy] = true
		}
	}
	for policy := range u.touched {
		u.refresh(policy)
	}
	if len(u.touched) > 0 {
		p.listUnenforced()
	}
	return u.result()
}

// all returns all current problems, in the order in which they are shown; stored are those of the store.
func (p *problems) all(stored []config.Verdict) []object.Problem {
	out := append(slices.Clone(p.source), stored...)
	seen := map[object.Policy]bool{}
	for i, v := range out {
		if b := p.policies[v.Policy]; isBrokenPolicy(v) && b != nil && b.unenforced && !seen[v.Policy] {
			seen[v.Policy] = true
			out[i].Text += p.effect(v)
		}
	}
	return out
}

// of returns the current problems of each of some objects, those of the source first; stored returns the store's.
func (p *problems) of(keys []object.Key, stored func(object.Key) []config.Verdict) map[object.Key][]object.Problem {
	out := make(map[object.Key][]object.Problem, len(keys))
	for _, k := range keys {
		out[k] = nil
	}
	for _, v := range p.source {
		if _, wanted := out[v.Key]; wanted {
			out[v.Key] = append(out[v.Key], v)
		}
	}
	for k, list := range out {
		list = append(list, stored(k)...)
		for i, v := range list {
			if b := p.policies[v.Policy]; isBrokenPolicy(v) && b != nil && b.unenforced {
				list[i].Text += p.effect(v)
				break
			}
		}
		out[k] = list
	}
	return out
}

func isBrokenPolicy(v object.Problem) bool { return v.Severity == object.Error && v.Policy.Broken }

// policyObject returns the key that a policy would have if it were valid.
func policyObject(p object.Policy) object.Key {
	k := p.Key
	if k.Kind == "" {
		k.Kind = object.PeerAuthentication
	}
	return k
}

// listUnenforced rebuilds the list of policies that are not enforced.
func (p *problems) listUnenforced() {
	var first []ranked
	for _, b := range p.policies {
		if b.unenforced {
			first = append(first, slices.Concat(b.source, b.store)[0])
		}
	}
	slices.SortFunc(first, compareRanked)
	p.unenforced = nil
	for _, r := range first {
		p.unenforced = append(p.unenforced, r.Verdict)
	}
}

// updating is the state of one update.
type updating struct {
	*problems
	before  map[string]problemLine // the lines that have changed, as they were before
	order   []string               // their texts, in the order of the first change
	touched map[object.Policy]bool
}

// count adds a problem to its line of the log, or removes it.
func (u *updating) count(r ranked, by int) {
	text := r.Error()
	line := u.lines[text]
	if _, ok := u.before[text]; !ok {
		u.before[text] = line
		u.order = append(u.order, text)
	}
	if line.count == 0 || by > 0 && compareRanked(r, line.problem) < 0 {
		line.problem = r
	}
	if line.count += by; line.count == 0 {
		delete(u.lines, text)
	} else {
		u.lines[text] = line
	}
}

// policy returns the record of an invalid policy, and marks it to be refreshed.
func (u *updating) policy(of object.Policy) *brokenPolicy {
	u.touched[of] = true
	b := u.policies[of]
	if b == nil {
		b = &brokenPolicy{}
		u.policies[of] = b
		k := policyObject(of)
		u.byKey[k] = append(u.byKey[k], of)
	}
	return b
}

func (u *updating) replaceSource(now []object.Problem) {
	for i, v := range u.source {
		if isBrokenPolicy(v) {
			u.policy(v.Policy).source = nil
		} else {
			u.count(ranked{v, i}, -1)
		}
	}
	u.source = now
	for i, v := range now {
		if isBrokenPolicy(v) {
			b := u.policy(v.Policy)
			b.source = append(b.source, ranked{v, i})
		} else {
			u.count(ranked{v, i}, 1)
		}
	}
}

// refresh rebuilds the lines of a policy.
func (u *updating) refresh(policy object.Policy) {
	b := u.policies[policy]
	for _, r := range b.shown {
		u.count(r, -1)
	}
	slices.SortStableFunc(b.store, compareRanked)
	b.shown = slices.Concat(b.source, b.store)
	k := policyObject(policy)
	if len(b.shown) == 0 {
		delete(u.policies, policy)
		if u.byKey[k] = slices.DeleteFunc(u.byKey[k], func(o object.Policy) bool { return o == policy }); len(u.byKey[k]) == 0 {
			delete(u.byKey, k)
		}
		return
	}
	if b.unenforced = !u.inForce(k); b.unenforced {
		b.shown[0].Text += u.effect(b.shown[0].Verdict)
	}
	for _, r := range b.shown {
		u.count(r, 1)
	}
}

func (u *updating) result() problemUpdate {
	out := problemUpdate{policies: len(u.touched) > 0}
	var raised []ranked
	for _, text := range u.order {
		before, now := u.before[text], u.lines[text]
		switch {
		case before.count == 0 && now.count > 0:
			raised = append(raised, now.problem)
		case before.count > 0 && now.count == 0 && before.problem.Severity != object.Info:
			out.cleared = append(out.cleared, text)
		}
	}
	slices.SortStableFunc(raised, compareRanked)
	for _, r := range raised {
		out.raised = append(out.raised, r.Verdict)
	}
	slices.Sort(out.cleared)
	return out
}
