package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
	"github.com/pilothouse/pilothouse/test/wait"
)

// orderMesh is the mesh of testdata/order with its client.
type orderMesh struct {
	*meshup.Mesh
	t      *testing.T
	config string
	client *meshup.Pod
}

func startOrder(t *testing.T) *orderMesh {
	t.Helper()
	m, config := start(t, "order")
	return &orderMesh{m, t, config, m.Pod("client-1.order")}
}

// write replaces a file of the configuration.
func (m *orderMesh) write(name, text string) {
	m.t.Helper()
	next := filepath.Join(m.config, "next")
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), os.Rename(next, filepath.Join(m.config, name))); err != nil {
		m.t.Fatal(err)
	}
}

// routesTo is a VirtualService that sends everything to a subset.
func routesTo(host, subset string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: order}\n"+
		"spec: {hosts: [%[1]s], http: [{route: [{destination: {host: %[1]s, subset: %s}}]}]}\n", host, subset)
}

// rulesOf is a DestinationRule with subsets, each of all Pods.
func rulesOf(host string, subsets ...string) string {
	var list []string
	for _, s := range subsets {
		list = append(list, "{name: "+s+", labels: {app: echo}}")
	}
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: %s, namespace: order}\nspec: {host: %[1]s, subsets: [%s]}\n",
		host, strings.Join(list, ", "))
}

// generation is the newest of discovery.
func (m *orderMesh) generation() int64 {
	m.t.Helper()
	all, err := statuses(m.t.Context(), m.Mesh)
	if err != nil {
		m.t.Fatal(err)
	}
	return all[m.client.Spec.Key()].Generation
}

// awaitRead waits until discovery has read what came after a generation.
func (m *orderMesh) awaitRead(before int64) {
	m.t.Helper()
	if err := meshup.Await(m.t.Context(), time.Minute, "discovery has read the file", func(ctx context.Context) error {
		all, err := statuses(ctx, m.Mesh)
		if n := all[m.client.Spec.Key()].Generation; err == nil && n <= before {
			err = fmt.Errorf("it is at generation %d", n)
		}
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
}

// awaitRoutes waits until the client's Envoy sends requests for a host to a subset.
func (m *orderMesh) awaitRoutes(host, subset string) {
	m.t.Helper()
	want := fmt.Sprintf("outbound|9080|%s|%s.order.svc.cluster.local", subset, host)
	if err := meshup.Await(m.t.Context(), time.Minute, "the client's Envoy has routes to "+want, func(ctx context.Context) error {
		dump, err := m.client.Admin(ctx, "/config_dump?resource=dynamic_route_configs")
		if err == nil && !strings.Contains(string(dump), want) {
			err = errors.New("it has others")
		}
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
}

// underLoad sends requests to both services while do runs. None may fail.
func (m *orderMesh) underLoad(do func()) {
	m.t.Helper()
	before := errorStats(m.t, m.Mesh)
	l := load.New(m.t.Context(), m.client.Net.Dial)
	for _, host := range []string{"echo:9080", "single:9080"} {
		l.KeepAlive(host, 4, 10*time.Millisecond)
		l.Churn(host, 1, 20*time.Millisecond)
	}
	do()
	r := l.Stop()
	if r.Sent == 0 || len(r.Failures) > 0 {
		m.t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	after := ofReplacedClusters(errorStats(m.t, m.Mesh))
	maps.DeleteFunc(after, func(name string, _ int64) bool { return strings.Contains(name, "warming_clusters") }) // tests look at it
	if err := meshup.CompareErrorStats(before, after); err != nil {
		m.t.Error(err)
	}
	m.t.Logf("%d requests", r.Sent)
}

// TestSubsetAndRouteInEitherOrder adds a subset and sends everything to it: the VirtualService comes first, the
// DestinationRule comes first, or both come in one file, in either order.
func TestSubsetAndRouteInEitherOrder(t *testing.T) {
	m := startOrder(t)
	m.underLoad(func() {
		for i := range 9 {
			old, next := fmt.Sprintf("s%d", i), fmt.Sprintf("s%d", i+1)
			rules, routes := rulesOf("echo", old, next), routesTo("echo", next)
			before := m.generation()
			switch i % 3 {
			case 0:
				m.write("routes.yaml", routes)
				m.awaitRead(before)
				m.write("rule.yaml", rules)
			case 1:
				m.write("rule.yaml", rules)
				m.awaitRead(before)
				m.write("routes.yaml", routes)
			case 2:
				// The directory is read once for both, or between them.
				m.write("routes.yaml", routes)
				m.write("rule.yaml", rules)
			}
			single := []string{routesTo("single", next), rulesOf("single", old, next)}
			if i%2 == 1 {
				single[0], single[1] = single[1], single[0]
			}
			m.write("single.yaml", strings.Join(single, "---\n"))
			m.awaitRoutes("echo", next)
			m.awaitRoutes("single", next)
		}
	})
	for _, p := range m.Pods() {
		// Others may get the last clusters after the client.
		wait.NoError(t, p.Spec.Key()+" warms nothing and has refused nothing", func() error {
			stats, err := p.Stats(t.Context(), "update_rejected|warming_clusters")
			for name, n := range stats {
				if n != 0 {
					err = errors.Join(err, fmt.Errorf("%s = %d, want 0", name, n))
				}
			}
			return err
		})
	}
}

// neverWarms are a host whose name no server resolves, and one with certificates that do not exist.
const neverWarms = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: never, namespace: order}
spec:
  hosts: [never.example]
  addresses: [240.240.0.7]
  ports: [{number: 9443, name: tcp, protocol: TCP}]
  resolution: DNS
  endpoints: [{address: never-resolved.example}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: secret, namespace: order}
spec:
  hosts: [secret.example]
  addresses: [240.240.0.8]
  ports: [{number: 9444, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 10.99.0.11}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: secret, namespace: order}
spec:
  host: secret.example
  trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /nowhere/cert.pem, privateKey: /nowhere/key.pem, caCertificates: /nowhere/ca.pem}}
`

// TestClusterThatNeverWarmsDelaysNoRoute changes routes, some of them to new subsets, while clusters warm that wait
// for a name server that does not answer and for files that do not exist.
func TestClusterThatNeverWarmsDelaysNoRoute(t *testing.T) {
	m := startOrder(t)
	silent, err := m.Net.Host().ListenPacket("udp", netip.AddrPortFrom(m.Net.Host().IP(), 53).String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	warming := func(ctx context.Context) (int64, error) {
		stats, err := m.client.Stats(ctx, "cluster_manager.warming_clusters")
		return stats["cluster_manager.warming_clusters"], err
	}
	m.underLoad(func() {
		m.write("never.yaml", neverWarms)
		for _, name := range []string{"never.example", "secret.example"} {
			if err := meshup.Await(t.Context(), time.Minute, "Envoy has the cluster of "+name, func(ctx context.Context) error {
				dump, err := m.client.Admin(ctx, "/config_dump")
				if err == nil && !strings.Contains(string(dump), name+`"`) {
					err = errors.New("it has not")
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 4 {
			old, next := fmt.Sprintf("s%d", i), fmt.Sprintf("s%d", i+1)
			m.write("rule.yaml", rulesOf("echo", old, next))
			m.write("routes.yaml", routesTo("echo", next))
			m.awaitRoutes("echo", next)
			if n, err := warming(t.Context()); err != nil || n == 0 {
				t.Fatalf("%d clusters warm, %v: the test does not show what it should", n, err)
			}
		}
	})
}
