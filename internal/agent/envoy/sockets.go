package envoy

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// States of /proc/net/tcp.
const (
	tcpEstablished = "01"
	tcpListen      = "0A"
)

// tcpSocket is one row of the kernel's table.
type tcpSocket struct {
	port  int
	state string
	inode string
}

// countSockets counts a process's connections to its own listening ports, except the
// ignored ones; if only is not empty, it counts the connections to these ports alone. It is
// used if an Envoy has no admin interface.
func countSockets(pid int, only, ignore []int) (int, error) {
	all, owned, err := socketsOf(pid)
	if err != nil {
		return 0, err
	}
	return countRows(all, owned, only, ignore), nil
}

// listensOn returns the TCP ports that a process listens on.
func listensOn(pid int) (map[int]bool, error) {
	all, owned, err := socketsOf(pid)
	if err != nil {
		return nil, err
	}
	out := map[int]bool{}
	for _, s := range all {
		if owned[s.inode] && s.state == tcpListen {
			out[s.port] = true
		}
	}
	return out, nil
}

// socketsOf returns the TCP sockets of a process's network namespace, and the inodes of all sockets that the process has.
func socketsOf(pid int) (all []tcpSocket, owned map[string]bool, err error) {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		return nil, nil, fmt.Errorf("list the sockets of process %d: it has none that this user may see", pid)
	}
	owned = map[string]bool{}
	for _, link := range links {
		target, _ := os.Readlink(link) // it may be closed by now
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			owned[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, name := range []string{"tcp", "tcp6"} {
		rows, err := tcpTable(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if err != nil && name == "tcp" {
			return nil, nil, fmt.Errorf("read the socket table: %w", err)
		}
		all = append(all, rows...)
	}
	return all, owned, nil
}

func countRows(all []tcpSocket, owned map[string]bool, only, ignore []int) int {
	listening := map[int]bool{}
	for _, s := range all {
		if owned[s.inode] && s.state == tcpListen && !slices.Contains(ignore, s.port) && (len(only) == 0 || slices.Contains(only, s.port)) {
			listening[s.port] = true
		}
	}
	n := 0
	for _, s := range all {
		if owned[s.inode] && s.state == tcpEstablished && listening[s.port] {
			n++
		}
	}
	return n
}

// tcpTable reads a table: "0: 0100007F:3A98 00000000:0000 0A … inode".
func tcpTable(path string) ([]tcpSocket, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []tcpSocket
	for rows := bufio.NewScanner(f); rows.Scan(); {
		fields := strings.Fields(rows.Text())
		if len(fields) < 10 {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			continue // the heading
		}
		out = append(out, tcpSocket{int(port), fields[3], fields[9]})
	}
	return out, nil
}
