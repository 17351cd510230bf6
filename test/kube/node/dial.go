package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/test/kube/node/podnet"
)

// Dial connects from the network's gateway to an address of a Pod, a ClusterIP, or a name of the cluster's DNS, which
// may be short: reviews.bookshop, reviews.bookshop.svc.
func (n *Network) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to, err := n.resolve(addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return n.Mesh.Host().Dial(ctx, network, to.String())
}

// resolve is where a connection to addr goes.
func (n *Network) resolve(addr string) (netip.AddrPort, error) {
	all, err := n.Backends(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return all[rand.IntN(len(all))], nil
}

// Backends are where connections go to an address that [Network.Dial] understands; there is at least one. Each is as likely as the
// others.
func (n *Network) Backends(addr string) ([]netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("invalid port %q: want 0–65535", portText)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		addrs := n.lookup(host, "", "."+Domain, ".svc."+Domain)
		if len(addrs) == 0 {
			return nil, fmt.Errorf("the cluster has no name %q", host)
		}
		ip = addrs[rand.IntN(len(addrs))]
	}
	to := netip.AddrPortFrom(ip, uint16(port))
	rules := n.tables().Rules()
	i := slices.IndexFunc(rules, func(r podnet.Rule) bool { return r.From == to && r.Protocol == "TCP" })
	switch {
	case i < 0:
		return []netip.AddrPort{to}, nil
	case len(rules[i].To) == 0:
		return nil, errNoBackends
	}
	return rules[i].To, nil
}

// lookup are the addresses of the first name, of those that host and a suffix make, that the cluster's DNS has.
func (n *Network) lookup(host string, suffixes ...string) []netip.Addr {
	tables := n.tables()
	for _, suffix := range suffixes {
		if a := tables.Lookup(strings.TrimSuffix(host, ".")+suffix, Domain); len(a.Addrs) > 0 {
			return a.Addrs
		}
	}
	return nil
}

var errNoBackends = errors.New("the Service has no backends")
