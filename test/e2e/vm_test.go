package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/machine"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// vmLab is a mesh and a machine outside of it.
type vmLab struct {
	m *meshup.Mesh
	// net are the machine's namespaces, root is its root directory.
	net  *netmesh.Pod
	root string
}

// startVM starts the mesh of testdata/vm, and a machine with an application, which is not in the mesh.
func startVM(t *testing.T) *vmLab {
	t.Helper()
	m, _ := start(t, "vm")
	nameServer(t, m)
	return &vmLab{m: m, net: newVM(t, m), root: vmRoot(t)}
}

// newVM makes the machine of the WorkloadEntry.
func newVM(t *testing.T, m *meshup.Mesh) *netmesh.Pod {
	t.Helper()
	n, err := m.Net.AddPod(netmesh.PodOptions{Name: "legacy-1", IP: netip.MustParseAddr("10.99.0.41"), Hosts: map[string]netip.Addr{"mesh.example.com": m.Net.Host().IP(), "istiod.istio-system.svc": m.Net.Host().IP()}})
	if err != nil {
		t.Fatal(err)
	}
	app, err := n.Start(netmesh.Command{Path: m.Programs().App, Args: []string{"-service=legacy", "-pod=legacy-1", "-version=v1", "-http=:9080"}, UID: 2000, GID: 2000})
	if err != nil {
		t.Fatal(err)
	}
	if err := meshup.Await(t.Context(), time.Minute, "the machine's application listens", func(ctx context.Context) error {
		select {
		case <-app.Done():
			return meshup.Final(errors.New("it has ended"))
		default:
		}
		c, err := n.Dial(ctx, "tcp", "127.0.0.1:9080")
		if err == nil {
			err = c.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// vmRoot makes the root directory of a machine, which the proxy's user can reach.
func vmRoot(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "pilothouse-vm-")
	if err == nil {
		err = os.Chmod(root, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

// token runs pilotctl vm join-token.
func (v *vmLab) token(t *testing.T, more ...string) string {
	t.Helper()
	args := append([]string{"vm", "join-token", "vm/legacy", "--stateDir", v.m.StateDir(), "--address", "mesh.example.com:15012", "--labels", "app=legacy"}, more...)
	c := exec.Command(filepath.Join(filepath.Dir(programs.Agent), "pilotctl"), args...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		t.Fatalf("pilotctl %q: %v: %s", args, err, said.String())
	}
	t.Logf("pilotctl: %s", said.String())
	return string(out)
}

// agent runs a command of pilot-agent on the machine, as root, and returns its output.
func (v *vmLab) agent(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c, err := v.net.Start(netmesh.Command{
		Path: v.m.Programs().Agent, Args: args, Dir: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Wait()
	t.Logf("pilot-agent %s: %v\n%s", args[0], err, out.String())
	return out.String(), err
}

// join has the machine join.
func (v *vmLab) join(t *testing.T, token string, more ...string) (string, error) {
	t.Helper()
	return v.agent(t, token, append([]string{"join", "-", "--root", v.root, "--envoy", v.m.Programs().Envoy, "--timeout", "60s"}, more...)...)
}

// bothWays has the machine and the Pod call each other by names of the mesh.
func (v *vmLab) bothWays(t *testing.T) {
	t.Helper()
	// The machine has no names of the mesh but by DNS.
	for name, want := range map[string]string{"web.vm.svc.cluster.local": "10.96.8.1", "legacy.vm": "10.96.8.2"} {
		if got, err := getent(&meshup.Pod{Net: v.net}, name); err != nil || got != want {
			t.Errorf("on the machine %s is %q, want %q: %v", name, got, want, err)
		}
	}
	a, err := meshup.Post(t.Context(), meshup.Client(v.net, 0), "http://10.96.8.1/", nil)
	if err != nil || a.Status != http.StatusOK || a.Service != "web" || a.Peer != "spiffe://cluster.local/ns/vm/sa/legacy" {
		t.Errorf("from the machine to the Pod: %+v, %v", a, err)
	}
	a, err = meshup.Post(t.Context(), meshup.Client(v.m.Pod("web-1.vm").Net, 0), "http://legacy/", nil)
	if err != nil || a.Status != http.StatusOK || a.Service != "legacy" || a.Peer != "spiffe://cluster.local/ns/vm/sa/web" {
		t.Errorf("from the Pod to the machine: %+v, %v", a, err)
	}
}

// files are the files below the machine's root.
func (v *vmLab) files(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(v.root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(v.root, p)
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestVMJoinsAndLeaves has a machine join by one command: requests between it and a Pod have mutual TLS in both directions, and
// names of the mesh resolve. The token is good once. After a restart the machine authenticates by its certificate. When it leaves,
// nothing is left.
func TestVMJoinsAndLeaves(t *testing.T) {
	v := startVM(t)
	token := v.token(t)
	if out, err := v.join(t, token, "--dry-run"); err != nil || len(v.files(t)) > 0 || !strings.Contains(out, "would ask") {
		t.Fatalf("a dry run: %v, files %q", err, v.files(t))
	}
	if out, err := v.join(t, token[:len(token)/2]); err == nil || !strings.Contains(out, "not whole") {
		t.Errorf("half a token: %v", err)
	}
	if _, err := v.join(t, token); err != nil {
		t.Fatal(err)
	}
	v.bothWays(t)
	if fi, err := os.Stat(filepath.Join(v.root, "etc/certs/key.pem")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", fi, err)
	}
	for _, f := range v.files(t) {
		text, err := os.ReadFile(filepath.Join(v.root, f))
		if err == nil && bytes.Contains(text, []byte(strings.Split(strings.TrimSpace(token), ".")[1][:40])) {
			t.Errorf("%s has the token", f)
		}
	}
	// Another machine can't use the token, and is as it was.
	elsewhere, err := v.m.Net.AddPod(netmesh.PodOptions{Name: "other", Hosts: map[string]netip.Addr{"mesh.example.com": v.m.Net.Host().IP()}})
	if err != nil {
		t.Fatal(err)
	}
	other := &vmLab{m: v.m, net: elsewhere, root: vmRoot(t)}
	out, err := other.join(t, token)
	if err == nil || !strings.Contains(out, "used up: 1 of 1, last by another machine at ") || !strings.Contains(out, "nothing was changed on this machine") {
		t.Errorf("the token a second time: %v", err)
	}
	if left := other.files(t); !slices.Equal(left, []string{"var/lib/istio/.lock"}) {
		t.Errorf("a join that was refused leaves %q", left)
	}
	// A repeated join changes nothing and needs no token.
	if out, err := v.join(t, token); err != nil || !strings.Contains(out, "the token is not used") {
		t.Errorf("a repeated join: %v", err)
	}
	v.bothWays(t)
	v.restart(t)
	v.leave(t)
}

// restart is a restart of the machine: its processes and its rules are gone, and so is what is in memory.
func (v *vmLab) restart(t *testing.T) {
	t.Helper()
	box := &machine.Machine{Root: v.root}
	if err := box.Stop(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := v.agent(t, "", "start", "clean", "--root", v.root); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(v.root, "var/run")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, err := v.net.Start(netmesh.Command{Path: filepath.Join(v.root, "etc/istio/start.sh"), Dir: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if err := meshup.Await(t.Context(), time.Minute, "the machine is ready after its restart", func(ctx context.Context) error {
		select {
		case <-p.Done():
			return meshup.Final(fmt.Errorf("it has ended: %s", out.String()))
		default:
		}
		_, err := meshup.Get(ctx, v.net, "http://127.0.0.1:15021/healthz/ready")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	v.bothWays(t)
}

// leave has the machine leave, and checks that nothing is left.
func (v *vmLab) leave(t *testing.T) {
	t.Helper()
	if _, err := v.agent(t, "", "leave", "--root", v.root); err != nil {
		t.Error(err)
	}
	if left := v.files(t); !slices.Equal(left, []string{"var/lib/istio/.lock", "var/log/istio/pilot-agent.log"}) {
		t.Errorf("left are %q", left)
	}
	for _, port := range []string{"15020", "15001", "15021", "15053"} {
		if c, err := v.net.Dial(t.Context(), "tcp", "127.0.0.1:"+port); err == nil {
			_ = c.Close()
			t.Errorf("something listens on port %s", port)
		}
	}
	// Connections are nobody's any more: the Pod's address is reached in plaintext, which it refuses.
	if a, err := meshup.Post(t.Context(), meshup.Client(v.net, 0), "http://10.99.0.40:9080/", nil); err == nil {
		t.Errorf("the Pod has answered in plaintext: %+v", a)
	}
	if _, err := v.agent(t, "", "leave", "--root", v.root); err != nil {
		t.Errorf("a second leave: %v", err)
	}
}

// TestVMOfIstioSwitches has a machine join by the files that Istio's tool writes for it.
func TestVMOfIstioSwitches(t *testing.T) {
	v := startVM(t)
	dir := vmRoot(t)
	roots, err := os.ReadFile(filepath.Join(v.m.StateDir(), "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := issue(v.m.StateDir(), "vm", "legacy")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"root-cert.pem": string(roots), "istio-token": token, "hosts": v.m.Net.Host().IP().String() + " istiod.istio-system.svc\n",
		"mesh.yaml": "defaultConfig:\n  discoveryAddress: istiod.istio-system.svc:15012\n  proxyMetadata:\n    ISTIO_META_MESH_ID: mesh1\n",
		"cluster.env": `CANONICAL_REVISION='latest'
CANONICAL_SERVICE='legacy'
CA_ADDR='istiod.istio-system.svc:15012'
ISTIO_INBOUND_PORTS='*'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{"app":"legacy","service.istio.io/canonical-name":"legacy","service.istio.io/canonical-revision":"latest"}'
ISTIO_META_CLUSTER_ID='Kubernetes'
ISTIO_META_DNS_CAPTURE='true'
ISTIO_META_MESH_ID='mesh1'
ISTIO_META_NETWORK=''
ISTIO_META_WORKLOAD_NAME='legacy'
ISTIO_NAMESPACE='vm'
ISTIO_SERVICE='legacy.vm'
ISTIO_SERVICE_CIDR='*'
ISTIO_SVC_IP='10.99.0.41'
POD_NAMESPACE='vm'
SERVICE_ACCOUNT='legacy'
TRUST_DOMAIN='cluster.local'
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := v.agent(t, "", "join", dir, "--root", v.root, "--envoy", v.m.Programs().Envoy, "--timeout", "60s"); err != nil {
		t.Fatal(err)
	}
	v.bothWays(t)
	hosts, err := os.ReadFile(filepath.Join(v.root, "etc/hosts"))
	if err != nil || !strings.Contains(string(hosts), " istiod.istio-system.svc\n") {
		t.Errorf("%s, %v", hosts, err)
	}
	v.restart(t)
	if err := os.WriteFile(filepath.Join(v.root, "etc/hosts"), append(hosts, "192.0.2.1 own\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := v.agent(t, "", "leave", "--root", v.root); err != nil {
		t.Error(err)
	}
	if hosts, err = os.ReadFile(filepath.Join(v.root, "etc/hosts")); err != nil || string(hosts) != "192.0.2.1 own\n" {
		t.Errorf("%q, %v", hosts, err)
	}
}
