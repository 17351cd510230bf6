package capture

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// iptables is the backend that runs the iptables programs.
type iptables struct {
	*shelf
	// families are the programs: of IPv4 always, of IPv6 too where it is captured or there is one.
	families []iptablesFamily
}

type iptablesFamily struct {
	ipv6 bool
	program
}

// newIptables detects the programs that r needs.
func newIptables(o BackendOptions, r Ruleset) (*iptables, string, error) {
	s := newShelf(o)
	p4, why, err := s.detect(false)
	if err != nil {
		return nil, "", err
	}
	b := &iptables{shelf: s, families: []iptablesFamily{{false, p4}}}
	p6, why6, err := s.detect(true)
	switch {
	case err == nil:
		b.families = append(b.families, iptablesFamily{true, p6})
		if why6 != why && r.Captures(true) {
			why += "; for IPv6 " + why6
		}
	case r.Captures(true):
		return nil, "", err
	}
	return b, why, nil
}

// String is the programs' names.
func (b *iptables) String() string {
	var names []string
	for _, f := range b.families {
		names = append(names, f.program.String())
	}
	return strings.Join(names, ", ")
}

// work is what is to be done for one version of IP.
type work struct {
	iptablesFamily
	saved saved
	want  []xtable
	// differences are those from what is in force; residue says that something of ours is.
	differences []string
	residue     bool
}

func (b *iptables) compare(r Ruleset) (all []work, err error) {
	for _, f := range b.families {
		w := work{iptablesFamily: f, want: r.xtables(f.ipv6)}
		if w.saved, err = f.save(); err != nil {
			return nil, err
		}
		w.differences, w.residue = w.saved.drift(w.want)
		all = append(all, w)
	}
	return all, nil
}

// Drift is as [Backend] says.
func (b *iptables) Drift(r Ruleset) (differences []string, err error) {
	all, err := b.compare(r)
	if err != nil {
		return nil, fmt.Errorf("compare the rules in force: %w", err)
	}
	for _, w := range all {
		for _, d := range w.differences {
			differences = append(differences, w.name+": "+d)
		}
	}
	routes, err := driftOfRoutes(r)
	if err != nil {
		return nil, fmt.Errorf("compare the rules in force: %w", err)
	}
	return append(differences, routes...), nil
}

// Apply is as [Backend] says. Where nothing of ours is in force, the programs get the text of the
// dry run. Where something else of ours is, it is an error unless the options have it replaced:
// somebody wanted that. On any error before the first change, what was in force still is.
func (b *iptables) Apply(r Ruleset) (Report, error) {
	begin := time.Now()
	var report Report
	err := b.apply(r, &report)
	if err == nil {
		err = b.sweep(b.families)
	}
	if err == nil {
		err = cleanNative()
	}
	if err != nil {
		return report, fmt.Errorf("apply the capture of traffic: %w", err)
	}
	report.Took = time.Since(begin)
	return report, nil
}

