package capture_test

import (
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// BenchmarkApplyEverything applies a plan with all tables, both families and routes, to a Pod
// without rules each time. It may take 100 ms.
func BenchmarkApplyEverything(b *testing.B) {
	o := tproxy()
	o.DNS, o.DropInvalid, o.ExcludeInterfaces = plan.DNS{Capture: true, All: true}, true, "eth1"
	rules, err := plan.Build(o, plan.Facts{})
	if err != nil {
		b.Fatal(err)
	}
	m, err := netmesh.New(netmesh.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	p, err := m.AddPod(netmesh.PodOptions{Name: "pod"})
	if err != nil {
		b.Fatal(err)
	}
	var sum, worst time.Duration
	for range b.N {
		if err := p.Do(func() error {
			report, err := capture.Nftables{}.Apply(rules)
			sum, worst = sum+report.Took, max(worst, report.Took)
			if err != nil {
				return err
			}
			return capture.Nftables{}.Clean()
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "apply-µs")
	b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
	if worst > 100*time.Millisecond && b.N > 1 {
		b.Errorf("the slowest took %s", worst)
	}
}

func BenchmarkExplain(b *testing.B) {
	rules, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		b.Fatal(err)
	}
	p := plan.Packet{Outbound: true, Protocol: "tcp", Interface: "eth0"}
	for b.Loop() {
		plan.Explain(rules, p)
	}
}
