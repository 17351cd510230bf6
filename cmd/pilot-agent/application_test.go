package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// The status port of an agent with a real Envoy answers the application's probes, and has the metrics of all three as one page.
func TestProbesAndMetricsOfTheApplication(t *testing.T) {
	const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/m":
			_, _ = fmt.Fprintf(w, "%s of %s from %s", r.RequestURI, r.Host, strings.Split(r.RemoteAddr, ":")[0])
		case strings.Contains(r.Header.Get("Accept"), "openmetrics"):
			w.Header().Set("Content-Type", openMetrics)
			_, _ = io.WriteString(w, "# TYPE orders counter\norders_total 1 # {trace_id=\"7\"} 1\n# EOF\n")
		default:
			_, _ = io.WriteString(w, "# TYPE orders_total counter\norders_total 1\n")
		}
	}))
	defer app.Close()
	_, port, err := net.SplitHostPort(app.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "",
		`ISTIO_KUBE_APP_PROBERS={"/app-health/app/readyz":{"httpGet":{"path":"/ready?a=b","port":`+port+`},"timeoutSeconds":10}}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"/m","port":"`+port+`"}`)
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	code, body, err := a.Get(a.Status, "/app-health/app/readyz")
	if want := "/ready?a=b of 127.0.0.1:" + port + " from 127.0.0.6"; err != nil || code != http.StatusOK || body != want {
		t.Errorf("probe: %d %q, %v; want %q", code, body, err, want)
	}
	if code, body, err := a.Get(a.Status, "/app-health/app/livez"); err != nil || code != http.StatusBadRequest {
		t.Errorf("unknown probe: %d %q, %v", code, body, err)
	}
	text := scrapeAs(t, a, "text/plain")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"istio_agent_scrapes_total", "envoy_server_live", "envoy_cluster_upstream_cx_total", "orders_total"} {
		if families[name] == nil {
			t.Errorf("there is no metric %s", name)
		}
	}
	open := scrapeAs(t, a, "application/openmetrics-text;version=1.0.0")
	if err := checkOpenMetrics(open); err != nil {
		t.Error(err)
	}
	if !strings.HasSuffix(open, "orders_total 1 # {trace_id=\"7\"} 1\n# EOF\n") || !strings.Contains(open, "\nenvoy_cluster_upstream_cx_total{") {
		t.Errorf("the page in OpenMetrics lacks metrics: %d bytes", len(open))
	}
}

// scrapeAs requests the metrics in a format.
func scrapeAs(t *testing.T, a *agenttest.Process, format string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+a.Status+"/stats/prometheus", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", format)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return string(body)
}

// checkOpenMetrics checks that families are declared once, that their samples follow them, and have names that their types allow.
func checkOpenMetrics(page string) error {
	suffixes := map[string][]string{
		"counter": {"_total", "_created"}, "gauge": {""}, "unknown": {""}, "summary": {"", "_sum", "_count", "_created"}, "histogram": {"_bucket", "_sum", "_count", "_created"},
	}
	types, family := map[string]string{}, ""
	body, ok := strings.CutSuffix(page, "# EOF\n")
	if !ok {
		return errors.New("the page does not end with # EOF")
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(text, " ")
			if types[name] != "" || suffixes[kind] == nil {
				return fmt.Errorf("%q: declared before as %q, or an unknown type", line, types[name])
			}
			types[name], family = kind, name
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		name := line[:strings.IndexAny(line+" ", "{ ")]
		suffix, ok := strings.CutPrefix(name, family)
		found := false
		for _, s := range suffixes[types[family]] {
			found = found || ok && s == suffix
		}
		if !found {
			return fmt.Errorf("%q is no sample of the family %q of type %q", line, family, types[family])
		}
	}
	return nil
}

// Probes that cannot be understood end the start, with what to change.
func TestInvalidProbesEndTheStart(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "", `ISTIO_KUBE_APP_PROBERS={"/app-health/app/readyz":{"httpGet":{"path":"/","port":"web"}}}`)
	a.Start()
	if code := a.Wait(); code != 255 || !strings.Contains(a.Output(), "environment ISTIO_KUBE_APP_PROBERS: key") || !strings.Contains(a.Output(), "want a number of 1–65535") {
		t.Errorf("exit code %d:\n%s", code, a.Output())
	}
}
