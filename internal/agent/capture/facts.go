package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadFacts looks at the calling thread's network namespace. The resolvers and the names of users
// and groups are those of the files below root, "/" where it is this process's own. Of these
// files, those that are missing say nothing.
func ReadFacts(root string) (Facts, error) {
	nics, err := net.Interfaces()
	if err != nil {
		return Facts{}, fmt.Errorf("list the network interfaces: %w", err)
	}
	f := Facts{Interfaces: []string{}, NoIPv6: ipv6Disabled(), NoMigration: noMigration()}
	for _, nic := range nics {
		f.Interfaces = append(f.Interfaces, nic.Name)
		addrs, err := nic.Addrs()
		if err != nil {
			return Facts{}, fmt.Errorf("list the addresses of the network interface %s: %w", nic.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				f.Addrs = append(f.Addrs, p.Addr())
			}
		}
	}
	err = errors.Join(
		readLines(filepath.Join(root, "etc/resolv.conf"), func(line string) {
			if a, ok := resolver(line); ok {
				f.Resolvers = append(f.Resolvers, a)
			}
		}),
		readNames(filepath.Join(root, "etc/passwd"), &f.Users),
		readNames(filepath.Join(root, "etc/group"), &f.Groups),
	)
	return f, err
}

// ipv6Disabled: a kernel without IPv6 has no such settings. New interfaces have the default's;
// loopback matters because the proxy's own address is added to it.
func ipv6Disabled() bool {
	for _, nic := range []string{"all", "lo"} {
		value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + nic + "/disable_ipv6")
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(value)) == "1" {
			return true
		}
	}
	return false
}

// noMigration: a setting that is on already need not be set.
func noMigration() string {
	path := sysctlPath(migrateRequests)
	value, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the kernel has no such setting: it came with Linux 5.14"
	case err == nil && strings.TrimSpace(string(value)) != "0":
		return ""
	case unix.Access(path, unix.W_OK) != nil:
		return "it is read-only"
	}
	return ""
}

// resolver reads a line of resolv.conf. Zones don't count in rules.
func resolver(line string) (netip.Addr, bool) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "nameserver" {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(words[1])
	return a.Unmap().WithZone(""), err == nil
}

// readNames reads a file of lines NAME:PASSWORD:NUMBER:…; the first of equal names counts.
func readNames(path string, to *map[string]uint32) error {
	*to = map[string]uint32{}
	return readLines(path, func(line string) {
		words := strings.SplitN(line, ":", 4)
		if len(words) < 3 {
			return
		}
		n, err := strconv.ParseUint(words[2], 10, 32)
		if _, dup := (*to)[words[0]]; err == nil && !dup {
			(*to)[words[0]] = uint32(n)
		}
	})
}

func readLines(path string, each func(string)) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the facts of this host: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		each(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the facts of this host: %s: %w", path, err)
	}
	return nil
}

// cgroupRoots are where the unified hierarchy is mounted, alone or beside the older ones.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// cgroupID is the number that the kernel knows a cgroup of the unified hierarchy by.
func cgroupID(path string) (uint64, error) {
	for _, root := range cgroupRoots {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			return 0, fmt.Errorf("find the cgroup: %w (it must exist before the rules do)", err)
		}
		return info.Sys().(*syscall.Stat_t).Ino, nil
	}
	return 0, fmt.Errorf("find the cgroup %s: the unified hierarchy (cgroup version 2) is not mounted; use --proxy-mark instead", path)
}
