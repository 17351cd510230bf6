// Package host reads from the operating system what an agent's Spec depends on.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"strconv"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/cgroup"
)

// Read reads the host name, the addresses of the network interfaces that are up, the CPU limit, and the user and capabilities of this process.
func Read() (spec.Host, error) {
	var h spec.Host
	h.Hostname, _ = os.Hostname() // only the fallback for the node's name
	h.CPULimit, h.UID, h.Capabilities = cgroup.CPULimit(), os.Getuid(), envoy.Capabilities()
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
			continue // the interface has been removed in the meantime
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

// LookupUser finds a user by name. The error for an unknown user is fs.ErrNotExist.
func LookupUser(name string) (uid, gid uint32, err error) {
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	switch {
	case errors.As(err, &unknown):
		return 0, 0, fs.ErrNotExist
	case err != nil:
		return 0, 0, err
	}
	uid64, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid64, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(uid64), uint32(gid64), errors.Join(err1, err2)
}
