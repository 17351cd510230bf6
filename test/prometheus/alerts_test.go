// Package prometheus_test runs the alerts and boards of deploy in Prometheus's own engine.
//
// It scrapes a real pilot-discovery and a real agent, healthy and with what each alert is for: broken for real where that can
// be done here, and otherwise with values in a scrape changed. It is a module of its own because of Prometheus's dependencies.
package prometheus_test

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/util/teststorage"
)

const rulesFile = "../../deploy/prometheus/pilothouse.rules.yaml"

// interval is that of scrapes and of evaluations.
const interval = 30 * time.Second

// series are scrapes of some targets over a time that the test chooses.
type series struct {
	storage *teststorage.TestStorage
	engine  *promql.Engine
	now     time.Time
}

func newSeries(t *testing.T) *series {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	return &series{storage: teststorage.New(t), engine: engine, now: time.Now().Truncate(interval)}
}

// targetLabels are those that Istio's example of a scrape configuration gives the samples of some instances.
var targetLabels = map[string]map[string]string{"discovery": {"app": "istiod", "pod": "istiod-1"}}

// add appends a scrape of each target, by its instance, at the present time of the series.
func (s *series) add(t *testing.T, targets map[string]string) {
	t.Helper()
	app := s.storage.Appender(t.Context())
	for instance, page := range targets {
		p := expfmt.NewTextParser(model.UTF8Validation)
		families, err := p.TextToMetricFamilies(strings.NewReader(page))
		if err != nil {
			t.Fatalf("%s: %v", instance, err)
		}
		for _, f := range families {
			samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.TimeFromUnixNano(s.now.UnixNano())}, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, sample := range samples {
				b := labels.NewScratchBuilder(8)
				b.Add("instance", instance)
				for k, v := range targetLabels[instance] {
					b.Add(k, v)
				}
				for k, v := range sample.Metric {
					b.Add(string(k), string(v))
				}
				b.Sort()
				if _, err := app.Append(0, b.Labels(), s.now.UnixMilli(), float64(sample.Value)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// alerts are the rules of the file, each with its state.
type alerts []*rules.AlertingRule

func readRules(t *testing.T) (*rulefmt.RuleGroups, alerts) {
	t.Helper()
	b, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	p := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.Parse(b, false, model.UTF8Validation, p, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var out alerts
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			expr, err := p.ParseExpr(r.Expr)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), time.Duration(r.KeepFiringFor),
				labels.FromMap(r.Labels), labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler)))
		}
	}
	return groups, out
}

// firing evaluates all rules and returns those that fire, with their annotations.
func (a alerts) firing(t *testing.T, s *series) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range a {
		if _, err := r.Eval(t.Context(), 0, s.now, rules.EngineQueryFunc(s.engine, s.storage), &url.URL{}, 0); err != nil {
			t.Fatalf("%s: %v", r.Name(), err)
		}
		for _, active := range r.ActiveAlerts() {
			if active.State == rules.StateFiring {
				out[r.Name()] = active.Annotations.Get("summary") + " " + active.Annotations.Get("description")
			}
		}
	}
	return out
}

// during goes on for a while with these scrapes and returns what has fired.
func (s *series) during(t *testing.T, a alerts, d time.Duration, targets map[string]string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for range d / interval {
		s.add(t, targets)
		for k, v := range a.firing(t, s) {
			out[k] = v
		}
		s.now = s.now.Add(interval)
	}
	return out
}

// set changes the values of series in a scrape: those whose line begins with name.
func set(name string, value any) func(*testing.T, string) string {
	re := regexp.MustCompile(`(?m)^(` + regexp.QuoteMeta(name) + `[^ ]*) .*$`)
	return func(t *testing.T, page string) string {
		t.Helper()
		if !re.MatchString(page) {
			t.Errorf("no scrape has %s", name)
		}
		return re.ReplaceAllString(page, fmt.Sprintf("${1} %v", value))
	}
}

// and adds a line that is in no scrape of a discovery without a cluster.
func and(line string) func(*testing.T, string) string {
	return func(_ *testing.T, page string) string { return page + line + "\n" }
}

