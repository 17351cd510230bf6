// Package capture puts planned rules into force in a network namespace, watches them and validates them.
//
// [Choose] chooses a [Backend], iptables or nftables, for a plan of package plan. A backend replaces
// whatever any backend applied before, changes nothing where the plan is in force already, and on
// an error before its first change leaves the previous rules in force. [Watch] restores rules that
// another program changed; [Validation] sends connections through them. All but Watch act on the
// network namespace of the calling thread; they need the capability CAP_NET_ADMIN.
package capture

import (
	"errors"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture/iptables"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/nft"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/xtables"
)

// Backend applies rules to the kernel. Its methods must not be called concurrently for one network
// namespace.
type Backend interface {
	// Apply puts r into force and removes all else that any backend applied. Rules that are in force
	// already are not changed.
	Apply(r plan.Ruleset) (Report, error)
	// Drift lists how the kernel differs from r, each as a sentence; none if it does
	// not. Other rules are ignored.
	Drift(r plan.Ruleset) ([]string, error)
	// Clean removes what any backend applied, except rules whose program is missing: see
	// [Unreadable]. It returns no error if there is nothing to remove.
	Clean() error
}

// Report is the result of an Apply, whether it succeeded or not.
type Report struct {
	// Took is the duration of the Apply, Rules the number of rules in force.
	Took  time.Duration
	Rules int
	// Changed says that rules were replaced, because different ones or none were in force.
	Changed bool
	// Refused are errors of settings that could not be changed; capture works without them.
	Refused []error
}

// Nftables is the backend that runs no program. If Options.Path is empty it removes rules of iptables as
// far as possible without programs.
type Nftables struct{ Options BackendOptions }

// Apply implements [Backend]. Rules of iptables are removed once the new ones are in force.
func (n Nftables) Apply(r plan.Ruleset) (Report, error) {
	begin := time.Now()
	report := Report{Rules: nft.Rules(r)}
	var err error
	if report.Refused, err = netns.Prepare(r); err == nil {
		report.Changed, err = nft.Apply(r, n.Options.Reapply)
	}
	if err == nil {
		err = cleanIptables(n.Options.programs(), iptables.Pair{})
	}
	report.Took = time.Since(begin)
	return report, applyError(err)
}

// Drift implements [Backend].
func (Nftables) Drift(r plan.Ruleset) ([]string, error) {
	differences, err := nft.Differences(r)
	return withRoutes(r, differences, err)
}

// Clean implements [Backend].
func (n Nftables) Clean() error {
	return cleanAll(n.Options.programs())
}

// iptablesBackend is the backend that runs the iptables programs.
type iptablesBackend struct {
	options  BackendOptions
	programs *iptables.Programs
	pair     iptables.Pair
}

// Apply implements [Backend]. If other rules of capture are in force, it returns an error unless
// Options.Reconcile is set, because another program needs them.
func (b iptablesBackend) Apply(r plan.Ruleset) (Report, error) {
	begin := time.Now()
	report, err := b.apply(r)
	if err == nil {
		err = cleanIptables(b.programs, b.pair)
	}
	if err == nil && nft.Present() {
		err = nft.Clean()
	}
	report.Took = time.Since(begin)
	return report, applyError(err)
}

func (b iptablesBackend) apply(r plan.Ruleset) (report Report, err error) {
	change, err := b.pair.Compare(r)
	if err != nil {
		return report, err
	}
	if !b.options.Reconcile {
		if err := change.Conflict(); err != nil {
			return report, err
		}
	}
	if report.Refused, err = netns.Prepare(r); err != nil {
		return report, err
	}
	report.Rules = change.Rules()
	report.Changed, err = change.Apply(b.options.Reapply)
	return report, err
}

// Drift implements [Backend].
func (b iptablesBackend) Drift(r plan.Ruleset) ([]string, error) {
	change, err := b.pair.Compare(r)
	return withRoutes(r, change.Differences(), err)
}

// Clean implements [Backend].
func (b iptablesBackend) Clean() error {
	return cleanAll(b.programs)
}

// fallback uses iptables, or nftables if the kernel lacks what the iptables rules need.
type fallback struct {
	iptablesBackend
	native Nftables
}

// Apply implements [Backend].
func (f fallback) Apply(r plan.Ruleset) (Report, error) {
	report, err := f.iptablesBackend.Apply(r)
	if !errors.Is(err, iptables.ErrKernelLacks) {
		return report, err
	}
	report, nativeErr := f.native.Apply(r)
	if nativeErr != nil {
		return report, errors.Join(err, nativeErr)
	}
	report.Refused = append(report.Refused, fmt.Errorf("the rules are those of nftables: %w", err))
	return report, nil
}

// Drift implements [Backend]: one of the two without differences is enough.
func (f fallback) Drift(r plan.Ruleset) ([]string, error) {
	differences, err := f.iptablesBackend.Drift(r)
	if err != nil || len(differences) > 0 {
		if other, nativeErr := f.native.Drift(r); nativeErr == nil && len(other) == 0 {
			return nil, nil
		}
	}
	return differences, err
}

// withRoutes adds to the differences of rules those of routes.
func withRoutes(r plan.Ruleset, differences []string, err error) ([]string, error) {
	var routes []string
	if err == nil {
		routes, err = netns.Differences(r)
	}
	if err != nil {
		return nil, fmt.Errorf("compare the capture of traffic with the plan: %w", err)
	}
	return append(differences, routes...), nil
}

func applyError(err error) error {
	if err != nil {
		return fmt.Errorf("apply the capture of traffic: %w", err)
	}
	return nil
}

// cleanAll removes what any backend applied, except the sysctls. Captured connections are broken.
func cleanAll(programs *iptables.Programs) error {
	err := cleanIptables(programs, iptables.Pair{})
	if nativeErr := nft.Clean(); nativeErr != nil {
		return errors.Join(err, fmt.Errorf("clean the capture of traffic: %w", nativeErr))
	}
	if hostErr := netns.Clean(); hostErr != nil {
		err = errors.Join(err, fmt.Errorf("clean the capture of traffic: %w", hostErr))
	}
	return err
}

// cleanIptables removes the rules of all iptables programs except those of keep. If the nft variant is
// missing, its rules are removed over netlink.
func cleanIptables(programs *iptables.Programs, keep iptables.Pair) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		if !programs.HasVariant("nft", ipv6) {
			errs = append(errs, nft.RemoveChains(ipv6, xtables.TableNames(), xtables.ChainNames()))
		}
	}
	return errors.Join(append(errs, programs.Clean(keep))...)
}
