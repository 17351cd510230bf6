package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestTheFirstMatchIsForAConnection compares what Envoy chooses of the chains with the first match of random lists.
func TestTheFirstMatchIsForAConnection(t *testing.T) {
	r := wait.Random(t)
	subnets := []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3", "192.0.2.0/24", "0.0.0.0/0", "::/0", "fd00::/8"}
	addresses := []string{"10.1.2.3", "10.1.2.4", "10.1.9.9", "10.9.9.9", "192.0.2.1", "198.51.100.1", "fd00::1", "2001:db8::1"}
	some := func() (out []netip.Prefix) {
		for range max(0, r.IntN(4)-1) {
			out = append(out, halves(subnets[r.IntN(len(subnets)):][:1])...)
		}
		return out
	}
	for range 2000 {
		var all []listener.GatewayChain
		for i := range 1 + r.IntN(5) {
			all = append(all, listener.GatewayChain{Prefixes: some(), Sources: some(), TCP: listener.TCP{Cluster: fmt.Sprint(i)}})
		}
		chains := chainsByAddress(slices.Clone(all))
		for _, to := range addresses {
			for _, from := range addresses {
				to, from := netip.MustParseAddr(to), netip.MustParseAddr(from)
				want := ""
				if i := slices.IndexFunc(all, func(c listener.GatewayChain) bool { return in(c.Prefixes, to) && in(c.Sources, from) }); i >= 0 {
					want = all[i].TCP.Cluster
				}
				if got := chosen(chains, to, from); got != want {
					t.Fatalf("%v\nfrom %v to %v: Envoy chooses %q of %v, want %q", describe(all), from, to, got, describe(chains), want)
				}
			}
		}
	}
}

func in(list []netip.Prefix, ip netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// chosen is the cluster of the chain that Envoy chooses: by the most specific prefix of the destination, then by that of the client,
// without going back. It is empty for none.
func chosen(chains []listener.GatewayChain, to, from netip.Addr) string {
	best := func(list []listener.GatewayChain, ip netip.Addr, of func(listener.GatewayChain) []netip.Prefix) (out []listener.GatewayChain) {
		longest := -1
		for _, c := range list {
			bits := 0
			for _, p := range of(c) {
				if bits = -1; p.Contains(ip) {
					bits = p.Bits()
				}
			}
			if bits > longest {
				longest, out = bits, nil
			}
			if bits == longest && bits >= 0 {
				out = append(out, c)
			}
		}
		return out
	}
	list := best(chains, to, func(c listener.GatewayChain) []netip.Prefix { return c.Prefixes })
	list = best(list, from, func(c listener.GatewayChain) []netip.Prefix { return c.Sources })
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0].TCP.Cluster
	}
	return "two chains for the same connections"
}

func describe(list []listener.GatewayChain) string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s: to %v from %v", c.TCP.Cluster, c.Prefixes, c.Sources))
	}
	return strings.Join(out, "; ")
}
