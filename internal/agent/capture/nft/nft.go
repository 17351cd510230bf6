// Package nft puts planned rules into the kernel's nftables over netlink, without any program.
//
// All functions act on the network namespace of the calling thread and need the capability
// CAP_NET_ADMIN. [Apply] and [Clean] are one transaction each: there is no moment with half of the
// rules, and on an error the rules that were in force still are. Two calls for one namespace must
// not run at once.
package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Apply replaces the tables of capture by those of r if they differ, or in any case if force is set.
// It reports whether it replaced them.
func Apply(r plan.Ruleset, force bool) (changed bool, err error) {
	err = withConn(func(c *nftables.Conn) error {
		differences, err := compare(c, r)
		if err != nil || len(differences) == 0 && !force {
			return err
		}
		changed = true
		return replace(c, r)
	})
	return changed, err
}

// Clean removes the tables of capture. It is no error if there are none.
func Clean() error {
	return withConn(func(c *nftables.Conn) error { return replace(c, plan.Ruleset{}) })
}

// Present reports whether there are any tables of capture. A kernel without nftables has none.
func Present() bool {
	differences, err := Differences(plan.Ruleset{})
	return err == nil && len(differences) > 0
}

// replace removes our tables, adds those of r, and commits.
func replace(c *nftables.Conn, r plan.Ruleset) error {
	for _, name := range plan.TableNames() {
		// Added first, a table that is missing can be removed too.
		c.DelTable(c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet}))
	}
	for _, t := range r.Tables {
		if err := addTable(c, t); err != nil {
			return err
		}
	}
	action := "replace"
	if len(r.Tables) == 0 {
		action = "remove"
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("%s nftables tables: %w", action, withRemedy(err))
	}
	return nil
}

// Rules returns the number of rules that the kernel has when r is in force.
func Rules(r plan.Ruleset) (n int) {
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			for _, rule := range c.Rules {
				n += len(rule.Nftables())
			}
		}
	}
	return n
}

// Chain is a base chain, or a chain that is known by its name.
type Chain struct {
	Table, Name string
	// Hook is prerouting, input or output; empty for others.
	Hook string
	// Drops says that the chain's policy is to drop.
	Drops bool
}

// OtherChains lists the chains that are not of capture's own tables, including those that the nft
// variant of iptables made. A kernel without nftables has none.
func OtherChains() (chains []Chain, err error) {
	hooks := map[nftables.ChainHook]string{
		*nftables.ChainHookPrerouting: "prerouting", *nftables.ChainHookInput: "input", *nftables.ChainHookOutput: "output",
	}
	err = withConn(func(c *nftables.Conn) error {
		all, err := c.ListChains()
		if err != nil {
			return nil
		}
		for _, ch := range all {
			if slices.Contains(plan.TableNames(), ch.Table.Name) {
				continue
			}
			other := Chain{Table: ch.Table.Name, Name: ch.Name, Drops: ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop}
			if ch.Hooknum != nil {
				other.Hook = hooks[*ch.Hooknum]
			}
			chains = append(chains, other)
		}
		return nil
	})
	return chains, err
}

// socketBuffer holds the kernel's answers to all commands of a transaction, about 1 kB each.
const socketBuffer = 8 << 20

// withConn calls fn with a netlink connection to the calling thread's network namespace. fn runs on
// another goroutine, because callers in another namespace are locked to their thread, and each of the
// many responses would cost two thread switches there.
func withConn(fn func(*nftables.Conn) error) error {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
		return errors.Join(s.SetReadBuffer(socketBuffer), s.SetWriteBuffer(socketBuffer))
	}))
	if err != nil {
		return fmt.Errorf("open a netfilter socket: %w", err)
	}
	defer c.CloseLasting()
	done := make(chan error)
	go func() { done <- fn(c) }()
	return <-done
}

// withRemedy adds remedies to the kernel's usual errors.
func withRemedy(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (run as root, or with the capability CAP_NET_ADMIN)", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (the kernel needs nf_tables with the inet family, nat and redirect: Linux 5.2 or later, modules nft_chain_nat and nft_redir)", err)
	}
	return err
}
