package discovery

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkJoin is a proxy of another workload joining, where proxies of its scope are connected
// already: 500 proxies in 20 scopes of 1,000 services. Compiling what the workload alone has is
// part of it.
func BenchmarkJoin(b *testing.B) {
	const scopes, services, proxies = 20, 1000, 500
	p := newPublished()
	var yaml strings.Builder
	for i := range services {
		fmt.Fprintf(&yaml, `
apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: n%d}
spec: {clusterIP: 10.96.%d.%d, selector: {app: s%d}, ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p%d, namespace: n%d, labels: {app: s%d}}
status: {phase: Running, podIP: %s}
---`, i, i%scopes, i/250, i%250+1, i, i, i%scopes, i, podAddress(i))
	}
	p.apply(b, yaml.String())
	join := func(i int) { p.connect(fmt.Sprint(i), fmt.Sprint("n", i%scopes), podAddress(i)) }
	for i := range scopes {
		join(i)
	}
	next := scopes
	b.ReportAllocs()
	for b.Loop() {
		if next == proxies {
			b.StopTimer()
			for ; next > scopes; next-- {
				p.leave(fmt.Sprint(next - 1))
			}
			b.StartTimer()
		}
		join(next)
		next++
	}
	if got := p.snapshot(); len(got.classes) != next || len(got.proxies) != next {
		b.Fatalf("%d classes of %d proxies, want %d", len(got.classes), len(got.proxies), next)
	}
}

func podAddress(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }
