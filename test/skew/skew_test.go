// Package skew_test runs the programs of the version before together with those of the working tree.
//
// It has upgrades, downgrades, and meshes whose parts are of both versions. "make before" builds the former.
package skew_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
	"github.com/pilothouse/pilothouse/test/require"
)

// version has the programs of one version.
type version struct{ name, agent, discovery string }

var (
	// programs are the application and Envoy, which both versions use.
	programs    meshup.Programs
	now, before version
)

func TestMain(m *testing.M) {
	require.Root()
	require.Envoy()
	require.Before()
	if err := find(); err != nil {
		fmt.Fprintln(os.Stderr, "skew:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// find finds the programs, which "make build" and "make before" have built.
func find() error {
	root, err := require.Repository()
	if err != nil {
		return err
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		return err
	}
	if programs, err = meshup.In(filepath.Join(root, "bin"), envoy); err != nil {
		return err
	}
	dir, err := require.BeforePath()
	if err != nil {
		return err
	}
	now = version{"this version", programs.Agent, programs.Discovery}
	before = version{"the version before", filepath.Join(dir, "pilot-agent"), filepath.Join(dir, "pilot-discovery")}
	return nil
}

func issue(stateDir, namespace, account string) (string, error) {
	i, err := authn.OpenIssuer(stateDir)
	if err != nil {
		return "", err
	}
	return i.Issue(namespace, account, "", 0, time.Now())
}

// world is a mesh whose programs are replaced.
type world struct {
	*meshup.Mesh
	t            *testing.T
	work, config string
	edits        int
}

// start starts a mesh with the programs of two versions.
func start(t *testing.T, discovery, agents version) *world {
	t.Helper()
	// Not t.TempDir: the proxies' user must reach it.
	work, err := os.MkdirTemp("", "pilothouse-skew-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, work: work, config: filepath.Join(work, "config")}
	if err := os.CopyFS(w.config, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	o := meshup.Options{Programs: programs, ConfigDir: w.config, WorkDir: work, Token: issue, ProxyConfig: meshup.CountFailures, PodEnv: map[string][]string{}}
	o.Programs.Agent, o.Programs.Discovery = agents.agent, discovery.discovery
	memory, err := os.MkdirTemp("/dev/shm", "pilothouse-skew-") // for the copies of certificates
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(memory); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(memory, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"client-1.skew", "echo-1.skew", "other-1.skew"} {
		dir := filepath.Join(memory, key)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1337, 1337)); err != nil {
			t.Fatal(err)
		}
		o.PodEnv[key] = []string{"IDENTITY_COPY_DIR=" + dir}
	}
	if w.Mesh, err = meshup.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// place replaces a program of the mesh: what is started from then on is of another version.
func (w *world) place(name, path string) {
	w.t.Helper()
	in, err := os.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer in.Close()
	to := filepath.Join(w.work, "bin", name)
	out, err := os.OpenFile(to+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close(), os.Rename(to+".new", to)); err != nil {
		w.t.Fatal(err)
	}
}

// roll replaces pilot-discovery and waits until a change made afterwards has reached the client. What the new one logs
// about the state that the other one has saved is at most one line.
func (w *world) roll(to version) {
	w.t.Helper()
	old := len(w.log("pilot-discovery"))
	w.place("pilot-discovery", to.discovery)
	if err := w.KillDiscovery(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.StartDiscovery(w.t.Context()); err != nil {
		w.t.Fatalf("start pilot-discovery of %s: %v", to.name, err)
	}
	w.edit("pilot-discovery of " + to.name)
	if err := w.answered(w.t.Context(), "kept", "/kept"); err != nil {
		w.t.Errorf("the route that only the saved state has, which the other version has written, is gone with pilot-discovery of %s: %v", to.name, err)
	}
	said := saved.FindAllString(w.log("pilot-discovery")[old:], -1)
	if len(said) > 1 {
		w.t.Errorf("pilot-discovery of %s says more than one line of the saved state:\n%s", to.name, strings.Join(said, "\n"))
	}
	w.t.Logf("pilot-discovery of %s runs; of the saved state it says %q", to.name, said)
}

// saved are lines about state that cannot be read, or not all of it.
var saved = regexp.MustCompile(`(?m)^.*(saved configuration (cannot be used|is of a later release)|ca-rotation|ca-instances).*$`)

func (w *world) log(name string) string {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.work, "log", name+"*"))
	if err != nil || len(files) == 0 {
		w.t.Fatalf("find the log of %s: %v", name, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// edit changes the routes and waits until the client has them.
func (w *world) edit(what string) {
	w.t.Helper()
	w.edits++
	path := fmt.Sprintf("/edit-%d", w.edits)
	w.write("route.yaml", route("other", path, 418))
	w.until("the client has a change, with "+what, func(ctx context.Context) error { return w.answered(ctx, "other", path) })
}

// route is a VirtualService that answers a path with a status.
func route(host, path string, status int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: skew}
spec:
  hosts: [%[1]s]
  http:
  - match: [{uri: {exact: %[2]s}}]
    directResponse: {status: %[3]d}
  - route: [{destination: {host: %[1]s}}]
`, host, path, status)
}

func (w *world) write(name, text string) {
	w.t.Helper()
	file := filepath.Join(w.config, name)
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o644), os.Rename(file+".new", file)); err != nil {
		w.t.Fatal(err)
	}
}

// answered returns nil if the client's route answers a path with the status 418.
func (w *world) answered(ctx context.Context, host, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+":9080"+path, nil)
	if err != nil {
		return err
	}
	res, err := meshup.Client(w.Pod("client-1.skew").Net, 0).Do(req)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode != http.StatusTeapot {
		return fmt.Errorf("%s%s: status %d, want 418, that of the route", host, path, res.StatusCode)
	}
	return nil
}

// keep has pilot-discovery keep the last good version of a route, which is not in the directory any more: from now on only
// the saved state has it.
func (w *world) keep() {
	w.t.Helper()
	w.write("kept.yaml", route("kept", "/kept", 418))
	w.until("the client has a route", func(ctx context.Context) error { return w.answered(ctx, "kept", "/kept") })
	w.until("it is saved", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(w.StateDir(), "configuration.saved"))
		if err == nil && !strings.Contains(string(text), `"kind":"VirtualService","namespace":"skew","name":"kept"`) {
			err = errors.New("the file does not have it")
		}
		return err
	})
	w.write("kept.yaml", route("kept", "/kept", -1))
	w.until("the route is invalid", func(context.Context) error {
		if !strings.Contains(w.log("pilot-discovery"), "kept.yaml") {
			return errors.New("the log does not name its file")
		}
		return nil
	})
}

func (w *world) until(what string, look func(context.Context) error) {
	w.t.Helper()
	if err := meshup.Await(w.t.Context(), 2*time.Minute, what, look); err != nil {
		w.t.Fatal(err)
	}
}

// mutual waits until a Pod's service answers the client by mutual TLS.
func (w *world) mutual(service string) {
	w.t.Helper()
	want := "spiffe://" + meshup.Domain + "/ns/skew/sa/client"
	w.until(service+" answers the client by mutual TLS", func(ctx context.Context) error {
		a, err := meshup.Post(ctx, meshup.Client(w.Pod("client-1.skew").Net, 0), "http://"+service+":9080/", nil)
		if err == nil && a.Peer != want {
			err = fmt.Errorf("status %d, identity %q, want %s", a.Status, a.Peer, want)
		}
		return err
	})
}

// underLoad sends requests to the echo while it calls do, and checks that each was answered.
func (w *world) underLoad(do func()) {
	w.t.Helper()
	earlier, err := w.Pod("echo-1.skew").Served(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	l := load.New(w.t.Context(), w.Pod("client-1.skew").Net.Dial)
	l.KeepAlive("echo:9080", 4, 20*time.Millisecond)
	l.Churn("echo:9080", 4, 20*time.Millisecond)
	l.HTTP2("echo:9081", 2, 20*time.Millisecond)
	do()
	r := l.Stop()
	if len(r.Failures) > 0 || r.Sent < 100 {
		w.t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	if served, err := w.Pod("echo-1.skew").Served(w.t.Context()); err != nil || served-earlier != r.Sent {
		w.t.Errorf("%d requests sent, %d served, error %v", r.Sent, served-earlier, err)
	}
	w.t.Logf("%d requests in %v, failed: %d", r.Sent, r.Took.Round(time.Millisecond), len(r.Failures))
}

// The control plane is upgraded and downgraded under load, with agents of either version: no request fails, and what each
// version has saved is read by the other one.
func TestDiscoveryIsUpgradedAndDowngradedUnderLoad(t *testing.T) {
	for _, agents := range []version{before, now} {
		t.Run("agents of "+agents.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, before, agents)
			w.mutual("echo")
			root := w.root()
			w.keep()
			w.underLoad(func() {
				for _, to := range []version{now, before, now} {
					w.roll(to)
				}
			})
			w.mutual("other")
			if w.root() != root {
				t.Error("the root has changed")
			}
		})
	}
}

func (w *world) root() string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.StateDir(), "root-cert.pem"))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// An agent is replaced by that of the other version, both ways, while the rest of the mesh is of the other one: it serves the
// certificate that the other one has left, connects, and talks to the rest.
func TestAgentsOfBothVersionsTalk(t *testing.T) {
	for _, discovery := range []version{now, before} {
		t.Run("discovery of "+discovery.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, discovery, before)
			pod := w.Pod("other-1.skew")
			w.underLoad(func() {
				for _, to := range []version{now, before} {
					old := len(w.log("other-1.skew.agent"))
					w.place("pilot-agent", to.agent)
					if err := pod.StopAgent(syscall.SIGTERM); err != nil {
						t.Fatal(err)
					}
					if err := pod.StartAgent(t.Context()); err != nil {
						t.Fatal(err)
					}
					w.mutual("other")
					text := w.log("other-1.skew.agent")[old:]
					used, left := strings.Count(text, "certificate of the last agent is used"), strings.Count(text, "the copy of the certificate is not used")
					if used+left != 1 {
						t.Errorf("the agent of %s says %d times that it uses the copy of the other one, and %d times that it does not: want one line", to.name, used, left)
					}
					t.Logf("the agent of %s has used the other one's copy: %v", to.name, used == 1)
				}
			})
		})
	}
}
