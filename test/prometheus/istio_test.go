package prometheus_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
)

// query is one of a panel of Istio's boards.
type query struct{ panel, text string }

// The variables of the boards, as a person would choose them. A board's $__rate_interval is Grafana's.
var boardVariables = strings.NewReplacer(
	"$qrep", "source|destination", "$service", "(server|data).tokens.svc.cluster.local", "$namespace", "tokens", "$srcns", ".*", "$srcwl", ".*", "$dstns", ".*", "$dstwl", ".*", "$dstsvc", ".*",
	"$__rate_interval", "2m",
)

// inPanel writes the queries that the boards of services and workloads have for one group of panels: volumes, rates of success,
// quantiles of durations and sizes, and bytes of connections, by source or destination.
func inPanel(group, selector, by string) (out []query) {
	for _, policy := range []string{`connection_security_policy="mutual_tls"`, `connection_security_policy!="mutual_tls"`} {
		of := func(metric, more string) string {
			return fmt.Sprintf("sum(irate(%s{%s, %s%s}[5m])) by (%s)", metric, policy, selector, more, by)
		}
		quantiles := func(panel, metric, scale string) {
			for _, q := range []string{"0.50", "0.90", "0.95", "0.99"} {
				out = append(out, query{group + ": " + panel + " " + policy, fmt.Sprintf("histogram_quantile(%s, sum(irate(%s{%s, %s}[1m])) by (%s, le))%s", q, metric, policy, selector, by, scale)})
			}
		}
		add := func(panel, text string) { out = append(out, query{group + ": " + panel + " " + policy, text}) }
		add("requests by response code", fmt.Sprintf("round(sum(irate(istio_requests_total{%s, %s}[5m])) by (%s, response_code), 0.001)", policy, selector, by))
		add("success rate", of("istio_requests_total", `, response_code!~"5.*"`)+" / "+of("istio_requests_total", ""))
		quantiles("request duration", "istio_request_duration_milliseconds_bucket", " / 1000")
		quantiles("request size", "istio_request_bytes_bucket", "")
		quantiles("response size", "istio_response_bytes_bucket", "")
		add("bytes received", "round("+of("istio_tcp_received_bytes_total", "")+", 0.001)")
		add("bytes sent", "round("+of("istio_tcp_sent_bytes_total", "")+", 0.001)")
	}
	return out
}

// general are the queries of the panels at the top of the boards of services and workloads.
func general(group, selector string) (out []query) {
	of := func(metric, more string) string {
		return fmt.Sprintf("sum(irate(%s{%s%s}[$__rate_interval]))", metric, selector, more)
	}
	out = append(out, query{group + ": request volume", "round(" + of("istio_requests_total", "") + ", 0.001)"},
		query{group + ": success rate", of("istio_requests_total", `, response_code!~"5.*"`) + " / (" + of("istio_requests_total", "") + " or on () vector(1))"},
		query{group + ": bytes received", of("istio_tcp_received_bytes_total", "")}, query{group + ": bytes sent", of("istio_tcp_sent_bytes_total", "")},
		query{group + ": traffic", of("istio_tcp_sent_bytes_total", "") + " + " + of("istio_tcp_received_bytes_total", "")})
	for _, q := range []string{"0.50", "0.90", "0.99"} {
		alternative := func(metric string) string {
			return fmt.Sprintf("histogram_quantile(%s, sum(irate(%s{%s}[$__rate_interval])) by (le))", q, metric, selector)
		}
		out = append(out, query{group + ": request duration", "(" + alternative("istio_request_duration_milliseconds_bucket") + " / 1000) or " + alternative("istio_request_duration_seconds_bucket")})
	}
	return out
}

