package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// systemd is the program that runs as the first process of a machine.
const systemd = "/lib/systemd/systemd"

// boot becomes the first process of a machine whose files are those of this one, with changes in $1/upper. No service of this machine
// starts there, and none of systemd's that would change the kernel that both share. It has control groups and devices of its own; $2 is
// the path of Envoy.
const boot = `set -eu
cd "$1"
mkdir -p upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" root
touch root/usr/local/bin/envoy
mount --bind "$2" root/usr/local/bin/envoy
mount -t proc proc root/proc
mount -t sysfs -o ro sysfs root/sys
mount -t tmpfs -o mode=755 tmpfs root/dev
for device in null zero full random urandom tty; do
  touch root/dev/$device
  mount --bind /dev/$device root/dev/$device
done
mkdir root/dev/shm root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts root/dev/pts
ln -s pts/ptmx root/dev/ptmx
mount -t tmpfs -o mode=755 tmpfs root/run
mount -t tmpfs -o mode=1777 tmpfs root/tmp
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 root/sys/fs/cgroup
else
  mount -t tmpfs tmpfs root/sys/fs/cgroup
  mkdir root/sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup root/sys/fs/cgroup/systemd
fi
if [ ! -e "$1/booted" ]; then
  rm -rf root/etc/systemd/system/*.wants
  find root/lib/systemd/system/*.wants -mindepth 1 ! -name 'systemd-journald*' ! -name systemd-tmpfiles-setup.service -delete
  touch "$1/booted"
fi
exec env -i container=pilothouse PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot root ` + systemd + ` --unit=multi-user.target
`

// systemdVM is a machine that systemd runs: its processes, its files and its control groups are its own.
type systemdVM struct {
	*vmLab
	// first is the process with the id 1 of the machine.
	first int
	// parent is the process that made it.
	parent *netmesh.Process
	groups string
}

