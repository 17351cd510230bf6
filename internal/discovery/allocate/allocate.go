// Package allocate chooses the virtual addresses of hosts that have none of their own.
//
// The result is a function of what wants addresses, of what they had before and of the addresses that are taken: the
// same everywhere, and independent of the order in which things became known, unless two hosts hash to one address. Then the
// one that had it keeps it, else the first by key gets it, and the other one the next that is free. So what has been
// allocated must be remembered: in the status of an object, or in the state folder. No two hosts have the same address.
package allocate

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// IPv4 and IPv6 are the ranges of addresses. The first one is in no use anywhere, the second is for benchmarks. [control-plane 1.2.25]
var (
	IPv4 = netip.MustParsePrefix("240.240.0.0/16")
	IPv6 = netip.MustParsePrefix("2001:2::/48")
)

// Label is the label of a ServiceEntry that is not to have an address if its value is "false".
const Label = "networking.istio.io/enable-autoallocate-ip"

// Pair are the addresses of one host. An address is invalid if the range has no more.
type Pair struct{ V4, V6 netip.Addr }

// Want is one host that needs addresses.
type Want struct {
	// Key identifies the host. Those of ServiceEntries are the keys of their rows: "ServiceEntry/NAMESPACE/NAME/HOST".
	Key string
	// Age is the creation time of the object in nanoseconds, 0 if unknown.
	Age int64
	// Fixed are the addresses that the object's status has for the host.
	Fixed Pair
}

// InRange reports whether an address can be allocated.
func InRange(a netip.Addr) bool { return IPv4.Contains(a) || IPv6.Contains(a) }

// Wants returns the hosts of an object that need addresses, and those addresses in the ranges that its author has
// written. Only a ServiceEntry needs any: one without addresses whose clients need not know the endpoints' addresses.
func Wants(o *object.Object) (wants []Want, taken []netip.Addr) {
	spec, ok := o.Spec.(*networking.ServiceEntry)
	if !ok {
		return nil, nil
	}
	for _, text := range spec.Addresses {
		text, _, _ = strings.Cut(text, "/")
		if a, err := netip.ParseAddr(text); err == nil && InRange(a) {
			taken = append(taken, a)
		}
	}
	none := spec.Resolution == networking.ServiceEntry_NONE || spec.Resolution == networking.ServiceEntry_DYNAMIC_DNS
	if len(spec.Addresses) > 0 || none || strings.EqualFold(o.Meta.Labels[Label], "false") {
		return nil, taken
	}
	age := int64(0)
	if !o.Meta.Created.IsZero() {
		age = o.Meta.Created.UnixNano()
	}
	for _, host := range spec.Hosts {
		if host = mesh.HostName(host); !strings.Contains(host, "*") {
			wants = append(wants, Want{Key: Key(o.Key, host), Age: age, Fixed: fixed(o.Addresses, host)})
		}
	}
	return wants, taken
}

// Key returns the key of a ServiceEntry's host.
func Key(k object.Key, host string) string {
	return string(k.Kind) + "/" + k.Namespace + "/" + k.Name + "/" + host
}

// fixed returns the first address of each family that a status has for a host.
func fixed(list []object.HostAddress, host string) (p Pair) {
	for _, a := range list {
		switch {
		case mesh.HostName(a.Host) != host:
		case IPv4.Contains(a.Address) && !p.V4.IsValid():
			p.V4 = a.Address
		case IPv6.Contains(a.Address) && !p.V6.IsValid():
			p.V6 = a.Address
		}
	}
	return p
}

// Allocate returns the addresses of all hosts that want some, by key. before has those that were allocated earlier; taken
// are those that nothing may get.
func Allocate(wants []Want, before map[string]Pair, taken map[netip.Addr]bool) map[string]Pair {
	wants = slices.Clone(wants)
	slices.SortFunc(wants, func(a, b Want) int { return cmp.Or(cmp.Compare(a.Age, b.Age), cmp.Compare(a.Key, b.Key)) })
	used := make(map[netip.Addr]bool, 2*len(wants)+len(taken))
	for a := range taken {
		used[a] = true
	}
	out := make(map[string]Pair, len(wants))
	// What a status says is known to everybody, so it comes first; then what this control plane has served.
	claim := func(pair func(Want) Pair) {
		for _, w := range wants {
			p, got := out[w.Key], pair(w)
			p.V4 = take(used, p.V4, got.V4, IPv4)
			p.V6 = take(used, p.V6, got.V6, IPv6)
			out[w.Key] = p
		}
	}
	claim(func(w Want) Pair { return w.Fixed })
	claim(func(w Want) Pair { return before[w.Key] })
	slices.SortFunc(wants, func(a, b Want) int { return cmp.Compare(a.Key, b.Key) })
	full := false
	for _, w := range wants {
		p, sum := out[w.Key], sha256.Sum256([]byte(w.Key))
		// An odd step reaches every number, and those of two hosts that collide differ.
		n, step := binary.BigEndian.Uint16(sum[:]), binary.BigEndian.Uint16(sum[2:])|1
		for i := 0; !p.V4.IsValid() && !full && i < 1<<16; i++ {
			if n != 0 && n != 1<<16-1 {
				p.V4 = take(used, p.V4, addressV4(n), IPv4)
			}
			n += step
		}
		full = !p.V4.IsValid()
		low := binary.BigEndian.Uint64(sum[8:])
		for !p.V6.IsValid() {
			p.V6 = take(used, p.V6, addressV6(low), IPv6)
			low++
		}
		out[w.Key] = p
	}
	return out
}

// take returns the address a if it is valid, else b if that is of the range and free, which is used then.
func take(used map[netip.Addr]bool, a, b netip.Addr, of netip.Prefix) netip.Addr {
	if a.IsValid() || !b.IsValid() || !of.Contains(b) || used[b] {
		return a
	}
	used[b] = true
	return b
}

func addressV4(n uint16) netip.Addr {
	b := IPv4.Addr().As4()
	binary.BigEndian.PutUint16(b[2:], n)
	return netip.AddrFrom4(b)
}

func addressV6(low uint64) netip.Addr {
	b := IPv6.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], low)
	return netip.AddrFrom16(b)
}
