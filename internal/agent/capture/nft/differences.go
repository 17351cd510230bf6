package nft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Differences lists how the kernel's tables of capture differ from those of r, each as a sentence;
// none if they are equal. Other tables are ignored.
func Differences(r plan.Ruleset) (differences []string, err error) {
	err = withConn(func(c *nftables.Conn) error {
		differences, err = compare(c, r)
		return err
	})
	return differences, err
}

func compare(c *nftables.Conn, r plan.Ruleset) (differences []string, err error) {
	have, err := readTables(c)
	if err != nil {
		return nil, fmt.Errorf("read nftables tables: %w", withRemedy(err))
	}
	for _, name := range plan.TableNames() {
		var want []string
		for _, t := range r.Tables {
			if t.Name != name {
				continue
			}
			if want, err = describeTable(t); err != nil {
				return nil, err
			}
		}
		if text := difference(name, have[name], want); text != "" {
			differences = append(differences, text)
		}
	}
	return differences, nil
}

// difference compares the lines of a table; nil is a table that does not exist.
func difference(table string, have, want []string) string {
	switch {
	case slices.Equal(have, want):
		return ""
	case have == nil:
		return "table " + table + " is missing"
	case want == nil:
		return "table " + table + " is left over"
	}
	missing, extra := 0, 0
	count := map[string]int{}
	for _, line := range have {
		count[line]++
	}
	for _, line := range want {
		if count[line]--; count[line] < 0 {
			missing++
		}
	}
	for _, n := range count {
		extra += max(n, 0)
	}
	if missing == 0 && extra == 0 {
		return "table " + table + " has its rules in another order"
	}
	return fmt.Sprintf("table %s lacks %d of its chains and rules and has %d others", table, missing, extra)
}

// readTables describes our tables as the kernel has them.
func readTables(c *nftables.Conn) (map[string][]string, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, t := range tables {
		if slices.Contains(plan.TableNames(), t.Name) {
			found[t.Name] = []string{}
		}
	}
	if len(found) == 0 {
		return found, nil
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	for _, ch := range chains {
		lines, ours := found[ch.Table.Name]
		if !ours {
			continue
		}
		lines = append(lines, describeChain(ch))
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			lines = append(lines, ch.Name+": "+describeExprs(r.Exprs))
		}
		found[ch.Table.Name] = lines
	}
	return found, nil
}

// describeTable returns what readTables will return once t is in the kernel.
func describeTable(t plan.Table) ([]string, error) {
	lines := []string{}
	for _, ch := range t.Chains {
		chain, err := nativeChain(ch, nil)
		if err != nil {
			return nil, err
		}
		lines = append(lines, describeChain(chain))
		for _, rule := range ch.Rules {
			for _, r := range rule.Nftables() {
				exprs, err := encode(r)
				if err != nil {
					return nil, err
				}
				lines = append(lines, ch.Name+": "+describeExprs(exprs))
			}
		}
	}
	return lines, nil
}

func describeChain(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Priority == nil {
		return c.Name
	}
	policy := nftables.ChainPolicyAccept
	if c.Policy != nil {
		policy = *c.Policy
	}
	return fmt.Sprintf("%s %s %d %d %d", c.Name, c.Type, *c.Hooknum, *c.Priority, policy)
}

// describeExprs leaves out what the kernel counts, adds or does not return.
func describeExprs(exprs []expr.Any) string {
	var b strings.Builder
	for _, e := range exprs {
		switch x := e.(type) {
		case *expr.Counter:
			e = &expr.Counter{}
		case *expr.Redir:
			e = &expr.Redir{RegisterProtoMin: x.RegisterProtoMin, Flags: x.Flags &^ unix.NF_NAT_RANGE_PROTO_SPECIFIED}
		case *expr.TProxy:
			continue // can't be read back; its port, in a register, can
		case *expr.Ct:
			e = &expr.Ct{Key: x.Key} // whether it sets or reads can't be read back
		}
		fmt.Fprintf(&b, "%T%+v ", e, e)
	}
	return b.String()
}