// startSystemd makes a machine of the machine of a lab.
func startSystemd(t *testing.T, lab *vmLab) *systemdVM {
	t.Helper()
	if _, err := os.Stat(systemd); err != nil {
		t.Fatalf("the test runs systemd as the first process of a machine, and there is none: apt-get install systemd: %v", err)
	}
	// What the machine writes is in memory; it may be the upper layer of an overlay whatever the disk has.
	if err := lab.net.Do(func() error { return unix.Mount("tmpfs", lab.root, "tmpfs", 0, "mode=755,size=512m") }); err != nil {
		t.Fatal(err)
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s mesh.example.com\n", lab.m.Net.Host().IP())
	resolv := fmt.Sprintf("nameserver %s\noptions timeout:1 attempts:1\n", lab.m.Net.Host().IP())
	agent, err := os.ReadFile(lab.m.Programs().Agent)
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.net.Do(func() error {
		for _, f := range []struct {
			path, text string
			mode       fs.FileMode
		}{{"etc/hosts", hosts, 0o644}, {"etc/resolv.conf", resolv, 0o644}, {"usr/local/bin/pilot-agent", string(agent), 0o755}} {
			path := filepath.Join(lab.root, "upper", f.path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(f.text), f.mode); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	v := &systemdVM{vmLab: lab, groups: groups(t)}
	v.boot(t)
	return v
}

// groups makes a folder of control groups, which is removed at the end of the test.
func groups(t *testing.T) string {
	t.Helper()
	var st unix.Statfs_t
	above := "/sys/fs/cgroup/systemd"
	if err := unix.Statfs("/sys/fs/cgroup", &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		above = "/sys/fs/cgroup"
	}
	dir, err := os.MkdirTemp(above, "pilothouse-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The processes have been killed; the kernel may still be about to forget them.
		if err := meshup.Await(context.Background(), 30*time.Second, "the machine's control groups are empty", func(context.Context) error {
			var all []string
			_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, p)
				}
				return nil
			})
			var errs []error
			for _, p := range slices.Backward(all) {
				errs = append(errs, unix.Rmdir(p))
			}
			return errors.Join(errs...)
		}); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// boot starts the machine, and waits until systemd has started what it was told to.
func (v *systemdVM) boot(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	script := fmt.Sprintf("echo 0 > %s/cgroup.procs && exec unshare --cgroup --mount --pid --fork --kill-child sh -c \"$0\" boot \"$@\"", v.groups)
	p, err := v.net.Start(netmesh.Command{
		Path: "/bin/sh", Args: []string{"-c", script, boot, v.root, v.m.Programs().Envoy}, Dir: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	v.parent, v.first = p, 0
	// Before the Pod ends and before its control groups are removed.
	t.Cleanup(func() { v.off(t) })
	if err := meshup.Await(t.Context(), time.Minute, "systemd has started the machine", func(context.Context) error {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.PID(), p.PID())); err == nil {
			v.first, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		select {
		case <-p.Done():
			return meshup.Final(fmt.Errorf("it has ended: %s", out.String()))
		default:
		}
		if v.first == 0 {
			return errors.New("there is no first process yet")
		}
		// While the machine starts, there may be no file system and no socket of it yet.
		said, err := v.try("", "systemctl", "is-system-running")
		if state := strings.TrimSpace(said); err != nil && state != "degraded" {
			return fmt.Errorf("%s, %w", state, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// off switches the machine off, as a power cut does: all of its processes are killed, and the kernel's state is gone.
func (v *systemdVM) off(t *testing.T) {
	t.Helper()
	if v.first > 0 {
		_ = syscall.Kill(v.first, syscall.SIGKILL)
	}
	if err := v.parent.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	_ = v.parent.Wait()
	v.first = 0
}

// try runs a command on the machine and returns its output.
func (v *systemdVM) try(stdin string, args ...string) (string, error) {
	var out bytes.Buffer
	c, err := v.net.Start(netmesh.Command{
		Path: "nsenter", Args: append([]string{"--target", strconv.Itoa(v.first), "--mount", "--pid", "--cgroup", "--root", "--wd"}, args...), Dir: "/",
		Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER="}, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out,
	})
	if err != nil {
		return "", err
	}
	err = c.Wait()
	return out.String(), err
}

// run is try, for commands that must succeed.
func (v *systemdVM) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := v.try(stdin, args...)
	t.Logf("%s: %v\n%s", strings.Join(args, " "), err, out)
	if err != nil {
		logs, _ := v.try("", "journalctl", "--no-pager", "-u", "istio.service", "-n", "40")
		t.Fatalf("%q: %v: %s\n%s", args, err, out, logs)
	}
	return out
}

// property is a property of the unit.
func (v *systemdVM) property(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(v.run(t, "", "systemctl", "show", "--property="+name, "--value", "istio.service"))
}

// ready waits until the proxy is ready.
func (v *systemdVM) ready(t *testing.T) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, "the machine's proxy is ready", func(ctx context.Context) error {
		_, err := meshup.Get(ctx, v.net, "http://127.0.0.1:15021/healthz/ready")
		return err
	}); err != nil {
		logs, _ := v.try("", "journalctl", "--no-pager", "-u", "istio.service", "-n", "40")
		t.Fatalf("%v\n%s", err, logs)
	}
}

// TestVMJoinsUnderSystemd has a machine that systemd runs join by one command, which installs, enables and starts the unit. Requests
// have mutual TLS in both directions: after the join, after kill -9 of the agent, which the unit starts again, and after the
// machine was switched off and on, since the unit is enabled. While the unit is stopped the machine's connections are its own, and after it
// has left nothing of the mesh is on it.
func TestVMJoinsUnderSystemd(t *testing.T) {
	v := startSystemd(t, startVM(t))
	out := v.run(t, v.token(t), "pilot-agent", "join", "-", "--timeout", "60s")
	for _, want := range []string{"wrote /etc/systemd/system/istio.service", "istio.service is enabled and started", "ready after "} {
		if !strings.Contains(out, want) {
			t.Errorf("join did not say %q", want)
		}
	}
	if got := strings.TrimSpace(v.run(t, "", "systemctl", "is-enabled", "istio.service")); got != "enabled" {
		t.Errorf("the unit is %q", got)
	}
	v.bothWays(t)

	agent := v.property(t, "MainPID")
	v.run(t, "", "kill", "-KILL", agent)
	if err := meshup.Await(t.Context(), time.Minute, "the unit has started the agent again", func(context.Context) error {
		if now := v.property(t, "MainPID"); now == agent || now == "0" {
			return fmt.Errorf("its process is %s", now)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	v.ready(t)
	v.bothWays(t)

	v.run(t, "", "systemctl", "stop", "istio.service")
	v.alone(t)
	v.run(t, "", "systemctl", "start", "istio.service")
	v.ready(t)
	v.bothWays(t)

	// What the kernel knew of the machine is gone when it is switched off.
	v.off(t)
	if _, err := v.agent(t, "", "start", "clean"); err != nil {
		t.Fatal(err)
	}
	v.boot(t)
	v.ready(t)
	// A power cut ends no connection: those that the Pod's Envoy has had end when it uses them, with status 503. Each of its workers has its own.
	if err := meshup.Await(t.Context(), time.Minute, "requests on new connections", func(ctx context.Context) error {
		for range 40 {
			if _, err := meshup.Post(ctx, meshup.Client(v.m.Pod("web-1.vm").Net, 0), "http://legacy/", nil); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	v.bothWays(t)

	v.run(t, "", "pilot-agent", "leave")
	v.alone(t)
	if got, _ := v.try("", "systemctl", "is-enabled", "istio.service"); !strings.Contains(got, "No such file") {
		t.Errorf("the unit is %q", got)
	}
	left, _ := v.try("", "find", "/etc/certs", "/etc/istio", "/var/lib/istio", "/var/run/istio", "/etc/systemd/system/istio.service", "/etc/systemd/system/multi-user.target.wants", "-not", "-type", "d")
	for line := range strings.Lines(left) {
		if line = strings.TrimSpace(line); !strings.Contains(line, "No such file") && line != "/var/lib/istio/.lock" {
			t.Errorf("left is %s", line)
		}
	}
}

// alone checks that no proxy runs and that the machine's connections are its own.
func (v *systemdVM) alone(t *testing.T) {
	t.Helper()
	for _, port := range []string{"15020", "15001", "15021", "15053"} {
		if c, err := v.net.Dial(t.Context(), "tcp", "127.0.0.1:"+port); err == nil {
			_ = c.Close()
			t.Errorf("something listens on port %s", port)
		}
	}
	// The application answers at the machine's own address, to which connections would else be redirected.
	a, err := meshup.Post(t.Context(), meshup.Client(v.m.Net.Host(), 0), "http://10.99.0.41:9080/", nil)
	if err != nil || a.Service != "legacy" || a.Peer != "" {
		t.Errorf("the machine's application, without a proxy: %+v, %v", a, err)
	}
	c, err := v.net.Dial(t.Context(), "tcp", net.JoinHostPort(v.m.Net.Host().IP().String(), "15012"))
	if err != nil {
		t.Errorf("from the machine, without a proxy: %v", err)
	} else {
		_ = c.Close()
	}
	// The Pod requires mutual TLS.
	if a, err := meshup.Post(t.Context(), meshup.Client(v.net, 0), "http://10.99.0.40:9080/", nil); err == nil {
		t.Errorf("the Pod has answered in plaintext: %+v", a)
	}
}
