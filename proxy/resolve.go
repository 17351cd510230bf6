package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Errors of the helpers that find addresses.
var (
	// ErrResolveNoAddress is returned if the address or its host is empty.
	ErrResolveNoAddress = errors.New("no address specified")
	// ErrNoAddress is returned if a name or this host has no address.
	ErrNoAddress = errors.New("no address found")
)

// GetPrivateIPs returns the addresses of this host's interfaces that are up, in the order of the interfaces,
// IPv4 before IPv6 on each, without loopback and link-local ones. If there are none, as while a Pod
// starts, it waits until ctx ends, at most 5 s; its error then wraps ErrNoAddress.
func GetPrivateIPs(ctx context.Context) ([]netip.Addr, error) {
	return privateIPs(ctx, hostAddrs)
}

const (
	addressWait = 5 * time.Second
	addressPoll = 200 * time.Millisecond
)

func privateIPs(ctx context.Context, list func() ([]netip.Addr, error)) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, addressWait)
	defer cancel()
	tick := time.NewTicker(addressPoll)
	defer tick.Stop()
	for {
		ips, err := list()
		if err != nil || len(ips) > 0 {
			return ips, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for an address of this host: %w (%w)", ErrNoAddress, ctx.Err())
		case <-tick.C:
		}
	}
}

func hostAddrs() ([]netip.Addr, error) {
	nics, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list this host's interfaces: %w", err)
	}
	var out []netip.Addr
	for _, nic := range nics {
		if nic.Flags&net.FlagUp == 0 || nic.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := nic.Addrs()
		if err != nil {
			continue // it was removed since it was listed
		}
		out = append(out, reachable(addrs)...)
	}
	return out, nil
}

// reachable returns the addresses that other hosts can reach, IPv4 first.
func reachable(addrs []net.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if ip := prefix.Addr().Unmap(); err == nil && ip.IsGlobalUnicast() && !ip.IsLinkLocalUnicast() {
			out = append(out, ip)
		}
	}
	ipv4First(out)
	return out
}

func ipv4First(ips []netip.Addr) {
	slices.SortStableFunc(ips, func(a, b netip.Addr) int {
		switch {
		case a.Is4() == b.Is4():
			return 0
		case a.Is4():
			return -1
		}
		return 1
	})
}

// ResolveAddr replaces the host of "host:port" by its first IPv4 address, else its first IPv6 address in
// brackets. A host that is an address is kept. The error is ErrResolveNoAddress for an empty addr, and wraps
// ErrResolveNoAddress for an empty host and ErrNoAddress for a name without addresses.
func ResolveAddr(addr string) (string, error) {
	return resolve(context.Background(), addr, net.DefaultResolver.LookupNetIP)
}

type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

func resolve(ctx context.Context, addr string, lookUp lookup) (string, error) {
	if addr == "" {
		return "", ErrResolveNoAddress
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("resolve %q: want host:port: %w", addr, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(ip.String(), port), nil
	}
	if host == "" {
		return "", fmt.Errorf("resolve %q: want host:port: %w", addr, ErrResolveNoAddress)
	}
	ips, err := lookUp(ctx, "ip", host)
	var dnsErr *net.DNSError
	switch {
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return "", fmt.Errorf("resolve %s: %w: %w", host, ErrNoAddress, err)
	case err != nil:
		return "", fmt.Errorf("resolve %s: %w", host, err)
	case len(ips) == 0:
		return "", fmt.Errorf("resolve %s: %w", host, ErrNoAddress)
	}
	for i, ip := range ips {
		ips[i] = ip.Unmap()
	}
	ipv4First(ips)
	return net.JoinHostPort(ips[0].String(), port), nil
}
