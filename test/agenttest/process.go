package agenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Bound bounds each wait, for a busy machine.
const Bound = time.Minute

// binary builds the agent once for a test program, as it is built for use.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "agenttest-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pilot-agent")
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	cmd := exec.Command("go", "build", "-C", filepath.Dir(strings.TrimSpace(string(mod))), "-trimpath", "-buildvcs=false", "-pgo=hack/pgo/pilot-discovery.pgo", "-tags", "grpcnotrace", "-ldflags", "-s -w -X main.version=v1.2.3", "-o", path,
		"./cmd/pilot-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pilot-agent: %w\n%s", err, out)
	}
	return path, nil
})

// Binary is the path of a pilot-agent built from this tree.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Cleanup removes what Binary built; call it at the end of TestMain.
func Cleanup() {
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
}

// Port is a TCP port that is free on all addresses, as decimals.
func Port(t testing.TB) string {
	t.Helper()
	return strconv.Itoa(wait.FreePort(t))
}

// Process is an agent in a directory of its own.
type Process struct {
	// Dir is its working directory. Admin, Status, Health and Metrics are its ports.
	Dir, Admin, Status, Health, Metrics string
	Cmd                                 *exec.Cmd
	// Started is the moment before it was started.
	Started time.Time

	t      testing.TB
	out    output
	ended  chan struct{}
	client *http.Client
}

// output collects what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// Text is the output so far.
func (o *output) Text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// New prepares an agent of pod a in namespace b against the plane. config is more proxy
// configuration, lines of YAML; env is more environment and wins.
func New(t testing.TB, p *Plane, config string, env ...string) *Process {
	t.Helper()
	a := &Process{
		Dir: t.TempDir(), Admin: Port(t), Status: Port(t), Health: Port(t), Metrics: Port(t),
		t: t, ended: make(chan struct{}), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Bound},
	}
	root, err := os.ReadFile(p.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	a.Write("var/run/secrets/istio/root-cert.pem", root)
	a.Write("var/run/secrets/tokens/istio-token", []byte("token"))
	a.Cmd = exec.Command(Binary(t), "proxy", "sidecar", "--unknownFlag", "x")
	a.Cmd.Dir = a.Dir
	a.Cmd.Stdout, a.Cmd.Stderr = &a.out, &a.out
	a.Cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "POD_NAME=a", "POD_NAMESPACE=b", "SERVICE_ACCOUNT=c", "INSTANCE_IP=127.0.0.1",
		"ISTIO_META_CLUSTER_ID=Kubernetes", "ENVOY_STATUS_PORT=" + a.Health, "ENVOY_PROMETHEUS_PORT=" + a.Metrics,
		"PROXY_CONFIG=" + strings.Join([]string{
			"discoveryAddress: " + p.Addr, "binaryPath: " + envoytest.Binary(t), "concurrency: 2", "terminationDrainDuration: 0.1s",
			"proxyAdminPort: " + a.Admin, "statusPort: " + a.Status, config,
		}, "\n"),
	}, env...)
	return a
}

// Again prepares another agent in the same directory, with the same ports and settings. Stop this one before it starts.
func (a *Process) Again() *Process {
	next := &Process{Dir: a.Dir, Admin: a.Admin, Status: a.Status, Health: a.Health, Metrics: a.Metrics, t: a.t, ended: make(chan struct{}), client: a.client}
	next.Cmd = exec.Command(a.Cmd.Path, a.Cmd.Args[1:]...)
	next.Cmd.Dir, next.Cmd.Env = a.Cmd.Dir, a.Cmd.Env
	next.Cmd.Stdout, next.Cmd.Stderr = &next.out, &next.out
	return next
}

// Write writes a file; path is relative to the agent's directory.
func (a *Process) Write(path string, text []byte) {
	a.t.Helper()
	full := filepath.Join(a.Dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		a.t.Fatal(err)
	}
	if err := os.WriteFile(full, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// Start starts it; the test's end kills what is left, and shows its output if the test failed.
func (a *Process) Start() {
	a.t.Helper()
	a.Started = time.Now()
	if err := a.Cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	go func() {
		// The code is read from ProcessState.
		_ = a.Cmd.Wait()
		close(a.ended)
	}()
	a.t.Cleanup(func() {
		a.Stop()
		if a.t.Failed() {
			a.t.Logf("pilot-agent:\n%s", a.out.Text())
		}
	})
}

// Stop sends SIGTERM and waits until it has ended.
func (a *Process) Stop() {
	_ = a.Cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-a.ended:
	case <-time.After(Bound):
		_ = a.Cmd.Process.Kill()
		<-a.ended
		a.t.Errorf("pilot-agent did not end after SIGTERM")
	}
}

// Output is what agent and Envoy wrote so far.
func (a *Process) Output() string { return a.out.Text() }

// Wait waits until it has ended and returns its exit code.
func (a *Process) Wait() int {
	a.t.Helper()
	select {
	case <-a.ended:
	case <-time.After(Bound):
		a.t.Fatal("pilot-agent does not end")
	}
	return a.Cmd.ProcessState.ExitCode()
}

// Get requests a page from one of its ports, over loopback.
func (a *Process) Get(port, path string) (int, string, error) {
	resp, err := a.client.Get("http://" + net.JoinHostPort("127.0.0.1", port) + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// Ready returns nil if the readiness probe succeeds, through Envoy's health listener.
func (a *Process) Ready() error {
	code, body, err := a.Get(a.Health, "/healthz/ready")
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("status %d: %s", code, body)
	}
	return nil
}

// Until calls condition until it returns nil, at most for Bound.
func Until(t testing.TB, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Bound)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, Bound, err)
		case <-tick.C:
		}
	}
}

// Envoy is the pid of the agent's one child.
func (a *Process) Envoy() (int, error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.Cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", a.Cmd.Process.Pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(text)) {
			exe, err := os.Readlink("/proc/" + child + "/exe")
			if err == nil && filepath.Base(exe) != "pilot-agent" {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, errors.New("no Envoy")
}

// Wakes is how often the agent's threads have gone to sleep so far and been woken again:
// their voluntary context switches.
func (a *Process) Wakes() (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", a.Cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	sum := 0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return 0, err
		}
		_, after, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		line, _, _ := strings.Cut(after, "\n")
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", task, err)
		}
		sum += n
	}
	return sum, nil
}
