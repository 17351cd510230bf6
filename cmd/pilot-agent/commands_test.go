package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/test/wait"
)

// agentRun runs a command line in this process.
func agentRun(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, process{env: env, stdout: &out, stderr: &errs})
	return code, out.String(), errs.String()
}

func TestVersion(t *testing.T) {
	old := version
	version = "v9"
	defer func() { version = old }()
	if code, out, _ := agentRun(t, nil, "version", "-s"); code != 0 || out != "v9\n" {
		t.Errorf("short: %d %q", code, out)
	}
	if code, out, _ := agentRun(t, nil, "--version"); code != 0 || strings.Count(out, "-") != 2 || !strings.HasPrefix(out, "v9-") {
		t.Errorf("--version: code %d, printed %q", code, out)
	}
	if code, out, _ := agentRun(t, nil, "--help"); code != 0 || !strings.Contains(out, "Exit codes: 0 if") {
		t.Errorf("--help: code %d, printed %q", code, out)
	}
	if code, out, _ := agentRun(t, nil, "version"); code != 0 || strings.Count(out, "-") != 2 || !strings.HasPrefix(out, "v9-") {
		t.Errorf("long: %d %q, want version-revision-status", code, out)
	}
	var got struct{ ClientVersion build }
	if code, out, _ := agentRun(t, nil, "version", "-o", "json"); code != 0 || json.Unmarshal([]byte(out), &got) != nil || got.ClientVersion.Version != "v9" {
		t.Errorf("JSON: %d %q", code, out)
	}
	if code, out, _ := agentRun(t, nil, "version", "-o", "yaml"); code != 0 || !strings.Contains(out, "version: v9\n") {
		t.Errorf("YAML: %d %q", code, out)
	}
	if code, _, errs := agentRun(t, nil, "version", "-o", "xml"); code != 255 || !strings.Contains(errs, "yaml or json") {
		t.Errorf("XML: %d %q", code, errs)
	}
}

func TestRelay(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
		case "/broken":
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(r.Method + " " + r.URL.RequestURI() + " " + body.String()))
	}))
	defer s.Close()
	_, p, _ := net.SplitHostPort(s.Listener.Addr().String())
	port, _ := strconv.Atoi(p)
	for _, tt := range []struct{ method, path, body, want, err string }{
		{"GET", "/a?b=c", "", "GET /a?b=c ", ""},
		{"POST", "a", "x", "POST /a x", ""},
		{"GET", "missing", "", "GET /missing ", ""},
		{"GET", "broken", "", "", "status 500, GET /broken"},
	} {
		got, err := relay(t.Context(), localClient(requestTimeout), port, tt.method, tt.path, tt.body)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s %s: %q, %v; want %q, %q", tt.method, tt.path, got, err, tt.want, tt.err)
		}
	}
}

func TestRequestRefusals(t *testing.T) {
	// Nothing but the error may be written: programs parse what comes out.
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"request", "GET", "x", "--debug-port", "8080"}, "only 15000, 15004, 15020 and 15021 are allowed"},
		{[]string{"request", "GET"}, "accepts between 2 and 3"},
	} {
		code, out, errs := agentRun(t, nil, tt.args...)
		if code != 255 || out != "" || !strings.Contains(errs, tt.want) {
			t.Errorf("%q: %d %q %q, want 255 and %q", tt.args, code, out, errs, tt.want)
		}
	}
}

func TestWait(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			http.Error(w, "Envoy waits", http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	if code, _, errs := agentRun(t, nil, "wait", "--url", s.URL, "--periodMillis", "1"); code != 0 || asked != 3 {
		t.Errorf("exit code %d after %d requests: %s", code, asked, errs)
	}
	asked = -1 << 30
	code, _, errs := agentRun(t, nil, "wait", "--url", s.URL, "--periodMillis", "1", "--timeoutSeconds", "1")
	if code != 255 || !strings.Contains(errs, "not ready in 1 seconds: status 503 Envoy waits") {
		t.Errorf("timeout: %d %q, want 255 and the reason", code, errs)
	}
}

func TestWithoutAnAgentTheRemedyIsTold(t *testing.T) {
	port := freePort(t)
	for _, command := range []string{"status", "identity", "log-level", "restart"} {
		code, _, errs := agentRun(t, nil, command, "--statusPort", port)
		if want := "no agent answers at port " + port + " of this machine: connect: connection refused: start it with pilot-agent proxy, or name its port with --statusPort"; code != 255 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %q, want 255 and %s", command, code, errs, want)
		}
	}
}

// While Envoy does not listen, the agent's own port says why.
func TestTheAgentSaysWhyItIsNotReady(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no certificate yet: "+r.URL.Path, http.StatusServiceUnavailable)
	}))
	defer s.Close()
	_, text, _ := net.SplitHostPort(s.Listener.Addr().String())
	port, _ := strconv.Atoi(text)
	err := agentReason("http://127.0.0.1:1/healthz/ready", port)
	if want := fmt.Sprintf("the agent at port %d: status 503 no certificate yet: /healthz/ready", port); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := agentReason(s.URL, port); err != nil {
		t.Errorf("it was asked already: %v", err)
	}
}

