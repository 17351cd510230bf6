package discovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// className formats a class for debug pages, without its empty parts.
func className(c mesh.Class) string {
	parts := []string{string(c.Scope.Role), c.Scope.Namespace}
	for _, p := range []struct{ name, value string }{
		{"sidecar", c.Scope.Sidecar}, {"selected", c.Scope.Selected}, {"network", c.Location.Network}, {"cluster", c.Location.Cluster},
		{"locality", c.Location.Locality.String()}, {"services", c.Workload.Services}, {"policies", c.Workload.Policies},
		{"telemetry", c.Scope.Telemetry}, {"inbound telemetry", c.Workload.Telemetry},
		{"patches", c.Scope.Patches}, {"inbound patches", c.Workload.Patches},
	} {
		if p.value != "" {
			parts = append(parts, p.name+"="+p.value)
		}
	}
	return strings.Join(parts, " ") + fmt.Sprintf(" caps=%#x", uint32(c.Scope.Caps))
}

// registryEvents has, for the kinds that are Istio's registry of services, their names in pilot_k8s_reg_events.
var registryEvents = map[object.Kind]string{
	object.Service: "Services", object.EndpointSlice: "EndpointSlice", object.Pod: "Pods", object.Node: "Nodes", object.Namespace: "Namespaces",
}

// register registers all collectors.
func (s *Server) register() {
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), (*stats)(s))
}

// stats is a collector of the loop's and the CA's metrics. [control-plane 1.13]
type stats Server

var (
	descInfo     = prometheus.NewDesc("pilot_info", "The version that runs.", []string{"version"}, nil)
	descBuild    = prometheus.NewDesc("istio_build", "The version of each component.", []string{"component", "tag"}, nil)
	descUptime   = prometheus.NewDesc("istiod_uptime_seconds", "Seconds since start.", nil, nil)
	descServices = prometheus.NewDesc("pilot_services", "Services, one for each host of an object.", nil, nil)
	descVirtuals = prometheus.NewDesc("pilot_virt_services", "VirtualServices.", nil, nil)
	descEvents   = prometheus.NewDesc("pilot_k8s_cfg_events", "Changes of configuration objects that were applied: add, update, delete.", []string{"type", "event"}, nil)
	descRegistry = prometheus.NewDesc("pilot_k8s_reg_events", "Changes of services, workloads and where they run that were applied: add, update, delete.", []string{"type", "event"}, nil)
	descFilters  = prometheus.NewDesc("pilot_envoy_filter_status", "Whether patches of an EnvoyFilter, by their type, are applied at a connected proxy, or left out (error), since they would make something invalid.", []string{"name", "patch", "result"}, nil)
	descUpdates  = prometheus.NewDesc("pilot_inbound_updates", "Changes of objects that were applied: config, eds, svc, svcdelete.", []string{"type"}, nil)
	descTriggers = prometheus.NewDesc("pilot_push_triggers", "Commits that changed what some proxies are sent, by what they changed.", []string{"type"}, nil)
	descProblems = prometheus.NewDesc("pilothouse_config_problems", "Current errors and warnings about configuration objects, by kind (empty if it is unknown).", []string{"severity", "kind"}, nil)
	descClasses  = prometheus.NewDesc("pilothouse_classes", "Classes of proxies, and the scopes, locations and workloads that make them.", []string{"part"}, nil)
	descIdle     = prometheus.NewDesc("pilothouse_idle_classes", "Classes whose proxies have left; they are kept for a while, so that proxies that come back need no compilation.", nil, nil)
	descIdleSize = prometheus.NewDesc("pilothouse_idle_bytes", "Size of the resources in layers that only such classes have.", nil, nil)
	descCommits  = prometheus.NewDesc("pilothouse_commits_total", "Commits of the loop.", nil, nil)
	descSpent    = prometheus.NewDesc("pilothouse_commit_seconds_total", "Seconds that commits took.", nil, nil)
	descLimited  = prometheus.NewDesc("pilothouse_certificate_requests_limited_total", "Certificate requests refused because their node or connection made too many.", nil, nil)
	descGen      = prometheus.NewDesc("pilothouse_generation", "The newest generation of configuration.", nil, nil)
	descUnique   = prometheus.NewDesc("pilothouse_resources", "Different resources in memory; classes share equal ones.", nil, nil)
	descRuns     = prometheus.NewDesc("pilothouse_rule_runs_total", "Executions of a compile rule.", []string{"rule"}, nil)
	descMoves    = prometheus.NewDesc("pilothouse_rule_moves_total", "Executions of a compile rule that changed its value.", []string{"rule"}, nil)

	descClusters = prometheus.NewDesc("istiod_managed_clusters", "Clusters that objects are read from.", []string{"cluster_type"}, nil)
	descTimeouts = prometheus.NewDesc("remote_cluster_sync_timeouts_total", "How often a remote cluster has not been read in time, so that it was not waited for.", []string{"cluster"}, nil)

	descKeys = prometheus.NewDesc("pilothouse_jwks_sources", "Where keys of tokens are fetched from: fetched, last_good (the last fetch has failed, older keys are in force), none (every token is refused).", []string{"state"}, nil)

	descStalled      = prometheus.NewDesc("pilothouse_loop_stalled", "1 while the loop that applies changes makes no progress, else 0.", nil, nil)
	descBusy         = prometheus.NewDesc("pilothouse_loop_busy_seconds", "Seconds for which the loop has handled its present event; 0 if it waits for one.", nil, nil)
	descReady        = prometheus.NewDesc("pilothouse_ready", "1 while proxies are served, 0 while streams are rejected.", nil, nil)
	descBehind       = prometheus.NewDesc("pilothouse_source_behind_seconds", "Seconds for which changes of the configuration may have been missed, because something of the cluster or of a configuration directory cannot be read; 0 if nothing is missed.", nil, nil)
	descRestored     = prometheus.NewDesc("pilothouse_restored_objects", "Objects in force as they were saved, because their source cannot be read now.", nil, nil)
	descRestoredAge  = prometheus.NewDesc("pilothouse_restored_age_seconds", "Seconds since the oldest of these was saved; 0 if there is none.", nil, nil)
	descBroken       = prometheus.NewDesc("pilothouse_broken_policies", "Invalid security policies without a last good version.", nil, nil)
	descSaveFailures = prometheus.NewDesc("pilothouse_save_failures_total", "Attempts to save the configuration that failed.", nil, nil)
	descSaveFailing  = prometheus.NewDesc("pilothouse_save_failing", "1 while the configuration cannot be saved, else 0.", nil, nil)
	descSavedBytes   = prometheus.NewDesc("pilothouse_saved_bytes", "Size of the configuration as it was saved last; 0 if it has not been since start.", nil, nil)
	descQuarantined  = prometheus.NewDesc("pilothouse_quarantined_resources", "Resources that two proxies of a class have refused and none has accepted, so that the others get the last accepted version; counted for each class.", []string{"type"}, nil)
	descPolicyWaits  = prometheus.NewDesc("pilothouse_policy_waits_total", "Changes whose routes have waited until proxies had acknowledged the policies of the same change, by result: acknowledged, or late (the routes were sent after 5 s).", []string{"result"}, nil)
	descPolicyLate   = prometheus.NewDesc("pilothouse_policy_late_proxies", "Proxies that have not acknowledged a policy although routes of the same change have been sent.", nil, nil)
	descSavedAt      = prometheus.NewDesc("pilothouse_saved_timestamp_seconds", "When the configuration was saved last, in seconds since 1970; 0 if it has not been since start.", nil, nil)
)

