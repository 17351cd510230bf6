package gather

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listening is the state of a listening socket in /proc/net/tcp. See proc(5).
const listening = "0A"

// listeners returns the inodes of the TCP sockets that listen, by port.
func listeners() (map[int][]string, error) {
	out := map[int][]string{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list listening sockets: %w", err)
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if port, inode, ok := listener(lines.Text()); ok {
				out[port] = append(out[port], inode)
			}
		}
		_ = f.Close()
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("list listening sockets of %s: %w", file, err)
		}
	}
	return out, nil
}

// listener reads a line of /proc/net/tcp.
func listener(line string) (port int, inode string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listening {
		return 0, "", false
	}
	_, hexPort, _ := strings.Cut(fields[1], ":")
	b, err := hex.DecodeString(hexPort)
	if err != nil || len(b) != 2 {
		return 0, "", false
	}
	return int(b[0])<<8 | int(b[1]), fields[9], true
}

// owner is a process with a socket.
type owner struct {
	pid     int
	program string
}

// owners finds who has sockets, as far as this user may see it.
func owners(sockets map[int][]string) map[string]owner {
	wanted := map[string]bool{}
	for _, inodes := range sockets {
		for _, inode := range inodes {
			wanted["socket:["+inode+"]"] = true
		}
	}
	out := map[string]owner{}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the only error is a bad pattern
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !wanted[target] {
			continue // closed meanwhile, or another user's
		}
		parts := strings.Split(fd, "/")
		pid, _ := strconv.Atoi(parts[2])
		name, _ := os.ReadFile(filepath.Join("/proc", parts[2], "comm")) // a process that has ended has no name
		out[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = owner{pid, strings.TrimSpace(string(name))}
	}
	return out
}
