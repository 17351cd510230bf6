package netmesh_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/require"
)

// TestMain lets the tests run this binary in Pods: a first argument that starts with "role=" says
// what to be there.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "role=") {
		os.Exit(role(strings.TrimPrefix(os.Args[1], "role="), os.Args[2:]))
	}
	require.Root()
	os.Exit(m.Run())
}

func role(name string, args []string) int {
	switch name {
	case "whoami":
		host, _ := os.Hostname()
		hosts, _ := os.ReadFile("/etc/hosts")
		fmt.Printf("uid=%d gid=%d host=%s env=%q\n%s", os.Getuid(), os.Getgid(), host, os.Environ(), hosts)
	case "touch":
		if err := os.WriteFile(args[0], nil, 0o600); err != nil {
			fmt.Println(err)
			return 3
		}
	case "family":
		// A child in a session of its own, which only its namespace still ties to the Pod.
		child := exec.Command("/proc/self/exe", "role=forever")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			return 3
		}
		fmt.Println(child.Process.Pid)
		select {}
	case "forever":
		select {}
	case "mesh":
		m, err := netmesh.New(netmesh.Options{})
		if err != nil {
			fmt.Println(err)
			return 3
		}
		pod, err := m.AddPod(netmesh.PodOptions{Name: "a"})
		if err != nil {
			fmt.Println(err)
			return 3
		}
		p, err := pod.Start(netmesh.Command{Path: "/proc/self/exe", Args: []string{"role=forever"}, UID: 1337, GID: 1337})
		if err != nil {
			fmt.Println(err)
			return 3
		}
		fmt.Println(p.PID())
		select {}
	}
	return 0
}

func newMesh(t *testing.T) *netmesh.Mesh {
	t.Helper()
	m, err := netmesh.New(netmesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func addPod(t *testing.T, m *netmesh.Mesh, o netmesh.PodOptions) *netmesh.Pod {
	t.Helper()
	p, err := m.AddPod(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// self is this binary by a path that another user can take: the directory that the go command
// builds tests in is closed to them.
const self = "/proc/self/exe"

func output(t *testing.T, p *netmesh.Pod, c netmesh.Command) string {
	t.Helper()
	var out bytes.Buffer
	c.Stdout = &out
	proc, err := p.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return out.String()
}

func serve(t *testing.T, p *netmesh.Pod, addr string) net.Listener {
	t.Helper()
	l, err := p.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s from %s", p.Name(), r.RemoteAddr)
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return l
}

func TestSupported(t *testing.T) {
	if err := netmesh.Supported(); err != nil {
		t.Fatal(err)
	}
}

func TestPodsReachEachOtherInBothFamilies(t *testing.T) {
	m := newMesh(t)
	a := addPod(t, m, netmesh.PodOptions{Name: "a", IP6: netip.MustParseAddr("fd99:99::a")})
	b := addPod(t, m, netmesh.PodOptions{
		Name: "b", IP: netip.MustParseAddr("10.99.0.77"), IP6: netip.MustParseAddr("fd99:99::b"),
		Hosts: map[string]netip.Addr{"a.example": a.IP()},
	})
	serve(t, a, ":80")
	serve(t, m.Host(), "10.99.0.1:80")
	for url, want := range map[string]string{
		"http://" + a.IP().String():          "a from 10.99.0.77:",
		"http://a.example":                   "a from 10.99.0.77:",
		"http://[fd99:99::a]":                "a from [fd99:99::b]:",
		"http://" + m.Host().IP().String():   "mesh-host from 10.99.0.77:",
		"http://" + b.IP().String() + ":81/": "refused",
	} {
		var got string
		resp, err := b.HTTPClient().Get(url)
		if err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			got = string(body)
		} else {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("GET %s: %q, want %q", url, got, want)
		}
	}
}

func TestPodsAreInvisibleToTheMachine(t *testing.T) {
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	m := newMesh(t)
	a := addPod(t, m, netmesh.PodOptions{Name: "a", Hosts: map[string]netip.Addr{"x.example": netip.MustParseAddr("10.99.0.9")}})
	serve(t, a, ":80")
	after, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Errorf("interfaces before: %v, after: %v", before, after)
	}
	if now, err := os.ReadFile("/etc/hosts"); err != nil || !bytes.Equal(now, hosts) {
		t.Errorf("the machine's /etc/hosts is %q (%v), was %q", now, err, hosts)
	}
	if host, _ := os.Hostname(); host == "a" {
		t.Error("the machine has the Pod's name")
	}
}

func TestUnknownDestinationIsRefusedAtOnce(t *testing.T) {
	a := addPod(t, newMesh(t), netmesh.PodOptions{Name: "a"})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := a.Dial(ctx, "tcp", "10.200.0.1:80")
	if !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("dial of an address outside the mesh: %v, want network unreachable", err)
	}
	if _, err = a.Dial(ctx, "tcp", "nobody.example:80"); err == nil || !strings.Contains(err.Error(), `has no "nobody.example"`) {
		t.Errorf("dial of an unknown name: %v", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	m := newMesh(t)
	a, b := addPod(t, m, netmesh.PodOptions{Name: "a"}), addPod(t, m, netmesh.PodOptions{Name: "b"})
	// A listener whose queue is full drops further connections, and the dialer waits.
	var queue []net.Conn
	fd := -1
	if err := a.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: 80}), unix.Listen(fd, 0))
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		c, err := b.Dial(ctx, "tcp", a.IP().String()+":80")
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if queue = append(queue, c); len(queue) > 10 {
			t.Fatal("the queue never fills")
		}
	}
}

