package netns

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

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// ReadFacts reads the facts of the calling thread's network namespace. The resolvers and the names of
// users and groups are read from etc/resolv.conf, etc/passwd and etc/group below root, which is "/"
// for this process's own; a file that does not exist counts as empty.
func ReadFacts(root string) (plan.Facts, error) {
	nics, err := net.Interfaces()
	if err != nil {
		return plan.Facts{}, fmt.Errorf("list the network interfaces: %w", err)
	}
	f := plan.Facts{Interfaces: []string{}, NoIPv6: ipv6Disabled(), NoMigration: noMigration()}
	for _, nic := range nics {
		f.Interfaces = append(f.Interfaces, nic.Name)
		addrs, err := nic.Addrs()
		if err != nil {
			return plan.Facts{}, fmt.Errorf("list the addresses of the network interface %s: %w", nic.Name, err)
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

// ipv6Disabled reports whether IPv6 can't be captured: a kernel without IPv6 has no such settings, and
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

// noMigration returns the reason why the sysctl can't be set; empty if it can be, or is set already.
func noMigration() string {
	path := sysctlPath(plan.MigrateRequests)
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

// resolver parses a line of resolv.conf. Rules ignore zones.
func resolver(line string) (netip.Addr, bool) {
	fields := strings.Fields(line)
	if len(fields) < 2 || fields[0] != "nameserver" {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(fields[1])
	return a.Unmap().WithZone(""), err == nil
}

// readNames reads a file of lines NAME:PASSWORD:NUMBER:…; of equal names, the first counts.
func readNames(path string, to *map[string]uint32) error {
	*to = map[string]uint32{}
	return readLines(path, func(line string) {
		fields := strings.SplitN(line, ":", 4)
		if len(fields) < 3 {
			return
		}
		n, err := strconv.ParseUint(fields[2], 10, 32)
		if _, dup := (*to)[fields[0]]; err == nil && !dup {
			(*to)[fields[0]] = uint32(n)
		}
	})
}

func readLines(path string, each func(string)) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the facts of the network namespace: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		each(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the facts of the network namespace: %s: %w", path, err)
	}
	return nil
}
