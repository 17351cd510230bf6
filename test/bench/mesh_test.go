// Package bench measures what changes of a mesh cost, as ratios to compiling all of it.
//
// The mesh is synthetic: services with an HTTP and a TCP port, two Pods each, spread over
// namespaces, every fourth with a VirtualService and a DestinationRule of two subsets.
// `make bench` runs everything here; docs/performance.md says what the figures mean.
// Nothing here passes or fails by a time.
package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// size is how big a synthetic mesh is.
type size struct{ services, namespaces int }

// standard is the mesh of the budgets in docs/performance.md.
var standard = size{services: 1000, namespaces: 20}

func (z size) namespace(i int) string { return fmt.Sprintf("team-%02d", i%z.namespaces) }

func (z size) name(i int) string { return fmt.Sprintf("svc-%04d", i) }

// podIP is the address of one of a service's two Pods; turn tells several lives of a Pod apart.
func podIP(i, version, turn int) string {
	return fmt.Sprintf("10.%d.%d.%d", 16+turn, i/100, 2*(i%100)+version)
}

func (z size) service(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  clusterIP: 10.200.%d.%d
  selector: {app: %[1]s}
  ports:
  - {name: http, port: 8080, targetPort: 8080}
  - {name: tcp-data, port: 9000, targetPort: 9000}
`, z.name(i), z.namespace(i), i/250, 1+i%250)
}

func (z size) pod(i, version, turn int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s-v%d
  namespace: %s
  labels: {app: %[1]s, version: v%[2]d, security.istio.io/tlsMode: istio}
spec: {serviceAccountName: %[1]s, nodeName: node-1, containers: [{name: app, ports: [{containerPort: 8080}]}]}
status: {phase: Running, podIP: %[4]s, conditions: [{type: Ready, status: "True"}]}
`, z.name(i), version, z.namespace(i), podIP(i, version, turn))
}

func (z size) virtualService(i, weight int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%[1]s]
  http:
  - match: [{headers: {x-canary: {exact: "yes"}}}]
    route: [{destination: {host: %[1]s, subset: v2}}]
  - timeout: 5s
    retries: {attempts: 3, perTryTimeout: 2s}
    route:
    - {destination: {host: %[1]s, subset: v1}, weight: %[3]d}
    - {destination: {host: %[1]s, subset: v2}, weight: %[4]d}
`, z.name(i), z.namespace(i), weight, 100-weight)
}

func (z size) destinationRule(i, connections int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %s, namespace: %s}
spec:
  host: %[1]s
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: %[3]d}}
    outlierDetection: {consecutive5xxErrors: 5, interval: 10s}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
`, z.name(i), z.namespace(i), connections)
}

// yaml is the whole mesh, one text for each namespace.
func (z size) yaml() []string {
	texts := make([]string, z.namespaces)
	for n := range texts {
		var docs []string
		for i := n; i < z.services; i += z.namespaces {
			docs = append(docs, z.service(i), z.pod(i, 1, 0), z.pod(i, 2, 0))
			if i/z.namespaces%4 == 0 {
				docs = append(docs, z.virtualService(i, 90), z.destinationRule(i, 100))
			}
		}
		texts[n] = strings.Join(docs, "---\n")
	}
	return texts
}

// changes decodes texts, which must be good.
func changes(tb testing.TB, texts ...string) []object.Change {
	tb.Helper()
	var out []object.Change
	for _, text := range texts {
		res := decode.Documents("mesh.yaml", []byte(text))
		for _, p := range res.Problems {
			tb.Fatal(p)
		}
		for _, o := range res.Objects {
			out = append(out, object.Change{Key: o.Key, Object: &o})
		}
	}
	return out
}

// gone is the end of what the texts hold.
func gone(tb testing.TB, texts ...string) []object.Change {
	tb.Helper()
	out := changes(tb, texts...)
	for i := range out {
		out[i].Object = nil
	}
	return out
}

// proxy is the Envoy beside the first Pod of a service, as its node says.
func (z size) proxy(tb testing.TB, i int) mesh.Node {
	tb.Helper()
	id, err := mesh.DecodeNodeID(z.nodeID(i))
	if err != nil {
		tb.Fatal(err)
	}
	return mesh.Node{NodeID: id}
}

func (z size) nodeID(i int) string {
	ns := z.namespace(i)
	return fmt.Sprintf("sidecar~%s~%s-v1.%s~%s.svc.cluster.local", podIP(i, 1, 0), z.name(i), ns, ns)
}
