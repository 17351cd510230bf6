package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// edge is a caller and a callee. As is the identity of the caller that the callee saw.
type edge struct {
	From, To, Version, As string
}

// counters counts requests and their results. Not for concurrent use.
type counters struct {
	Sent, OK int
	Edges    map[edge]int
	// Errors counts failed requests by error.
	Errors map[string]int
}

func newCounters() *counters { return &counters{Edges: map[edge]int{}, Errors: map[string]int{}} }

// add counts one finished request of caller.
func (t *counters) add(caller string, a meshup.Answer, err error) {
	t.Sent++
	if err != nil {
		t.Errors[err.Error()]++
		return
	}
	if bad := a.FirstFailure(); bad != "" {
		t.Errors[bad]++
		return
	}
	t.OK++
	t.walk(caller, a)
}

func (t *counters) walk(caller string, a meshup.Answer) {
	t.Edges[edge{From: caller, To: a.Service, Version: a.Version, As: a.Peer}]++
	for _, next := range a.Calls {
		t.walk(a.Service, next)
	}
}

// failed is the number of requests that failed.
func (t *counters) failed() int { return t.Sent - t.OK }

// versions counts the answers of a service by version.
func (t *counters) versions(service string) map[string]int {
	out := map[string]int{}
	for e, n := range t.Edges {
		if e.To == service {
			out[e.Version] += n
		}
	}
	return out
}

// share is the share of a version in the answers of a service, 0–1.
func (t *counters) share(service, version string) float64 {
	all := 0
	byVersion := t.versions(service)
	for _, n := range byVersion {
		all += n
	}
	if all == 0 {
		return 0
	}
	return float64(byVersion[version]) / float64(all)
}

// sortedEdges lists the edges, callers before callees.
func (t *counters) sortedEdges() []edge {
	edges := slices.Collect(maps.Keys(t.Edges))
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(
			cmp.Compare(t.depth(a.From, 0), t.depth(b.From, 0)), cmp.Compare(a.From, b.From),
			cmp.Compare(a.To, b.To), cmp.Compare(a.Version, b.Version), cmp.Compare(a.As, b.As),
		)
	})
	return edges
}

// depth is the length of the longest chain of calls to a service.
func (t *counters) depth(service string, seen int) int {
	deepest := 0
	for e := range t.Edges {
		if e.To == service && seen < len(t.Edges) {
			deepest = max(deepest, 1+t.depth(e.From, seen+1))
		}
	}
	return deepest
}

// topErrors lists up to three errors, most frequent first.
func (t *counters) topErrors() string {
	kinds := slices.SortedFunc(maps.Keys(t.Errors), func(a, b string) int {
		return cmp.Or(-cmp.Compare(t.Errors[a], t.Errors[b]), cmp.Compare(a, b))
	})
	var parts []string
	for _, k := range kinds[:min(3, len(kinds))] {
		parts = append(parts, fmt.Sprintf("%d × %s", t.Errors[k], k))
	}
	return strings.Join(parts, "; ")
}
