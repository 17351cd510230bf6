package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/load"
)

// hostsOfVhosts are hosts that a client asks for, at an address outside the mesh: the port's listener decides by the
// host alone, and passes on what it does not know.
var hostsOfVhosts = []string{
	"echo", "echo:9080", "echo.vhosts", "echo.vhosts.svc", "echo.vhosts.svc.cluster.local", "echo.vhosts.svc.cluster.local.",
	"echo.vhosts.svc.cluster.local:9080", "ECHO", "10.96.50.1", "10.96.50.1:9080",
	"far", "far.other", "far.other.svc.cluster.local:9080", "10.96.50.2:9080", "nickname", "nickname.vhosts.svc:9080",
	"heads", "echo-v1-1.heads.vhosts.svc.cluster.local", "alias.example", "www.alias.example:9080", "a.wild.example", "wild.example",
	"echo:81", "unknown.example", "10.99.0.14:9080", "late", "late.vhosts:9080",
}

const outsideAddress = "10.99.0.14:9080"

// routing is which Pod answers, or with which status Envoy does, for each host.
func routing(ctx context.Context, p *meshup.Pod) (map[string]string, error) {
	client := meshup.Client(p.Net, 0)
	out := map[string]string{}
	for _, host := range hostsOfVhosts {
		for _, version := range []string{"", "v2"} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+outsideAddress+"/", nil)
			if err != nil {
				return nil, err
			}
			req.Host = host
			if version != "" {
				req.Header.Set("x-version", version)
			}
			res, err := client.Do(req)
			if err != nil {
				return nil, fmt.Errorf("host %s: %w", host, err)
			}
			text, err := io.ReadAll(res.Body)
			_ = res.Body.Close() // all of it is read
			if err != nil {
				return nil, fmt.Errorf("host %s: %w", host, err)
			}
			var a meshup.Answer
			_ = json.Unmarshal(text, &a) // an answer of Envoy has no Pod
			out[host+" "+version] = strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", a.Pod))
		}
	}
	return out, nil
}

