package compile_test

import (
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// fieldExceptions are the fields and values that change nothing and are not spoken of,
// each with the reason why that is right.
var fieldExceptions = map[string]string{
	"Sidecar.ingress.tls.httpsRedirect":              "it is refused: config.TestPolicies",
	"Sidecar.ingress.tls.mode=PASSTHROUGH":           "the same",
	"Sidecar.ingress.tls.mode=AUTO_PASSTHROUGH":      "the same",
	"Sidecar.ingress.tls.mode=ISTIO_MUTUAL":          "the same",
	"Sidecar.ingress.tls.mode=OPTIONAL_MUTUAL":       "the same",
	"Sidecar.ingress.tls.credentialName":             "the same",
	"Sidecar.ingress.tls.credentialNames":            "the same",
	"Sidecar.ingress.tls.caCertCredentialName":       "the same",
	"Sidecar.ingress.tls.minProtocolVersion=TLSV1_2": "it is the default, by another name",
	"Sidecar.ingress.tls.maxProtocolVersion=TLSV1_3": "the same",
	"Sidecar.ingress.port.name":                      "it is only a name: port.protocol says what the port carries",
	"Sidecar.egress.port.name":                       "the same",

	"MeshConfig.defaultConfig.gatewayTopology.forwardClientCertDetails=SANITIZE_SET": "it is the default, by another name",

	"MeshConfig.pathNormalization.normalization=BASE":   "it is the default, by another name",
	"MeshConfig.meshMTLS.minProtocolVersion=TLSV1_2":    "it is the default, by another name",
	"MeshConfig.tlsDefaults.minProtocolVersion=TLSV1_2": "it is the default, by another name",

	"RequestAuthentication.jwtRules.timeout": "it bounds how long pilot-discovery fetches keys (package jwks)",

	"AuthorizationPolicy.targetRef.group":                            "another group is rejected: config.TestTargets",
	"AuthorizationPolicy.targetRef.namespace":                        "another namespace is rejected: config.TestTargets",
	"AuthorizationPolicy.targetRefs.group":                           "another group is rejected: config.TestTargets",
	"AuthorizationPolicy.targetRefs.namespace":                       "another namespace is rejected: config.TestTargets",
	"RequestAuthentication.targetRef.group":                          "another group is rejected: config.TestTargets",
	"RequestAuthentication.targetRef.namespace":                      "another namespace is rejected: config.TestTargets",
	"RequestAuthentication.targetRefs.group":                         "another group is rejected: config.TestTargets",
	"RequestAuthentication.targetRefs.namespace":                     "another namespace is rejected: config.TestTargets",
	"Telemetry.metrics.overrides.tagOverrides.operation=REMOVE":      "no other value is valid with it alone: compile.TestMergeMetrics",
	"Telemetry.targetRef.group":                                      "another group is rejected: config.TestTargets",
	"Telemetry.targetRef.namespace":                                  "another namespace is rejected: config.TestTargets",
	"Telemetry.targetRefs.group":                                     "another group is rejected: config.TestTargets",
	"Telemetry.targetRefs.namespace":                                 "another namespace is rejected: config.TestTargets",
	"EnvoyFilter.targetRefs.group":                                   "another group is rejected: config.TestTargets",
	"EnvoyFilter.targetRefs.namespace":                               "another namespace is rejected: config.TestTargets",
	"WasmPlugin.targetRef.group":                                     "another group is rejected: config.TestTargets",
	"WasmPlugin.targetRef.namespace":                                 "another namespace is rejected: config.TestTargets",
	"WasmPlugin.targetRefs.group":                                    "another group is rejected: config.TestTargets",
	"WasmPlugin.targetRefs.namespace":                                "another namespace is rejected: config.TestTargets",
	"TrafficExtension.targetRefs.group":                              "another group is rejected: config.TestTargets",
	"TrafficExtension.targetRefs.namespace":                          "another namespace is rejected: config.TestTargets",
	"EnvoyFilter.configPatches.applyTo=INVALID":                      "it is rejected",
	"EnvoyFilter.configPatches.patch.operation=INVALID":              "it is rejected",
	"EnvoyFilter.configPatches.patch.value":                          "its fields are Envoy's: patch.TestParse",
	"EnvoyFilter.configPatches.match.waypoint.portNumber":            "it is rejected: there are no waypoints",
	"EnvoyFilter.configPatches.match.waypoint.route.name":            "the same",
	"EnvoyFilter.configPatches.match.waypoint.filter.name":           "the same",
	"EnvoyFilter.configPatches.match.waypoint.filter.subFilter.name": "the same",
	"EnvoyFilter.priority":                                           "it needs two objects: testdata/envoy-filter-http.txtar has both",
	"AuthorizationPolicy.action=CUSTOM":                              "it needs a provider: testdata/external-http.txtar has both",
	"MeshConfig.discoverySelectors.matchLabels":                      "package scope selects the objects of a source before they are compiled",
	"MeshConfig.discoverySelectors.matchExpressions.key":             "the same",
	"MeshConfig.discoverySelectors.matchExpressions.operator":        "the same",
	"MeshConfig.discoverySelectors.matchExpressions.values":          "the same",
	"MeshConfig.enablePrometheusMerge":                               "package inject reads it",
	"ProxyConfig.selector.matchLabels":                               "package inject reads it, whose test is TestProxyConfigObjects",
	"ProxyConfig.concurrency":                                        "the same",
	"ProxyConfig.environmentVariables":                               "the same",
	"ProxyConfig.image.imageType":                                    "the same",
	"WorkloadGroup.metadata.labels":                                  "package register makes entries from it, whose test is TestEntryOfAGroup",
	"WorkloadGroup.metadata.annotations":                             "the same",
	"WorkloadGroup.template.ports":                                   "the same",
	"WorkloadGroup.template.labels":                                  "the same",
	"WorkloadGroup.template.network":                                 "the same",
	"WorkloadGroup.template.locality":                                "the same",
	"WorkloadGroup.template.weight":                                  "the same",
	"WorkloadGroup.template.serviceAccount":                          "the same",
	"WorkloadGroup.probe.initialDelaySeconds":                        "the agent runs it, as its own readinessProbe; package register tells of proxies without it",
	"WorkloadGroup.probe.timeoutSeconds":                             "the same",
	"WorkloadGroup.probe.periodSeconds":                              "the same",
	"WorkloadGroup.probe.successThreshold":                           "the same",
	"WorkloadGroup.probe.failureThreshold":                           "the same",
	"WorkloadGroup.probe.httpGet.path":                               "the same",
	"WorkloadGroup.probe.httpGet.port":                               "the same",
	"WorkloadGroup.probe.httpGet.host":                               "the same",
	"WorkloadGroup.probe.httpGet.scheme":                             "the same",
	"WorkloadGroup.probe.httpGet.httpHeaders.name":                   "the same",
	"WorkloadGroup.probe.httpGet.httpHeaders.value":                  "the same",
	"WorkloadGroup.probe.tcpSocket.host":                             "the same",
	"WorkloadGroup.probe.tcpSocket.port":                             "the same",
	"WorkloadGroup.probe.exec.command":                               "the same",
	"WorkloadGroup.probe.grpc.port":                                  "the same",
	"WorkloadGroup.probe.grpc.service":                               "the same",
}

// fieldNodes are the proxies of the small mesh: two of one namespace in different places,
// one of another namespace, and one that is no sidecar.
var fieldNodes = []struct{ id, locality string }{
	{"sidecar~10.1.0.1~a-1.shop~shop.svc.cluster.local", "r1/z1"},
	{"sidecar~10.1.0.2~b-1.shop~shop.svc.cluster.local", "r1/z1"},
	{"sidecar~10.1.0.6~c-1.other~other.svc.cluster.local", "r2/z1"},
	{"router~10.1.0.7~gw-1.shop~shop.svc.cluster.local", "r1/z1"},
}

// fieldGateway makes the router one of a Gateway of the Gateway API.
const fieldGateway = `---
apiVersion: v1
kind: Pod
metadata: {name: gw-1, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: gw, istio: ingressgateway}}
status: {phase: Running, podIP: 10.1.0.7}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec: {servers: [{port: {number: 80, protocol: HTTP, name: http}, hosts: ["*"]}]}
`

// fieldMesh is the mesh around every object that is tried.
const fieldMesh = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: a}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec:
  clusterIP: 10.96.0.2
  selector: {app: b}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: grpc, port: 81, targetPort: 8081}
  - {name: tcp, port: 90, targetPort: 9090}
  - {name: other, port: 100, targetPort: 9100}
