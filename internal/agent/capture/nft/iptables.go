package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// RemoveChains removes, from the tables that the nft variant of iptables has for one version of IP,
// the named chains and the rules that jump to them, as that program would. Other rules that capture
// added to the kernel's own chains stay, and have no effect without these.
func RemoveChains(ipv6 bool, tables, chains []string) error {
	family := nftables.TableFamilyIPv4
	if ipv6 {
		family = nftables.TableFamilyIPv6
	}
	return withConn(func(c *nftables.Conn) error {
		if err := removeChains(c, family, tables, chains); err != nil {
			return fmt.Errorf("remove the chains of iptables without its program: %w", err)
		}
		return nil
	})
}

func removeChains(c *nftables.Conn, family nftables.TableFamily, tables, names []string) error {
	chains, err := c.ListChainsOfTableFamily(family)
	if err != nil {
		return nil // a kernel without nf_tables has none
	}
	named := func(ch *nftables.Chain) bool {
		return slices.Contains(tables, ch.Table.Name) && slices.Contains(names, ch.Name)
	}
	if !slices.ContainsFunc(chains, named) {
		return nil
	}
	for _, ch := range chains {
		if named(ch) {
			c.FlushChain(ch)
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if !jumpsTo(r, names) {
				continue
			}
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
	}
	for _, ch := range chains {
		if named(ch) {
			c.DelChain(ch)
		}
	}
	return c.Flush()
}

func jumpsTo(r *nftables.Rule, chains []string) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) && slices.Contains(chains, v.Chain)
	})
}
