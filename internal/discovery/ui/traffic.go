package ui

import (
	"cmp"
	"math"
	"slices"
)

// Traffic is what is known of requests; Known is false if there is no source of metrics.
type Traffic struct {
	Known bool
	// Problem is why they could not be found out lately; empty if they could.
	Problem string
	Edges   []Edge
}

// Workload is a workload by the names that metrics have.
type Workload struct{ Namespace, Name string }

// Edge is what a workload sends to a host in a second: requests, and those of them that are answered with an error.
type Edge struct {
	From             Workload
	Host             string
	Requests, Errors float64
}

// Rate is how many requests there are in a second, and how many of them are answered with an error. Numbers are rounded, so that they
// change only when people would see it.
type Rate struct {
	Requests float64 `json:"requests"`
	Errors   float64 `json:"errors"`
}

func (r *Rate) add(e Edge) {
	r.Requests += e.Requests
	r.Errors += e.Errors
}

func (r Rate) rounded() Rate { return Rate{rounded(r.Requests), rounded(r.Errors)} }

// rounded rounds to three digits.
func rounded(n float64) float64 {
	if n <= 0 || math.IsInf(n, 0) || math.IsNaN(n) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(n))-2)
	if out := math.Round(n/unit) * unit; unit > 0 && !math.IsInf(out, 0) {
		return math.Round(out*1e9) / 1e9 // without the noise of the multiplication
	}
	return 0
}

// Sender is a workload that sends requests to a service.
type Sender struct {
	Workload string `json:"workload"`
	Rate
}

// maxSenders bounds the workloads that are listed of a service: those with the most requests.
const maxSenders = 20

// received is what each host gets.
func (t Traffic) received() map[string]Rate {
	out := map[string]Rate{}
	for _, e := range t.Edges {
		r := out[e.Host]
		r.add(e)
		out[e.Host] = r
	}
	return out
}

// traffic adds the requests between a service and the others to its neighbours. Those of a workload that is behind several services are
// counted for each of these.
func (n *Neighbours) traffic(t Traffic, services []Service, s *Service) {
	if !t.Known {
		return
	}
	n.From, n.To, n.Senders = map[string]Rate{}, map[string]Rate{}, []Sender{}
	of := map[Workload][]string{} // the services of a workload
	hosts := map[string][]string{}
	for i := range services {
		other := &services[i]
		for _, w := range other.Workloads {
			of[w] = append(of[w], other.Key)
		}
		hosts[other.Host] = append(hosts[other.Host], other.Key)
	}
	add := func(to map[string]Rate, keys []string, e Edge) {
		for _, key := range keys {
			if key == s.Key {
				continue
			}
			r := to[key]
			r.add(e)
			to[key] = r
		}
	}
	for _, e := range t.Edges {
		if e.Host == s.Host {
			add(n.From, of[e.From], e)
			n.Senders = append(n.Senders, Sender{clip(e.From.Namespace + "/" + e.From.Name), Rate{e.Requests, e.Errors}.rounded()})
		}
		if slices.Contains(s.Workloads, e.From) {
			add(n.To, hosts[e.Host], e)
		}
	}
	for _, m := range []map[string]Rate{n.From, n.To} {
		for k, r := range m {
			m[k] = r.rounded()
		}
	}
	slices.SortStableFunc(n.Senders, func(a, b Sender) int { return cmp.Compare(b.Requests, a.Requests) })
	n.MoreSenders = max(0, len(n.Senders)-maxSenders)
	n.Senders = n.Senders[:len(n.Senders)-n.MoreSenders]
}
