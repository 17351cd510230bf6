package capture

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// cleanOrphans removes, without any program, what the nft variant of iptables made for us: our
// chains and the jumps to them. Rules in the kernel's own chains that jump nowhere stay, and do
// nothing without the others.
func cleanOrphans(ipv6 bool) error {
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.CloseLasting()
	done := make(chan error)
	go func() { done <- removeOrphans(c, ipv6) }() // for flush's reason
	if err := <-done; err != nil {
		return fmt.Errorf("remove the rules of %s without that program: %w", family(ipv6), err)
	}
	return nil
}

func removeOrphans(c *nftables.Conn, ipv6 bool) error {
	version := map[bool]nftables.TableFamily{false: nftables.TableFamilyIPv4, true: nftables.TableFamilyIPv6}[ipv6]
	chains, err := c.ListChainsOfTableFamily(version)
	if err != nil {
		return nil // a kernel without nf_tables has none
	}
	ours := func(ch *nftables.Chain) bool {
		return slices.Contains(xtableNames, ch.Table.Name) && slices.Contains(ourChains, ch.Name)
	}
	if !slices.ContainsFunc(chains, ours) {
		return nil
	}
	for _, ch := range chains {
		if ours(ch) {
			c.FlushChain(ch)
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if jumpsToUs(r) {
				if err := c.DelRule(r); err != nil {
					return err
				}
			}
		}
	}
	for _, ch := range chains {
		if ours(ch) {
			c.DelChain(ch)
		}
	}
	return c.Flush()
}

func jumpsToUs(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) && slices.Contains(ourChains, v.Chain)
	})
}
