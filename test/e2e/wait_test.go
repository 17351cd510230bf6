package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// pilotctl runs pilotctl on the mesh's host.
func pilotctl(t *testing.T, m *meshup.Mesh, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, log bytes.Buffer
	p, err := m.Net.Host().Start(netmesh.Command{
		Path: filepath.Join(filepath.Dir(programs.Discovery), "pilotctl"), Args: args, Dir: m.StateDir(), Env: []string{"PATH=/usr/bin:/bin"}, Stdout: &out, Stderr: &log,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	return p.ExitCode(), out.String(), log.String()
}

// TestWaitForAnEdit edits routes and waits for each edit: when pilotctl wait has returned, the Envoys have it.
// An edit that Envoy refuses makes it fail with Envoy's message, and is told of everywhere until it is mended.
func TestWaitForAnEdit(t *testing.T) {
	m, config := start(t, "storm")
	file := filepath.Join(config, "mesh.yaml")
	original, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(change ...string) {
		t.Helper()
		next := filepath.Join(config, "next")
		text := strings.NewReplacer(change...).Replace(string(original))
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), os.Rename(next, file)); err != nil {
			t.Fatal(err)
		}
	}
	routes := func() string {
		t.Helper()
		dump, err := m.Pod("client-1.storm").Admin(t.Context(), "/config_dump?resource=dynamic_route_configs")
		if err != nil {
			t.Fatal(err)
		}
		return string(dump)
	}
	for weight := 50; weight < 60; weight++ {
		edit("weight: 90", fmt.Sprintf("weight: %d", weight), "weight: 10}", fmt.Sprintf("weight: %d}", 100-weight))
		code, out, log := pilotctl(t, m, "wait", "-f", file, "--timeout", "60s")
		if have := routes(); code != 0 || !strings.Contains(have, fmt.Sprintf(`"weight": %d`, weight)) {
			t.Fatalf("weight %d: exit code %d; Envoy has\n%s\npilotctl says\n%s%s", weight, code, have, out, log)
		}
		if !strings.Contains(out, "VirtualService storm/echo (generation ") || !strings.Contains(out, "): 3 of 3 proxies have it\n") {
			t.Fatalf("weight %d: it says\n%s", weight, out)
		}
	}

	// New ports come with listeners, whose routes Envoy asks for only then.
	services := string(original)
	for port := 7000; port < 7010; port++ {
		services += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: storm}\nspec: {clusterIP: 10.96.31.%d, selector: {app: echo}, ports: [{name: http, port: %d, targetPort: 9080}]}\n"+
			"---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: s%d, namespace: storm}\nspec: {hosts: [s%d], http: [{timeout: %ds, route: [{destination: {host: s%d}}]}]}\n",
			port, port-7000, port, port, port, port, port)
		edit(string(original), services)
		code, out, log := pilotctl(t, m, "wait", "-f", file, "--timeout", "60s")
		if have := routes(); code != 0 || !strings.Contains(have, fmt.Sprintf(`"timeout": "%ds"`, port)) {
			t.Fatalf("port %d: exit code %d; Envoy has\n%s\npilotctl says\n%s%s", port, code, have, out, log)
		}
	}

	// Envoy's regular expressions have a bound on their size, which nothing else knows.
	edit("- route:", `- match: [{uri: {regex: "(\\pL\\pL\\pL\\pL\\pL\\pL){1000}"}}]`+"\n      route:")
	code, out, log := pilotctl(t, m, "wait", "-f", file, "--timeout", "60s")
	// On a slow machine, out tells what is waited for before the refusal, and the line with it begins with other types that are waited for.
	if code != 1 || strings.Contains(out, "3 of 3 proxies have it") || !strings.Contains(log, "a proxy refuses it:\n") || !strings.Contains(log, "VHDS refused (9080/echo.storm.svc.cluster.local:9080): ") || !strings.Contains(log, "regex") {
		t.Fatalf("an edit that Envoy refuses: exit code %d, it says\n%s%s", code, out, log)
	}
	// The command ends at the first refusal, before the others.
	wait.NoError(t, "the proxies that are behind", func() error {
		_, out, _ := pilotctl(t, m, "proxies", "--behind")
		if !strings.Contains(out, "client-1.storm") || !strings.Contains(out, "VHDS refused (9080/echo.storm") {
			return errors.New(out)
		}
		return nil
	})
	if code, out, log := pilotctl(t, m, "wait", "svc", "storm/echo"); code != 0 {
		t.Errorf("what is not refused: exit code %d, %s%s", code, out, log)
	}
	edit()
	if code, out, log := pilotctl(t, m, "wait", "-f", file, "--timeout", "60s"); code != 0 || !strings.Contains(routes(), `"weight": 90`) {
		t.Fatalf("the edit is undone: exit code %d\n%s%s", code, out, log)
	}
	// The objects that are waited for may be in force before everything else is.
	wait.NoError(t, "no proxy to be behind in the end", func() error {
		if _, out, _ := pilotctl(t, m, "proxies", "--behind"); out != "all 3 connected proxies have applied everything\n" {
			return errors.New(out)
		}
		return nil
	})
	comesBackInSync(t, m)
}

// comesBackInSync restarts pilot-discovery: the proxies have everything and are sent nothing, and are shown
// with what they have.
func comesBackInSync(t *testing.T, m *meshup.Mesh) {
	t.Helper()
	if err := errors.Join(m.KillDiscovery(), m.StartDiscovery(t.Context())); err != nil {
		t.Fatal(err)
	}
	type status struct {
		Proxy               string
		Generation, Applied uint64
		Types               map[string]struct {
			Resources int
			Synced    bool
			Sent      string
		}
	}
	if err := meshup.Await(t.Context(), time.Minute, "the proxies are back", func(context.Context) error {
		var all []status
		_, out, log := pilotctl(t, m, "proxies", "-o", "json")
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return fmt.Errorf("%w: %s", err, log)
		}
		for _, p := range all {
			if p.Applied == 0 || p.Applied != p.Generation || p.Generation != all[0].Generation {
				return fmt.Errorf("%s is at %d/%d", p.Proxy, p.Applied, p.Generation)
			}
			for name, typ := range p.Types {
				// Envoy may still ask for routes of listeners that are draining, and is told that there are none.
				if !typ.Synced || typ.Resources == 0 || typ.Sent != "" && (name == "CDS" || name == "LDS") {
					return fmt.Errorf("%s of %s: %+v", name, p.Proxy, typ)
				}
			}
			if len(p.Types) != 5 {
				return fmt.Errorf("%s has %d types", p.Proxy, len(p.Types))
			}
		}
		if len(all) != 3 {
			return fmt.Errorf("%d of 3 are", len(all))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if code, out, log := pilotctl(t, m, "wait", "vs", "storm/echo"); code != 0 || !strings.Contains(out, "3 of 3 proxies have it") {
		t.Errorf("after the restart: exit code %d, %s%s", code, out, log)
	}
}
