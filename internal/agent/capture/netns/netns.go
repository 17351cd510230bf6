// Package netns reads a network namespace, and configures what the rules of capture need in it.
//
// [ReadFacts] reads the facts of a plan. [Prepare] adds the loopback addresses, routes and sysctls of a
// plan, and [Clean] removes the addresses and routes. All functions but [Run] act on the network
// namespace of the calling thread; Prepare and Clean need the capability CAP_NET_ADMIN.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Run runs fn in the network namespace of path, such as /proc/1234/ns/net, and returns its error. It
// needs the capability CAP_SYS_ADMIN. The thread that entered the namespace ends with fn.
func Run(path string, fn func() error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer f.Close()
	done := make(chan error)
	go func() {
		// Never unlocked: no other goroutine may run in that namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace %s: %w", path, err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// Prepare adds the loopback addresses, routes and sysctls of r, and removes addresses and routes that an
// earlier Prepare added and r does not need. Sysctls that could not be set are in refused, each with the reason: capture works
// without them.
func Prepare(r plan.Ruleset) (refused []error, err error) {
	for _, p := range r.Loopback {
		if err := addLoopback(p); err != nil {
			return nil, err
		}
	}
	if len(r.Loopback) == 0 {
		if err := removeLoopback(plan.PassthroughIPv6()); err != nil {
			return nil, err
		}
	}
	if err := setRoutes(r.Routes); err != nil {
		return nil, err
	}
	for _, s := range r.Sysctls {
		if err := setSysctl(s); err != nil {
			refused = append(refused, err)
		}
	}
	return refused, nil
}

// Clean removes what any Prepare added, except the sysctls, which do no harm. It is no error if there is
// nothing to remove.
func Clean() error { return errors.Join(removeLoopback(plan.PassthroughIPv6()), setRoutes(nil)) }

func addLoopback(p netip.Prefix) error {
	lo, addr, err := loopback(p)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(lo, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s to lo: %w (is IPv6 disabled by net.ipv6.conf.lo.disable_ipv6?)", p, err)
	}
	return nil
}

func removeLoopback(p netip.Prefix) error {
	lo, addr, err := loopback(p)
	if err != nil {
		return err
	}
	err = netlink.AddrDel(lo, addr)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s from lo: %w", p, err)
	}
	return nil
}

func loopback(p netip.Prefix) (netlink.Link, *netlink.Addr, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	ip := p.Addr()
	return lo, &netlink.Addr{IPNet: &net.IPNet{
		IP: ip.AsSlice(), Mask: net.CIDRMask(p.Bits(), ip.BitLen()),
	}, Flags: unix.IFA_F_NODAD}, nil
}

func sysctlPath(key string) string { return "/proc/sys/" + strings.ReplaceAll(key, ".", "/") }

func setSysctl(s plan.Sysctl) error {
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
