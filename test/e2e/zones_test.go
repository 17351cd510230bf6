package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// TestZoneAwareRouting: proxies that know the endpoints of their own workload prefer their zone where a rule says so, as far as
// the zone's share of the clients goes, and nowhere else.
func TestZoneAwareRouting(t *testing.T) {
	t.Parallel()
	m, config := startWith(t, "zones", func(o *meshup.Options) {
		o.AgentEnv = []string{"ISTIO_META_ENABLE_SELF_DISCOVERY=true"}
	})
	await(t, "Envoy knows its own workload", func(ctx context.Context) error {
		got, err := m.Pod("client-1.zones").Admin(ctx, "/clusters")
		if err == nil && (!strings.Contains(string(got), "local_cluster::10.99.0.10:9080::zone::a") || !strings.Contains(string(got), "local_cluster::10.99.0.11:9080::zone::b")) {
			err = fmt.Errorf("got\n%s", got)
		}
		return err
	})
	answers := func(pod string, near, far bool) {
		t.Helper()
		client := meshup.Client(m.Pod(pod).Net, 1)
		defer client.CloseIdleConnections()
		own := map[string]string{"client-1.zones": "a", "client-2.zones": "b"}[pod]
		await(t, fmt.Sprintf("%s is answered by its zone: %v, by the other one: %v", pod, near, far), func(ctx context.Context) error {
			versions := map[string]int{}
			for range 40 {
				a, err := meshup.Post(ctx, client, "http://echo:9080/", nil)
				if err != nil {
					return err
				}
				if bad := a.FirstFailure(); bad != "" {
					t.Errorf("a request failed: %s", bad)
				}
				versions[a.Version]++
			}
			if all := versions["a"] + versions["b"]; (versions[own] > 0) != near || (all > versions[own]) != far {
				return fmt.Errorf("got %v", versions)
			}
			return nil
		})
	}
	edit := func(old, text string) {
		t.Helper()
		file := filepath.Join(config, "mesh.yaml")
		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(have), old) {
			t.Fatalf("%s has no %q", file, old)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(have), old, text, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	answers("client-1.zones", true, false)
	answers("client-2.zones", true, false)

	// Without the other client, all requests come from zone a, which has half of the endpoints.
	edit("pod-template-hash: one, security.istio.io/tlsMode: istio, topology.istio.io/locality: r.b", "pod-template-hash: two, security.istio.io/tlsMode: istio, topology.istio.io/locality: r.b")
	answers("client-1.zones", true, true)

	edit("pod-template-hash: two", "pod-template-hash: one")
	answers("client-1.zones", true, false)
	edit("zoneAwareLbSetting: {enabled: true, minClusterSize: 1}", "zoneAwareLbSetting: {enabled: false}")
	answers("client-1.zones", true, true)
}
