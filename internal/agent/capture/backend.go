package capture

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Backend is one way to put rules into the kernel. Its methods act on the network namespace of the
// calling thread, and must not be called by two at once for one namespace.
type Backend interface {
	// Apply makes the kernel capture as r says, and nothing that any backend was told before.
	// What is in force already is not touched.
	Apply(r Ruleset) (Report, error)
	// Drift lists how the kernel differs from r; nothing if it doesn't.
	Drift(r Ruleset) ([]string, error)
	// Clean takes back what any backend may have done, as far as its programs are there.
	Clean() error
}

// BackendOptions say which backend is wanted and how it goes about it.
type BackendOptions struct {
	// Native asks for nftables over netlink. [agent I31]
	Native bool
	// Force asks for one variant of iptables, legacy or nft. [I32]
	Force string
	// Reconcile has rules of ours that differ replaced, where iptables otherwise refuses to;
	// Reapply has them replaced even if they don't differ. [I28, I30]
	Reconcile, Reapply bool
	// PodLock takes a lock of the network namespace's own instead of the file system's. [I27]
	PodLock bool
	// Path is where programs are looked for, directories with colons between. Empty: none.
	Path string
}

// DefaultPath is where programs for administration are.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Choice is a backend, with words for people on which one it is and why.
type Choice struct {
	Backend
	Name, Why string
}

// Choose takes iptables where its programs are there and work for what r captures, else nftables,
// if the options don't say. The error is that of an iptables that was asked for. [agent I42]
func Choose(o BackendOptions, r Ruleset) (Choice, error) {
	if err := o.Check(); err != nil {
		return Choice{}, err
	}
	native := Choice{Backend: Nftables{o}, Name: "nftables"}
	if o.Native {
		native.Why = "--native-nftables"
		return native, nil
	}
	b, why, err := newIptables(o, r)
	if err != nil {
		if o.Force != "" {
			return Choice{}, fmt.Errorf("choose an iptables program: %w", err)
		}
		native.Why = "no iptables program works: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		return native, nil
	}
	choice := Choice{Backend: b, Name: b.String(), Why: why}
	if o.Force == "" {
		choice.Backend = fallback{b, Nftables{o}}
	}
	return choice, nil
}

// fallback is iptables until the kernel turns out to lack what its rules need.
type fallback struct {
	*iptables
	native Nftables
}

// Apply is as [Backend] says.
func (f fallback) Apply(r Ruleset) (Report, error) {
	report, err := f.iptables.Apply(r)
	if !errors.Is(err, errKernelLacks) {
		return report, err
	}
	report, nativeErr := f.native.Apply(r)
	if nativeErr != nil {
		return report, errors.Join(err, nativeErr)
	}
	report.Refused = append(report.Refused, fmt.Errorf("the rules are those of nftables: %w", err))
	return report, nil
}

// Drift is as [Backend] says: no difference from either will do.
func (f fallback) Drift(r Ruleset) ([]string, error) {
	differences, err := f.iptables.Drift(r)
	if err != nil || len(differences) > 0 {
		if other, nativeErr := f.native.Drift(r); nativeErr == nil && len(other) == 0 {
			return nil, nil
		}
	}
	return differences, err
}

// Check says what is wrong with the options, whatever the machine has.
func (o BackendOptions) Check() error {
	if o.Force != "" && o.Force != "legacy" && o.Force != "nft" {
		return fmt.Errorf("--force-iptables-binary=%q: give legacy or nft, or leave it empty", o.Force)
	}
	return nil
}

// Text is what a dry run shows: what would be asked of the kernel, in the language that scripts
// read, without a look at the programs.
func Text(o BackendOptions, r Ruleset) string {
	if o.Native {
		return r.String()
	}
	return r.RestoreAll()
}

// RestoreAll is Restore for both versions of IP.
func (r Ruleset) RestoreAll() string { return r.Restore(false) + r.Restore(true) }

// Nftables is the backend that needs no program.
type Nftables struct{ Options BackendOptions }

// Apply is as [Backend] says; rules of iptables that are ours go once the new ones are in force.
func (n Nftables) Apply(r Ruleset) (Report, error) {
	begin := time.Now()
	var report Report
	err := apply(r, n.Options.Reapply, &report)
	if err == nil {
		err = newShelf(n.Options).sweep(nil)
	}
	if err != nil {
		return report, fmt.Errorf("apply the capture of traffic: %w", err)
	}
	report.Took = time.Since(begin)
	return report, nil
}

// Drift is as [Backend] says.
func (Nftables) Drift(r Ruleset) ([]string, error) { return Drift(r) }

// Clean is as [Backend] says.
func (n Nftables) Clean() error { return errors.Join(newShelf(n.Options).sweep(nil), Clean()) }
