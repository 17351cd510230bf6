package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Of what changes, each stream is sent the resources that moved, whatever else there is; the layers that these are in
// are made anew, for all classes together, and no others. Proxies a and b are workloads of the shop's namespace, the third is
// of another namespace.
func TestWhatAChangeMoves(t *testing.T) {
	p := newPublished()
	p.apply(t, twoWorkloads)
	for i := range 200 {
		p.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {clusterIP: 10.97.0.%[1]d, ports: [{name: http, port: 9090}]}\n", i))
	}
	const rule = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: shop, labels: {team: TEAM}}\n" +
		"spec: {exportTo: [TO], hosts: [b], http: [{route: [{destination: {host: b}, weight: WEIGHT}, {destination: {host: a}, weight: 50}]}]}\n"
	route := func(team, to, weight string) string {
		return strings.NewReplacer("TEAM", team, "TO", "'"+to+"'", "WEIGHT", weight).Replace(rule)
	}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: b, namespace: shop, labels: {app: b, LABEL}}\nstatus: {phase: Running, podIP: ADDRESS}\n"
	endpoint := func(label, address string) string {
		return strings.NewReplacer("LABEL", label, "ADDRESS", address).Replace(pod)
	}
	const subset = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: b, namespace: shop}\nspec: {host: b, trafficPolicy: {connectionPool: {tcp: {maxConnections: LIMIT}}}, subsets: [{name: v1, labels: {version: v1}}]}\n"
	p.apply(t, route("one", "*", "50"))
	p.apply(t, strings.Replace(subset, "LIMIT", "9", 1))
	join := func(id, namespace, ip string) *xds.LatestView {
		n := mesh.Node{NodeID: mesh.NodeID{Role: mesh.Sidecar, ID: id, Domain: namespace + ".svc.cluster.local", IP: netip.MustParseAddr(ip)}}
		n.Metadata.VirtualHosts, n.Metadata.Labels = true, map[string]string{"app": id}
		return p.join(id, model.KeyOf(n, ""))
	}
	proxies := []*xds.LatestView{join("a", "shop", "10.1.0.1"), join("b", "shop", "10.1.0.2"), join("c", "other", "10.1.0.9")}
	const (
		host = "VHDS 9090/b.shop.svc.cluster.local:9090"
		all  = "outbound|9090||b.shop.svc.cluster.local"
		v1   = "outbound|9090|v1|b.shop.svc.cluster.local"
		most = 2000 // bytes, for each resource
	)
	same := func(names ...string) [3][]string { return [3][]string{names, names, names} }
	for _, s := range []struct {
		what, yaml string
		moved      [3][]string
		layers     [3]string
	}{
		{"one endpoint", endpoint("version: v1", "10.1.0.2"), same("EDS "+v1, "EDS "+all), [3]string{"location", "location", "location"}},
		{"a label that nothing selects", endpoint("version: v1, team: two", "10.1.0.2"), [3][]string{}, [3]string{}},
		{"a label that a subset selects", endpoint("version: v2, team: two", "10.1.0.2"), same("EDS "+v1, "EDS "+all), [3]string{"location", "location", "location"}},
		{"a weight", route("one", "*", "40"), same(host), [3]string{"scope", "scope", "scope"}},
		{"a field that nothing reads", route("two", "*", "40"), [3][]string{}, [3]string{}},
		{"an export", route("two", ".", "40"), [3][]string{2: {host}}, [3]string{2: "scope"}},
		{
			"a limit", strings.Replace(subset, "LIMIT", "8", 1),
			[3][]string{{"CDS " + v1, "CDS " + all}, {"CDS inbound|9090||", "CDS " + v1, "CDS " + all}, {"CDS " + v1, "CDS " + all}},
			[3]string{"scope", "scope workload", "scope"},
		},
		{
			"a policy", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: b, namespace: shop}\nspec: {selector: {matchLabels: {app: b}}}\n",
			[3][]string{1: {"LDS virtualInbound"}}, [3]string{1: "workload"},
		},
		{"an object that no proxy has to do with", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: z, namespace: shop}\n", [3][]string{}, [3]string{}},
	} {
		var before []*xds.View
		for _, l := range proxies {
			v, _ := l.Load()
			before = append(before, v)
		}
		p.apply(t, s.yaml)
		for i, l := range proxies {
			now, _ := l.Load()
			names, size := changedResources(before[i], now)
			if !slices.Equal(names, s.moved[i]) {
				t.Errorf("%s: proxy %d is sent %q, want %q", s.what, i, names, s.moved[i])
			}
			if bound := most * len(names); size > bound && !slices.Contains(names, "LDS virtualInbound") {
				t.Errorf("%s: proxy %d is sent %d bytes, want at most %d", s.what, i, size, bound)
			}
			var layers []string
			for kind, name := range []string{compile.ScopeLayer: "scope", compile.LocationLayer: "location", compile.WorkloadLayer: "workload"} {
				if now.Layers[kind] != before[i].Layers[kind] {
					layers = append(layers, name)
				}
			}
			if got := strings.Join(layers, " "); got != s.layers[i] {
				t.Errorf("%s: proxy %d has new layers %q, want %q", s.what, i, got, s.layers[i])
			}
		}
	}
}
