package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// restartable is a ready agent whose Envoys drain and leave quickly, with Envoy under a name of its own.
func restartable(t *testing.T, args ...string) *agenttest.Process {
	t.Helper()
	plane := agenttest.NewPlane(t)
	plane.Start()
	binary := filepath.Join(t.TempDir(), "envoy")
	link(t, envoytest.Binary(t), binary)
	a := agenttest.New(t, plane, "drainDuration: 1s\nbinaryPath: "+binary, "PARENT_SHUTDOWN_DURATION=1s")
	a.Cmd.Args = append(a.Cmd.Args, "--log_repeat_period=0") // lines are counted
	a.Cmd.Args = append(a.Cmd.Args, args...)
	a.Write("etc/istio/pod/annotations", nil)
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	return a
}

// link makes path a link to target, in place of an older one.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := errors.Join(os.Symlink(target, path+".new"), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// annotate replaces the Pod's annotations, as the kubelet does: whole.
func annotate(t *testing.T, a *agenttest.Process, lines ...string) {
	t.Helper()
	a.Write("etc/istio/pod/new", []byte(strings.Join(lines, "\n")+"\n"))
	if err := os.Rename(a.Dir+"/etc/istio/pod/new", a.Dir+"/etc/istio/pod/annotations"); err != nil {
		t.Fatal(err)
	}
}

// serverInfo is what the Envoy that has the admin interface says.
type serverInfo struct {
	State   string
	Options struct {
		Epoch       int `json:"restart_epoch"`
		Concurrency int
	} `json:"command_line_options"`
}

func info(a *agenttest.Process) (serverInfo, error) {
	var i serverInfo
	_, body, err := a.Get(a.Admin, "/server_info")
	if err == nil {
		err = json.Unmarshal([]byte(body), &i)
	}
	return i, err
}

// awaitEpoch waits until an epoch serves alone.
func awaitEpoch(t *testing.T, a *agenttest.Process, epoch int) serverInfo {
	t.Helper()
	var i serverInfo
	agenttest.Until(t, fmt.Sprintf("epoch %d serves alone", epoch), func() (err error) {
		i, err = info(a)
		if err == nil && (i.State != "LIVE" || i.Options.Epoch != epoch) {
			err = fmt.Errorf("%+v", i)
		}
		_, page, getErr := a.Get(a.Status, "/debug/status")
		if n := strings.Count(page, `"Started"`); err == nil && getErr == nil && n != 1 {
			err = fmt.Errorf("%d Envoys run", n)
		}
		return errors.Join(err, getErr)
	})
	return i
}

// alwaysReady probes until the function that it returns is called, and tells what was not ready.
func alwaysReady(t *testing.T, a *agenttest.Process) (stop func()) {
	done, bad := make(chan struct{}), map[string]int{}
	var probing sync.WaitGroup
	probing.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if code, body, err := a.Get(a.Status, "/healthz/ready"); err != nil || code != http.StatusOK {
				bad[fmt.Sprintf("%d %s %v", code, body, err)]++
			}
		}
	})
	return func() {
		close(done)
		probing.Wait()
		if len(bad) > 0 {
			t.Errorf("not always ready: %v", bad)
		}
	}
}

func TestRestartOnRequest(t *testing.T) {
	a := restartable(t)
	stop := alwaysReady(t, a)
	var out bytes.Buffer
	code := run(t.Context(), []string{"restart", "--statusPort", a.Status}, process{stdout: &out, stderr: &out})
	if code != 0 || out.String() != "OK\n" {
		t.Errorf("exit code %d, output %q", code, out.String())
	}
	awaitEpoch(t, a, 1)
	stop()
	if strings.Contains(a.Output(), "previous envoy process") {
		t.Error("an Envoy was started too early")
	}
	if boots, _ := filepath.Glob(a.Dir + "/etc/istio/proxy/envoy-rev*.json"); len(boots) == 0 || len(boots) > 2 {
		t.Errorf("bootstraps: %v", boots)
	}
	a.Stop()
	left, _ := filepath.Glob(a.Dir + "/etc/istio/proxy/*")
	// The copy of the configuration is for the next agent, the bootstrap of gRPC for applications, which may outlive this one.
	kept := []string{"xds-copy", "grpc-bootstrap.json"}
	if left = slices.DeleteFunc(left, func(path string) bool { return slices.Contains(kept, filepath.Base(path)) }); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestClassesOfChanges(t *testing.T) {
	a := restartable(t)
	stop := alwaysReady(t, a)
	// Hot: another log level, without another Envoy.
	began := time.Now()
	annotate(t, a, `sidecar.istio.io/logLevel="debug"`, `example.com/unused="x"`)
	agenttest.Until(t, "Envoy logs more", func() error {
		if !strings.Contains(a.Output(), "changed Envoy's log level") {
			return errors.New("it does not")
		}
		return nil
	})
	t.Logf("another log level after %v", time.Since(began).Round(time.Millisecond))
	if i, err := info(a); err != nil || i.Options.Epoch != 0 {
		t.Errorf("the log level took another Envoy: %+v, error %v", i, err)
	}
	// Cold: told, and not done. Warm: another Envoy.
	annotate(t, a, `sidecar.istio.io/logLevel="debug"`, `proxy.istio.io/config="{concurrency: 3, discoveryAddress: 'elsewhere:15012'}"`)
	if i := awaitEpoch(t, a, 1); i.Options.Concurrency != 3 {
		t.Errorf("after a warm change: %+v", i)
	}
	stop()
	if _, page, err := a.Get(a.Status, "/debug/status"); err != nil || !strings.Contains(page, "\"discoveryAddress\"") {
		t.Errorf("error %v; a cold change is not told:\n%s", err, page)
	}
	if out := a.Output(); !strings.Contains(out, "--restart-epoch 1") || !strings.Contains(out[strings.Index(out, "--restart-epoch 0"):], "-l debug") {
		t.Error("the next Envoy has not got the log level")
	}
}

// launched is the binary that the agent says it starts.
func launched(t *testing.T, a *agenttest.Process) string {
	t.Helper()
	_, after, ok := strings.Cut(a.Output(), "binary=")
	if !ok {
		t.Fatal("the agent does not say what it starts")
	}
	path, _, _ := strings.Cut(after, "\t")
	path, _, _ = strings.Cut(path, " ")
	return path
}

func TestAnotherBinaryTakesOver(t *testing.T) {
	a := restartable(t)
	binary := launched(t, a)
	// The same bytes at another path are the same binary.
	same := filepath.Join(t.TempDir(), "envoy")
	link(t, envoytest.Binary(t), same)
	link(t, same, binary)
	text, err := os.ReadFile(envoytest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(other, append(text, "other"...), 0o755); err != nil {
		t.Fatal(err)
	}
	if i, err := info(a); err != nil || i.Options.Epoch != 0 {
		t.Errorf("the same binary took over: %+v, error %v", i, err)
	}
	link(t, other, binary)
	awaitEpoch(t, a, 1)
	pid, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != other {
		t.Errorf("%s runs, error %v", exe, err)
	}
}

func TestCompatibleWithIstio(t *testing.T) {
	a := restartable(t, "--compat=istio")
	pid, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := a.Wait(); code != 0 || !strings.Contains(a.Output(), "--disable-hot-restart") {
		t.Errorf("exit code %d, want 0 and no hot restart", code)
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"proxy", "--compat=other"}, process{stdout: &out, stderr: &out}); code != failed {
		t.Errorf("--compat=other: exit code %d", code)
	}
}
