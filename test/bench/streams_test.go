package bench

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var streams = flag.Int("streams", 100, "how many proxies BenchmarkStreams connects")

// usage adds up what the control plane used for the steps of one benchmark.
type usage struct {
	cpu       time.Duration
	bytes     int
	responses int
}

// BenchmarkStreams holds delta streams to a whole control plane, each for a proxy of
// another service, and measures what they cost it: processor time with its kernel side,
// and bytes of responses. The clients run in a process of their own. Wall time includes
// them, and ends when the last proxy has acknowledged. In "reconnect" each stream ends and
// comes back while the others go on; in "allGoneAndBack" all have ended first, so that the
// control plane has let go of what it had compiled.
func BenchmarkStreams(b *testing.B) {
	z := standard
	p := newPlane(b, z)
	ids := make([]string, *streams)
	for i := range ids {
		ids[i] = z.nodeID(i % z.services)
	}
	connect := command{Op: "connect", Addr: p.addr.GRPC, IDs: ids}
	leave := func(b *testing.B, forget bool) {
		p.tell(b, command{Op: "disconnect", Forget: forget})
		p.await(b, "the streams to end", func() bool { return p.connected(b) == 0 })
	}
	b.Run("fromNothing", func(b *testing.B) {
		p.measure(b, len(ids), func(int) answer { return p.tell(b, connect) }, func() { leave(b, true) })
		b.ReportMetric(float64(heap()-p.before)/1024/float64(len(ids)), "heapKB/stream")
	})
	if p.connected(b) == 0 {
		p.tell(b, connect)
	}
	for _, c := range []struct {
		name, file string
		values     [2]string
		typ, what  string
	}{
		{"endpoint", "pod.yaml", [2]string{z.pod(changed, 2, 1), z.pod(changed, 2, 0)}, eds, outbound(z, 8080)},
		{"virtualService", "virtualservice.yaml", [2]string{z.virtualService(changed, 50), z.virtualService(changed, 90)}, rds, routeName},
		{"destinationRule", "destinationrule.yaml", [2]string{z.destinationRule(changed, 200), z.destinationRule(changed, 100)}, cds, outbound(z, 8080)},
	} {
		turn := 0
		b.Run(c.name, func(b *testing.B) {
			p.measure(b, len(ids), func(int) answer {
				p.write(b, c.file, c.values[turn%2])
				turn++
				return p.tell(b, command{Op: "await", Type: c.typ, Name: c.what})
			}, nil)
		})
	}
	b.Run("reconnect", func(b *testing.B) {
		p.measure(b, len(ids), func(int) answer { return p.tell(b, command{Op: "renew", Addr: p.addr.GRPC}) }, nil)
	})
	b.Run("allGoneAndBack", func(b *testing.B) {
		p.measure(b, len(ids), func(int) answer { return p.tell(b, connect) }, func() { leave(b, false) })
	})
}

// outbound is the cluster of a port of the service that is changed.
func outbound(z size, port int) string {
	return fmt.Sprintf("outbound|%d||%s.%s.svc.cluster.local", port, z.name(changed), z.namespace(changed))
}

// measure runs a step until the benchmark has had enough, each time until n proxies more
// have applied everything. Before each step, and out of its time, it prepares.
func (p *plane) measure(b *testing.B, n int, step func(i int) answer, prepare func()) {
	var total usage
	steps := 0
	for b.Loop() {
		b.StopTimer()
		if prepare != nil {
			prepare()
		}
		goal, used := p.applied(b)+n, cpu()
		b.StartTimer()
		a := step(steps)
		p.await(b, "the proxies to apply it", func() bool { return p.applied(b) >= goal })
		steps++
		total.cpu += cpu() - used
		total.bytes += a.Bytes
		total.responses += a.Responses
	}
	per := func(x float64, unit string) { b.ReportMetric(x/float64(steps), unit) }
	per(total.cpu.Seconds(), "cpu-s/op")
	per(float64(total.cpu)/float64(full()), "ofFull")
	per(float64(total.bytes)/1e6, "sentMB/op")
	per(float64(total.responses), "responses/op")
}
