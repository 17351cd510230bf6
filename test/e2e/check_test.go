package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// pilotctl check says which Pod has lost its proxy, which connected proxy belongs to no Pod, and where the rules of capture were changed;
// with --watch it says so when it happens, and ends with Ctrl-C.
func TestCheckFollowsAMesh(t *testing.T) {
	m, config := startWith(t, "tproxy", func(o *meshup.Options) {
		// Its agent runs as root, which restoring rules needs, and finds the program that capture has used.
		o.TPROXY = map[string]bool{"server-1.shop": true}
		o.PodEnv = map[string][]string{"server-1.shop": {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CAPTURE_WATCH=-p 15001 -z 15006 -u 1337 -m TPROXY -i * -b * -d 15090,15021,15020"}}
	})
	pilotctl := func(out *wait.Output, args ...string) *netmesh.Process {
		t.Helper()
		p, err := m.Net.Host().Start(netmesh.Command{
			Path: pilotctlPath(), Args: append([]string{"--discovery", m.DiscoveryURL()}, args...), Env: []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir()}, Stdout: out, Stderr: out,
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	watched := &wait.Output{}
	watcher := pilotctl(watched, "check", "--watch")
	told := func(what, pattern string) {
		t.Helper()
		re := regexp.MustCompile("(?m)" + pattern)
		wait.Until(t, "check --watch tells "+what, func() bool { return re.MatchString(watched.String()) })
		once := &wait.Output{}
		_ = pilotctl(once, "check").Wait() // a failed check is an exit code
		if !re.MatchString(once.String()) {
			t.Errorf("check does not tell %s:\n%s", what, once)
		}
	}
	told("that all is well", `^✓ +Pods with a proxy +all \d+ Pods with tlsMode istio have a connected proxy`)

	var log bytes.Buffer
	clean, err := m.Pod("server-1.shop").Net.Start(netmesh.Command{Path: programs.Agent, Args: []string{"istio-clean-iptables"}, Stdout: &log, Stderr: &log})
	if err != nil {
		t.Fatal(err)
	}
	if err := clean.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &log)
	}
	told("the capture rules that were deleted", `^! +capture +changed in server-1\.shop: another program changed the rules of capture, which were restored`)

	if err := m.Pod("client-1.shop").StopAgent(syscall.SIGKILL); err == nil {
		t.Error("the agent has ended by itself")
	}
	told("the Pod that has lost its proxy", `^[!✗] +Pods with a proxy +1 of \d+ Pods with tlsMode istio: client-1\.shop \(not connected since 20\S+Z\)`)

	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// The Pod is renumbered: nothing has the address of its proxy any more.
	address := m.Pod("server-1.shop").Spec.IP.String()
	next := filepath.Join(config, "next")
	if err := os.WriteFile(next, bytes.ReplaceAll(text, []byte(address), []byte("10.99.250.250")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(config, "mesh.yaml")); err != nil {
		t.Fatal(err)
	}
	told("the address that no Pod has", `^! +addresses of proxies +no workload has the addresses of 1 of \d+ connections: server-1\.shop \(`+regexp.QuoteMeta(address)+`\)`)

	if err := watcher.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := watcher.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}
