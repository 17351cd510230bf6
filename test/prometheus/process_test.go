package prometheus_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// programs builds the programs into a folder that is removed with the test.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-trimpath", "-buildvcs=false", "-pgo=hack/pgo/pilot-discovery.pgo", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", dir, "./cmd/...") // as make build does, for its cache
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// address returns a free one of this host.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// run starts a program that ends with the test. What it has printed is shown if the test fails.
func run(t *testing.T, dir string, env []string, path string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(path, args...) //nolint:noctx // it gets time to end
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(path), out.String())
		}
	})
}

// discovery is a pilot-discovery of its own.
type discovery struct {
	bin, dir                 string
	grpc, secure, monitoring string
}

// startDiscovery starts one with these variables and waits until it is ready.
func startDiscovery(t *testing.T, bin string, env ...string) *discovery {
	t.Helper()
	d := &discovery{bin, t.TempDir(), address(t), address(t), address(t)}
	d.write(t, "mesh.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n")
	run(t, d.dir, append(os.Environ(), env...), filepath.Join(bin, "pilot-discovery"),
		"discovery", "--configDir", filepath.Join(d.dir, "config"), "--stateDir", filepath.Join(d.dir, "state"), "--httpAddr", address(t),
		"--grpcAddr", d.grpc, "--secureGRPCAddr", d.secure, "--monitoringAddr", d.monitoring, "--httpsAddr", "")
	d.until(t, "pilothouse_ready 1")
	return d
}

// write writes a file of the configuration at once.
func (d *discovery) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(d.dir, "config", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (d *discovery) url() string { return "http://" + d.monitoring + "/metrics" }

// until waits until a scrape has a line that begins with a regular expression, and returns the scrape.
func (d *discovery) until(t *testing.T, text string) string {
	t.Helper()
	return until(t, d.url(), text)
}

func until(t *testing.T, url, text string) string {
	t.Helper()
	var last string
	line := regexp.MustCompile("(?m)^(?:" + text + ")")
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-again.C {
		page, err := scrape(t, url)
		if err == nil && line.MatchString(page) {
			return page
		}
		last = fmt.Sprint(err, "\n", page)
	}
	t.Fatalf("%s: no line %q:\n%s", url, text, last)
	return ""
}

func scrape(t *testing.T, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(b), err
}

// startAgent starts an agent without an Envoy, waits until it has a certificate, and returns the address of its metrics.
func startAgent(t *testing.T, d *discovery) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"var/run/secrets/tokens", "var/run/secrets/istio"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	token, err := exec.CommandContext(t.Context(), filepath.Join(d.bin, "pilotctl"), "token", "create", "--stateDir", filepath.Join(d.dir, "state"), "-n", "shop", "--serviceAccount", "web").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(filepath.Join(d.dir, "state", "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"var/run/secrets/tokens/istio-token": token, "var/run/secrets/istio/root-cert.pem": root} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, _ := net.SplitHostPort(d.secure)
	_, status, _ := net.SplitHostPort(address(t))
	run(t, dir, []string{
		"PATH=" + os.Getenv("PATH"), "POD_NAME=web-1", "POD_NAMESPACE=shop", "SERVICE_ACCOUNT=web", "INSTANCE_IP=127.0.0.1", "DISABLE_ENVOY=true", "ISTIO_META_GENERATOR=grpc",
		fmt.Sprintf(`PROXY_CONFIG={"discoveryAddress":"localhost:%s","statusPort":%s}`, port, status),
	}, filepath.Join(d.bin, "pilot-agent"), "proxy", "sidecar")
	url := "http://127.0.0.1:" + status + "/stats/prometheus"
	until(t, url, `istio_agent_cert_expiry_seconds{resource_name="default"}`)
	return url
}