func TestManyDialsAtOnce(t *testing.T) {
	m := newMesh(t)
	a, b := addPod(t, m, netmesh.PodOptions{Name: "a"}), addPod(t, m, netmesh.PodOptions{Name: "b"})
	l, err := a.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() {
			c, err := b.Dial(t.Context(), "tcp", "10.99.0.2:80")
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintln(c, "hello")
			if line, err := bufio.NewReader(c).ReadString('\n'); line != "hello\n" {
				t.Errorf("echo: %q, %v", line, err)
			}
		})
	}
	wg.Wait()
}

func TestProcessHasThePodsNamesUserAndEnvironment(t *testing.T) {
	m := newMesh(t)
	a := addPod(t, m, netmesh.PodOptions{Name: "a", Hosts: map[string]netip.Addr{"b.example": netip.MustParseAddr("10.96.0.1")}})
	whoami := netmesh.Command{Path: self, Args: []string{"role=whoami"}, Env: []string{"X=1"}, UID: 1337, GID: 1338}
	got := output(t, a, whoami)
	for _, want := range []string{`uid=1337 gid=1338 host=a env=["X=1"]`, "10.96.0.1 b.example\n", "10.99.0.2 a\n", "127.0.0.1 localhost\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	if err := a.SetHosts(map[string]netip.Addr{"c": netip.MustParseAddr("10.96.0.3")}); err != nil {
		t.Fatal(err)
	}
	if got = output(t, a, whoami); !strings.HasSuffix(got, "10.96.0.3 c\n") || strings.Contains(got, "b.example") {
		t.Errorf("after SetHosts: %q", got)
	}
}

func TestEachPodHasItsOwnSharedMemory(t *testing.T) {
	m := newMesh(t)
	name := fmt.Sprintf("/dev/shm/netmesh-test-%d", os.Getpid())
	for _, pod := range []string{"a", "b"} {
		p := addPod(t, m, netmesh.PodOptions{Name: pod})
		if err := p.Do(func() error { _, err := os.Stat(name); return err }); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Pod %s finds another's file: %v", pod, err)
		}
		output(t, p, netmesh.Command{Path: self, Args: []string{"role=touch", name}, UID: 1337})
		if err := p.Do(func() error { _, err := os.Stat(name); return err }); err != nil {
			t.Errorf("Pod %s does not find its own file: %v", pod, err)
		}
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("the machine finds a Pod's file")
	}
}

func TestExitCodeAndSignal(t *testing.T) {
	a := addPod(t, newMesh(t), netmesh.PodOptions{Name: "a"})
	p, err := a.Start(netmesh.Command{Path: self, Args: []string{"role=touch", "/nowhere/x"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || p.ExitCode() != 3 {
		t.Errorf("got %v, exit code %d, want 3", err, p.ExitCode())
	}
	p, err = a.Start(netmesh.Command{Path: self, Args: []string{"role=forever"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to an ended process: %v", err)
	}
	if _, err := a.Start(netmesh.Command{Path: "/nowhere/x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start of a missing program: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	m := newMesh(t)
	addPod(t, m, netmesh.PodOptions{Name: "a", IP: netip.MustParseAddr("10.99.0.2")})
	addPod(t, m, netmesh.PodOptions{Name: "b"})
	for want, o := range map[string]netmesh.PodOptions{
		"the Name is empty":                 {},
		"the name is in use":                {Name: "a"},
		"10.99.0.2 is in use by a":          {Name: "c", IP: netip.MustParseAddr("10.99.0.2")},
		"10.99.0.1 is in use by the bridge": {Name: "c", IP: netip.MustParseAddr("10.99.0.1")},
		"invalid IP 10.99.0.255":            {Name: "c", IP: netip.MustParseAddr("10.99.0.255")},
		"invalid IP6 fd99:98::1":            {Name: "c", IP6: netip.MustParseAddr("fd99:98::1")},
	} {
		if _, err := m.AddPod(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	if len(m.Pods()) != 2 {
		t.Errorf("%d Pods", len(m.Pods()))
	}
}

func tasks(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var namespaces []string
	for _, e := range entries {
		if ns, err := os.Readlink("/proc/self/task/" + e.Name() + "/ns/net"); err == nil {
			namespaces = append(namespaces, ns)
		}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

func alive(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(state, []byte(") Z "))
}
