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
	// ErrResolveNoAddress says that there was nothing to resolve.
	ErrResolveNoAddress = errors.New("no address specified")
	// ErrNoAddress says that a name or this host has no address at all.
	ErrNoAddress = errors.New("no address found")
)

// GetPrivateIPs lists the addresses of this host's interfaces that are up, in the order of the interfaces and
// IPv4 before IPv6 on each; without loopback and link-local ones. While there are none, as in the
// first moments of a Pod, it waits: until ctx ends, but at most 5 s. Its error then wraps ErrNoAddress.
func GetPrivateIPs(ctx context.Context) ([]netip.Addr, error) {
	return privateIPs(ctx, hostAddrs)
}

const (
	addressWait = 5 * time.Second
	addressPace = 200 * time.Millisecond
)

func privateIPs(ctx context.Context, list func() ([]netip.Addr, error)) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, addressWait)
	defer cancel()
	again := time.NewTicker(addressPace)
	defer again.Stop()
	for {
		ips, err := list()
		if err != nil || len(ips) > 0 {
			return ips, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for an address of this host: %w (%w)", ErrNoAddress, ctx.Err())
		case <-again.C:
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
			continue // it has gone since it was listed
		}
		out = append(out, usable(addrs)...)
	}
	return out, nil
}

// usable are the addresses by which others may reach an interface, IPv4 first.
func usable(addrs []net.Addr) []netip.Addr {
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

// ResolveAddr replaces the host of "host:port" by its address: the first IPv4 one that the resolver gives, else
// the first IPv6 one, in brackets. An address stays as it is. The error is ErrResolveNoAddress for an empty addr,
// and wraps ErrNoAddress where the name has none.
func ResolveAddr(addr string) (string, error) {
	return resolve(context.Background(), addr, net.DefaultResolver.LookupNetIP)
}

type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

func resolve(ctx context.Context, addr string, look lookup) (string, error) {
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
		return "", fmt.Errorf("resolve %q: want a host before the port: %w", addr, ErrResolveNoAddress)
	}
	ips, err := look(ctx, "ip", host)
	var gone *net.DNSError
	switch {
	case errors.As(err, &gone) && gone.IsNotFound:
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