// TestEachAlertFires has a healthy time, in which no alert fires, and then a time with what each alert is for.
func TestEachAlertFires(t *testing.T) {
	bin := programs(t)
	d := startDiscovery(t, bin)
	agentURL := startAgent(t, d)
	healthy := map[string]string{"discovery": d.until(t, "pilot_info"), "agent": until(t, agentURL, "istio_agent_istiod_connected 1")}

	// What can be broken for real.
	broken := startDiscovery(t, bin)
	broken.write(t, "bad.yaml", "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web], http: [{route: [{destination: {host: web}, weight: -1}]}]}\n")
	broken.write(t, "policy.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: web, namespace: shop}\nspec: {action: DENY, rules: [{from: [{source: {ipBlocks: [x]}}]}]}\n")
	broken.until(t, "pilothouse_broken_policies 1")
	refuse(t, broken.grpc, "web-1.shop")
	refuse(t, broken.grpc, "web-2.shop")
	unknown(t, broken)
	broken.until(t, "pilothouse_quarantined_resources{type=\"lds\"} 1")
	broken.until(t, "pilot_xds_lds_reject ")
	real := map[string]string{"discovery": broken.until(t, "citadel_server_authentication_failure_count 1")}
	ending := startDiscovery(t, bin, "ROOT_CA_DIR="+shortCA(t, 7*24*time.Hour))
	ends := map[string]string{"discovery": ending.until(t, "pilot_info")}

	changed := func(target string, changes ...func(*testing.T, string) string) map[string]string {
		page := healthy[target]
		for _, c := range changes {
			page = c(t, page)
		}
		return map[string]string{"discovery": healthy["discovery"], target: page}
	}
	buckets := func(t *testing.T, page string) string {
		page = set("pilot_proxy_convergence_time_bucket", 0)(t, page)
		page = set(`pilot_proxy_convergence_time_bucket{le="30"}`, 1000)(t, page)
		return set(`pilot_proxy_convergence_time_bucket{le="+Inf"}`, 1000)(t, page)
	}
	gone := map[string]string{"agent": healthy["agent"]}
	for alert, bad := range map[string]map[string]string{
		"PilothouseDown":                    gone,
		"PilothouseBrokenPolicy":            real,
		"PilothouseConfigurationErrors":     real,
		"PilothouseConfigurationRejected":   real,
		"PilothouseResourcesQuarantined":    real,
		"PilothouseAuthenticationFailures":  real,
		"PilothouseRootCertificateEnds":     ends,
		"PilothouseIssuerEnds":              ends,
		"PilothouseNotReady":                changed("discovery", set("pilothouse_ready", 0)),
		"PilothouseLoopStalled":             changed("discovery", set("pilothouse_loop_stalled", 1)),
		"PilothouseSlowConvergence":         changed("discovery", buckets),
		"PilothouseSourceBehind":            changed("discovery", set("pilothouse_source_behind_seconds", 90)),
		"PilothouseRestoredConfiguration":   changed("discovery", set("pilothouse_restored_objects", 3)),
		"PilothouseCannotSave":              changed("discovery", set("pilothouse_save_failing", 1)),
		"PilothouseProxiesStuck":            changed("discovery", set("pilothouse_xds_stuck", 2)),
		"PilothouseCAErrors":                changed("discovery", set("citadel_server_csr_sign_err_count", 4)),
		"PilothouseRotationFails":           changed("discovery", set("pilothouse_ca_files_rejected", 1)),
		"PilothouseInjectionFails":          changed("discovery", and("sidecar_injection_failure_total 7")),
		"PilothouseWebhookPatchFails":       changed("discovery", and(`webhook_patch_failures_total{name="istio-sidecar-injector",reason="x"} 7`)),
		"PilothouseWorkloadCertificateEnds": changed("agent", set(`istio_agent_cert_expiry_seconds{resource_name="default"}`, 3600)),
		"PilothouseAgentDisconnected":       changed("agent", set("istio_agent_istiod_connected", 0)),
		"PilothouseEnvoyRestarts":           changed("agent", set("istio_agent_envoy_restarts_total", 5)),
	} {
		t.Run(alert, func(t *testing.T) {
			s := newSeries(t)
			_, all := readRules(t)
			before := changed("discovery", and("sidecar_injection_failure_total 0"), and(`webhook_patch_failures_total{name="istio-sidecar-injector",reason="x"} 0`))
			before["agent"] = healthy["agent"]
			if fired := s.during(t, all, 12*time.Minute, before); len(fired) > 0 {
				t.Errorf("with everything healthy: %v", fired)
			}
			fired := s.during(t, all, 20*time.Minute, bad)
			text, ok := fired[alert]
			if !ok {
				t.Errorf("did not fire; these did: %v", fired)
			}
			if strings.Contains(text, "error expanding") || strings.Contains(text, "no value") {
				t.Errorf("%s", text)
			}
			t.Log(text)
		})
	}
	groups, _ := readRules(t)
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if !t.Run(r.Alert+" is described", func(t *testing.T) { described(t, r) }) {
				t.Log(r.Alert)
			}
		}
	}
}

// described checks that an alert says what it is about, how bad it is, and is in the table of the documentation.
func described(t *testing.T, r rulefmt.Rule) {
	t.Helper()
	if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
		t.Errorf("%+v", r)
	}
	page, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "`"+r.Alert+"`") {
		t.Errorf("docs/monitoring.md does not mention it")
	}
}
