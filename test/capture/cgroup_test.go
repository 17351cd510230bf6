package capture_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// cgroupMount is where a Pod has the unified hierarchy, whatever the machine has there.
const cgroupMount = "/sys/fs/cgroup/"

// dialer is what this binary is when its first argument is "dial": a process that enters a cgroup,
// if one is given, becomes a user, connects to an address and prints the answer. A socket belongs to
// the cgroup that its process is in when it is made.
func dialer(cgroup, id, to string) error {
	if cgroup != "" {
		if err := os.WriteFile(cgroupMount+cgroup+"/cgroup.procs", []byte("0"), 0); err != nil {
			return err
		}
	}
	n, err := strconv.Atoi(id)
	if err != nil {
		return err
	}
	if err := syscall.Setgid(n); err != nil {
		return err
	}
	if err := syscall.Setuid(n); err != nil {
		return err
	}
	c, err := net.DialTimeout("tcp", to, wait.Bound)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(wait.Bound)); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}

// askFrom connects as a process of its own and returns the answer.
func askFrom(t *testing.T, p *netmesh.Pod, cgroup string, id int, to string) string {
	t.Helper()
	var out bytes.Buffer
	proc, err := p.Start(netmesh.Command{Path: "/proc/self/exe", Args: []string{"dial", cgroup, strconv.Itoa(id), to}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	_ = proc.Wait() // what went wrong is in its output
	return out.String()
}

// newCgroups mounts the unified hierarchy in a Pod and makes cgroups, parents first, below one of
// their own. The end of the test ends the processes in them and removes them.
func newCgroups(t *testing.T, p *netmesh.Pod, names ...string) (top string) {
	t.Helper()
	top = fmt.Sprintf("pilothouse-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	do(t, p, func() error { return unix.Mount("none", cgroupMount, "cgroup2", 0, "") })
	paths := []string{top}
	for _, name := range names {
		paths = append(paths, top+"/"+name)
	}
	t.Cleanup(func() {
		if err := p.Do(func() error { return os.WriteFile(cgroupMount+top+"/cgroup.kill", []byte("1"), 0) }); err != nil {
			t.Error(err)
		}
		for i := range paths {
			path := cgroupMount + paths[len(paths)-1-i]
			eventually(t, "the cgroup "+path+" is empty", func() bool { return p.Do(func() error { return os.Remove(path) }) == nil })
		}
	})
	for _, path := range paths {
		do(t, p, func() error { return os.Mkdir(cgroupMount+path, 0o755) })
	}
	return top
}

// Where the proxy is recognized by its cgroup, connections from the cgroup are not captured, whatever
// their user and without any privilege; an application that runs as user 1337 is captured.
func TestProxyKnownByItsCgroup(t *testing.T) {
	backends := map[string]capture.BackendOptions{"native": {Native: true}}
	for _, v := range variants() {
		backends[v] = on(v, reconcile, reapply)
	}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			using(t, backend)
			both(t, func(t *testing.T, pod, other, _, _, _ string) {
				w := newWorld(t)
				w.listen(t, 80)
				top := newCgroups(t, w.pod, "proxy", "proxy/worker", "proxy2")
				o := injector()
				o.ProxyCgroup = "/" + top + "/proxy"
				w.apply(t, o)
				// A cgroup that was removed and made again is another one: the rules are applied again.
				path := cgroupMount + o.ProxyCgroup
				do(t, w.pod, func() error {
					return errors.Join(os.Remove(path+"/worker"), os.Remove(path), os.MkdirAll(path+"/worker", 0o755))
				})
				w.apply(t, o)
				for _, c := range []struct {
					cgroup   string
					captured bool
				}{{"", true}, {top, true}, {top + "/proxy2", true}, {top + "/proxy", false}, {top + "/proxy/worker", false}} {
					for _, id := range []int{0, proxyID, 5000} {
						want := map[bool][]string{true: {"outbound for " + other + ":80", "pod"}, false: {"other", "inbound for " + pod + ":80"}}[c.captured]
						for i, to := range []string{other + ":80", pod + ":80"} {
							if got := askFrom(t, w.pod, c.cgroup, id, to); got != want[i] {
								t.Errorf("in the cgroup %q as %d to %s: arrived at %q, want %q", c.cgroup, id, to, got, want[i])
							}
						}
					}
				}
			})
		})
	}
}

// A cgroup that does not exist yet is an error with a remedy.
func TestCgroupMustExistFirst(t *testing.T) {
	w := newWorld(t)
	newCgroups(t, w.pod)
	o := injector()
	o.ProxyCgroup = "no/such.service"
	err := applyOn(w.pod, capture.BackendOptions{Native: true}, planIn(t, w.pod, o))
	if err == nil || !strings.Contains(err.Error(), "no/such.service") || !strings.Contains(err.Error(), "must exist before") {
		t.Errorf("got %v", err)
	}
}
