package model_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// dualSlices are the slices of a Service of both families, as Kubernetes writes them: p1 and p2 are Pods, the last endpoint is none.
const dualSlices = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s-6, namespace: a, labels: {kubernetes.io/service-name: s}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: ["fd00::1"], targetRef: {kind: Pod, name: p1}, nodeName: n1}
- {addresses: ["fd00::2"], targetRef: {kind: Pod, name: p2}}
- {addresses: ["fd00::9", "fd00::8"]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s-4, namespace: a, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1}, nodeName: n1}
- {addresses: [10.0.0.2], targetRef: {kind: Pod, name: p2}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s-admin, namespace: a, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
ports: [{name: admin, port: 9090}]
endpoints:
- {addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1}}
---
`

func dualService(more string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: a}\nspec: {selector: {app: s}, ports: [{name: http, port: 80}, {name: admin, port: 90}]" + more + "}\n---\n"
}

// endpointsOf formats the endpoints of the Service a/s: "address+others name @node ports".
func endpointsOf(r *incr.Reader, m *model.Model) string {
	var out []string
	for _, i := range m.Instances(r, "Service/a/s") {
		out = append(out, fmt.Sprintf("%s %s@%s %d", strings.Join(append([]string{i.Address}, i.Others...), "+"), i.Workload, i.Node, len(i.Ports)))
	}
	return strings.Join(out, ", ")
}

// All addresses of an EndpointSlice are endpoints, and those of both families of a Pod are one, the family that the Service
// prefers first.
func TestAllAddressesOfSlicesAreUsed(t *testing.T) {
	for families, want := range map[string]string{
		", clusterIPs: [10.96.0.1, 'fd00:1::1']":                    "10.0.0.1+fd00::1 p1@n1 2, 10.0.0.2+fd00::2 p2@ 1, fd00::8 @ 1, fd00::9 @ 1",
		", clusterIPs: ['fd00:1::1', 10.96.0.1]":                    "fd00::1+10.0.0.1 p1@n1 2, fd00::2+10.0.0.2 p2@ 1, fd00::8 @ 1, fd00::9 @ 1",
		", clusterIP: None, ipFamilies: [IPv6, IPv4]":               "fd00::1+10.0.0.1 p1@n1 2, fd00::2+10.0.0.2 p2@ 1, fd00::8 @ 1, fd00::9 @ 1",
		", clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4]": "10.0.0.1+fd00::1 p1@n1 2, 10.0.0.2+fd00::2 p2@ 1, fd00::8 @ 1, fd00::9 @ 1",
	} {
		for range 5 { // whatever order the slices are read in
			if got := ask(t, dualService(families)+dualSlices, endpointsOf); got != want {
				t.Errorf("%s: %q, want %q", families, got, want)
			}
		}
	}
}

// A Service without slices has the addresses of its Pods in its families.
func TestPodsHaveTheAddressesOfTheServicesFamilies(t *testing.T) {
	pod := func(ips ...string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a, labels: {app: s}}\nstatus: {podIPs: [{ip: '" + strings.Join(ips, "'}, {ip: '") + "'}]}\n---\n"
	}
	for _, tt := range []struct{ service, pod, want string }{
		{", clusterIPs: [10.96.0.1, 'fd00:1::1'], ipFamilies: [IPv4, IPv6]", pod("10.0.0.1", "fd00::1"), "10.0.0.1+fd00::1 p@ 2"},
		{", clusterIPs: ['fd00:1::1', 10.96.0.1]", pod("10.0.0.1", "fd00::1"), "fd00::1+10.0.0.1 p@ 2"},
		{", clusterIPs: ['fd00:1::1'], ipFamilies: [IPv6]", pod("10.0.0.1", "fd00::1"), "fd00::1 p@ 2"},
		{", clusterIPs: ['fd00:1::1'], ipFamilies: [IPv6]", pod("10.0.0.1"), ""},
		{", clusterIP: None", pod("10.0.0.1", "fd00::1"), "10.0.0.1 p@ 2"},
		{", clusterIP: 'fd00:1::1'", pod("10.0.0.1"), "10.0.0.1 p@ 2"},
	} {
		if got := ask(t, dualService(tt.service)+tt.pod, endpointsOf); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.service, got, tt.want)
		}
	}
}

// Only where a service prefers the client's own Node does the Node count, so that proxies of several Nodes share what they get otherwise.
func TestNodesOfProxiesCountWhereAServicePrefersThem(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a}\nspec: {nodeName: n1}\nstatus: {podIP: 10.0.0.1}\n---\n"
	for distribution, want := range map[string]string{"": "", ", trafficDistribution: PreferSameZone": "", ", trafficDistribution: PreferSameNode": "n1"} {
		got := ask(t, pod+dualService(distribution), func(r *incr.Reader, m *model.Model) string {
			return m.Classify().Of(r, model.ProxyKey{Role: mesh.Sidecar, Namespace: "a", Name: "p", IPs: "10.0.0.1", Caps: mesh.IPv4}).Location.Node
		})
		if got != want {
			t.Errorf("%q: %q, want %q", distribution, got, want)
		}
	}
}
