package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

const wasmPlugin = `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: NAME, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  match: [{mode: SERVER}]
  phase: PHASE
  failStrategy: STRATEGY
  url: http://127.0.0.1:7070/module.wasm
  sha256: "SUM"
  pluginConfig: {value: "VALUE"}
`

// privatePlugin has a module in a registry that wants credentials.
const privatePlugin = `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: private, namespace: tokens}
spec: {selector: {matchLabels: {app: server}}, match: [{mode: SERVER}], phase: AUTHZ, url: 'oci://PRIVATE/a/b:v1', imagePullSecret: registry}
`

// TestWasmPlugins: a plugin's module runs, with the configuration that its object has; an edit of that is in force without another listener.
// A plugin whose module has another checksum denies all requests or lets all pass, as its failStrategy says, and an invalid one that decides
// about requests denies them. So does one with a module of a registry that wants credentials.
func TestWasmPlugins(t *testing.T) {
	const private = "127.0.0.1:7071"
	m, config := startWith(t, "tokens", func(o *meshup.Options) { o.AgentEnv = []string{"WASM_INSECURE_REGISTRIES=" + private} })
	serveHeaders(t, m, "server-1.tokens", ":9090")
	module := envoytest.WasmHeaderModule()
	serveModule(t, m, "server-1.tokens", "127.0.0.1:7070", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(module) // an error means that the caller has gone
	})
	digest := sha256.Sum256(module)
	good, bad := hex.EncodeToString(digest[:]), strings.Repeat("0", 64)
	plugin := func(name, phase, strategy, sum, value string) {
		t.Helper()
		put(t, config, name+".yaml", strings.NewReplacer("NAME", name, "PHASE", phase, "STRATEGY", strategy, "SUM", sum, "VALUE", value).Replace(wasmPlugin))
	}
	without := func(name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(config, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(status int, want ...string) {
		t.Helper()
		for i, value := range want {
			want[i] = fmt.Sprintf(`{"value":"%s"}`, value)
		}
		steady(t, fmt.Sprintf("status %d and headers %q", status, want), func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server.tokens:9090/", http.NoBody)
			if err != nil {
				return err
			}
			res, err := meshup.Client(m.Pod("client-1.tokens").Net, 0).Do(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, res.Body)
			if err = errors.Join(err, res.Body.Close()); err == nil && (res.StatusCode != status || !slices.Equal(res.Header.Values("x-wasm"), want)) {
				err = fmt.Errorf("status %d, headers %q", res.StatusCode, res.Header.Values("x-wasm"))
			}
			return err
		})
	}
	listeners := func() []string {
		t.Helper()
		return listenerVersions(t, m.Pod("server-1.tokens"))
	}
	answers(http.StatusOK)
	plugin("guard", "AUTHZ", "FAIL_CLOSE", good, "1")
	answers(http.StatusOK, "1")
	before := listeners()
	plugin("guard", "AUTHZ", "FAIL_CLOSE", good, "2")
	answers(http.StatusOK, "2")
	if after := listeners(); len(before) == 0 || !slices.Equal(before, after) {
		t.Errorf("the listeners have the versions %v, before %v", after, before)
	}
	plugin("open", "UNSPECIFIED_PHASE", "FAIL_OPEN", bad, "3")
	if code, out, log := pilotctl(t, m, "wait", "-f", filepath.Join(config, "open.yaml"), "--timeout", "60s"); code != 0 {
		t.Errorf("a plugin whose module is not there: exit code %d\n%s%s", code, out, log)
	}
	answers(http.StatusOK, "2")
	plugin("guard", "AUTHZ", "FAIL_CLOSE", bad, "4")
	answers(http.StatusForbidden)
	plugin("guard", "AUTHZ", "FAIL_OPEN", bad, "4")
	answers(http.StatusOK)
	plugin("guard", "AUTHZ", "FAIL_CLOSE", good, "5")
	answers(http.StatusOK, "5")
	without("open")
	without("guard")
	answers(http.StatusOK)
	// An invalid plugin of which there is no valid version.
	plugin("guard", "AUTHZ", "FAIL_CLOSE", "none", "6")
	steady(t, "no request passes", func(ctx context.Context) error {
		if got, err := ask(ctx, m, "client-1.tokens", "", "http://server.tokens:9090/", nil); err == nil && got.Status == http.StatusOK {
			return errors.New("a request has passed")
		}
		return nil
	})
	if _, out, _ := pilotctl(t, m, "objects"); !strings.Contains(out, `invalid checksum "none"`) || !strings.Contains(out, "every connection to workloads app=server") {
		t.Errorf("the invalid plugin is not named:\n%s", out)
	}
	plugin("guard", "AUTHZ", "FAIL_CLOSE", good, "7")
	answers(http.StatusOK, "7")

	// A registry that wants credentials, which are not fetched. The other plugin would mark its answer.
	without("guard")
	answers(http.StatusOK)
	var asked atomic.Int64
	serveModule(t, m, "server-1.tokens", private, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	put(t, config, "private.yaml", strings.NewReplacer("PRIVATE", private).Replace(privatePlugin))
	answers(http.StatusForbidden)
	if asked.Load() == 0 {
		t.Error("the registry was not asked")
	}
	if _, out, _ := pilotctl(t, m, "objects"); !strings.Contains(out, "spec.imagePullSecret") || !strings.Contains(out, "not applied: modules are fetched without credentials") {
		t.Errorf("the secret is not named:\n%s", out)
	}
	without("private")
	answers(http.StatusOK)
}

// serveModule serves modules in a Pod's network, where its agent fetches them.
func serveModule(t *testing.T, m *meshup.Mesh, pod, addr string, handler http.HandlerFunc) {
	t.Helper()
	l, err := m.Pod(pod).Net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}
