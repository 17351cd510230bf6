package capture

import (
	"fmt"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/capture/iptables"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/xtables"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// BackendOptions select and configure a backend.
type BackendOptions struct {
	// Native selects nftables over netlink. [agent I31]
	Native bool
	// Force selects a variant of iptables, legacy or nft; empty for any. [agent I32]
	Force string
	// Reconcile replaces other rules of capture, which otherwise are an error with iptables; Reapply
	// replaces rules even if they are equal. [agent I28, I30]
	Reconcile, Reapply bool
	// PodLock locks the network namespace instead of the lock file of the file system. [agent I27]
	PodLock bool
	// Path lists the directories of programs, separated by colons; empty for none.
	Path string
}

// DefaultPath is the usual PATH of root.
const DefaultPath = settings.DefaultPath

// Check returns an error if the options are invalid.
func (o BackendOptions) Check() error {
	if o.Force != "" && o.Force != "legacy" && o.Force != "nft" {
		return fmt.Errorf("--force-iptables-binary=%q: want legacy, nft or nothing", o.Force)
	}
	return nil
}

func (o BackendOptions) programs() *iptables.Programs {
	return iptables.NewPrograms(iptables.Options{Path: o.Path, Variant: o.Force, NamespaceLock: o.PodLock})
}

// Choice is a backend with its name and the reason for the choice.
type Choice struct {
	Backend
	Name, Why string
}

// Choose chooses iptables if its programs exist and work for r, else nftables, unless the options
// select one. It returns an error if the options are invalid, or the selected iptables variant does not
// work. [agent I42]
func Choose(o BackendOptions, r plan.Ruleset) (Choice, error) {
	if err := o.Check(); err != nil {
		return Choice{}, err
	}
	native := Choice{Backend: Nftables{o}, Name: "nftables"}
	if o.Native {
		native.Why = "--native-nftables"
		return native, nil
	}
	programs := o.programs()
	pair, why, err := programs.Choose(r)
	if err != nil {
		if o.Force != "" {
			return Choice{}, fmt.Errorf("choose an iptables program: %w", err)
		}
		native.Why = "no iptables program works: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		return native, nil
	}
	b := iptablesBackend{options: o, programs: programs, pair: pair}
	choice := Choice{Backend: b, Name: pair.String(), Why: why}
	if o.Force == "" {
		choice.Backend = fallback{b, Nftables{o}}
	}
	return choice, nil
}

// DryRun returns the rules as input for nft or iptables-restore. It reads and runs nothing.
func DryRun(o BackendOptions, r plan.Ruleset) string {
	if o.Native {
		return r.String()
	}
	return xtables.RestoreBoth(r)
}

// CleanText returns, for each iptables program with rules of capture in force, its name and the input that
// removes them. It changes nothing.
func CleanText(o BackendOptions) string { return o.programs().CleanText() }
