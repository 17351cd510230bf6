package app

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestEnded(t *testing.T) {
	const grace = 10 * time.Second
	listens, gone := snapshot{listeners: 1}, snapshot{}
	type step struct {
		at    int // seconds
		state snapshot
		ended bool
	}
	for name, steps := range map[string][]step{
		"never running":                      {{0, gone, false}, {100, gone, false}},
		"ends":                               {{0, listens, false}, {1, gone, false}, {10, gone, false}, {11, gone, true}},
		"crashes and restarts":               {{0, listens, false}, {1, gone, false}, {9, listens, false}, {12, gone, false}, {21, gone, false}, {22, gone, true}},
		"starts late":                        {{0, gone, false}, {50, listens, false}, {51, gone, false}, {61, gone, true}},
		"processes count if they are shared": {{0, snapshot{sharedPID: true, processes: 2}, false}, {1, snapshot{sharedPID: true, listeners: 1}, false}, {11, snapshot{sharedPID: true, listeners: 1}, true}},
		"it runs without listeners":          {{0, listens, false}, {1, snapshot{sharedPID: true, processes: 1}, false}, {60, snapshot{sharedPID: true, processes: 1}, false}},
	} {
		var d detector
		zero := time.Unix(1e9, 0)
		for _, s := range steps {
			if got := d.ended(zero.Add(time.Duration(s.at)*time.Second), s.state, grace); got != s.ended {
				t.Errorf("%s: at %d s ended %v", name, s.at, got)
			}
		}
	}
}

func noProcesses() []int { return nil }

// socket opens a listening socket and returns its inode: a test checks only its own socket, because
// other programs of this machine have some too.
func socket(t *testing.T) string {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var link string
	if e := raw.Control(func(fd uintptr) { link, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(fd))) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")
}

// TestAnEnvoyThatStartsMeanwhile: its sockets exist before it is among the own processes.
func TestAnEnvoyThatStartsMeanwhile(t *testing.T) {
	inode := socket(t)
	calls := 0
	got, err := applicationSockets("/proc", func() []int {
		if calls++; calls == 1 {
			return nil
		}
		return []int{os.Getpid()}
	})
	if err != nil || got[inode] || calls != 2 {
		t.Errorf("own was called %d times, the socket counts as the application's: %v, error %v", calls, got[inode], err)
	}
}

func TestOwnSocketsAreNotTheApplications(t *testing.T) {
	inode := socket(t)
	if got, err := applicationSockets("/proc", noProcesses); err != nil || !got[inode] {
		t.Errorf("a listening socket is not found (error %v)", err)
	}
	if got, err := applicationSockets("/proc", func() []int { return []int{os.Getpid()} }); err != nil || got[inode] {
		t.Errorf("a socket of this process counts as the application's (error %v)", err)
	}
}

func TestProcessesOfASharedNamespace(t *testing.T) {
	proc := t.TempDir()
	write := func(path, text string) {
		full := filepath.Join(proc, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o700), os.WriteFile(full, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	process := func(pid int, state, group string) {
		write(strconv.Itoa(pid)+"/stat", strconv.Itoa(pid)+" (a b) "+state+" 1 1")
		write(strconv.Itoa(pid)+"/cgroup", group)
	}
	write("self/net/tcp", "")
	write("self/cgroup", "0::/sidecar\n")
	write("1/comm", "pause\n")
	process(1, "S", "0::/pause\n")
	process(7, "S", "0::/sidecar\n")
	process(8, "S", "0::/app\n")
	process(9, "Z", "0::/app\n")
	if s, err := readSnapshot(proc, noProcesses); err != nil || !s.sharedPID || s.processes != 1 {
		t.Errorf("got %+v, error %v", s, err)
	}
	write("1/comm", "systemd\n")
	if s, err := readSnapshot(proc, noProcesses); err != nil || s.sharedPID {
		t.Errorf("got %+v, error %v", s, err)
	}
}
