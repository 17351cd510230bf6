package capture

import (
	"errors"
	"fmt"
	"strings"
)

// errKernelLacks is in errors that say that the kernel has no part that rules of iptables need, so
// that no iptables of its variant can ever apply them here.
var errKernelLacks = errors.New("the kernel lacks what iptables needs")

// complaint is what a program is known to say, and what a person can do then.
type complaint struct {
	sign, remedy string
	lacks        bool
}

// complaints are those of iptables 1.4 to 1.8, in both variants.
var complaints = []complaint{
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

// explain adds to what the program said what a person can do about it.
func (p program) explain(err error, said string) error {
	if said == "" {
		return err
	}
	err = fmt.Errorf("%w: %s", err, said)
	for _, c := range complaints {
		if !strings.Contains(said, c.sign) {
			continue
		}
		if c.lacks {
			return fmt.Errorf("%w (%w: %s)", err, errKernelLacks, c.remedy)
		}
		return fmt.Errorf("%w (%s)", err, c.remedy)
	}
	return err
}
