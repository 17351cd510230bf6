// Package host reads what an agent's Spec needs of its machine.
package host

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/cgroup"
)

// Read reads the host's name, the addresses of its network interfaces and the limit of CPUs.
func Read() (spec.Host, error) {
	var h spec.Host
	h.Hostname, _ = os.Hostname() // the last choice for the node's name
	h.CPULimit = cgroup.CPULimit()
	nics, err := net.Interfaces()
	if err != nil {
		return h, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, nic := range nics {
		if nic.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := nic.Addrs()
		if err != nil {
			continue // an interface that went away meanwhile has no address
		}
		i := spec.Interface{Name: nic.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addrs = append(i.Addrs, p.Addr())
			}
		}
		h.Interfaces = append(h.Interfaces, i)
	}
	return h, nil
}