// Describe describes no metrics, which makes this an unchecked collector, since the CA defines its own.
func (*stats) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. There are no metrics of the loop if it has ended or
// makes no progress.
func (s *stats) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descInfo, 1, s.opts.Version)
	gauge(descBuild, 1, "pilot", s.opts.Version)
	gauge(descUptime, time.Since(s.started).Seconds())
	for _, m := range slices.Concat(s.ca.Metrics(), s.plugged.Metrics(), s.cluster.metrics(), s.rotator.Metrics(), registrationMetrics(s.opts.registrar), s.fetchMetrics()) {
		d := prometheus.NewDesc(m.Name, m.Help, nil, nil)
		if m.Counter {
			counter(d, m.Value)
		} else {
			gauge(d, m.Value)
		}
	}
	counter(descLimited, float64(s.limiter.Refused()))
	gauge(descClusters, 1, "local")
	gauge(descClusters, float64(len(s.source.Clusters())), "remote")
	for id, n := range s.source.Timeouts() {
		counter(descTimeouts, float64(n), id)
	}
	s.collectKept(gauge, counter)
	s.collectGaps(gauge)
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
	for e, n := range snap.events {
		if name := registryEvents[e.Kind]; name != "" {
			counter(descRegistry, float64(n), name, string(e.Event))
		} else {
			counter(descEvents, float64(n), string(e.Kind), string(e.Event))
		}
	}
	for f, is := range snap.filters {
		gauge(descFilters, number(is), f.filter, f.patch, f.result)
	}
	for typ, n := range snap.updates {
		counter(descUpdates, float64(n), typ)
	}
	for typ, n := range snap.triggers {
		counter(descTriggers, float64(n), typ)
	}
	for p, n := range snap.problems {
		gauge(descProblems, float64(n), p.severity.String(), string(p.kind))
	}
	gauge(descClasses, float64(len(snap.views.classes)), "class")
	gauge(descClasses, float64(len(scopes)), "scope")
	gauge(descClasses, float64(len(locations)), "location")
	gauge(descClasses, float64(len(workloads)), "workload")
	for state, n := range snap.sources {
		gauge(descKeys, float64(n), state)
	}
	for _, t := range xds.Types() {
		gauge(descQuarantined, float64(snap.views.quarantined[t]), strings.ToLower(t.String()))
	}
	counter(descPolicyWaits, float64(snap.acknowledged), "acknowledged")
	counter(descPolicyWaits, float64(snap.late), "late")
	gauge(descPolicyLate, float64(snap.unacknowledged))
	gauge(descIdle, float64(snap.views.idleClasses))
	gauge(descIdleSize, float64(snap.views.idleBytes))
	counter(descCommits, float64(snap.commits))
	counter(descSpent, snap.spent.Seconds())
	gauge(descGen, float64(snap.views.generation))
	gauge(descUnique, float64(snap.views.resources))
	for rule, st := range snap.rules {
		counter(descRuns, float64(st.Runs), rule)
		counter(descMoves, float64(st.Moves), rule)
	}
}

// collectGaps counts what the configuration in force lacks.
func (s *stats) collectGaps(gauge func(*prometheus.Desc, float64, ...string)) {
	lacks, ok := s.loop.gaps()
	if !ok {
		return
	}
	for metric, names := range lacks {
		gauge(prometheus.NewDesc(metric, gapHelp[metric], nil, nil), float64(len(names)))
	}
}

// number is 1 for true.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectKept collects the metrics that do not need the loop.
func (s *stats) collectKept(gauge, counter func(*prometheus.Desc, float64, ...string)) {
	_, busy := s.loop.watchdog.busy()
	gauge(descBusy, busy.Seconds())
	gauge(descStalled, number(s.loop.watchdog.why() != ""))
	k := &s.loop.kept.stats
	n := s.loop.gate.notes.Load()
	gauge(descRestored, float64(n.restored))
	age := 0.0
	if n.restored > 0 {
		age = time.Since(n.oldest).Seconds()
	}
	gauge(descRestoredAge, age)
	gauge(descBroken, float64(n.broken))
	if since, ok := (*Server)(s).behind(); ok {
		gauge(descBehind, time.Since(since).Seconds())
	} else {
		gauge(descBehind, 0)
	}
	gauge(descReady, number((*Server)(s).notReady() == ""))
	gauge(descSaveFailing, number(k.failing.Load()))
	counter(descSaveFailures, float64(k.failures.Load()))
	gauge(descSavedBytes, float64(k.size.Load()))
	gauge(descSavedAt, float64(k.written.Load()))
}
