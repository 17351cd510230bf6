package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// fakePrometheus answers with the series that it was given, each with two requests a second.
type fakePrometheus struct {
	mu     sync.Mutex
	series []string
	paths  []string
}

func (p *fakePrometheus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paths = append(p.paths, r.URL.Path)
	_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, strings.Join(p.series, ","))
}

// telemetry turns the metrics of the mesh on.
const telemetry = `apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: metrics, namespace: istio-system}
spec: {metrics: [{providers: [{name: prometheus}]}]}
`

// addresses are those at which a server of this machine is asked: loopback, and one of its interfaces, if it has one.
func addresses(t *testing.T) []string {
	t.Helper()
	out := []string{"localhost"}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return append(out, n.IP.String())
		}
	}
	return out
}

// pilot-discovery of a mesh on one machine asks a Prometheus server of the machine's network, and what Envoys count is found at the services that the page
// shows: metrics and page have the same names of workloads. Pods do not get to that server.
func TestUpShowsRates(t *testing.T) {
	for _, host := range addresses(t) {
		t.Run(host, func(t *testing.T) {
			fake := &fakePrometheus{}
			l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Fatal(err)
			}
			server := &httptest.Server{Listener: l, Config: &http.Server{Handler: fake}}
			server.Start()
			defer server.Close()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			s, dir := up(t, "samples/hello", "--prometheusURL", "http://"+net.JoinHostPort(host, port))
			entry := regexp.MustCompile(`(http://\S+) +port 80 of`).FindStringSubmatch(s.output())
			if entry == nil {
				t.Fatal("the gateway is not opened")
			}
			if err := os.WriteFile(filepath.Join(dir, "telemetry.yaml"), []byte(telemetry), 0o600); err != nil {
				t.Fatal(err)
			}
			line := regexp.MustCompile(`(?m)^istio_requests_total\{(.*destination_service="greeter\.hello\.svc\.cluster\.local".*)\} \d+\r?$`)
			label := regexp.MustCompile(`(\w+)="([^"]*)"`)
			for pod, side := range map[string]string{"istio-ingressgateway": "source", "greeter": "destination"} {
				pods := []string{pod}
				if side == "destination" {
					pods = []string{"greeter-v1", "greeter-v2"} // one of them has answered
				}
				var series []string
				wait.Until(t, "the metrics of "+pod, func() bool {
					series = nil
					fetch(t, entry[1])
					for _, p := range pods {
						for _, m := range line.FindAllStringSubmatch(in(t, p, strings.Replace(request("127.0.0.1", 15020), "GET /x", "GET /stats/prometheus", 1)), -1) {
							labels := map[string]string{}
							for _, l := range label.FindAllStringSubmatch(m[1], -1) {
								labels[l[1]] = l[2]
							}
							text, err := json.Marshal(labels)
							if err != nil {
								t.Fatal(err)
							}
							if labels["reporter"] != side {
								continue
							}
							if side == "destination" && !slices.Contains(pods, labels["destination_workload"]) || side == "source" && labels["source_workload"] != "istio-ingressgateway" {
								t.Errorf("%s reports %s", p, text)
							}
							series = append(series, fmt.Sprintf(`{"metric":%s,"value":[1,"2"]}`, text))
						}
					}
					return len(series) > 0
				})
				fake.mu.Lock()
				fake.series = append(fake.series, series...)
				fake.mu.Unlock()
			}
			// It is asked while a page is open.
			events, err := http.Get(s.discovery() + "/ui/events")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = events.Body.Close() }()
			go func() { _, _ = io.Copy(io.Discard, events.Body) }()
			wait.NoError(t, "the edge from the gateway to the service", func() error {
				res, err := http.Get(s.discovery() + "/ui/neighbours?service=" + url.QueryEscape("Service/hello/greeter"))
				if err != nil {
					return err
				}
				defer func() { _ = res.Body.Close() }()
				text, err := io.ReadAll(res.Body)
				var n struct {
					From map[string]struct{ Requests float64 }
				}
				if err := errors.Join(err, json.Unmarshal(text, &n)); err != nil {
					return fmt.Errorf("%w: %s", err, text)
				}
				for service, rate := range n.From {
					if strings.Contains(service, "istio-ingressgateway") && rate.Requests > 0 {
						return nil
					}
				}
				return fmt.Errorf("%s", text)
			})
			_ = in(t, "caller", fmt.Sprintf("(exec 3<>/dev/tcp/%s/%s && printf 'GET /of-a-pod HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3); true", strings.Replace(host, "localhost", "10.99.0.1", 1), port))
			fake.mu.Lock()
			defer fake.mu.Unlock()
			if slices.Contains(fake.paths, "/of-a-pod") || len(fake.paths) == 0 {
				t.Errorf("the server was asked for %q", fake.paths)
			}
		})
	}
}
