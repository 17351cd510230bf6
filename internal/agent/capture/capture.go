// Package capture sends a Pod's connections through its proxy: it plans rules for the kernel and applies them.
//
// [Plan] is pure: options and facts in, a [Ruleset] out, whose text is the dry run. [Apply] and
// [Clean] act on the network namespace of the calling thread, by nftables over netlink and
// without any program: all tables are replaced in one transaction, so that there is no moment
// with half of the rules, a second application changes nothing, and what fails leaves the old
// rules in force. They need the capability CAP_NET_ADMIN.
package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Report says what Apply did beyond the rules, which it did or returned an error.
type Report struct {
	// Took is the whole time, Rules the number of rules in force.
	Took  time.Duration
	Rules int
	// Changed says that the kernel had other rules, or none; else nothing was done to them.
	Changed bool
	// Refused are the settings that could not be made, each with the reason: capture works
	// without them.
	Refused []error
}

// Apply makes the kernel capture as r says, and nothing that an earlier Apply said. What is so
// already is not touched. On an error, the rules that were in force still are.
func Apply(r Ruleset) (Report, error) {
	begin := time.Now()
	var report Report
	err := apply(r, false, &report)
	if err != nil {
		return report, fmt.Errorf("apply the capture of traffic: %w", err)
	}
	report.Took = time.Since(begin)
	return report, nil
}

// apply replaces the tables if they differ, or again.
func apply(r Ruleset, again bool, report *Report) error {
	if err := setHost(r, report); err != nil {
		return err
	}
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.CloseLasting()
	for _, t := range r.Tables {
		report.Rules += t.rules()
	}
	differences, err := driftOfTables(c, r)
	if err != nil {
		return err
	}
	if report.Changed = again || len(differences) > 0; !report.Changed {
		return nil
	}
	replace(c)
	for _, t := range r.Tables {
		if err := addTable(c, t); err != nil {
			return err
		}
	}
	if err := flush(c); err != nil {
		return fmt.Errorf("replace nftables tables: %w", explain(err))
	}
	return nil
}

// setHost does what the rules build on beyond themselves.
func setHost(r Ruleset, report *Report) error {
	for _, p := range r.Loopback {
		if err := addLoopback(p); err != nil {
			return err
		}
	}
	if len(r.Loopback) == 0 {
		if err := delLoopback(ipv6.passthrough); err != nil {
			return err
		}
	}
	if err := setRoutes(r.Routes); err != nil {
		return err
	}
	for _, s := range r.Sysctls {
		if err := setSysctl(s); err != nil {
			report.Refused = append(report.Refused, err)
		}
	}
	return nil
}

// Clean takes back all that any Apply may have done but the sysctls, which harm nobody. Connections
// that are captured at the time break. Nothing to take back is no error.
func Clean() error {
	c, err := connect()
	if err != nil {
		return fmt.Errorf("clean the capture of traffic: %w", err)
	}
	defer c.CloseLasting()
	replace(c)
	if err := flush(c); err != nil {
		return fmt.Errorf("clean the capture of traffic: remove nftables tables: %w", explain(err))
	}
	if err := errors.Join(delLoopback(ipv6.passthrough), setRoutes(nil)); err != nil {
		return fmt.Errorf("clean the capture of traffic: %w", err)
	}
	return nil
}

// socketBuffer holds the kernel's answers to every command of a transaction, about 1 kB each.
const socketBuffer = 8 << 20

func connect() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
		return errors.Join(s.SetReadBuffer(socketBuffer), s.SetWriteBuffer(socketBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open a netfilter socket: %w", err)
	}
	return c, nil
}

// flush commits the transaction. The socket keeps the namespace that it was made in, so the many
// answers are read on a goroutine of its own: on one that is locked to its thread, as callers in
// another namespace are, each answer would cost two switches between threads.
func flush(c *nftables.Conn) error {
	done := make(chan error)
	go func() { done <- c.Flush() }()
	return <-done
}

var ourTables = []string{tableNAT, tableMangle, tableRaw}

// replace removes our tables; added first, those that are missing can be removed too.
func replace(c *nftables.Conn) {
	for _, name := range ourTables {
		t := c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		c.DelTable(t)
	}
}

// explain adds what a person can do about the kernel's usual refusals.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (run as root, or with the capability CAP_NET_ADMIN)", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (the kernel needs nf_tables with the inet family, nat and redirect: Linux 5.2 or later, modules nft_chain_nat and nft_redir)", err)
	}
	return err
}

func addLoopback(p netip.Prefix) error {
	lo, addr, err := loopback(p)
	if err != nil {
		return err
	}
	if err := rtnetlink.AddrAdd(lo, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s to lo: %w (is IPv6 disabled by net.ipv6.conf.lo.disable_ipv6?)", p, err)
	}
	return nil
}

func delLoopback(p netip.Prefix) error {
	lo, addr, err := loopback(p)
	if err != nil {
		return err
	}
	err = rtnetlink.AddrDel(lo, addr)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s from lo: %w", p, err)
	}
	return nil
}

func loopback(p netip.Prefix) (rtnetlink.Link, *rtnetlink.Addr, error) {
	lo, err := rtnetlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	ip := p.Addr()
	return lo, &rtnetlink.Addr{IPNet: &net.IPNet{
		IP: ip.AsSlice(), Mask: net.CIDRMask(p.Bits(), ip.BitLen()),
	}, Flags: unix.IFA_F_NODAD}, nil
}

func sysctlPath(key string) string { return "/proc/sys/" + strings.ReplaceAll(key, ".", "/") }

func setSysctl(s Sysctl) error {
	path := sysctlPath(s.Key)
	if value, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(value)) == s.Value {
		return nil
	}
	err := os.WriteFile(path, []byte(s.Value), 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set %s=%s: the kernel has no such setting", s.Key, s.Value)
	}
	if err != nil {
		return fmt.Errorf("set %s=%s: %w", s.Key, s.Value, err)
	}
	return nil
}