// ingress and egress are the names of 2017 for a router.
func TestEveryNameOfARoleIsAccepted(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, role := range map[string]string{"": "sidecar", "sidecar": "sidecar", "router": "router", "ingress": "router", "egress": "router", "waypoint": "waypoint"} {
		args := []string{"proxy"}
		if name != "" {
			args = append(args, name)
		}
		_, out, errs := agentRun(t, map[string]string{"INSTANCE_IP": "10.0.0.1", "PROXY_CONFIG": "{binaryPath: /no/envoy}"}, args...)
		if !strings.Contains(out, "type="+role) || !strings.Contains(errs, "binaryPath") {
			t.Errorf("%q: %s%s, want the role %s", name, out, errs, role)
		}
		if told := strings.Contains(out, "is a name of 2017 for router"); told != (name == "ingress" || name == "egress") {
			t.Errorf("%q: told that it is another name: %v", name, told)
		}
	}
}

func TestProxyMistakes(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := syscall.Mkfifo("pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"configuration from a device", []string{"proxy"}, map[string]string{"PROXY_CONFIG_FILE": "/dev/zero"}, "read /dev/zero: a device: want a regular file"},
		{"configuration from a pipe", []string{"proxy"}, map[string]string{"PROXY_CONFIG_FILE": "pipe"}, "read pipe: a named pipe: want a regular file"},
		{"mesh configuration from a device", []string{"proxy", "--meshConfig=/dev/zero"}, nil, "read /dev/zero: a device: want a regular file"},
		{"override from a device", []string{"proxy"}, map[string]string{"ISTIO_BOOTSTRAP_OVERRIDE": "/dev/zero", "INSTANCE_IP": "10.0.0.1"}, "read /dev/zero: a device: want a regular file"},
		{"bootstrap from a device", []string{"proxy"}, map[string]string{
			"CA_ROOT_CA": "SYSTEM", "XDS_ROOT_CA": "SYSTEM", "INSTANCE_IP": "10.0.0.1", "PROXY_CONFIG": "{binaryPath: /bin/sh, customConfigFile: /dev/zero, statusPort: " + freePort(t) + "}",
		}, "customConfigFile /dev/zero: want a regular file"},
		{"type", []string{"proxy", "ztunnel"}, nil, `proxy type "ztunnel": want sidecar, router or waypoint`},
		{"no type", []string{"proxy", ""}, nil, `proxy type "": want sidecar, router or waypoint`},
		{"a router", []string{"proxy", "router"}, map[string]string{"INSTANCE_IP": "10.0.0.1", "PROXY_CONFIG": "{binaryPath: /no/envoy}"}, "binaryPath"},
		{"a type that has no other mistake", []string{"proxy", "waypoint"}, map[string]string{"INSTANCE_IP": "10.0.0.1", "PROXY_CONFIG": "{binaryPath: /no/envoy}"}, "binaryPath"},
		{"unknown flag", []string{"proxy", "--concurency=1", "--log_target", "stderr"}, map[string]string{"PROXY_CONFIG": "{a"}, "unknown flag --concurency has no effect; did you mean --concurrency?"},
		{"broken configuration", []string{"proxy", "--whatever=1"}, map[string]string{"PROXY_CONFIG": "{a"}, "environment PROXY_CONFIG"},
		{"log level", []string{"proxy", "--log_output_level", "loud"}, nil, "log_output_level"},
		{"no root certificate", []string{"proxy"}, map[string]string{"INSTANCE_IP": "10.0.0.1", "PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + freePort(t) + "}"}, "root certificate of the CA"},
		{"socket name", []string{"proxy"}, map[string]string{"WORKLOAD_IDENTITY_SOCKET_FILE": "a/b"}, "WORKLOAD_IDENTITY_SOCKET_FILE"},
		{"foreign socket", []string{"proxy"}, map[string]string{
			"WORKLOAD_IDENTITY_SOCKET_FILE": "other", "CA_ROOT_CA": "SYSTEM", "INSTANCE_IP": "10.0.0.1", "PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + freePort(t) + "}",
		}, "find the socket"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, _, errs := agentRun(t, tt.env, tt.args...)
			if code != 255 || !strings.Contains(errs, tt.want) {
				t.Errorf("%d %q, want 255 and %q", code, errs, tt.want)
			}
		})
	}
	if left, _ := filepath.Glob("etc/istio/proxy/*"); len(left) > 0 {
		t.Errorf("a start that failed leaves %q", left)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(wait.FreePort(t))
}

func TestCollateral(t *testing.T) {
	dir := t.TempDir()
	if code, _, errs := agentRun(t, nil, "collateral", "--all", "-o", dir); code != 0 {
		t.Fatalf("%d %s", code, errs)
	}
	for file, want := range map[string]string{
		"pilot-agent_request.md": "- `--debug-port port`: port to ask", "pilot-agent-proxy.1": `.B \-\-concurrency number`, "pilot-agent.bash": "complete",
		"_pilot-agent": "#compdef", "pilot-agent.fish": "complete -c",
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, want %q in it", file, err, want)
		}
	}
	if code, _, _ := agentRun(t, nil, "collateral"); code != 255 {
		t.Errorf("nothing asked for: %d, want 255", code)
	}
}

func TestExitCodes(t *testing.T) {
	for want, err := range map[int]error{
		139: ended{errors.Join(errors.New("sds"), &envoy.ExitError{Code: 139})},
		1:   captureError{errors.New("x")},
		255: fmt.Errorf("validate: %w", exec.CommandContext(t.Context(), "false").Run()),
	} {
		if got := exitCode(err); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}
