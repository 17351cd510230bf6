package ui

import (
	"reflect"
	"strings"
	"testing"
)

// Requests are those between services; what one workload sends that is behind no service is listed, too.
func TestRequestsOfNeighbours(t *testing.T) {
	own := func(name string) Service {
		return Service{Key: name, Host: name + ".shop.svc", Workloads: []Workload{{"shop", name + "-v1"}, {"shop", name + "-v2"}}, Callers: []Caller{{}}, Groups: []Group{{}}}
	}
	services := []Service{own("a"), own("b"), {Key: "outside", Host: "example.com", External: true}}
	traffic := Traffic{Known: true, Edges: []Edge{
		{Workload{"shop", "a-v1"}, "b.shop.svc", 1.23456, 0.5}, {Workload{"shop", "a-v2"}, "b.shop.svc", 2, 0}, {Workload{"ops", "load"}, "b.shop.svc", 40, 1},
		{Workload{"shop", "b-v1"}, "example.com", 3, 0}, {Workload{"shop", "b-v1"}, "b.shop.svc", 7, 0}, {Workload{"shop", "a-v1"}, "unknown.svc", 9, 0},
	}}
	got, ok := NeighboursOf(services, traffic, "b")
	if !ok || !reflect.DeepEqual(got.From, map[string]Rate{"a": {3.23, 0.5}}) || !reflect.DeepEqual(got.To, map[string]Rate{"outside": {3, 0}}) {
		t.Errorf("from %v, to %v", got.From, got.To)
	}
	if len(got.Senders) != 4 || got.Senders[0] != (Sender{"ops/load", Rate{40, 1}}) || got.MoreSenders != 0 {
		t.Errorf("senders %v", got.Senders)
	}
	if got, _ := NeighboursOf(services, Traffic{Edges: traffic.Edges}, "b"); got.From != nil || got.Senders != nil {
		t.Errorf("without a source: %+v", got)
	}
	rows := RowsOf(State{Services: services, Traffic: Traffic{Known: true, Edges: traffic.Edges, Problem: "it is away"}})
	if len(rows[sectionTraffic]) != 2 || rows[sectionTraffic]["b"] != `{"requests":50.2,"errors":1.5}` {
		t.Errorf("rows %v", rows[sectionTraffic])
	}
	if s := rows[sectionStatus][sectionStatus]; !strings.Contains(s, `"metrics":true`) || !strings.Contains(s, "requests are not known: it is away") {
		t.Errorf("status %s", s)
	}
	for range 30 {
		traffic.Edges = append(traffic.Edges, Edge{Workload{"x", strings.Repeat("y", 3000)}, "b.shop.svc", 1, 0})
	}
	if got, _ := NeighboursOf(services, traffic, "b"); len(got.Senders) != maxSenders || got.MoreSenders != 14 || len(got.Senders[maxSenders-1].Workload) > maxText+100 {
		t.Errorf("%d senders, and %d", len(got.Senders), got.MoreSenders)
	}
}

func TestRatesAreRounded(t *testing.T) {
	for n, want := range map[float64]float64{0: 0, -1: 0, 12345: 12300, 1.2345: 1.23, 0.00012345: 0.000123, 999.6: 1000} {
		if got := rounded(n); got != want {
			t.Errorf("%v becomes %v, want %v", n, got, want)
		}
	}
}
