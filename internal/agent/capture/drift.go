package capture

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Drift lists how the kernel's nftables and routes differ from r, each as a sentence for people;
// nothing if they don't. What others have beside ours does not count.
func Drift(r Ruleset) ([]string, error) {
	c, err := connect()
	if err != nil {
		return nil, fmt.Errorf("compare the capture of traffic with the plan: %w", err)
	}
	defer c.CloseLasting()
	differences, err := driftOfTables(c, r)
	if err != nil {
		return nil, fmt.Errorf("compare the capture of traffic with the plan: %w", err)
	}
	routes, err := driftOfRoutes(r)
	if err != nil {
		return nil, fmt.Errorf("compare the capture of traffic with the plan: %w", err)
	}
	return append(differences, routes...), nil
}

// driftOfTables reads on a goroutine of its own, for flush's reason.
func driftOfTables(c *nftables.Conn, r Ruleset) (differences []string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var have map[string][]string
		if have, err = readTables(c); err != nil {
			err = fmt.Errorf("read nftables tables: %w", explain(err))
			return
		}
		for _, name := range ourTables {
			var want []string
			for _, t := range r.Tables {
				if t.Name != name {
					continue
				}
				if want, err = describeTable(t); err != nil {
					return
				}
			}
			if text := difference(name, have[name], want); text != "" {
				differences = append(differences, text)
			}
		}
	}()
	<-done
	return differences, err
}

// difference compares a table's lines; nil is a table that is not there.
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
		if slices.Contains(ourTables, t.Name) {
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

// describeTable says what readTables will, once t is in the kernel.
func describeTable(t Table) ([]string, error) {
	lines := []string{}
	for _, ch := range t.Chains {
		chain, err := nativeChain(ch, nil)
		if err != nil {
			return nil, err
		}
		lines = append(lines, describeChain(chain))
		for _, rule := range ch.Rules {
			for _, r := range rule.native() {
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

// describeExprs leaves out what the kernel counts, adds of itself, or does not tell.
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