---
apiVersion: v1
kind: Service
metadata: {name: c, namespace: other}
spec: {clusterIP: 10.96.0.3, selector: {app: c}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a-1, namespace: shop, labels: {app: a, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: a}
status: {phase: Running, podIP: 10.1.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: b-1, namespace: shop, labels: {app: b, version: v1, security.istio.io/tlsMode: istio, topology.istio.io/locality: r1.z1}}
spec: {serviceAccountName: b}
status: {phase: Running, podIP: 10.1.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: b-2, namespace: shop, labels: {app: b, version: v1, security.istio.io/tlsMode: istio, topology.istio.io/locality: r2.z1}}
spec: {serviceAccountName: b}
status: {phase: Running, podIP: 10.1.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: b-3, namespace: shop, labels: {app: b, version: v1, rack: r3, security.istio.io/tlsMode: istio, topology.istio.io/locality: r3.z1}}
spec: {serviceAccountName: b}
status: {phase: Running, podIP: 10.1.0.4}
---
apiVersion: v1
kind: Pod
metadata: {name: b-4, namespace: shop, labels: {app: b, version: v2, topology.istio.io/locality: r1.z2}}
spec: {serviceAccountName: b}
status: {phase: Running, podIP: 10.1.0.5}
---
apiVersion: v1
kind: Pod
metadata: {name: c-1, namespace: other, labels: {app: c, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: c}
status: {phase: Running, podIP: 10.1.0.6}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec:
  hosts: [out.example.com]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
`

// fieldKinds are the messages that configuration is decoded into.
var fieldKinds = []fieldKind{
	{name: "VirtualService", kind: object.VirtualService, empty: &networking.VirtualService{}, around: `---
apiVersion: v1
kind: Service
metadata: {name: t, namespace: shop}
spec: {clusterIP: 10.96.7.1, selector: {app: b}, ports: [{name: https, port: 443}, {name: tcp-a, port: 90}, {name: tcp-b, port: 91}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: root, namespace: shop}
spec:
  hosts: [d.example.com]
  http:
  - match: [{uri: {prefix: /}, name: r}]
    delegate: {name: subject}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: leaf, namespace: ns}
spec: {http: [{route: [{destination: {host: out.example.com}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec: {http: [{route: [{destination: {host: b}}]}]}
`, bases: []string{
		`{hosts: [b], http: [{name: one, match: [{uri: {prefix: /p}, name: m}], route: [{destination: {host: b}, weight: 30}, {destination: {host: a}, weight: 70}],
          timeout: 3s, retries: {attempts: 3}, fault: {delay: {fixedDelay: 1s}, abort: {httpStatus: 503}}, mirror: {host: a}}]}`,
		`{hosts: [b], http: [{name: one, route: [{destination: {host: b}}], mirrors: [{destination: {host: a}}], rewrite: {uriRegexRewrite: {match: "x", rewrite: "z"}}}]}`,
		`{hosts: [b], http: [{redirect: {uri: /x}}]}`,
		`{hosts: [b], http: [{redirect: {authority: x}}]}`,
		`{hosts: [b], http: [{directResponse: {status: 200}}]}`,
		`{hosts: [b], http: [{delegate: {name: leaf, namespace: ns}}]}`,
		`{hosts: [b], http: [{delegate: {name: a, namespace: shop}, match: [{uri: {prefix: /p}}], timeout: 1s}]}`,
		`{http: [{match: [{uri: {prefix: /p}}], route: [{destination: {host: b}}]}]}`,
		`{hosts: [b], http: [{route: [{destination: {host: b}}], corsPolicy: {}, rewrite: {uri: /}}]}`,
		`{hosts: [b], http: [{route: [{destination: {host: b}}], corsPolicy: {unmatchedPreflights: IGNORE}}]}`,
		`{hosts: [t], tls: [{match: [{sniHosts: [t.example.com]}], route: [{destination: {host: b}, weight: 30}, {destination: {host: a}, weight: 70}]}]}`,
		`{hosts: [t], tcp: [{match: [{}], route: [{destination: {host: b}, weight: 30}, {destination: {host: a}, weight: 70}]}]}`,
	}},
	{name: "DestinationRule", kind: object.DestinationRule, empty: &networking.DestinationRule{}, around: `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: b, namespace: shop}
spec:
  hosts: [b]
  http: [{match: [{uri: {prefix: /v1}}], route: [{destination: {host: b, subset: v1}}]}, {route: [{destination: {host: b}}]}]
  tcp: [{match: [{destinationSubnets: [10.77.0.0/16]}], route: [{destination: {host: b, subset: v1}}]}, {route: [{destination: {host: b}}]}]
`, bases: append(policyBases(
		`connectionPool: {tcp: {}, http: {}}, outlierDetection: {splitExternalLocalOriginErrors: true}`,
		`connectionPool: {http: {h2UpgradePolicy: UPGRADE, http2KeepAlive: {interval: 10s, timeout: 10s}}}`,
		`loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 10s}}`,
		`loadBalancer: {simple: ROUND_ROBIN}`,
		`loadBalancer: {localityLbSetting: {failover: [{from: r1, to: r2}]}}, outlierDetection: {}`,
		`loadBalancer: {localityLbSetting: {}}, outlierDetection: {}`,
		`loadBalancer: {zoneAwareLbSetting: {failover: [{from: r1, to: r2}]}}, outlierDetection: {}`,
		`loadBalancer: {localityLbSetting: {distribute: [{from: r1/*, to: {"r2/*": 100}}]}}`,
		`loadBalancer: {consistentHash: {httpHeaderName: x-user}}`,
		`loadBalancer: {consistentHash: {httpCookie: {name: user, attributes: [{name: SameSite}]}}}`,
		`tls: {mode: SIMPLE}`,
		`tls: {mode: SIMPLE, clientCertificate: /c, privateKey: /k}`,
		`tls: {mode: MUTUAL, clientCertificate: /c, privateKey: /k}`,
		`tls: {mode: ISTIO_MUTUAL}`,
	), `{host: b, trafficPolicy: {tunnel: {targetHost: t.example.com, targetPort: 443}}, subsets: [{name: v1, trafficPolicy: {tunnel: {targetHost: u.example.com, targetPort: 443}}}]}`)},
	{name: "ServiceEntry", kind: object.ServiceEntry, empty: &networking.ServiceEntry{}, around: `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: entry, namespace: shop}
spec: {host: se.example.com, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop}
spec: {address: 10.2.0.1, labels: {app: vm}}
`, bases: []string{
		`{hosts: [se.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, targetPort: 8080}, {number: 90, name: tcp}],
          endpoints: [{address: 10.2.0.2, labels: {security.istio.io/tlsMode: istio}}, {address: 10.2.0.3}]}`,
		`{hosts: [se.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http}], workloadSelector: {labels: {app: vm}}}`,
		`{hosts: [se.example.com], location: MESH_INTERNAL, resolution: NONE, ports: [{number: 80, name: http}], workloadSelector: {labels: {app: vm}}}`,
		`{hosts: [se.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 80, name: http}]}`,
		`{hosts: [se.example.com], location: MESH_INTERNAL, resolution: NONE, ports: [{number: 90, name: tcp}]}`,
	}},
	{name: "WorkloadEntry", kind: object.WorkloadEntry, empty: &networking.WorkloadEntry{}, around: `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: entry, namespace: shop}
spec: {hosts: [se.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http}], workloadSelector: {labels: {app: vm}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop}
spec: {address: 10.2.0.1, labels: {app: vm}}
`, bases: []string{`{address: 10.2.0.2, labels: {app: vm}}`}},
	{name: "Sidecar", kind: object.Sidecar, empty: &networking.Sidecar{}, bases: []string{
		`{egress: [{hosts: ["./*"]}]}`,
		`{egress: [{hosts: ["./*"]}], outboundTrafficPolicy: {mode: ALLOW_ANY}}`,
		`{egress: [{hosts: ["./*"]}], outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: b.shop.svc.cluster.local, port: {number: 80}}}}`,
		`{egress: [{port: {number: 80, protocol: TCP}, bind: 127.0.0.2, captureMode: NONE, hosts: ["./*"]}]}`,
		`{egress: [{hosts: ["./*"]}], ingress: [{port: {number: 8080, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:8080"}]}`,
		`{egress: [{hosts: ["./*"]}], ingress: [{port: {number: 8080, protocol: TCP, name: tcp}, captureMode: NONE, bind: 127.0.0.2, defaultEndpoint: "127.0.0.1:9080"}]}`,
		`{inboundConnectionPool: {http: {http2KeepAlive: {interval: 10s, timeout: 5s}}}, ingress: [{port: {number: 8081, protocol: GRPC}}]}`,
		`{ingress: [{port: {number: 8080, protocol: GRPC, name: grpc}, connectionPool: {http: {http2KeepAlive: {interval: 10s, timeout: 5s}}}}]}`,
		`{ingress: [{port: {number: 8080, protocol: TLS, name: tls}, tls: {mode: SIMPLE, tlsCertificates: [{serverCertificate: /c, privateKey: /k}]}}]}`,
		`{ingress: [{port: {number: 8080, protocol: HTTPS, name: https}, defaultEndpoint: "127.0.0.1:9080", tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k, caCertificates: /r}}]}`,
		`{ingress: [{port: {number: 8080, protocol: HTTPS, name: https}, defaultEndpoint: "127.0.0.1:9080", tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /r}}]}`,
	}},
	{name: "PeerAuthentication", kind: object.PeerAuthentication, empty: &security.PeerAuthentication{}, around: `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: whole, namespace: shop}
spec: {mtls: {mode: STRICT}}
`, bases: []string{
		`{selector: {matchLabels: {app: b}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {"8080": {mode: PERMISSIVE}}}`,
		`{selector: {matchLabels: {app: b}}, mtls: {mode: DISABLE}, portLevelMtls: {"8080": {mode: STRICT}}}`,
		`{mtls: {mode: PERMISSIVE}}`,
	}},
	{name: "AuthorizationPolicy", kind: object.AuthorizationPolicy, empty: &security.AuthorizationPolicy{}, around: fieldGateway, bases: []string{
		`{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}], action: DENY, rules: [{}]}`,
		`{targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}, action: DENY, rules: [{}]}`,
		`{selector: {matchLabels: {app: b}}, rules: [{from: [{source: {principals: [x]}}], to: [{operation: {ports: ["80"]}}], when: [{key: source.ip, values: [10.0.0.1]}]}]}`,
		`{rules: [{from: [{source: {ipBlocks: [10.0.0.1]}}], to: [{operation: {ports: ["80"]}}], when: [{key: "request.headers[x]", values: [a]}]}]}`,
		`{action: DENY, rules: [{to: [{operation: {ports: ["80"]}}]}]}`,
		`{action: CUSTOM, provider: {name: a}, rules: [{to: [{operation: {ports: ["80"]}}]}]}`,
	}},
	{name: "RequestAuthentication", kind: object.RequestAuthentication, empty: &security.RequestAuthentication{}, around: fieldGateway, bases: []string{
		`{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}], jwtRules: [{issuer: a, jwks: '` + pki.NoKeys + `'}]}`,
		`{targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}, jwtRules: [{issuer: a, jwks: '` + pki.NoKeys + `'}]}`,
		`{selector: {matchLabels: {app: b}}, jwtRules: [{issuer: a, jwks: '` + pki.NoKeys + `'}]}`,
		`{selector: {matchLabels: {app: b}}, jwtRules: [{issuer: a, jwks: '` + pki.NoKeys + `', fromHeaders: [{name: x}], outputClaimToHeaders: [{header: x, claim: c}]}]}`,
		`{jwtRules: [{issuer: a}]}`,
	}},
	{name: "Gateway", kind: object.Gateway, empty: &networking.Gateway{}, bases: []string{
		`{servers: [{port: {number: 80, protocol: HTTP, name: http}, hosts: ["*"]}]}`,
		`{servers: [{port: {number: 8080, protocol: HTTP, name: http}, hosts: ["*"], bind: 10.0.0.1}]}`,
		`{servers: [{port: {number: 8443, protocol: HTTPS, name: https}, hosts: [a.example.com], tls: {mode: ISTIO_MUTUAL}}]}`,
		`{servers: [{port: {number: 15443, protocol: TLS, name: tls}, hosts: ["*.local"], tls: {mode: AUTO_PASSTHROUGH}}]}`,
		`{servers: [{port: {number: 15443, protocol: TLS, name: tls}, hosts: ["*.local"], tls: {mode: PASSTHROUGH}}]}`,
	}},
	{name: "EnvoyFilter", kind: object.EnvoyFilter, empty: &networking.EnvoyFilter{}, around: fieldGateway, bases: []string{
		`{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}], configPatches: [{applyTo: LISTENER, match: {context: GATEWAY}, patch: {operation: REMOVE}}]}`,
		`{workloadSelector: {labels: {app: b}}, configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {portNumber: 80}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}`,
		`{configPatches: [{applyTo: HTTP_FILTER, match: {context: ANY, listener: {filterChain: {filter: {subFilter: {name: envoy.filters.http.fault}}}}}, patch: {operation: INSERT_BEFORE, value: {name: buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 9}}}}]}`,
		`{configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}`,
		`{configPatches: [{applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 9}}}}]}`,
		`{configPatches: [{applyTo: HTTP_ROUTE, patch: {operation: MERGE, value: {tracing: {}}}}]}`, // a field of a bootstrap, too
		`{configPatches: [{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: REDIRECT}}}}, patch: {operation: REMOVE}}]}`,
		`{configPatches: [{applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {subFilter: {name: envoy.filters.http.fault}}}}}, patch: {operation: INSERT_AFTER, value: {name: buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 9}}}}]}`,
		`{configPatches: [{applyTo: LISTENER, match: {context: ANY}, patch: {operation: REMOVE}}]}`,
		`{configPatches: [{applyTo: HTTP_ROUTE, match: {context: GATEWAY, routeConfiguration: {}}, patch: {operation: REMOVE}}]}`,
		`{configPatches: [{applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {subFilter: {name: envoy.filters.http.cors}}}}}, patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}}}]}`,
		`{configPatches: [{applyTo: NETWORK_FILTER, match: {context: ANY, listener: {filterChain: {}}}, patch: {operation: INSERT_FIRST, value: {name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}}}]}`,
		`{configPatches: [{applyTo: LISTENER_FILTER, match: {context: ANY, listener: {listenerFilter: envoy.filters.listener.tls_inspector}}, patch: {operation: INSERT_BEFORE, value: {name: pp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol}}}}]}`,
		`{configPatches: [{applyTo: VIRTUAL_HOST, match: {context: ANY, routeConfiguration: {vhost: {}}}, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}]}`,
		`{configPatches: [{applyTo: HTTP_ROUTE, match: {context: ANY, routeConfiguration: {vhost: {route: {}}}}, patch: {operation: INSERT_FIRST, value: {name: new, match: {path: /new}, direct_response: {status: 204}}}}]}`,
	}},
	{name: "Telemetry", kind: object.Telemetry, empty: &telemetry.Telemetry{}, around: fieldGateway, mesh: `{extensionProviders: [{name: one, zipkin: {service: b.shop.svc.cluster.local, port: 80}}, {name: two, skywalking: {service: b.shop.svc.cluster.local, port: 81}}]}`, bases: []string{
		`{tracing: [{providers: [{name: one}]}]}`,
		`{tracing: [{providers: [{name: one}], match: {mode: CLIENT_AND_SERVER}, customTags: {a: {literal: {value: x}}, d: {formatter: {value: x}}}}]}`,
		`{tracing: [{providers: [{name: one}], customTags: {x-hint: {environment: {name: x}}}}]}`,
		`{tracing: [{providers: [{name: one}], customTags: {x-hint: {header: {name: x}}}}]}`,
		`{selector: {matchLabels: {app: b}}, accessLogging: [{providers: [{name: envoy}]}]}`,
		`{accessLogging: [{providers: [{name: envoy}], match: {mode: CLIENT_AND_SERVER}}]}`,
		`{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}], accessLogging: [{providers: [{name: envoy}]}]}`,
		`{targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}, accessLogging: [{providers: [{name: envoy}]}]}`,
		`{metrics: [{providers: [{name: prometheus}], overrides: [{match: {metric: REQUEST_COUNT, mode: CLIENT_AND_SERVER}, tagOverrides: {mine: {value: request.host}}}]}]}`,
		`{metrics: [{providers: [{name: prometheus}], overrides: [{match: {customMetric: requests_total}, disabled: true}]}]}`,
		`{metrics: [{providers: [{name: prometheus}], overrides: [{match: {metric: TCP_SENT_BYTES}, disabled: true}]}]}`,
	}},
	{name: "ProxyConfig", kind: object.ProxyConfig, empty: &networkingv1beta1.ProxyConfig{}, bases: []string{`{concurrency: 1}`}},
	{name: "WorkloadGroup", kind: object.WorkloadGroup, empty: &networking.WorkloadGroup{}, bases: []string{`{template: {}}`}},
	{name: "WasmPlugin", kind: object.WasmPlugin, empty: &extensions.WasmPlugin{}, around: fieldGateway, bases: []string{
		`{url: "https://a.example/a.wasm", match: [{}]}`,
		`{selector: {matchLabels: {app: b}}, url: "https://a.example/a.wasm", vmConfig: {env: [{name: a, value: b}]}}`,
		`{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}], url: "https://a.example/a.wasm", match: [{mode: CLIENT}], vmConfig: {env: [{name: a}]}}`,
		`{targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}, url: "https://a.example/a.wasm", match: [{ports: [{number: 80}]}]}`,
	}},
	{name: "TrafficExtension", kind: object.TrafficExtension, empty: &extensions.TrafficExtension{}, around: fieldGateway, bases: []string{
		`{lua: {inlineCode: "x"}, match: [{mode: CLIENT}]}`,
		`{wasm: {url: "https://a.example/a.wasm", vmConfig: {env: [{name: a}]}}, match: [{ports: [{number: 80}]}]}`,
		`{selector: {matchLabels: {app: b}}, wasm: {url: "https://a.example/a.wasm", vmConfig: {env: [{name: a, value: b}]}}}`,
		`{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}], lua: {inlineCode: "x"}}`,
	}},
	{name: "MeshConfig", kind: object.ConfigMap, empty: &meshv1.MeshConfig{}, around: fieldGateway + `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: router, namespace: shop}
spec: {selector: {gateway.networking.k8s.io/gateway-name: gw}, servers: [{port: {number: 8080, protocol: HTTP, name: http}, hosts: ["*"]}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: annotated, namespace: shop, annotations: {kubernetes.io/ingress.class: istio}}
spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: plain, namespace: shop}
spec: {rules: [{host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: b, port: {number: 80}}}}]}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: b, namespace: shop}
spec: {host: b, trafficPolicy: {outlierDetection: {}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: shop}
spec: {host: out.example.com, trafficPolicy: {tls: {mode: SIMPLE}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: root, namespace: istio-system}
spec: {host: a.shop.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: c, namespace: other}
spec: {hosts: [c.other.svc.cluster.local], http: [{name: one, route: [{destination: {host: c.other.svc.cluster.local}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: c, namespace: other}
spec: {host: c.other.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: 4}}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec: {selector: {matchLabels: {app: a}}, action: CUSTOM, provider: {name: asked}, rules: [{}]}
`, bases: []string{
		`{extensionProviders: [{name: asked, envoyExtAuthzHttp: {service: shop/b.shop.svc.cluster.local, port: 80, includeRequestBodyInCheck: {maxRequestBytes: 1}}}]}`,
		`{extensionProviders: [{name: asked, envoyExtAuthzGrpc: {service: shop/b.shop.svc.cluster.local, port: 80, includeRequestBodyInCheck: {maxRequestBytes: 1}}}]}`,
		`{}`,
		`{accessLogFile: /dev/stdout}`,
		`{defaultConfig: {controlPlaneAuthPolicy: MUTUAL_TLS, gatewayTopology: {}}}`,
		`{defaultProviders: {accessLogging: [one]}, extensionProviders: [{name: one, envoyFileAccessLog: {path: /one, logFormat: {text: "%PROTOCOL%"}}}]}`,
		`{defaultProviders: {accessLogging: [one]}, extensionProviders: [{name: one, envoyHttpAls: {service: b.shop.svc.cluster.local, port: 81}}]}`,
		`{defaultProviders: {accessLogging: [one]}, extensionProviders: [{name: one, envoyTcpAls: {service: b.shop.svc.cluster.local, port: 81}}]}`,
		`{defaultProviders: {accessLogging: [one]}, extensionProviders: [{name: one, envoyOtelAls: {service: b.shop.svc.cluster.local, port: 81}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, zipkin: {service: b.shop.svc.cluster.local, port: 80, headers: [{name: a, value: b}]}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, skywalking: {service: b.shop.svc.cluster.local, port: 81}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, lightstep: {service: b.shop.svc.cluster.local, port: 81}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, datadog: {service: b.shop.svc.cluster.local, port: 81}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, opentelemetry: {service: b.shop.svc.cluster.local, port: 81, grpc: {initialMetadata: [{name: a, value: b}]}, resourceDetectors: {}}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, opentelemetry: {service: b.shop.svc.cluster.local, port: 81, http: {headers: [{name: a, value: b}]}, dynatraceSampler: {tenant: a}}}]}`,
		`{defaultProviders: {tracing: [one]}, extensionProviders: [{name: one, opentelemetry: {service: b.shop.svc.cluster.local, port: 81, dynatraceSampler: {tenant: a, httpService: {service: b.shop.svc.cluster.local, port: 80, http: {headers: [{name: a, value: b}]}}}}}]}`,
		`{caCertificates: [{pem: "` + strings.ReplaceAll(otherRoot, "\n", `\n`) + `"}]}`,
		`{defaultHttpRetryPolicy: {attempts: 3}}`,
		`{localityLbSetting: {failover: [{from: r1, to: r2}]}}`,
		`{zoneAwareLbSetting: {failover: [{from: r1, to: r2}]}}`,
		`{localityLbSetting: {distribute: [{from: r1/*, to: {"r2/*": 100}}]}}`,
		`{outboundTrafficPolicy: {mode: REGISTRY_ONLY}}`,
		`{outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE}}}`,
		`{outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE, clientCertificate: /c, privateKey: /k}}}`,
		`{outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: MUTUAL, clientCertificate: /c, privateKey: /k}}}`,
		`{defaultTrafficPolicy: {connectionPool: {tcp: {}, http: {}}, outlierDetection: {splitExternalLocalOriginErrors: true}}}`,
		`{defaultTrafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE, http2KeepAlive: {interval: 10s, timeout: 10s}}}}}`,
	}},
}

// policyBases are DestinationRules that hold a policy in all the places where one can be:
// at the top, for a port, in a subset, and for a port of a subset.
func policyBases(policies ...string) []string {
	out := []string{`{host: b, trafficPolicy: {portLevelSettings: [{port: {number: 81}, connectionPool: {tcp: {maxConnections: 3}}}]},
      subsets: [{name: v1, trafficPolicy: {portLevelSettings: [{port: {number: 81}, connectionPool: {tcp: {maxConnections: 4}}}]}}]}`}
	for _, p := range policies {
		for _, port := range []string{"80", "81", "90"} {
			place := `trafficPolicy: {POLICY, portLevelSettings: [{port: {number: PORT}, POLICY}]}`
			rule := `{host: b, ` + place + `, subsets: [{name: v1, labels: {version: v1}, ` + place + `}]}`
			out = append(out, strings.NewReplacer("POLICY", p, "PORT", port).Replace(rule))
		}
	}
	return out
}

// otherRoot is a root certificate of another mesh, valid until 2126.
const otherRoot = `-----BEGIN CERTIFICATE-----
MIIBqzCCAVKgAwIBAgIUWlAXhaaO7ViHlJ1dvRu7eM7HDUMwCgYIKoZIzj0EAwIw
MzESMBAGA1UEChMJYi5leGFtcGxlMR0wGwYDVQQDExRSb290IENBIG9mIGIuZXhh
bXBsZTAgFw0yNjAxMDEwMDAwMDBaGA8yMTI2MDEwMTAwMDAwMFowMzESMBAGA1UE
ChMJYi5leGFtcGxlMR0wGwYDVQQDExRSb290IENBIG9mIGIuZXhhbXBsZTBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABMqwJCnt9PzbY4qaPkazZJRh0xecVMK48dOC
ZzHiOU7CgXhNDPl0YwWBoJZlWpcCqbQe+rzVkBAZJSsRi0IG4OKjQjBAMA4GA1Ud
DwEB/wQEAwIBBjAPBgNVHRMBAf8EBTADAQH/MB0GA1UdDgQWBBS/N9bfgSGZf852
SqWBkUo/pGLoZjAKBggqhkjOPQQDAgNHADBEAiA/w8yxFeEQYT7pCVZzGTRBvSmq
Hg7i9qBFOY0eH5dNUgIgW6AYbS+tDOLgEB2rQEEL2e9rcuDI9gMUKebG4O7Y4FU=
-----END CERTIFICATE-----
`

// fieldValues are valid values for fields, by the end of their paths.
var fieldValues = map[string][]string{
	"caCertificates.pem": {otherRoot}, "caCertificates.trustDomains": {"other.example"}, "caCertificates.spiffeBundleUrl": {"https://other.example/bundle"},

	"VirtualService.hosts": {"a"}, "VirtualService.gateways": {"gw"}, "match.gateways": {"gw"}, "exportTo": {"."},
	"match.sourceLabels": {"app=a"}, "match.sourceNamespace": {"other"}, "match.port": {"90"}, "match.sniHosts": {"x.example.com"},
	"method.regex": {"GET|PUT"}, "destinationSubnets": {"10.0.0.0/8"}, "port.number": {"8080", "80", "100"},
	"route.weight": {"40"}, "redirect.redirectCode": {"302"}, "redirect.scheme": {"https"}, "directResponse.status": {"404"},
	"retries.retryOn": {"503"}, "abort.httpStatus": {"404"}, "abort.grpcStatus": {"NOT_FOUND"},
	"corsPolicy.allowMethods": {"PUT"}, "request.set": {"x=y"}, "request.add": {"x=y"}, "response.set": {"x=y"}, "response.add": {"x=y"},

	"DestinationRule.host": {"a"}, "workloadSelector.matchLabels": {"app=a"}, "subsets.labels": {"version=v2"},
	"distribute.from": {"r1/z1", "r9/*"}, "distribute.to": {"r3/*=100"}, "failoverPriority": {"topology.kubernetes.io/region=r3"}, "zoneAwareLbSetting.failoverPriority": {"rack=r3"}, "failover.from": {"r9"}, "failover.to": {"r3"},
	"consistentHash.maglev.tableSize": {"17"}, "outlierDetectionHttpErrorCodes": {"404"}, "warmup.aggression": {"2"},

	"ServiceEntry.hosts": {"other.example.com"}, "ServiceEntry.addresses": {"10.97.0.1"}, "ports.protocol": {"GRPC"}, "ports.name": {"tcp-x"},
	"endpoints.address": {"10.2.0.9"}, "endpoints.ports": {"http=8099"}, "endpoints.labels": {"version=v1"}, "endpoints.locality": {"r1/z1"},
	"ServiceEntry.workloadSelector.labels": {"app=none"},
	"WorkloadEntry.network":                {"net-2"}, "ServiceEntry.endpoints.network": {"net-2"}, // see fieldNetworks
	"tunnel.protocol": {"POST"}, "tunnel.targetHost": {"x.example.com"}, "tunnel.targetPort": {"8443"},
	"WorkloadEntry.address": {"10.2.0.9"}, "WorkloadEntry.ports": {"http=8099"}, "WorkloadEntry.labels": {"app=none"}, "WorkloadEntry.locality": {"r1/z1"},

	"tracing.providers.name": {"two"}, "http.path": {"/x"}, "zipkin.path": {"/x"}, "zipkin.timeout": {"7s"},
	"envoyExtAuthzHttp.pathPrefix": {"/x"}, "statusOnError": {"503"},
	"targetRef.kind": {"GatewayClass"}, "targetRefs.kind": {"GatewayClass"},
	"EnvoyFilter.workloadSelector.labels": {"app=a"}, "selector.matchLabels": {"app=a"}, "sha256": {"1ef0c9a92b0420cf25f7fe5d481b231464bc88f486ca3b9c83ed5cc21d2f6210"}, "match.ports.number": {"8080"},
	"WasmPlugin.url": {"https://a.example/b.wasm"}, "wasm.url": {"https://a.example/b.wasm"},
	"Sidecar.workloadSelector.labels": {"app=a"}, "ingress.defaultEndpoint": {"127.0.0.1:9081"}, "ingress.bind": {"127.0.0.3"}, "egress.bind": {"127.0.0.3"}, "egress.port.number": {"81"}, "egressProxy.subset": {"v1"}, "egress.hosts": {"*/*"}, "port.protocol": {"HTTP"},
	"Gateway.selector": {"app=none"}, "Gateway.servers.hosts": {"c.other.svc.cluster.local"},
	"PeerAuthentication.selector.matchLabels": {"app=a"}, "AuthorizationPolicy.selector.matchLabels": {"app=a"}, "RequestAuthentication.selector.matchLabels": {"app=a"},
	"jwtRules.jwks": {`{"keys": [{"kty": "oct", "k": "AQ"}]}`}, "jwtRules.jwksUri": {"https://a.example/keys"}, "fromHeaders.name": {"x-a"}, "jwtRules.outputPayloadToHeader": {"x-b"}, "outputClaimToHeaders.header": {"x-c"},
	"source.serviceAccounts": {"shop/a"}, "source.notServiceAccounts": {"shop/a"}, "source.requestPrincipals": {"a/b"}, "source.notRequestPrincipals": {"a/b"},
	"source.ipBlocks": {"10.0.0.9"}, "source.notIpBlocks": {"10.0.0.9"}, "source.remoteIpBlocks": {"10.0.0.9"}, "source.notRemoteIpBlocks": {"10.0.0.9"},
	"operation.ports": {"81"}, "operation.notPorts": {"81"}, "operation.paths": {"/x"}, "operation.notPaths": {"/x"},
	"when.key": {"remote.ip"}, "when.values": {"10.0.0.7"}, "when.notValues": {"10.0.0.7"},

	"cipherSuites": {"AES128-SHA"}, "ecdhCurves": {"P-256"}, "trustDomain": {"example.org"}, "trustDomainAliases": {"example.org"},
	"rootNamespace": {"other"}, "defaultHttpRetryPolicy.retryOn": {"503"},
	"defaultServiceExportTo": {"."}, "defaultVirtualServiceExportTo": {"other", "shop"}, "defaultDestinationRuleExportTo": {"."},
}
