package model_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// nodes are one with topology labels, one with their earlier names, and one without.
const nodes = `apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1, topology.istio.io/subzone: s1}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {failure-domain.beta.kubernetes.io/region: r2, failure-domain.beta.kubernetes.io/zone: z2}}
---
apiVersion: v1
kind: Node
metadata: {name: n3, labels: {kubernetes.io/os: linux}}
---
`

func podOn(node, ip, labels string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: p" + strings.ReplaceAll(ip, ".", "-") + ", namespace: a, labels: {app: s" + labels + "}}\n" +
		"spec: {nodeName: " + node + "}\nstatus: {podIP: " + ip + "}\n---\n"
}

func TestEndpointsAreWhereTheirNodeIs(t *testing.T) {
	svc := service("a", "s", ", selector: {app: s}")
	slice := func(endpoint string) string {
		return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s-1, namespace: a, labels: {kubernetes.io/service-name: s}}\n" +
			"addressType: IPv4\nports: [{name: http, port: 80}]\nendpoints: [{addresses: [10.0.0.1]" + endpoint + "}]\n---\n"
	}
	for name, tt := range map[string]struct{ yaml, want string }{
		"a Pod":                          {podOn("n1", "10.0.0.1", ""), "r1/z1/s1"},
		"the labels' earlier names":      {podOn("n2", "10.0.0.1", ""), "r2/z2"},
		"a Node without labels":          {podOn("n3", "10.0.0.1", ""), ""},
		"a Node that is not known":       {podOn("n4", "10.0.0.1", ""), ""},
		"the Pod's own label":            {podOn("n1", "10.0.0.1", ", topology.istio.io/locality: r9.z9"), "r9/z9"},
		"a slice's Pod":                  {podOn("n1", "10.0.0.1", "") + slice(", targetRef: {kind: Pod, name: p10-0-0-1}, nodeName: n1, zone: z1"), "r1/z1/s1"},
		"a slice without a Pod":          {slice(", nodeName: n1, zone: z1"), "r1/z1/s1"},
		"a slice of an unknown Node":     {slice(", nodeName: n4, zone: z4"), "/z4"},
		"a slice of a Node without zone": {slice(", nodeName: n3, zone: z3"), "/z3"},
	} {
		got := ask(t, nodes+svc+tt.yaml, func(r *incr.Reader, m *model.Model) string {
			var out []string
			for _, i := range m.Instances(r, "Service/a/s") {
				out = append(out, i.Locality.String())
			}
			return strings.Join(out, " ")
		})
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A proxy that does not say where it is, is where its Pod's Node is.
func TestProxiesAreWhereTheirNodeIs(t *testing.T) {
	for name, tt := range map[string]struct {
		pod, said, want string
	}{
		"its Node":           {podOn("n1", "10.0.0.1", ""), "", "r1/z1/s1"},
		"what it says":       {podOn("n1", "10.0.0.1", ""), "r5/z5", "r5/z5"},
		"its Pod's label":    {podOn("n1", "10.0.0.1", ", topology.istio.io/locality: r9.z9"), "", "r9/z9"},
		"no Pod":             {podOn("n1", "10.0.0.9", ""), "", ""},
		"a Node without any": {podOn("n3", "10.0.0.1", ""), "", ""},
	} {
		got := ask(t, nodes+tt.pod, func(r *incr.Reader, m *model.Model) string {
			k := model.ProxyKey{Role: mesh.Sidecar, Namespace: "a", Name: "p10-0-0-1", IPs: "10.0.0.1", Caps: mesh.IPv4, Location: mesh.Location{Locality: mesh.ParseLocality(tt.said)}}
			return m.Classify().Of(r, k).Location.Locality.String()
		})
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
