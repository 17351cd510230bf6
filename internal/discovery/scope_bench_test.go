package discovery

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// scopesMesh is a mesh of 1,000 services in namespaces; every fourth has a VirtualService and a
// DestinationRule.
func scopesMesh(namespaces int) string {
	var yaml strings.Builder
	for i := range 1000 {
		n := i % namespaces
		fmt.Fprintf(&yaml, `
apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: n%d}
spec: {clusterIP: 10.96.%d.%d, selector: {app: s%[1]d}, ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p%[1]d, namespace: n%[2]d, labels: {app: s%[1]d, version: v1}}
status: {phase: Running, podIP: %[5]s}
---`, i, n, i/250, i%250+1, podAddress(i))
		if i/namespaces%4 == 0 {
			fmt.Fprintf(&yaml, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%d, namespace: n%d}
spec: {hosts: [s%[1]d], http: [{timeout: 3s, route: [{destination: {host: s%[1]d, subset: v1}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%[1]d, namespace: n%[2]d}
spec: {host: s%[1]d, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---`, i, n)
		}
	}
	return yaml.String()
}

// BenchmarkScopes is everything that proxies of so many namespaces have, compiled and published from
// nothing.
func BenchmarkScopes(b *testing.B) {
	for _, scopes := range []int{1, 20, 200} {
		b.Run(fmt.Sprintf("scopes=%d", scopes), func(b *testing.B) {
			changes := changesOf(b, scopesMesh(scopes))
			var before, after runtime.MemStats
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				p := newPublished()
				p.commit(changes)
				runtime.GC()
				runtime.ReadMemStats(&before)
				b.StartTimer()
				for i := range scopes {
					p.connect(fmt.Sprint(i), fmt.Sprint("n", i), podAddress(i))
				}
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "heap-MB")
				runtime.KeepAlive(p)
				b.StartTimer()
			}
		})
	}
}
