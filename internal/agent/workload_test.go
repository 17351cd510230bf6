package agent

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestNoEnvoy runs an agent without an Envoy: it serves readiness and metrics, writes the bootstrap of gRPC libraries for every
// user, and stays after the request to end for as long as an Envoy would drain, or until the next request.
func TestNoEnvoy(t *testing.T) {
	t.Chdir(t.TempDir())
	port := strconv.Itoa(freePort(t))
	env := map[string]string{
		"DISABLE_ENVOY": "true", "XDS_ROOT_CA": "SYSTEM", "CA_ROOT_CA": "SYSTEM", "OUTPUT_CERTS": "certs",
		"PROXY_CONFIG": "{binaryPath: /no/envoy, discoveryAddress: 127.0.0.1:" + strconv.Itoa(freePort(t)) + ", terminationDrainDuration: 3600s, statusPort: " + port + "}",
	}
	o, err := options(t, env)
	if err != nil {
		t.Fatal(err)
	}
	o.Reread = func(running *spec.Spec) (*spec.Spec, error) { return spec.Build(input(env, running)) }
	a, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	page := func(path string) string {
		r, err := http.Get("http://127.0.0.1:" + port + path)
		if err != nil {
			return err.Error()
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		return string(text)
	}
	for path, want := range map[string]string{"/healthz/ready": "there is no workload certificate yet", "/metrics": "istio_agent_envoy_live 0", "/debug": `"proxyless"`} {
		wait.Until(t, path+" says "+want, func() bool { return strings.Contains(page(path), want) })
	}
	if st, err := os.Stat("etc/istio/proxy/grpc-bootstrap.json"); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("the bootstrap: %v, %v; want mode 0644", st, err)
	}
	if sockets, _ := filepath.Glob("var/run/secrets/*/socket"); len(sockets) > 0 {
		t.Errorf("sockets for secrets: %q", sockets)
	}
	// The files of the start are followed: what gRPC libraries get to know is in their bootstrap, and the rest is told.
	if err := os.MkdirAll("etc/istio/config", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("etc/istio/config/mesh", []byte("defaultConfig: {tracingServiceName: CANONICAL_NAME_ONLY, runtimeValues: {changed: '1'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the field that takes effect later is told", func() bool { return strings.Contains(page("/debug/status"), `"tracingServiceName"`) })
	wait.Until(t, "the bootstrap has the field that the node tells", func() bool {
		text, err := os.ReadFile("etc/istio/proxy/grpc-bootstrap.json")
		return err == nil && strings.Contains(string(text), `"changed"`)
	})
	end()
	wait.Until(t, "the agent says that it ends", func() bool { return strings.Contains(page("/healthz/ready"), "draining and about to end") })
	a.Again()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
