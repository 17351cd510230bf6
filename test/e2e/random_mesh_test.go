package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// randomMesh makes random objects of all kinds, which are valid. Names are few, so that objects refer to each
// other.
type randomMesh struct{ *rand.Rand }

// oneOf returns a random element.
func oneOf[T any](r randomMesh, list ...T) T { return list[r.IntN(len(list))] }

func (r randomMesh) chance(n int) bool { return r.IntN(n) == 0 }

func (r randomMesh) name() string    { return oneOf(r, "a", "b", "c", "d") }
func (r randomMesh) version() string { return oneOf(r, "v1", "v2") }
func (r randomMesh) ip() string      { return fmt.Sprintf("10.98.0.%d", 1+r.IntN(8)) }

func (r randomMesh) host() string {
	switch r.IntN(5) {
	case 0:
		return oneOf(r, "out.example.com", "api.example.com")
	case 1:
		return r.name() + "." + oneOf(r, "x", "y") + ".svc.cluster.local"
	}
	return r.name()
}

func (r randomMesh) exportTo() string {
	return oneOf(r, "", "", "exportTo: ['*'], ", "exportTo: [.], ")
}

// kinds are the kinds of objects that are made, those with many effects more than once. Pods, which are fewer
// than services need, come from slices and WorkloadEntries, too.
var randomKinds = []string{
	"Service", "Service", "Pod", "Pod", "EndpointSlice", "EndpointSlice", "ServiceEntry", "WorkloadEntry", "VirtualService", "VirtualService",
	"VirtualService", "DestinationRule", "DestinationRule", "PeerAuthentication", "Sidecar", "ConfigMap", "Namespace", "ServiceAccount", "Gateway",
}

// object returns a random object of a kind, as YAML on one line. Edits of the same object differ in the turn.
func (r randomMesh) object(kind, namespace, name string, turn int) string {
	versions := map[string]string{"EndpointSlice": "discovery.k8s.io/v1", "PeerAuthentication": "security.istio.io/v1"}
	version := versions[kind]
	if version == "" {
		version = oneOf(r, "networking.istio.io/v1", "networking.istio.io/v1beta1")
	}
	labels, rest := "", ""
	switch kind {
	case "Service":
		version, rest = "v1", r.service()
	case "Pod":
		version, rest = "v1", r.pod()
		labels = fmt.Sprintf("labels: {app: %s, version: %s%s%s}, ", r.name(), r.version(), oneOf(r, "", ", security.istio.io/tlsMode: istio"), oneOf(r, "", ", istio-locality: r1.z1", ", istio-locality: r2.z1"))
	case "EndpointSlice":
		rest = fmt.Sprintf("addressType: IPv4, ports: [{name: http, port: %d}], endpoints: [{addresses: [%s], conditions: {ready: %v}}, {addresses: [%s]}]", 8080+r.IntN(2), r.ip(), !r.chance(3), r.ip())
		labels = fmt.Sprintf("labels: {kubernetes.io/service-name: %s}, ", r.name())
	case "ServiceEntry":
		rest = r.serviceEntry()
	case "WorkloadEntry":
		rest = fmt.Sprintf("spec: {address: %s, labels: {app: %s, version: %s}, weight: %d}", r.ip(), r.name(), r.version(), 1+r.IntN(3))
	case "VirtualService":
		rest = r.virtualService()
	case "DestinationRule":
		rest = r.destinationRule()
	case "PeerAuthentication":
		rest = fmt.Sprintf("spec: {%smtls: {mode: %s}}", r.selector(), oneOf(r, "STRICT", "PERMISSIVE", "DISABLE"))
	case "Sidecar":
		rest = fmt.Sprintf("spec: {%segress: [{hosts: [%s]}]%s}", strings.Replace(r.selector(), "selector: {matchLabels", "workloadSelector: {labels", 1),
			oneOf(r, "'*/*'", "'./*'", "x/*, istio-system/*", "'*/a.x.svc.cluster.local'"), oneOf(r, "", ", outboundTrafficPolicy: {mode: REGISTRY_ONLY}"))
	case "Gateway":
		rest = "spec: {selector: {app: none}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}"
	case "ConfigMap":
		version, namespace, name = "v1", "istio-system", "istio"
		rest = fmt.Sprintf("data: {mesh: 'outboundTrafficPolicy: {mode: %s}, connectTimeout: %ds, defaultHttpRetryPolicy: {attempts: %d}'}", oneOf(r, "ALLOW_ANY", "REGISTRY_ONLY"), 1+r.IntN(5), r.IntN(3))
		rest = strings.Replace(rest, "'outbound", "'{outbound", 1)
		rest = strings.Replace(rest, "}'}", "}}'}", 1)
	default:
		version = "v1"
	}
	if rest != "" {
		rest = ", " + rest
	}
	return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %s, namespace: \"%s\", %sannotations: {turn: \"%d\"}}%s}\n", version, kind, name, namespace, labels, turn, rest)
}

func (r randomMesh) selector() string {
	return oneOf(r, "", "selector: {matchLabels: {app: "+r.name()+"}}, ")
}