func (b *iptables) apply(r Ruleset, report *Report) error {
	all, err := b.compare(r)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range all {
		if w.residue && len(w.differences) > 0 && !b.o.Reconcile {
			errs = append(errs, fmt.Errorf("%s has other rules of capture in force, which --reconcile replaces: %s", w.name, strings.Join(w.differences, "; ")))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := setHost(r, report); err != nil {
		return err
	}
	for _, w := range all {
		for _, t := range w.want {
			report.Rules += len(t.rules)
		}
		report.Changed = report.Changed || len(w.differences) > 0 || b.o.Reapply
		if err := w.do(b.o.Reapply, r.Restore(w.ipv6)); err != nil {
			return err
		}
	}
	return nil
}

// do brings one version of IP's rules into force.
func (w work) do(again bool, text string) error {
	switch {
	case len(w.differences) == 0 && !(again && w.residue):
		return nil
	case !w.residue:
		return w.add(text)
	}
	return w.replace()
}

// add adds rules where there were none; a table that is refused takes the others along.
func (w work) add(text string) error {
	err := w.restore(text)
	if err == nil {
		return nil
	}
	if s, saveErr := w.save(); saveErr == nil {
		_ = w.restore(s.change(nil))
	}
	return err
}

// replace changes rules. Each table changes at once; while there are several, new connections wait,
// so that none meets half of the old rules and half of the new.
func (w work) replace() error {
	text := w.saved.change(w.want)
	left := slices.Contains(w.saved.table("filter").chains, chainGuard)
	if strings.Count(text, "COMMIT\n") > 1 && !left {
		if err := w.restore(guard); err != nil {
			return fmt.Errorf("guard traffic while rules are replaced: %w", err)
		}
		left = true
	}
	err := w.restore(text)
	if left {
		err = errors.Join(err, w.unguard())
	}
	return err
}

// guard has new connections and questions dropped, which their callers repeat, and lets the packets
// of others pass.
const guard = "* filter\n:" + chainGuard + " - [0:0]\n" +
	"-A " + chainGuard + " -p tcp -m conntrack --ctstate NEW -j DROP\n" +
	"-A " + chainGuard + " -p udp --dport 53 -j DROP\n" +
	"-I INPUT 1 -j " + chainGuard + "\n-I OUTPUT 1 -j " + chainGuard + "\nCOMMIT\n"

// unguard lets everything pass again, however many guards an interrupted change left.
func (p program) unguard() error {
	s, err := p.save()
	if err != nil {
		return err
	}
	t := s.table("filter")
	if !slices.Contains(t.chains, chainGuard) {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "* filter\n-F %s\n", chainGuard)
	for _, r := range t.rules {
		if target(r.canon) == chainGuard {
			fmt.Fprintf(&b, "-D %s %s\n", r.chain, r.text)
		}
	}
	fmt.Fprintf(&b, "-X %s\nCOMMIT\n", chainGuard)
	return p.restore(b.String())
}

// Clean is as [Backend] says.
func (b *iptables) Clean() error { return errors.Join(b.sweep(nil), Clean()) }

// sweep takes our rules out of every iptables but those in use.
func (s *shelf) sweep(keep []iptablesFamily) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		programs := s.variants(ipv6)
		if !slices.ContainsFunc(programs, func(p program) bool { return p.variant == "nft" }) {
			errs = append(errs, cleanOrphans(ipv6))
		}
		for _, p := range programs {
			used := slices.ContainsFunc(keep, func(f iptablesFamily) bool { return f.ipv6 == ipv6 && f.variant == p.variant })
			if !used && (p.variant != "legacy" || hasLegacy(ipv6)) {
				errs = append(errs, p.clean())
			}
		}
	}
	return errors.Join(errs...)
}

// CleanText is what a cleaning would have the iptables programs do: for each that has rules of ours,
// its name and its text.
func CleanText(o BackendOptions) string {
	var b strings.Builder
	s := newShelf(o)
	for _, ipv6 := range []bool{false, true} {
		for _, p := range s.variants(ipv6) {
			if p.variant == "legacy" && !hasLegacy(ipv6) {
				continue
			}
			if rules, err := p.save(); err == nil && rules.change(nil) != "" {
				fmt.Fprintf(&b, "# %s\n%s", p.name, rules.change(nil))
			}
		}
	}
	return b.String()
}

// clean takes our rules out. A kernel that can't have any has none.
func (p program) clean() error {
	s, err := p.save()
	if err != nil {
		if p.works() != nil {
			return nil
		}
		return err
	}
	err = p.restore(s.change(nil))
	if slices.Contains(s.table("filter").chains, chainGuard) {
		err = errors.Join(err, p.unguard())
	}
	return err
}

// cleanNative takes the tables of the other backend away, if there are any.
func cleanNative() error {
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.CloseLasting()
	differences, err := driftOfTables(c, Ruleset{})
	if err != nil || len(differences) == 0 {
		return nil // a kernel that can't have them has none
	}
	replace(c)
	if err := flush(c); err != nil {
		return fmt.Errorf("remove nftables tables: %w", explain(err))
	}
	return nil
}
