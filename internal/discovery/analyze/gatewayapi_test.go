package analyze_test

import (
	"slices"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/analyze"
)

// Backends of a GRPCRoute whose ports declare a protocol other than HTTP/2 are named; those that declare none get HTTP/2 by the route.
func TestBackendsOfGRPCRoutes(t *testing.T) {
	const text = mesh + `
---
apiVersion: v1
kind: Service
metadata: {name: rpc, namespace: shop}
spec:
  ports:
  - {name: a, port: 1}
  - {name: http-b, port: 2}
  - {name: grpc-c, port: 3}
  - {name: tcp-d, port: 4}
  - {name: http-e, port: 5, appProtocol: kubernetes.io/h2c}
  - {name: udp, port: 2, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: raised, namespace: shop}
spec: {ports: [{name: http, port: 2}, {name: tcp, port: 4}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: raised, namespace: shop}
spec: {host: raised, trafficPolicy: {portLevelSettings: [{port: {number: 2}, connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: r, namespace: other}
spec:
  parentRefs: [{name: edge}]
  rules:
  - backendRefs:
    - {name: rpc, namespace: shop, port: 1}
    - {name: rpc, namespace: shop, port: 2}
    - {name: rpc, namespace: shop, port: 3}
    - {name: rpc, namespace: shop, port: 4}
    - {name: rpc, namespace: shop, port: 5}
    - {name: rpc, namespace: shop, port: 6}
    - {name: rpc, port: 2}
    - {group: example, kind: Service, name: rpc, namespace: shop, port: 2}
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: rpc, namespace: shop, port: 2}}}]
  - backendRefs: [{name: raised, namespace: shop, port: 2}, {name: raised, namespace: shop, port: 4}]
`
	at := func(field, what string) string {
		return "r: spec." + field + ".port: port " + what + ", and requests of gRPC fail, which need HTTP/2: set the port's appProtocol to kubernetes.io/h2c, or have it declare nothing"
	}
	tcp := []string{at("rules[0].backendRefs[3]", "4 of Service rpc declares tcp"), at("rules[1].backendRefs[1]", "4 of Service raised declares tcp")}
	want := []string{at("rules[0].backendRefs[1]", "2 of Service rpc declares http"), tcp[0], at("rules[0].filters[0].requestMirror.backendRef", "2 of Service rpc declares http"), tcp[1]}
	if got := findings(t, text, analyze.Options{}); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := findings(t, text, analyze.Options{Mesh: &meshv1.MeshConfig{H2UpgradePolicy: meshv1.MeshConfig_UPGRADE}}); !slices.Equal(got, tcp) {
		t.Errorf("with the mesh's h2UpgradePolicy: %q\nwant %q", got, tcp)
	}
}