func (r randomMesh) service() string {
	if r.chance(8) {
		return "spec: {type: ExternalName, externalName: out.example.com, ports: [{name: http, port: 80}]}"
	}
	var ports []string
	for _, p := range []string{
		"{name: http, port: 80, targetPort: 8080}", "{name: tcp, port: 90}", "{name: grpc, port: 81, targetPort: named}", "{name: https, port: 443}", "{name: auto, port: 82}", "{name: udp, port: 53, protocol: UDP}",
	} {
		if r.chance(2) {
			ports = append(ports, p)
		}
	}
	if len(ports) == 0 {
		ports = []string{"{name: http, port: 80}"}
	}
	return fmt.Sprintf("spec: {clusterIP: %s, selector: {app: %s}, ports: [%s]}", oneOf(r, "None", fmt.Sprintf("10.96.0.%d", 1+r.IntN(9)), fmt.Sprintf("10.96.1.%d", 1+r.IntN(9))), r.name(), strings.Join(ports, ", "))
}

func (r randomMesh) pod() string {
	return fmt.Sprintf("spec: {serviceAccountName: %s, containers: [{name: app, ports: [{name: named, containerPort: 8080}]}]}, status: {phase: Running, podIP: %s, conditions: [{type: Ready, status: \"%s\"}]}",
		r.name(), r.ip(), oneOf(r, "True", "True", "False"))
}

func (r randomMesh) serviceEntry() string {
	port := oneOf(r, "{number: 80, name: http, protocol: HTTP}", "{number: 443, name: tls, protocol: TLS}", "{number: 90, name: tcp, protocol: TCP}")
	head := fmt.Sprintf("spec: {hosts: [%s], %slocation: %s, ports: [%s], ", oneOf(r, "out.example.com", "api.example.com"), r.exportTo(), oneOf(r, "MESH_EXTERNAL", "MESH_INTERNAL"), port)
	switch r.IntN(4) {
	case 0:
		return head + "resolution: NONE, addresses: [10.97.0.1]}"
	case 1:
		return head + fmt.Sprintf("resolution: DNS, endpoints: [{address: %s}]}", r.ip())
	case 2:
		return head + fmt.Sprintf("resolution: STATIC, addresses: [10.97.0.2], workloadSelector: {labels: {app: %s}}}", r.name())
	}
	return head + fmt.Sprintf("resolution: STATIC, endpoints: [{address: %s, locality: %s, labels: {version: %s}}, {address: %s}]}", r.ip(), oneOf(r, "r1/z1", "r2/z1"), r.version(), r.ip())
}

func (r randomMesh) virtualService() string {
	destination := func() string {
		return fmt.Sprintf("destination: {host: %s%s}", r.host(), oneOf(r, "", ", subset: v1", ", subset: v2", ", port: {number: 80}"))
	}
	head := fmt.Sprintf("spec: {hosts: [%s], %s", r.host(), r.exportTo())
	switch r.IntN(6) {
	case 0:
		return head + fmt.Sprintf("tcp: [{match: [{port: 90}], route: [{%s}]}]}", destination())
	case 1:
		return fmt.Sprintf("spec: {hosts: [%[1]s], tls: [{match: [{port: 443, sniHosts: [%[1]s]}], route: [{%[2]s}]}]}", r.host(), destination())
	}
	match := oneOf(r, "", "match: [{headers: {x-h: {exact: q}}}], ", "match: [{uri: {prefix: /p}}, {port: 80}], ", "match: [{sourceLabels: {app: a}}], ", "match: [{uri: {regex: '/r.*'}, method: {exact: GET}}], ")
	extra := oneOf(r, "", "timeout: 3s, ", "retries: {attempts: 2, perTryTimeout: 1s}, ", "fault: {delay: {fixedDelay: 1s, percentage: {value: 10}}}, ", "rewrite: {uri: /z}, ", "headers: {request: {set: {x-set: v}}}, ",
		"corsPolicy: {allowOrigins: [{exact: https://a}], allowMethods: [GET]}, ", "mirror: {host: b}, ")
	weight := r.IntN(101)
	last := fmt.Sprintf("{route: [{%s}]}", destination())
	if r.chance(4) {
		last = "{redirect: {uri: /moved}}"
	}
	return head + fmt.Sprintf("http: [{%s%sroute: [{%s, weight: %d}, {%s, weight: %d}]}, %s]}", match, extra, destination(), weight, destination(), 100-weight, last)
}

func (r randomMesh) destinationRule() string {
	policy := func() string {
		return oneOf(r, "", "trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}, ", "trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}, ",
			"trafficPolicy: {tls: {mode: "+oneOf(r, "DISABLE", "SIMPLE", "ISTIO_MUTUAL")+"}}, ", "trafficPolicy: {loadBalancer: {simple: "+oneOf(r, "RANDOM", "ROUND_ROBIN", "LEAST_REQUEST")+"}}, ",
			fmt.Sprintf("trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}, http: {http2MaxRequests: 7}}}, ", 1+r.IntN(9)),
			"trafficPolicy: {portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {maxConnections: 3}}}]}, ")
	}
	var subsets []string
	for _, v := range []string{"v1", "v2"} {
		if !r.chance(3) {
			subsets = append(subsets, fmt.Sprintf("{name: %s, %slabels: {version: %s}}", v, policy(), v))
		}
	}
	return fmt.Sprintf("spec: {host: %s, %s%ssubsets: [%s]}", r.host(), r.exportTo(), policy(), strings.Join(subsets, ", "))
}