// routesShown are the lines of pilotctl config for a proxy.
func routesShown(t *testing.T, m *meshup.Mesh, proxy string) string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "routes")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Net.Host().Start(netmesh.Command{
		Path: filepath.Join(filepath.Dir(programs.Agent), "pilotctl"), Args: []string{"--discovery", m.DiscoveryURL(), "config", proxy, "routes"}, Stdout: f, Stderr: f,
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := errors.Join(p.Wait(), f.Close())
	text, err := os.ReadFile(log)
	if err := errors.Join(err, ended); err != nil {
		t.Fatalf("pilotctl config: %v\n%s", err, text)
	}
	return string(text)
}

// vhostsMesh is the mesh of this test with its client and what is asked of both.
type vhostsMesh struct {
	*meshup.Mesh
	t      *testing.T
	config string
	client *meshup.Pod
}

// await waits until the client's Envoy has route configurations with (or without) VHDS and with a text.
func (m *vhostsMesh) await(separate bool, has, lacks string) {
	m.t.Helper()
	err := meshup.Await(m.t.Context(), time.Minute, "the client's Envoy has "+has, func(ctx context.Context) error {
		dump, err := m.client.Admin(ctx, "/config_dump?resource=dynamic_route_configs")
		if err != nil {
			return err
		}
		text := string(dump)
		if got := strings.Contains(text, `"9080/echo.vhosts.svc.cluster.local:9080"`); got != separate {
			return fmt.Errorf("virtual hosts by VHDS: %v, want %v", got, separate)
		}
		if !strings.Contains(text, has) || lacks != "" && strings.Contains(text, lacks) {
			return fmt.Errorf("want %s and not %q: %s", has, lacks, text)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// write replaces a file of the configuration; an empty text removes it.
func (m *vhostsMesh) write(name, text string) {
	m.t.Helper()
	path, next := filepath.Join(m.config, name), filepath.Join(m.config, "next")
	err := os.Remove(path)
	if text != "" {
		err = errors.Join(os.WriteFile(next, []byte(text), 0o644), os.Rename(next, path))
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// restartDiscovery replaces pilot-discovery by one that offers VHDS or does not.
func (m *vhostsMesh) restartDiscovery(offers bool) {
	m.t.Helper()
	if err := errors.Join(m.KillDiscovery(), m.StartDiscovery(m.t.Context(), fmt.Sprintf("--vhds=%v", offers))); err != nil {
		m.t.Fatal(err)
	}
	err := meshup.Await(m.t.Context(), time.Minute, "the client is back", func(ctx context.Context) error {
		text, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/syncz")
		if err != nil {
			return err
		}
		var proxies []struct {
			Proxy               string
			Generation, Applied int64
		}
		if err := json.Unmarshal(text, &proxies); err != nil {
			return err
		}
		for _, p := range proxies {
			if p.Proxy == m.client.Spec.Key() && p.Generation > 0 && p.Applied == p.Generation {
				return nil
			}
		}
		return fmt.Errorf("it is not in sync: %s", text)
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

const lateService = `
apiVersion: v1
kind: Service
metadata: {name: late, namespace: vhosts}
spec: {clusterIP: 10.96.50.3, selector: {app: echo, version: v2}, ports: [{name: http, port: 9080}]}
`

// TestRoutingIsTheSameWithVirtualHosts compares what an Envoy does with virtual hosts by VHDS and with whole route
// configurations, for known and unknown hosts. Under load, configuration is edited, and discovery and the Envoy are
// replaced so that one follows the other.
func TestRoutingIsTheSameWithVirtualHosts(t *testing.T) {
	mesh, config := startWith(t, "vhosts", func(o *meshup.Options) {
		o.ProxyConfig = meshup.CountFailures + "\ndrainDuration: " + restartDrain.String()
		o.AgentEnv = []string{"PARENT_SHUTDOWN_DURATION=" + restartShutdown.String()}
	})
	m := &vhostsMesh{mesh, t, config, mesh.Pod("client-1.vhosts")}
	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	before := errorStats(t, mesh)
	l := load.New(t.Context(), m.client.Net.Dial)
	l.KeepAlive("echo:9080", 6, 10*time.Millisecond)
	l.Churn("echo:9080", 3, 10*time.Millisecond)
	m.await(true, "allow_any", "block_all")

	type seen struct {
		routing map[string]string
		shown   string
	}
	look := func() seen {
		t.Helper()
		answers, err := routing(t.Context(), m.client)
		if err != nil {
			t.Fatal(err)
		}
		if stats, err := m.client.Stats(t.Context(), "^vhost"); err != nil || len(stats) > 0 {
			t.Errorf("statistics of virtual hosts %v, %v, want none", stats, err)
		}
		return seen{answers, routesShown(t, mesh, "client-1.vhosts")}
	}
	compare := func(what string, separate, whole seen) {
		t.Helper()
		for host, want := range whole.routing {
			if got := separate.routing[host]; got != want {
				t.Errorf("%s: host %q: %s by VHDS, %s by a whole route configuration", what, host, got, want)
			}
		}
		if separate.shown != whole.shown {
			t.Errorf("%s: pilotctl config shows by VHDS\n%s\nwhole\n%s", what, separate.shown, whole.shown)
		}
	}
	registryOnly := strings.Replace(string(text), "ALLOW_ANY", "REGISTRY_ONLY", 1)

	allowAny := look()
	if far := allowAny.routing["far.other "]; !strings.HasPrefix(far, "200 far") || allowAny.routing["nickname "] != far {
		t.Errorf("far is answered by %q, its other name by %q", far, allowAny.routing["nickname "])
	}
	m.write("mesh.yaml", registryOnly)
	m.await(true, "block_all", "allow_any")
	blocked := look()
	// Virtual hosts come, change and go.
	for i := range 3 {
		m.write("late.yaml", lateService)
		m.await(true, `"9080/late.vhosts.svc.cluster.local:9080"`, "")
		m.write("mesh.yaml", strings.Replace(registryOnly, "exact: v2", fmt.Sprintf("exact: v%d", 3+i), 1))
		m.await(true, fmt.Sprintf(`"exact": "v%d"`, 3+i), `"exact": "v2"`)
		m.write("late.yaml", "")
		m.await(true, "block_all", "late")
		m.write("mesh.yaml", registryOnly)
		m.await(true, `"exact": "v2"`, fmt.Sprintf(`"exact": "v%d"`, 3+i))
	}
	m.restartDiscovery(false)
	m.await(false, "block_all", "allow_any")
	compare("REGISTRY_ONLY", blocked, look())
	m.write("mesh.yaml", string(text))
	m.await(false, "allow_any", "block_all")
	compare("ALLOW_ANY", allowAny, look())
	m.write("late.yaml", lateService)
	m.await(false, "late.vhosts", "")
	whole := look()
	// An Envoy with whole route configurations keeps them; its successor does not.
	m.restartDiscovery(true)
	m.await(false, "late.vhosts", "")
	if _, err := restart(t.Context(), m.client, "statNameLength: 200"); err != nil {
		t.Fatal(err)
	}
	m.await(true, "late.vhosts", "")
	compare("one more service", look(), whole)

	r := l.Stop()
	if len(r.Failures) > 0 || r.Sent == 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	after := errorStats(t, mesh)
	// The headless service's cluster goes to the address that was asked for, where nobody accepts mutual TLS.
	maps.DeleteFunc(after, func(name string, _ int64) bool { return strings.Contains(name, "||heads.vhosts.") })
	if err := meshup.CompareErrorStats(before, after); err != nil {
		t.Error(err)
	}
	answered := slices.Sorted(func(yield func(string) bool) {
		for host, who := range allowAny.routing {
			if !yield(host + ": " + who) {
				return
			}
		}
	})
	t.Logf("%d requests; ALLOW_ANY:\n%s", r.Sent, strings.Join(answered, "\n"))
}
