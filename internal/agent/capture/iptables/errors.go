package iptables

import (
	"errors"
	"fmt"
	"strings"
)

// ErrKernelLacks is wrapped by errors which say that the kernel has no module for something that the
// rules need, so that no program of the same variant can apply them here.
var ErrKernelLacks = errors.New("the kernel lacks what iptables needs")

// knownError is a part of a program's error output and its remedy.
type knownError struct {
	text, remedy string
	kernelLacks  bool
}

// knownErrors are those of iptables 1.4 to 1.8, in both variants.
var knownErrors = []knownError{
	{"holding the xtables lock", "another program has held " + lockFile + " for " + lockWait.String() + ": wait until it has ended, or find it with fuser " + lockFile, false},
	{"can't open lock file", "mount a writable /run, or use --cni-mode, whose lock is the network namespace's own, or --native-nftables, which needs none", false},
	{"Permission denied", "run as root, or with the capabilities CAP_NET_ADMIN and CAP_NET_RAW", false},
	{"Operation not permitted", "run as root, or with the capabilities CAP_NET_ADMIN and CAP_NET_RAW", false},
	{"Table does not exist", "load iptable_nat (ip6table_nat for IPv6) and what else the rules name, or use --native-nftables", true},
	{"can't initialize", "load iptable_nat (ip6table_nat for IPv6) and what else the rules name, or use --native-nftables", true},
	{"No chain/target/match by that name", "load what the rule names, such as xt_owner, xt_REDIRECT or xt_TPROXY, or use --native-nftables", true},
	{"missing kernel module", "load what the rule names, such as xt_owner, xt_REDIRECT or xt_TPROXY, or use --native-nftables", true},
	{"RULE_APPEND failed", "load what the rule needs, such as nft_compat or xt_owner, or use --native-nftables", true},
	{"Failed to initialize nft", "load nf_tables, or use --force-iptables-binary=legacy", true},
	{"Protocol not supported", "this version of IP, or nf_tables, is not in it", true},
}

// diagnose adds a program's error output and its remedy, if known, to the error.
func diagnose(err error, stderr string) error {
	if stderr == "" {
		return err
	}
	err = fmt.Errorf("%w: %s", err, stderr)
	for _, known := range knownErrors {
		if !strings.Contains(stderr, known.text) {
			continue
		}
		if known.kernelLacks {
			return fmt.Errorf("%w (%w: %s)", err, ErrKernelLacks, known.remedy)
		}
		return fmt.Errorf("%w (%s)", err, known.remedy)
	}
	return err
}
