package netmesh_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// firstPID reads the process id that a role prints as its first line.
func firstPID(t *testing.T, r io.Reader) int {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return pid
}

func TestCloseKillsDescendantsAndEndsNamespaces(t *testing.T) {
	if got := tasks(t); len(got) != 1 {
		t.Fatalf("namespaces before: %v", got)
	}
	m := newMesh(t)
	a := addPod(t, m, netmesh.PodOptions{Name: "a"})
	b := addPod(t, m, netmesh.PodOptions{Name: "b"})
	out, in := io.Pipe()
	parent, err := a.Start(netmesh.Command{Path: self, Args: []string{"role=family"}, Stdout: in})
	if err != nil {
		t.Fatal(err)
	}
	child := firstPID(t, out)
	if !alive(child) || !alive(parent.PID()) {
		t.Fatal("the processes never lived")
	}
	if got := tasks(t); len(got) != 4 {
		t.Errorf("namespaces of this process with two Pods and a host: %v", got)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if alive(child) || alive(parent.PID()) {
		t.Error("a process outlived its mesh")
	}
	select {
	case <-parent.Done():
	default:
		t.Error("Close did not wait for the process")
	}
	if got := tasks(t); len(got) != 1 {
		t.Errorf("namespaces of this process after Close: %v", got)
	}
	for name, err := range map[string]error{
		"again":   m.Close(),
		"AddPod":  second(m.AddPod(netmesh.PodOptions{Name: "c"})),
		"Start":   second(a.Start(netmesh.Command{Path: self})),
		"Dial":    second(a.Dial(context.Background(), "tcp", "10.99.0.1:80")),
		"Listen":  second(a.Listen("tcp", ":80")),
		"Pod":     a.Close(),
		"Do":      a.Do(func() error { return nil }),
		"of host": m.Host().Close(),
	} {
		if closes := name == "again" || name == "Pod"; closes != (err == nil) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A program that dies without a chance to clean up, as a test that panics does.
func TestNothingOutlivesAKilledProgram(t *testing.T) {
	cmd := exec.Command(self, "role=mesh")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := firstPID(t, out)
	if !alive(pid) {
		t.Fatal("the Pod's process never lived")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wait.Until(t, "the end of the Pod's process", func() bool { return !alive(pid) })
}

func TestFunctionThatEndsItsThreadIsReported(t *testing.T) {
	m := newMesh(t)
	a := addPod(t, m, netmesh.PodOptions{Name: "a"})
	err := a.Do(func() error { runtime.Goexit(); return nil })
	if err == nil || !strings.Contains(err.Error(), "ended the thread") {
		t.Errorf("got %v", err)
	}
	if err := a.Do(func() error { return nil }); err == nil {
		t.Error("a Pod without a thread took a call")
	}
}

// What is sent before the links are up is lost and repeated a second later, be it the question
// for the Pod's hardware address. A busy machine may stall a dial too, but not again and again.
func TestPodIsReachableAtOnce(t *testing.T) {
	m := newMesh(t)
	slow := 0
	for i := range 200 {
		p := addPod(t, m, netmesh.PodOptions{Name: fmt.Sprint("p", i)})
		l, err := p.Listen("tcp", ":80")
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		c, err := m.Host().Dial(t.Context(), "tcp", p.IP().String()+":80")
		if err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) > 900*time.Millisecond {
			slow++
		}
		c.Close()
		l.Close()
	}
	if slow > 2 {
		t.Errorf("%d dials of 200 took a second", slow)
	}
}

// A Pod that takes the place of another one is reachable at once for those who know the other one as a neighbour: it has the same
// hardware address, which no Pod beside it has.
func TestPodInPlaceOfAnother(t *testing.T) {
	m := newMesh(t)
	hardware := func(p *netmesh.Pod) (addr string) {
		t.Helper()
		if err := p.Do(func() error {
			link, err := net.InterfaceByName("eth0")
			if err == nil {
				addr = link.HardwareAddr.String()
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	caller := addPod(t, m, netmesh.PodOptions{Name: "caller"})
	ip := caller.IP().Next().Next()
	var before string
	for _, name := range []string{"first", "second"} {
		p, err := m.AddPod(netmesh.PodOptions{Name: name, IP: ip})
		if err != nil {
			t.Fatal(err)
		}
		l, err := p.Listen("tcp", ":80")
		if err != nil {
			t.Fatal(err)
		}
		c, err := caller.Dial(t.Context(), "tcp", ip.String()+":80")
		if err != nil {
			t.Fatal(err)
		}
		got := hardware(p)
		if before != "" && got != before || got == hardware(caller) {
			t.Errorf("the hardware address of the %s Pod is %s, that of the one before %s, the caller's %s", name, got, before, hardware(caller))
		}
		before = got
		_, _ = c.Close(), l.Close()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkAddPod(b *testing.B) {
	m, err := netmesh.New(netmesh.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for i := range b.N {
		p, err := m.AddPod(netmesh.PodOptions{Name: fmt.Sprint("p", i)})
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
