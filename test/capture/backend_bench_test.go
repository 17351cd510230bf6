package capture_test

import (
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// BenchmarkBackends applies as the command does, including the choice of the program, to a Pod without
// rules and to one that has them.
func BenchmarkBackends(b *testing.B) {
	r, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		b.Fatal(err)
	}
	m, err := netmesh.New(netmesh.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for _, v := range variants() {
		b.Run(v+"/first", func(b *testing.B) {
			var sum time.Duration
			for range b.N {
				p, err := m.AddPod(netmesh.PodOptions{Name: "pod"})
				if err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				if err := applyOn(p, on(v), r); err != nil {
					b.Fatal(err)
				}
				sum += time.Since(begin)
				p.Close()
			}
			b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), "apply-ms")
		})
		b.Run(v+"/again", func(b *testing.B) {
			p, err := m.AddPod(netmesh.PodOptions{Name: "pod"})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			for b.Loop() {
				if err := applyOn(p, on(v), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