// meshBoard are the queries of Istio's board of the mesh.
func meshBoard() (out []query) {
	const reporter = `reporter=~"source|waypoint"`
	sum := func(metric, more, by string) string {
		return fmt.Sprintf("sum by (%s) (rate(%s{%s%s}[$__rate_interval]))", by, metric, reporter, more)
	}
	join := func(text string) string {
		return "label_join(" + text + `, "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")`
	}
	const workload = "destination_workload, destination_workload_namespace"
	out = append(out,
		query{"traffic volume", "round(" + sum("istio_requests_total", "", "") + ", 0.01)"},
		query{"success rate", sum("istio_requests_total", `, response_code!~"5.."`, "") + " / " + sum("istio_requests_total", "", "")},
		query{"4xxs", "round(" + sum("istio_requests_total", `, response_code=~"4.."`, "") + ", 0.01) or vector(0)"},
		query{"5xxs", "round(" + sum("istio_requests_total", `, response_code=~"5.."`, "") + ", 0.01) or vector(0)"},
		query{"HTTP workloads: requests", join(sum("istio_requests_total", "", workload+", destination_service"))},
		query{"HTTP workloads: success", join(sum("istio_requests_total", `, response_code!~"5.."`, workload) + " / " + sum("istio_requests_total", "", workload))},
		query{"TCP workloads: received", join(sum("istio_tcp_received_bytes_total", "", workload+", destination_service"))},
		query{"TCP workloads: sent", join(sum("istio_tcp_sent_bytes_total", "", workload+", destination_service"))},
		query{"component versions", "sum by (component, tag) (istio_build)"})
	for _, q := range []string{"0.5", "0.9", "0.99"} {
		out = append(out, query{"HTTP workloads: P" + q, join(fmt.Sprintf("histogram_quantile(%s, %s)", q, sum("istio_request_duration_milliseconds_bucket", "", "le, "+workload)))})
	}
	return out
}

func serviceBoard() []query {
	return slices.Concat(
		[]query{{"variable service", "sum(istio_requests_total{}) by (destination_service) or sum(istio_tcp_sent_bytes_total{}) by (destination_service)"}},
		general("client", `reporter=~"$qrep", destination_service=~"$service"`), general("server", `reporter="destination", destination_service=~"$service"`),
		inPanel("client workloads", `reporter=~"$qrep", destination_service=~"$service", source_workload=~"$srcwl", source_workload_namespace=~"$srcns"`, "source_workload, source_workload_namespace"),
		inPanel("service workloads", `reporter="destination", destination_service=~"$service", destination_workload=~"$dstwl", destination_workload_namespace=~"$dstns"`, "destination_workload, destination_workload_namespace"),
	)
}

func workloadBoard() []query {
	return slices.Concat(
		[]query{{"variable workload", `(sum(istio_requests_total{destination_workload_namespace=~"$namespace"}) by (destination_workload) or sum(istio_requests_total{source_workload_namespace=~"$namespace"}) by (source_workload)) or (sum(istio_tcp_sent_bytes_total{destination_workload_namespace=~"$namespace"}) by (destination_workload) or sum(istio_tcp_sent_bytes_total{source_workload_namespace=~"$namespace"}) by (source_workload))`}},
		general("incoming", `reporter=~"$qrep", destination_workload_namespace=~"$namespace", destination_workload=~"server-1"`),
		general("outgoing", `reporter="source", source_workload_namespace=~"$namespace", source_workload=~"client-1"`),
		inPanel("inbound workloads", `reporter=~"$qrep", destination_workload=~"server-1", destination_workload_namespace=~"$namespace", source_workload=~"$srcwl", source_workload_namespace=~"$srcns"`, "source_workload, source_workload_namespace"),
		inPanel("outbound services", `reporter="source", source_workload=~"client-1", source_workload_namespace=~"$namespace", destination_service=~"$dstsvc"`, "destination_service"),
	)
}

