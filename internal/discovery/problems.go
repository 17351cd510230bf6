package discovery

import (
	"cmp"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// problems is what is wrong with the configuration now, kept up to date from differences, so
// that the cost of a commit depends on what has changed, not on how many problems there are. It belongs to the loop's goroutine.
type problems struct {
	// inForce says whether a good value of an object is in force; effect describes what
	// follows from a broken policy without one.
	inForce func(object.Key) bool
	effect  func(object.Problem) string

	source []object.Problem // what the source reports, in its order
	// lines are the problems as the log shows them, by text.
	lines    map[string]problemLine
	policies map[object.Policy]*brokenPolicy
	// byKey finds the policies whose text depends on whether an object is in force.
	byKey map[object.Key][]object.Policy
	// unenforced has the first problem of each policy that is broken and of which no good
	// value is in force, in the order in which they are shown.
	unenforced []object.Problem
}

// problemLine is a text of the log and how many problems have it.
type problemLine struct {
	count   int
	problem ranked
}

// ranked is a problem and its place in the order in which problems are shown: those of the
// source as it lists them, then those of the store.
type ranked struct {
	config.Verdict
	rank int
}

const rankStore = int(^uint(0) >> 1) // behind all of the source's

func compareRanked(a, b ranked) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), config.CompareVerdicts(a.Verdict, b.Verdict))
}

// brokenPolicy is a security policy with errors.
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

// problemChanges is what happened to the configuration since the last update.
type problemChanges struct {
	// source replaces what the source reports; nil where that is unchanged.
	source         []object.Problem
	added, removed []config.Verdict
	// objects are those whose value in force may have changed.
	objects []object.Key
}

// problemUpdate is what followed from changes: the problems to be logged as new, in the
// order in which problems are shown, the texts to be logged as gone, and whether the policies
// that are not enforced may have changed.
type problemUpdate struct {
	raised   []object.Problem
	cleared  []string
	policies bool
}

// update applies what has changed.
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

// all is everything that is wrong now, in the order in which problems are shown; stored is
// what the store says.
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

func isBrokenPolicy(v object.Problem) bool { return v.Severity == object.Error && v.Policy.Broken }

// policyObject is the key of the object that a policy's good value would have.
func policyObject(p object.Policy) object.Key {
	k := p.Key
	if k.Kind == "" {
		k.Kind = object.PeerAuthentication
	}
	return k
}

// listUnenforced makes the list of unenforced policies anew.
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

// updating is one update under way.
type updating struct {
	*problems
	before  map[string]problemLine // of each line that was counted, as it was
	order   []string               // the lines in the order in which they were counted first
	touched map[object.Policy]bool
}

// count adds a problem to its line of the log, or takes it away.
func (u *updating) count(r ranked, by int) {
	text := r.Error()
	line := u.lines[text]
	if _, noted := u.before[text]; !noted {
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

// policy finds or makes the record of a broken policy, which is refreshed at the end.
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

// refresh makes the lines of a policy anew.
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
