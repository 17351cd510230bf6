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
	listens, gone := Sighting{Listeners: 1}, Sighting{}
	type step struct {
		at    int // seconds
		seen  Sighting
		ended bool
	}
	for name, steps := range map[string][]step{
		"never there":               {{0, gone, false}, {100, gone, false}},
		"ends":                      {{0, listens, false}, {1, gone, false}, {10, gone, false}, {11, gone, true}},
		"crashes and comes back":    {{0, listens, false}, {1, gone, false}, {9, listens, false}, {12, gone, false}, {21, gone, false}, {22, gone, true}},
		"comes late":                {{0, gone, false}, {50, listens, false}, {51, gone, false}, {61, gone, true}},
		"processes count if seen":   {{0, Sighting{Shared: true, Processes: 2}, false}, {1, Sighting{Shared: true, Listeners: 1}, false}, {11, Sighting{Shared: true, Listeners: 1}, true}},
		"it runs and listens to no": {{0, listens, false}, {1, Sighting{Shared: true, Processes: 1}, false}, {60, Sighting{Shared: true, Processes: 1}, false}},
	} {
		var w Watch
		zero := time.Unix(1e9, 0)
		for _, s := range steps {
			if got := w.Ended(zero.Add(time.Duration(s.at)*time.Second), s.seen, grace); got != s.ended {
				t.Errorf("%s: at %d s ended %v", name, s.at, got)
			}
		}
	}
}

func nobody() []int { return nil }

// socket makes a socket that listens, and says which it is: other programs of this machine
// open and close theirs, so a test looks for its own only.
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

// TestAnEnvoyThatComesMeanwhile: its sockets are there before it is known to be ours.
func TestAnEnvoyThatComesMeanwhile(t *testing.T) {
	inode := socket(t)
	asked := 0
	got, err := strangers("/proc", func() []int {
		if asked++; asked == 1 {
			return nil
		}
		return []int{os.Getpid()}
	})
	if err != nil || got[inode] || asked != 2 {
		t.Errorf("asked %d times, the socket counts as the application's: %v, error %v", asked, got[inode], err)
	}
}

func TestOwnSocketsAreNotTheApplications(t *testing.T) {
	inode := socket(t)
	if got, err := strangers("/proc", nobody); err != nil || !got[inode] {
		t.Errorf("a socket that listens is not seen (error %v)", err)
	}
	if got, err := strangers("/proc", func() []int { return []int{os.Getpid()} }); err != nil || got[inode] {
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
	if s, err := Look(proc, nobody); err != nil || !s.Shared || s.Processes != 1 {
		t.Errorf("got %+v, error %v", s, err)
	}
	write("1/comm", "systemd\n")
	if s, err := Look(proc, nobody); err != nil || s.Shared {
		t.Errorf("got %+v, error %v", s, err)
	}
}
