package discovery

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// className is a class for people: its parts without what is empty.
func className(c mesh.Class) string {
	parts := []string{string(c.Scope.Role), c.Scope.Namespace}
	for _, p := range []struct{ name, value string }{
		{"sidecar", c.Scope.Sidecar}, {"selected", c.Scope.Selected}, {"network", c.Location.Network}, {"cluster", c.Location.Cluster},
		{"locality", c.Location.Locality.String()}, {"services", c.Workload.Services}, {"policies", c.Workload.Policies},
	} {
		if p.value != "" {
			parts = append(parts, p.name+"="+p.value)
		}
	}
	return strings.Join(parts, " ") + fmt.Sprintf(" caps=%#x", uint32(c.Scope.Caps))
}

// register puts everything that is measured into the registry.
func (s *Server) register() {
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), (*stats)(s))
}

// stats collects the loop's and the CA's numbers when they are asked for. [control-plane 1.13]
type stats Server

var (
	descInfo     = prometheus.NewDesc("pilot_info", "The version that runs.", []string{"version"}, nil)
	descUptime   = prometheus.NewDesc("istiod_uptime_seconds", "Seconds since start.", nil, nil)
	descServices = prometheus.NewDesc("pilot_services", "Services, one for each host of an object.", nil, nil)
	descVirtuals = prometheus.NewDesc("pilot_virt_services", "VirtualServices.", nil, nil)
	descEvents   = prometheus.NewDesc("pilot_k8s_cfg_events", "Changes of configuration objects that were applied.", []string{"type"}, nil)
	descProblems = prometheus.NewDesc("pilothouse_config_problems", "Errors and warnings about configuration objects that there are now, by kind (empty where it is unknown).", []string{"severity", "kind"}, nil)
	descClasses  = prometheus.NewDesc("pilothouse_classes", "Classes of proxies, and the scopes, locations and workloads that make them.", []string{"part"}, nil)
	descCommits  = prometheus.NewDesc("pilothouse_commits_total", "Commits of the loop.", nil, nil)
	descSpent    = prometheus.NewDesc("pilothouse_commit_seconds_total", "Seconds that commits took.", nil, nil)
	descGen      = prometheus.NewDesc("pilothouse_generation", "The newest generation of configuration.", nil, nil)
	descUnique   = prometheus.NewDesc("pilothouse_resources", "Different resources in memory; classes share equal ones.", nil, nil)
	descRuns     = prometheus.NewDesc("pilothouse_rule_runs_total", "Executions of a compile rule.", []string{"rule"}, nil)
	descMoves    = prometheus.NewDesc("pilothouse_rule_moves_total", "Executions of a compile rule that gave a new value.", []string{"rule"}, nil)
)

// Describe describes nothing in advance: the CA's names are not known here.
func (*stats) Describe(chan<- *prometheus.Desc) {}

// Collect asks the loop; a loop that has ended gives no numbers.
func (s *stats) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descInfo, 1, s.opts.Version)
	gauge(descUptime, time.Since(s.started).Seconds())
	for _, m := range s.ca.Metrics() {
		d := prometheus.NewDesc(m.Name, m.Help, nil, nil)
		if m.Counter {
			counter(d, m.Value)
		} else {
			gauge(d, m.Value)
		}
	}
	s.collectKept(gauge, counter)
	snap, ok := s.loop.numbers()
	if !ok {
		return
	}
	scopes, locations, workloads := map[mesh.Scope]bool{}, map[mesh.Location]bool{}, map[mesh.Workload]bool{}
	for c := range snap.views.classes {
		scopes[c.Scope], locations[c.Location], workloads[c.Workload] = true, true, true
	}
	gauge(descServices, float64(snap.rows["services"]))
	gauge(descVirtuals, float64(snap.rows["virtual_services"]))
	for kind, n := range snap.events {
		counter(descEvents, float64(n), string(kind))
	}
	for p, n := range snap.problems {
		gauge(descProblems, float64(n), p.severity.String(), string(p.kind))
	}
	gauge(descClasses, float64(len(snap.views.classes)), "class")
	gauge(descClasses, float64(len(scopes)), "scope")
	gauge(descClasses, float64(len(locations)), "location")
	gauge(descClasses, float64(len(workloads)), "workload")
	counter(descCommits, float64(snap.commits))
	counter(descSpent, snap.spent.Seconds())
	gauge(descGen, float64(snap.views.generation))
	gauge(descUnique, float64(snap.views.resources))
	for rule, st := range snap.rules {
		counter(descRuns, float64(st.Runs), rule)
		counter(descMoves, float64(st.Moves), rule)
	}
}
