package prometheus_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// board is what Grafana reads of a file, as far as it asks for data.
type board struct {
	Panels []struct {
		Type, Title string
		Targets     []struct{ Expr string }
	}
}

// TestTheBoardHasData runs the queries of all panels over scrapes of a discovery with a proxy. Queries of things that are
// not there in a mesh of this size, and in a directory, may have no series; their metrics must be in a scrape.
func TestTheBoardHasData(t *testing.T) {
	b, err := os.ReadFile("../../deploy/grafana/pilothouse.json")
	if err != nil {
		t.Fatal(err)
	}
	var read board
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	d := startDiscovery(t, programs(t))
	agent := startAgent(t, d)
	s := newSeries(t)
	pages := map[string]string{"discovery": d.until(t, "pilot_xds 1"), "agent": until(t, agent, "istio_agent_istiod_connected 1")}
	for range 20 {
		s.add(t, pages)
		s.now = s.now.Add(interval)
	}
	s.now = s.now.Add(-interval)
	queries := 0
	for _, p := range read.Panels {
		for _, target := range p.Targets {
			expr := strings.ReplaceAll(target.Expr, "$instance", ".*")
			q, err := s.engine.NewInstantQuery(t.Context(), s.storage, nil, expr, s.now)
			if err != nil {
				t.Errorf("%s: %s: %v", p.Title, expr, err)
				continue
			}
			v, err := q.Exec(t.Context()).Vector()
			if err != nil {
				t.Errorf("%s: %s: %v", p.Title, expr, err)
			} else if len(v) == 0 {
				t.Errorf("%s: %s: no data", p.Title, expr)
			}
			q.Close()
			queries++
		}
	}
	if queries < 30 {
		t.Errorf("%d queries: the board has become small", queries)
	}
}

// TestAgentsCountMessages reads the metrics of an agent that is connected.
func TestAgentsCountMessages(t *testing.T) {
	d := startDiscovery(t, programs(t))
	agent := startAgent(t, d)
	page := until(t, agent, "istio_agent_xds_proxy_responses [1-9]")
	for _, want := range []string{
		"istio_agent_istiod_connected 1", "istio_agent_xds_proxy_requests [1-9]", "istio_agent_xds_proxy_refused 0",
		"istio_agent_istiod_connection_failures 0", "istio_agent_istiod_connection_terminations 0", "istio_agent_envoy_connection_terminations 0",
	} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(page) {
			t.Errorf("no line %q:\n%s", want, page)
		}
	}
}

// TestMetricsOfAlertsExist looks for each name in the alerts in the source: one that was renamed would never fire.
func TestMetricsOfAlertsExist(t *testing.T) {
	groups, _ := readRules(t)
	source := goSource(t)
	name := regexp.MustCompile(`(?:pilot|pilothouse|citadel_server|istio_agent|sidecar_injection|webhook)_[a-z_]+`)
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			for _, n := range name.FindAllString(r.Expr, -1) {
				n = strings.TrimSuffix(n, "_bucket")
				n = strings.TrimPrefix(n, "istio_agent_") // the agent's page adds it
				if !strings.Contains(source, `"`+n+`"`) && !regexp.MustCompile(`^pilot_xds_[a-z]+_reject$`).MatchString(n) {
					t.Errorf("%s: no program has the metric %s", r.Alert, n)
				}
			}
		}
	}
}

// goSource is the text of all files of the programs.
func goSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
