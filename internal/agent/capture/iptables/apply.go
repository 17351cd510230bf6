package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/xtables"
)

// Pair is the program for IPv4 and, where IPv6 is captured or there is one that works, that for IPv6.
type Pair struct{ families []family }

// family is a program and the version of IP that it is for.
type family struct {
	ipv6 bool
	program
}

// Choose chooses the programs that put r into force, and says why.
func (s *Programs) Choose(r plan.Ruleset) (pair Pair, why string, err error) {
	p4, why, err := s.detect(false)
	if err != nil {
		return Pair{}, "", err
	}
	pair.families = []family{{false, p4}}
	p6, why6, err := s.detect(true)
	switch {
	case err == nil:
		pair.families = append(pair.families, family{true, p6})
		if why6 != why && r.Captures(true) {
			why += "; for IPv6 " + why6
		}
	case r.Captures(true):
		return Pair{}, "", err
	}
	return pair, why, nil
}

// String returns the programs' names, versions and variants.
func (p Pair) String() string {
	var names []string
	for _, f := range p.families {
		names = append(names, f.program.String())
	}
	return strings.Join(names, ", ")
}

// Change is how the rules in force are to become those of a plan.
type Change struct {
	plan     plan.Ruleset
	families []familyChange
}

type familyChange struct {
	family
	saved  xtables.Saved
	wanted []xtables.Table
	// differences are those of saved from wanted; present says that saved has rules of capture.
	differences []string
	present     bool
}

// Compare reads the rules in force and compares them with r.
func (p Pair) Compare(r plan.Ruleset) (Change, error) {
	change := Change{plan: r}
	for _, f := range p.families {
		saved, err := f.save()
		if err != nil {
			return Change{}, err
		}
		c := familyChange{family: f, saved: saved, wanted: xtables.Tables(r, f.ipv6)}
		c.differences, c.present = saved.Differences(c.wanted)
		change.families = append(change.families, c)
	}
	return change, nil
}

// Differences lists how the rules in force differ from the plan, each as a sentence;
// none if they are equal.
func (c Change) Differences() (differences []string) {
	for _, f := range c.families {
		for _, d := range f.differences {
			differences = append(differences, f.name+": "+d)
		}
	}
	return differences
}

// Conflict returns an error if other rules of capture are in force, which another program applied.
func (c Change) Conflict() error {
	var errs []error
	for _, f := range c.families {
		if f.present && len(f.differences) > 0 {
			errs = append(errs, fmt.Errorf("%s has other rules of capture in force, which --reconcile replaces: %s", f.name, strings.Join(f.differences, "; ")))
		}
	}
	return errors.Join(errs...)
}

// Rules returns the number of rules that the change puts into force.
func (c Change) Rules() (n int) {
	for _, f := range c.families {
		for _, t := range f.wanted {
			n += t.Rules()
		}
	}
	return n
}

// Apply puts the rules of the plan into force. Where nothing of capture is, the programs get the text
// of the dry run. Rules that don't differ are replaced only if again is set. It reports whether
// anything was replaced. On an error before the first change, the rules that were in force still
// are. An error that is [ErrKernelLacks] says that these programs can't apply the plan here.
func (c Change) Apply(again bool) (changed bool, err error) {
	for _, f := range c.families {
		changed = changed || len(f.differences) > 0 || again
		if err := f.apply(again, xtables.Restore(c.plan, f.ipv6)); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

func (f familyChange) apply(again bool, text string) error {
	switch {
	case len(f.differences) == 0 && !(again && f.present):
		return nil
	case !f.present:
		return f.add(text)
	}
	return f.replace()
}

// add adds rules where there were none. If a table is refused, the others are removed again.
func (f familyChange) add(text string) error {
	err := f.restore(text)
	if err == nil {
		return nil
	}
	if s, saveErr := f.save(); saveErr == nil {
		_ = f.restore(s.Change(nil))
	}
	return err
}

// replace changes rules. Each table changes atomically; while several do, new connections wait, so
// that none meets old rules in one table and new rules in another.
func (f familyChange) replace() error {
	text := f.saved.Change(f.wanted)
	guarded := f.saved.Guarded()
	if strings.Count(text, "COMMIT\n") > 1 && !guarded {
		if err := f.restore(xtables.Guard); err != nil {
			return fmt.Errorf("guard traffic while rules are replaced: %w", err)
		}
		guarded = true
	}
	err := f.restore(text)
	if guarded {
		err = errors.Join(err, f.unguard())
	}
	return err
}

func (p program) unguard() error {
	s, err := p.save()
	if err != nil {
		return err
	}
	return p.restore(s.Unguard())
}

// Clean removes the rules of capture by all programs but those of keep.
func (s *Programs) Clean(keep Pair) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		for _, program := range s.variants(ipv6) {
			used := slices.ContainsFunc(keep.families, func(f family) bool { return f.ipv6 == ipv6 && f.variant == program.variant })
			if !used && (program.variant != "legacy" || hasLegacy(ipv6)) {
				errs = append(errs, program.clean())
			}
		}
	}
	return errors.Join(errs...)
}

// clean removes the rules of capture. A kernel that lacks what the program needs has none.
func (p program) clean() error {
	s, err := p.save()
	if err != nil {
		if p.works() != nil {
			return nil
		}
		return err
	}
	err = p.restore(s.Change(nil))
	if s.Guarded() {
		err = errors.Join(err, p.unguard())
	}
	return err
}

// CleanText returns what Clean would do: for each program with rules of capture, its name
// and its input.
func (s *Programs) CleanText() string {
	var b strings.Builder
	for _, ipv6 := range []bool{false, true} {
		for _, program := range s.variants(ipv6) {
			if program.variant == "legacy" && !hasLegacy(ipv6) {
				continue
			}
			if s, err := program.save(); err == nil && s.Change(nil) != "" {
				fmt.Fprintf(&b, "# %s\n%s", program.name, s.Change(nil))
			}
		}
	}
	return b.String()
}

// LegacyChains lists the chains in the tables of the legacy variant that are not ours, by the name of
// the program. Those of the nft variant are among the chains of nftables.
func (s *Programs) LegacyChains() map[string][]xtables.Chain {
	chains := map[string][]xtables.Chain{}
	for _, ipv6 := range []bool{false, true} {
		for _, program := range s.variants(ipv6) {
			if program.variant != "legacy" || !hasLegacy(ipv6) {
				continue
			}
			if s, err := program.save(); err == nil {
				chains[program.name] = s.OtherChains()
			}
		}
	}
	return chains
}

// Unreadable lists the names of the programs, iptables and ip6tables, whose legacy tables are in use
// here without a legacy program in the path, so that rules in them can be neither found nor removed.
func (s *Programs) Unreadable() (names []string) {
	for _, ipv6 := range []bool{false, true} {
		if hasLegacy(ipv6) && !s.HasVariant("legacy", ipv6) {
			names = append(names, baseName(ipv6))
		}
	}
	return names
}