// controlPlaneBoard are the queries of Istio's board of the control plane, but those in noMeaning.
func controlPlaneBoard() (out []query) {
	for panel, texts := range map[string][]string{
		"versions":    {`sum by (tag) (istio_build{component="pilot"})`},
		"memory":      {`sum by (pod) (go_memstats_stack_inuse_bytes{app="istiod"})`, `sum by (pod) (go_memstats_heap_inuse_bytes{app="istiod"})`, `sum by (pod) (go_memstats_heap_alloc_bytes{app="istiod"})`},
		"allocations": {`sum by (pod) (rate(go_memstats_alloc_bytes_total{app="istiod"}[$__rate_interval]))`, `sum by (pod) (rate(go_memstats_mallocs_total{app="istiod"}[$__rate_interval]))`},
		"goroutines":  {`sum by (pod) (go_goroutines{app="istiod"})`},
		"pushes":      {`sum by (type) (irate(pilot_xds_pushes{}[$__rate_interval]))`},
		"events":      {`sum by (type, event) (rate(pilot_k8s_reg_events{}[$__rate_interval]))`, `sum by (type, event) (rate(pilot_k8s_cfg_events{}[$__rate_interval]))`, `sum by (type) (rate(pilot_push_triggers{}[$__rate_interval]))`},
		"connections": {`sum by () (pilot_xds{})`, `sum(envoy_cluster_upstream_cx_active{cluster_name="xds-grpc"})`},
		"push errors": {`sum by (type) (pilot_total_xds_rejects{})`, `pilot_total_xds_internal_errors`},
		"push size":   {`sum(rate(pilot_xds_config_size_bytes_bucket{}[1m])) by (le)`},
		"validation":  {`sum by () (rate(galley_validation_passed{}[$__rate_interval]))`, `sum by () (rate(galley_validation_failed{}[$__rate_interval]))`},
		"injection":   {`sum by () (rate(sidecar_injection_success_total{}[$__rate_interval]))`, `sum by () (rate(sidecar_injection_failure_total{}[$__rate_interval]))`},
	} {
		for _, text := range texts {
			out = append(out, query{panel, text})
		}
	}
	return out
}

// noMeaning are the metrics of Istio's boards that pilot-discovery does not have, as docs/telemetry.md says.
var noMeaning = []string{"pilot_xds_push_time_bucket", "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}

// later are the metrics that have no series until something happens that did not in the test's mesh.
var later = regexp.MustCompile("pilot_push_triggers|pilot_total_xds_rejects|galley_validation_(passed|failed)|sidecar_injection_(success|failure)_total")

// TestIstiosBoardsHaveData runs the queries of Istio's own boards over scrapes of a mesh with real Envoys, between which there were
// requests and connections with mutual TLS and in plaintext.
func TestIstiosBoardsHaveData(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-C", "../..", "-count=1", "-timeout", "5m", "-run", "^TestPagesOfMetrics$", "./test/e2e")
	cmd.Env = append(os.Environ(), "PILOTHOUSE_TEST_PAGES="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := newSeries(t)
	for _, round := range []string{"1", "2"} {
		pages := map[string]string{}
		files, err := filepath.Glob(filepath.Join(dir, round, "*"))
		if err != nil || len(files) < 3 {
			t.Fatalf("pages %q, error %v", files, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages[filepath.Base(file)] = string(b)
		}
		s.now = s.now.Add(interval)
		s.add(t, pages)
	}
	source := goSource(t)
	for board, list := range map[string][]query{"mesh": meshBoard(), "service": serviceBoard(), "workload": workloadBoard(), "control plane": controlPlaneBoard()} {
		if len(list) < 10 {
			t.Errorf("%s: %d queries", board, len(list))
		}
		for _, q := range list {
			v := s.instant(t, boardVariables.Replace(q.text))
			switch {
			case strings.Contains(q.text, `connection_security_policy="mutual_tls"`) && strings.Contains(q.text, `reporter="source"`):
				if len(v) > 0 {
					t.Errorf("%s: %s: data, but Istio's clients do not know either whether the server has mutual TLS", board, q.panel)
				}
			case later.MatchString(q.text):
				if name := later.FindString(q.text); !strings.Contains(source, name) {
					t.Errorf("%s: no program has %s", board, name)
				}
			case !slices.ContainsFunc(v, func(one promql.Sample) bool { return !math.IsNaN(one.F) }):
				t.Errorf("%s: %s: %s: no data", board, q.panel, boardVariables.Replace(q.text))
			}
		}
	}
	docs, err := os.ReadFile("../../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range noMeaning {
		if base := strings.TrimSuffix(name, "_bucket"); !strings.Contains(string(docs), "`"+base+"`") || strings.Contains(source, `"`+base+`"`) {
			t.Errorf("docs/telemetry.md does not say that there is no %s, or there is", base)
		}
	}
}

// instant evaluates a query at the present time of the series.
func (s *series) instant(t *testing.T, text string) promql.Vector {
	t.Helper()
	q, err := s.engine.NewInstantQuery(t.Context(), s.storage, nil, text, s.now)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer q.Close()
	v, err := q.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return slices.Clone(v)
}
