package fakeenvoy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
	"github.com/pilothouse/pilothouse/test/require"
)

// patience bounds every wait for something that takes milliseconds.
const patience = 60 * time.Second

// drain is how long an end lasts: a busy machine can look more than once meanwhile.
const drain = 2 * time.Second

// agentName is the name under which the test binary is an agent: it runs the Envoy that its
// arguments say (admin address, then the command line) until it is killed.
const agentName = "test-agent"

func TestMain(m *testing.M) {
	fakeenvoy.Main()
	if filepath.Base(os.Args[0]) == agentName {
		o := envoy.Options{Admin: os.Args[1], Launch: envoy.Launch{Binary: os.Args[2], Args: os.Args[3:]}, Log: slog.New(slog.DiscardHandler)}
		if envoy.New(o).Run(context.Background()) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	require.Envoy()
	os.Exit(m.Run())
}

// kind is an Envoy to run the scenarios over.
type kind struct {
	name   string
	binary func(t *testing.T) string
	config func(t *testing.T, admin, listen string) string
	broken func(t *testing.T) string // a configuration that is refused
}

var kinds = []kind{
	{
		name: "fake", binary: func(t *testing.T) string { return fakeenvoy.Install(t) },
		config: func(t *testing.T, admin, listen string) string {
			return fakeenvoy.Write(t, fakeenvoy.Script{Admin: admin, Listen: listen})
		},
		broken: func(t *testing.T) string {
			return fakeenvoy.Write(t, fakeenvoy.Script{FailFirst: -1, ExitCode: 1, Invalid: "no such filter"})
		},
	},
	{name: "real", binary: func(t *testing.T) string { return envoytest.Binary(t) }, config: realConfig, broken: func(t *testing.T) string {
		return writeFile(t, "broken.yaml", "static_resources: {listeners: [{name: x, filter_chains: 7}]}")
	}},
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func realConfig(t *testing.T, admin, listen string) string {
	address := func(a string) string {
		host, port, _ := strings.Cut(a, ":")
		return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
	}
	return writeFile(t, "bootstrap.yaml", `
admin: {address: `+address(admin)+`}
static_resources:
  listeners:
  - name: in
    traffic_direction: INBOUND
    address: `+address(listen)+`
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`)
}

// over runs a scenario over both Envoys.
func over(t *testing.T, scenario func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { scenario(t, k) })
	}
}

// up is an Envoy that a Runner keeps.
type up struct {
	*envoy.Runner
	admin, listen string
	cancel        func()
	ended         chan error
}

func options(t *testing.T, k kind, config, admin string, log io.Writer) envoy.Options {
	policy := supervise.DefaultPolicy()
	// The race detector holds up a fake Envoy's exit by a second. Tests look at what happens in the drain.
	policy.Drain, policy.Grace = drain, patience
	return envoy.Options{
		Admin: admin, Policy: policy, InboundOnly: true, Stderr: io.Discard,
		Launch: envoy.Launch{Binary: k.binary(t), Args: spec.Arguments{Bootstrap: config, Concurrency: 1}.List()},
		Log:    slog.New(slog.NewTextHandler(log, nil)),
	}
}

// start brings an Envoy up and waits until it serves; adjust may change the options.
func start(t *testing.T, k kind, adjust ...func(*envoy.Options)) *up {
	t.Helper()
	admin, listen := fakeenvoy.FreeAddress(t), fakeenvoy.FreeAddress(t)
	o := options(t, k, k.config(t, admin, listen), admin, io.Discard)
	for _, change := range adjust {
		change(&o)
	}
	u := run(t, o)
	u.admin, u.listen = admin, listen
	await(t, "live", func() bool { return u.State().Live && u.serves() })
	return u
}

func run(t *testing.T, o envoy.Options) *up {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	u := &up{Runner: envoy.New(o), cancel: cancel, ended: make(chan error, 1)}
	go func() { u.ended <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		u.Quit()
		await(t, "the end of the runner", func() bool { return u.State().Over })
	})
	return u
}

func (u *up) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-u.ended:
		return err
	case <-time.After(patience):
		t.Fatalf("the runner has not ended; state %+v", *u.State())
		return nil
	}
}

func (u *up) serves() bool {
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + u.listen + "/")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// dead says that no process, or only a zombie, has the id.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	return strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}

func TestAKilledEnvoyServesAgain(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		u := start(t, k)
		first := u.State().PID
		killed := time.Now()
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, "another live Envoy", func() bool { s := u.State(); return s.Live && s.PID != first && u.serves() })
		t.Logf("serving again after %v", time.Since(killed).Round(time.Millisecond))
		s := u.State()
		if s.Restarts != 1 || s.Epoch != 0 || s.Last != (supervise.Status{Signal: 9}) || !strings.Contains(s.LastExit, "signal 9") {
			t.Errorf("state after the restart: %+v", s)
		}
	})
}

