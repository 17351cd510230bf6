// Package traffic asks a Prometheus server how many requests there are between workloads, for the page at /ui.
//
// The server is the operator's choice; nothing is asked without one, nor while nobody looks. What it answers is not trusted: time,
// length, and the number of series are bounded, redirects are not followed, names are those of others. A query that fails is told with its
// reason, and what was known is shown for a while longer.
package traffic

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// Window is over what rates are computed, as Prometheus writes it.
const Window = "2m"

// maxSeries bounds how many series of an answer are used.
const maxSeries = 50_000

// Workload is a workload, as its metrics name it; both are "unknown" for one without a proxy.
type Workload struct{ Namespace, Name string }

// Edge is what a workload sends to a host.
type Edge struct {
	From Workload
	// Host is that of the service.
	Host string
	// Requests are in a second, and Errors how many of these are answered with a status of 500 or more.
	Requests, Errors float64
}

// ParseURL parses the address of a Prometheus server, below which its API is.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("want a URL, such as http://prometheus.monitoring:9090")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%q: want a URL with http or https and a host, such as http://prometheus.monitoring:9090", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q: want a URL without credentials, query and fragment", u.Redacted())
	}
	return u, nil
}

// The queries: all requests, and those that fail. What a client reports counts before what the server does, since it also knows of
// requests that have not arrived.
func query(errors bool) string {
	only := ""
	if errors {
		only = `{response_code=~"5.."}`
	}
	return "sum by (reporter, source_workload, source_workload_namespace, destination_service) (rate(istio_requests_total" + only + "[" + Window + "]))"
}

// series is one series of an answer.
type series struct {
	Metric struct {
		Reporter    string `json:"reporter"`
		Workload    string `json:"source_workload"`
		Namespace   string `json:"source_workload_namespace"`
		Destination string `json:"destination_service"`
	} `json:"metric"`
	// Value is a time and a number, as text.
	Value [2]any `json:"value"`
}

// decode reads an answer of Prometheus's API.
func decode(text []byte) ([]series, error) {
	var answer struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			Type   string   `json:"resultType"`
			Result []series `json:"result"`
		} `json:"data"`
	}
	switch err := json.Unmarshal(text, &answer); {
	case err != nil:
		return nil, errors.New("the answer is not that of Prometheus's API")
	case answer.Status != "success":
		return nil, fmt.Errorf("the query failed: %s", printable.Clip(printable.Escape(cmp.Or(answer.Error, "no reason is given")), 300))
	case answer.Data.Type != "vector":
		return nil, errors.New("the answer is not a vector")
	case len(answer.Data.Result) > maxSeries:
		return nil, fmt.Errorf("%d series, of which at most %d are shown", len(answer.Data.Result), maxSeries)
	}
	return answer.Data.Result, nil
}

// edges are what workloads send, of the series of all requests and of those that fail, in order.
func edges(all, failed []series) []Edge {
	type key struct {
		from Workload
		host string
	}
	type numbers struct{ requests, errors float64 }
	by := map[key]map[string]*numbers{}
	read := func(list []series, add func(*numbers, float64)) {
		for _, s := range list {
			text, _ := s.Value[1].(string)
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n <= 0 || s.Metric.Destination == "" {
				continue
			}
			k := key{Workload{cmp.Or(s.Metric.Namespace, "unknown"), cmp.Or(s.Metric.Workload, "unknown")}, strings.ToLower(s.Metric.Destination)}
			if by[k] == nil {
				by[k] = map[string]*numbers{}
			}
			of := by[k][s.Metric.Reporter]
			if of == nil {
				of = &numbers{}
				by[k][s.Metric.Reporter] = of
			}
			add(of, n)
		}
	}
	read(all, func(n *numbers, by float64) { n.requests += by })
	read(failed, func(n *numbers, by float64) { n.errors += by })
	var out []Edge
	for k, reporters := range by {
		n := reporters["source"]
		if n == nil {
			n = reporters["destination"]
		}
		if n == nil || n.requests == 0 {
			continue
		}
		out = append(out, Edge{From: k.from, Host: k.host, Requests: n.requests, Errors: min(n.errors, n.requests)})
	}
	slices.SortFunc(out, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.From.Namespace, b.From.Namespace), cmp.Compare(a.From.Name, b.From.Name))
	})
	return out
}
