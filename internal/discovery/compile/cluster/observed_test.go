package cluster_test

import (
	"encoding/json"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/golden"
)

// TestObserved compares with shapes written by hand after what an incumbent sends, field
// by field: both must be able to serve the same mesh.
func TestObserved(t *testing.T) {
	var in struct{ Requests []request }
	var want struct{ Clusters []json.RawMessage }
	golden.ReadYAML(t, "testdata/observed/input.yaml", &in)
	golden.ReadYAML(t, "testdata/observed/want.yaml", &want)
	if len(in.Requests) != len(want.Clusters) || len(in.Requests) == 0 {
		t.Fatalf("%d requests for %d clusters", len(in.Requests), len(want.Clusters))
	}
	for i, r := range in.Requests {
		w := golden.Proto(t, want.Clusters[i], &clusterv3.Cluster{})
		t.Run(w.Name, func(t *testing.T) {
			if diff := cmp.Diff(w, r.build(t), protocmp.Transform()); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for _, k := range []cluster.Key{
		{Direction: cluster.Outbound, Port: 80, Subset: "v1", Host: "a.b.svc.cluster.local"},
		{Direction: cluster.Outbound, Port: 443, Host: "*.example.com"},
		{Direction: cluster.Inbound, Port: 9080},
	} {
		if got, ok := cluster.ParseName(k.String()); !ok || got != k {
			t.Errorf("ParseName(%q) = %+v, %v", k.String(), got, ok)
		}
	}
	for _, s := range []string{"", mesh.PassthroughCluster, "outbound|x||h", "outbound|1|h", "sideways|1||h", "outbound|4294967296||h"} {
		if k, ok := cluster.ParseName(s); ok {
			t.Errorf("ParseName(%q) = %+v", s, k)
		}
	}
	if got, want := cluster.SNI(80, "", "a.b"), "outbound_.80_._.a.b"; got != want {
		t.Errorf("SNI = %q, want %q", got, want)
	}
	if got, want := cluster.SNI(80, "v1", "a.b"), "outbound_.80_.v1_.a.b"; got != want {
		t.Errorf("SNI = %q, want %q", got, want)
	}
}

// The DestinationRule's setting before the mesh's, and of the mesh's the zone-aware one, if it is not disabled.
func TestBalance(t *testing.T) {
	const locality, zones = `"localityLbSetting":{"enabled":true}`, `"zoneAwareLbSetting":{"enabled":true}`
	const noLocality, noZones = `"localityLbSetting":{"enabled":false}`, `"zoneAwareLbSetting":{"enabled":false}`
	for _, c := range []struct{ rule, mesh, want string }{
		{"", "", "nothing"}, {"", locality, "locality"}, {locality, "", "locality"}, {"", noLocality, "off"}, {noLocality, locality, "off"}, {locality, noLocality, "locality"},
		{"", zones, "zones"}, {zones, "", "zones"}, {zones, locality, "zones"}, {locality, zones, "locality"}, {"", locality + "," + zones, "zones"},
		{"", noZones, "off"}, {noZones, locality, "off"}, {zones, noZones, "zones"}, {noZones, zones, "off"}, {"", locality + "," + noZones, "locality"},
		{"", `"localityLbSetting":{},"zoneAwareLbSetting":{}`, "zones"},
	} {
		r := request{settings: settings{Top: json.RawMessage(`{"loadBalancer":{` + c.rule + `}}`), Mesh: json.RawMessage(`{` + c.mesh + `}`)}}
		got := "nothing"
		switch b, enabled := cluster.BalanceOf(r.policies(t)); {
		case b.Locality != nil && b.Zones != nil:
			got = "both"
		case b.Locality != nil:
			got = "locality"
		case b.Zones != nil:
			got = "zones"
		case !enabled:
			got = "off"
		}
		if got != c.want {
			t.Errorf("rule {%s}, mesh {%s}: %s, want %s", c.rule, c.mesh, got, c.want)
		}
	}
}

func TestLocality(t *testing.T) {
	for _, c := range []struct {
		name, policy, mesh string
		set, failover      bool
	}{
		{"nothing said", `{}`, `{}`, false, false},
		{"outlier detection brings failover", `{"outlierDetection":{}}`, `{}`, false, true},
		{"the mesh's", `{"outlierDetection":{}}`, `{"localityLbSetting":{"failoverPriority":["a"]}}`, true, true},
		{"the mesh's, off", `{"outlierDetection":{}}`, `{"localityLbSetting":{"enabled":false}}`, false, false},
		{"the policy's before the mesh's", `{"outlierDetection":{},"loadBalancer":{"localityLbSetting":{"enabled":true}}}`, `{"localityLbSetting":{"enabled":false}}`, true, true},
		{"the policy's, off", `{"outlierDetection":{},"loadBalancer":{"localityLbSetting":{"enabled":false}}}`, `{}`, false, false},
	} {
		r := request{settings: settings{Top: json.RawMessage(c.policy), Mesh: json.RawMessage(c.mesh)}}
		p, m := r.policies(t)
		if b, _ := cluster.BalanceOf(p, m); (b.Locality != nil) != c.set {
			t.Errorf("%s: set %v, want %v", c.name, b.Locality, c.set)
		}
		if got := cluster.Failover(p, m); got != c.failover {
			t.Errorf("%s: failover %v, want %v", c.name, got, c.failover)
		}
	}
	if cluster.MergePolicy(nil, nil, 1) != nil {
		t.Error("a policy out of nothing")
	}
}

// TestAssignment: groups by priority and locality, and weights that add up.
func TestAssignment(t *testing.T) {
	a, b := mesh.Locality{Region: "a"}, mesh.Locality{Region: "b"}
	la := cluster.Assignment("x", []cluster.Endpoint{
		{Address: "10.0.0.3", Port: 1, Locality: b, Weight: 5, LocalityWeight: 70},
		{Address: "10.0.0.1", Port: 1, Locality: a},
		{Address: "10.0.0.4", Port: 1, Locality: a, Priority: 1},
		{Address: "10.0.0.2", Port: 1, Locality: a, Weight: 2},
	})
	type group struct {
		region           string
		priority, weight uint32
		addresses        string
	}
	var got []group
	for _, g := range la.Endpoints {
		s := ""
		for _, e := range g.LbEndpoints {
			s += e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress() + " "
		}
		got = append(got, group{g.Locality.Region, g.Priority, g.LoadBalancingWeight.GetValue(), s})
	}
	want := []group{{"a", 0, 3, "10.0.0.1 10.0.0.2 "}, {"b", 0, 70, "10.0.0.3 "}, {"a", 1, 1, "10.0.0.4 "}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(group{})); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}