func TestTheEndDrainsFirst(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		u := start(t, k)
		pid := u.State().PID
		asked := time.Now()
		u.cancel()
		await(t, "draining", func() bool { return u.State().Draining })
		// A slow machine's request may come when the drain is over.
		if serves := u.serves(); !serves && time.Since(asked) < drain {
			t.Error("a draining Envoy does not serve")
		}
		if err := u.end(t); err != nil {
			t.Errorf("an end that was asked for: %v", err)
		}
		if took := time.Since(asked); took < drain {
			t.Errorf("ended after %v, before the drain was over", took)
		}
		if s := u.State(); !dead(pid) || s.PID != 0 || !s.Over || s.Last != (supervise.Status{}) {
			t.Errorf("after the end: dead %v, state %+v", dead(pid), s)
		}
	})
}

func TestQuitDoesNotDrain(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		u := start(t, k)
		pid := u.State().PID
		u.Quit()
		if err := u.end(t); err != nil || !dead(pid) || u.State().Draining {
			t.Errorf("error %v, dead %v, state %+v", err, dead(pid), u.State())
		}
	})
}

func TestAnEnvoyThatEndsAtOnceSpendsTheBudget(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		admin := fakeenvoy.FreeAddress(t)
		o := options(t, k, k.broken(t), admin, io.Discard)
		o.Policy.Budget, o.Policy.Backoff = 2, 10*time.Millisecond
		u := run(t, o)
		var exit *envoy.ExitError
		if err := u.end(t); !errors.As(err, &exit) || exit.Code != 1 || u.State().Restarts != 2 {
			t.Errorf("got %v after %d restarts, want Envoy's code 1 after 2", err, u.State().Restarts)
		}
	})
}

func TestAKilledAgentLeavesNoEnvoy(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		admin, listen := fakeenvoy.FreeAddress(t), fakeenvoy.FreeAddress(t)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		args := append([]string{admin, k.binary(t)}, spec.Arguments{Bootstrap: k.config(t, admin, listen), Concurrency: 1}.List()...)
		agent := &exec.Cmd{Path: self, Args: append([]string{agentName}, args...)}
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		u := &up{listen: listen}
		await(t, "the agent's Envoy", u.serves)
		pid := child(t, agent.Process.Pid)
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = agent.Wait()
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		await(t, "the end of the orphan", func() bool { return dead(pid) })
	})
}

// child is the only child of a process.
func child(t *testing.T, parent int) int {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	var pids []string
	for _, f := range files {
		text, _ := os.ReadFile(f)
		pids = append(pids, strings.Fields(string(text))...)
	}
	if len(pids) != 1 {
		t.Fatalf("process %d has children %v, want one", parent, pids)
	}
	pid, _ := strconv.Atoi(pids[0])
	return pid
}

func TestValidation(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		launch := func(config string) envoy.Launch {
			return envoy.Launch{Binary: k.binary(t), Args: spec.Arguments{Bootstrap: config}.List()}
		}
		good := launch(k.config(t, fakeenvoy.FreeAddress(t), fakeenvoy.FreeAddress(t)))
		if err := envoy.Validate(t.Context(), good); err != nil {
			t.Errorf("a good bootstrap: %v", err)
		}
		err := envoy.Validate(t.Context(), launch(k.broken(t)))
		if err == nil || !strings.Contains(err.Error(), "exit status 1") || strings.Count(err.Error(), "\n") < 1 {
			t.Errorf("a broken bootstrap: %v, want the status and what Envoy says", err)
		}
	})
}

func TestReadinessProbe(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		u := start(t, k)
		info, err := u.Admin().ServerInfo(t.Context())
		if err != nil || info.State != "LIVE" || info.Options.Concurrency != 1 || strings.Count(info.Version, "/") < 2 {
			t.Errorf("got %+v, error %v", info, err)
		}
		stats, err := u.Admin().Stats(t.Context(), `^server\.(state|live)$|^listener_manager\.workers_started$`)
		names := make([]string, 0, len(stats))
		for name := range stats {
			names = append(names, name)
		}
		slices.Sort(names)
		if err != nil || !slices.Equal(names, []string{"listener_manager.workers_started", "server.live", "server.state"}) ||
			stats["server.state"] != 0 || stats["listener_manager.workers_started"] != 1 {
			t.Errorf("got %v, error %v", stats, err)
		}
		var page bytes.Buffer
		if err := u.Admin().Scrape(t.Context(), "", &page); err != nil || !strings.Contains(page.String(), "envoy_server_live{} 1") {
			t.Errorf("error %v, page %.200s", err, page.String())
		}
	})
}
