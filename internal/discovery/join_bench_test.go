package discovery

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// joinMesh is the mesh of docs/performance.md, but for the Pods' addresses: services with an HTTP and a TCP port and two Pods with
// mutual TLS; every fourth has a VirtualService and a DestinationRule.
func joinMesh(services, namespaces int) string {
	var yaml strings.Builder
	for i := range services {
		fmt.Fprintf(&yaml, `
apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: n%d}
spec:
  clusterIP: 10.96.%d.%d
  selector: {app: s%[1]d}
  ports: [{name: http, port: 8080, targetPort: 8080}, {name: tcp-data, port: 9000, targetPort: 9000}]
---`, i, i%namespaces, i/250, i%250+1)
		for version := range 2 {
			fmt.Fprintf(&yaml, `
apiVersion: v1
kind: Pod
metadata: {name: s%d-%d, namespace: n%d, labels: {app: s%[1]d, version: v%d, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: s%[1]d, nodeName: node-1, containers: [{name: app, ports: [{containerPort: 8080}]}]}
status: {phase: Running, podIP: 10.%[5]d.%[6]d.%[7]d, conditions: [{type: Ready, status: "True"}]}
---`, i, version, i%namespaces, version+1, version+1, i/250, i%250+1)
		}
		if i/namespaces%4 == 0 {
			fmt.Fprintf(&yaml, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%d, namespace: n%d}
spec:
  hosts: [s%[1]d]
  http:
  - match: [{headers: {x-canary: {exact: "yes"}}}]
    route: [{destination: {host: s%[1]d, subset: v2}}]
  - timeout: 5s
    retries: {attempts: 3, perTryTimeout: 2s}
    route:
    - {destination: {host: s%[1]d, subset: v1}, weight: 90}
    - {destination: {host: s%[1]d, subset: v2}, weight: 10}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%[1]d, namespace: n%[2]d}
spec:
  host: s%[1]d
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 100}}
    outlierDetection: {consecutive5xxErrors: 5, interval: 10s}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
---`, i, i%namespaces)
		}
	}
	return yaml.String()
}

// BenchmarkJoin is a proxy of another workload joining, where proxies of its scope are connected
// already: 500 proxies in 20 scopes of 1,000 services. Compiling what the workload alone has is
// part of it. cpu-ns/op is the processor time of the process, garbage collection included.
func BenchmarkJoin(b *testing.B) {
	const scopes, services, proxies = 20, 1000, 500
	p := newPublished()
	p.apply(b, joinMesh(services, scopes))
	join := func(i int) { p.join(fmt.Sprint(i), joinKey(i, scopes)) }
	for i := range scopes {
		join(i)
	}
	next, used := scopes, time.Duration(0)
	began := processorTime(b)
	b.ReportAllocs()
	for b.Loop() {
		if next == proxies {
			b.StopTimer()
			used += processorTime(b) - began
			for ; next > scopes; next-- {
				p.leave(fmt.Sprint(next - 1))
			}
			began = processorTime(b)
			b.StartTimer()
		}
		join(next)
		next++
	}
	used += processorTime(b) - began
	b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	if got := p.snapshot(); len(got.classes) != next || len(got.proxies) != next {
		b.Fatalf("%d classes of %d proxies, want %d", len(got.classes), len(got.proxies), next)
	}
}

// joinKey is the proxy of the first Pod of a service, as an agent describes it.
func joinKey(i, namespaces int) model.ProxyKey {
	n := mesh.Node{
		NodeID: mesh.NodeID{
			Role: mesh.Sidecar, ID: fmt.Sprintf("s%d-0.n%d", i, i%namespaces), Domain: fmt.Sprintf("n%d.svc.cluster.local", i%namespaces),
			IP: netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i%250 + 1)}),
		},
		Metadata: mesh.Metadata{
			VirtualHosts: true, ClusterID: "Kubernetes",
			Labels: map[string]string{"app": fmt.Sprint("s", i), "version": "v1", "security.istio.io/tlsMode": "istio"},
		},
	}
	return model.KeyOf(n, "")
}

// processorTime is what the process has used so far, in the kernel too.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func podAddress(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }
