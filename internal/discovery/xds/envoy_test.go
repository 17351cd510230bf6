package xds

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/wait"
)

// realEnvoy is a stock Envoy that takes everything from a server of ours.
type realEnvoy struct {
	t     testing.TB
	admin string
	log   string
}

const bootstrapText = `{
 "node": {"id": "sidecar~127.0.0.1~web-1.shop~shop.svc.cluster.local", "cluster": "web", "metadata": {"NAMESPACE": "shop", "VIRTUAL_HOST_DISCOVERY": "true"}},
 "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
 "dynamic_resources": {
  "ads_config": {"api_type": %q, "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
  "cds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"},
  "lds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}},
 "static_resources": {"clusters": [{"name": "xds", "type": "STATIC", "connect_timeout": "1s",
  "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
   "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
  "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %s}}}}]}]}}]}
}`

func startEnvoy(t testing.TB, xds string, api string) *realEnvoy {
	t.Helper()
	_, port, err := net.SplitHostPort(xds)
	if err != nil {
		t.Fatal(err)
	}
	return startEnvoyWith(t, fmt.Sprintf(bootstrapText, api, port))
}

// startEnvoyWith starts an Envoy with a bootstrap.
func startEnvoyWith(t testing.TB, bootstrap string) *realEnvoy {
	t.Helper()
	dir := t.TempDir()
	e := &realEnvoy{t: t, log: filepath.Join(dir, "log")}
	adminFile, config := filepath.Join(dir, "admin"), filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(config, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(e.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoytest.Binary(t), "-c", config, "--disable-hot-restart", "--concurrency", "2", "--admin-address-path", adminFile, "-l", "info")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start Envoy: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
		if b, _ := os.ReadFile(e.log); t.Failed() {
			t.Logf("Envoy said:\n%s", b)
		}
	})
	wait.Until(t, "Envoy's admin address", func() bool {
		b, err := os.ReadFile(adminFile)
		e.admin = strings.TrimSpace(string(b))
		return err == nil && e.admin != ""
	})
	return e
}

// get is the body of an admin page.
func (e *realEnvoy) get(path string) string {
	resp, err := http.Get("http://" + e.admin + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// stat is a counter's or gauge's value; 0 if Envoy has none of that name.
func (e *realEnvoy) stat(name string) int {
	for line := range strings.Lines(e.get("/stats?filter=^" + strings.ReplaceAll(name, ".", "\\.") + "$")) {
		if _, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				e.t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// listening is the bound address of a listener, empty while there is none.
func (e *realEnvoy) listening(name string) string {
	var l struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if json.Unmarshal([]byte(e.get("/listeners?format=json")), &l) != nil {
		return ""
	}
	for _, s := range l.Statuses {
		if s.Name == name && s.Address.Socket.Port != 0 {
			return "127.0.0.1:" + strconv.Itoa(s.Address.Socket.Port)
		}
	}
	return ""
}

// settled fails the test unless Envoy refused nothing and comes to wait for nothing.
func (e *realEnvoy) settled() {
	e.t.Helper()
	for _, s := range []string{"cluster_manager.warming_clusters", "listener_manager.total_listeners_warming"} {
		wait.Until(e.t, s+" is 0", func() bool { return e.stat(s) == 0 })
	}
	for _, s := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"} {
		if n := e.stat(s); n != 0 {
			e.t.Errorf("%s = %d, want 0", s, n)
		}
	}
}

// backend is an HTTP server that answers with a name.
func backend(t testing.TB, name string) int {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// fetch is the answer to one request, or what went wrong.
func fetch(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	if resp.StatusCode != 200 {
		return fmt.Sprintf("%d %s", resp.StatusCode, b)
	}
	return string(b)
}

// enough is how many requests a storm has at least, however short it is and however busy the machine.
const enough = 100

// storm sends requests until stop is called, which returns how many there were and the
// first that did not get one of the answers.
func storm(url string, answers ...string) (stop func() (int, string)) {
	return stormOf(func() string { return fetch(url) }, answers...)
}

func stormOf(fetch func() string, answers ...string) (stop func() (int, string)) {
	ctx, cancel := context.WithCancel(context.Background())
	var sent atomic.Int64
	wrong, done := make(chan string, 4), make(chan struct{}, 5)
	for range cap(wrong) {
		go func() {
			for ctx.Err() == nil {
				got := fetch()
				good := strings.Contains(" "+strings.Join(answers, " ")+" ", " "+got+" ")
				if sent.Add(1) == enough || !good {
					done <- struct{}{}
				}
				if !good {
					wrong <- got
					return
				}
			}
			wrong <- ""
		}()
	}
	return func() (int, string) {
		select {
		case <-done:
		case <-time.After(wait.Bound):
		}
		cancel()
		first := ""
		for range cap(wrong) {
			if w := <-wrong; first == "" {
				first = w
			}
		}
		return int(sent.Load()), first
	}
}
