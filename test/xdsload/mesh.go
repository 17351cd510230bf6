package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// meshSize is how big the synthetic mesh is.
type meshSize struct {
	Services   int `json:"services"`
	Endpoints  int `json:"endpoints"` // of each service
	Namespaces int `json:"namespaces"`
}

// ruleEvery says which services of a namespace have a VirtualService and a DestinationRule.
const ruleEvery = 4

// maxEndpoints is how many Pods have addresses in 10.16.0.0–10.127.255.255.
const maxEndpoints = 112 << 16

func (z meshSize) check() error {
	switch {
	case z.Services < 1 || z.Services > 1<<16:
		return fmt.Errorf("invalid -services %d: want 1–65536", z.Services)
	case z.Endpoints < 1 || z.Services*z.Endpoints > maxEndpoints:
		return fmt.Errorf("invalid -endpoints %d: want 1–%d for %d services", z.Endpoints, maxEndpoints/z.Services, z.Services)
	case z.Namespaces < 1 || z.Namespaces > z.Services:
		return fmt.Errorf("invalid -namespaces %d: want 1–%d, at most one for each service", z.Namespaces, z.Services)
	}
	return nil
}

func (z meshSize) namespace(i int) string { return fmt.Sprintf("team-%03d", i%z.Namespaces) }

func (z meshSize) name(i int) string { return fmt.Sprintf("svc-%05d", i) }

// hasRules reports whether a service has a VirtualService and a DestinationRule.
func (z meshSize) hasRules(i int) bool { return i/z.Namespaces%ruleEvery == 0 }

// changed is the service whose objects are changed: one with rules, from the middle.
func (z meshSize) changed() int {
	row := z.Services / 2 / z.Namespaces / ruleEvery * ruleEvery
	return row * z.Namespaces
}

func (z meshSize) podIP(i, endpoint int) string {
	n := i*z.Endpoints + endpoint
	return fmt.Sprintf("10.%d.%d.%d", 16+n>>16, n>>8&255, n&255)
}

func (z meshSize) podName(i, endpoint int) string { return fmt.Sprintf("%s-%d", z.name(i), endpoint) }

func (z meshSize) service(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  clusterIP: 10.192.%d.%d
  selector: {app: %[1]s}
  ports:
  - {name: http, port: 8080, targetPort: 8080}
  - {name: tcp-data, port: 9000, targetPort: 9000}
`, z.name(i), z.namespace(i), i>>8, i&255)
}

// version is the label of an endpoint's Pod, which the subsets select.
func version(endpoint int) string { return fmt.Sprintf("v%d", endpoint%2+1) }

func (z meshSize) pod(i, endpoint int, ip string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {app: %s, version: %s, security.istio.io/tlsMode: istio}
spec: {serviceAccountName: %[3]s, nodeName: node-1, containers: [{name: app, ports: [{containerPort: 8080}]}]}
status: {phase: Running, podIP: %[5]s, conditions: [{type: Ready, status: "True"}]}
`, z.podName(i, endpoint), z.namespace(i), z.name(i), version(endpoint), ip)
}

func (z meshSize) virtualService(i int, canary string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%[1]s]
  http:
  - match: [{headers: {x-canary: {exact: %[3]q}}}]
    route: [{destination: {host: %[1]s, subset: v2}}]
  - timeout: 5s
    retries: {attempts: 3, perTryTimeout: 2s}
    route:
    - {destination: {host: %[1]s, subset: v1}, weight: 90}
    - {destination: {host: %[1]s, subset: v2}, weight: 10}
`, z.name(i), z.namespace(i), canary)
}

func (z meshSize) destinationRule(i, connections int) string {
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

// The values that the objects have at first.
const (
	firstCanary      = "yes"
	firstConnections = 100
)

// files is the whole mesh, by file name: a file for each namespace, and one for each object that is changed.
func (z meshSize) files() map[string]string {
	out := map[string]string{}
	docs := make([][]string, z.Namespaces)
	for i := range z.Services {
		own := i == z.changed()
		to := &docs[i%z.Namespaces]
		*to = append(*to, z.service(i))
		for e := range z.Endpoints {
			if own && e == z.Endpoints-1 {
				out[endpointFile] = z.pod(i, e, z.podIP(i, e))
			} else {
				*to = append(*to, z.pod(i, e, z.podIP(i, e)))
			}
		}
		switch {
		case own:
			out[virtualServiceFile] = z.virtualService(i, firstCanary)
			out[destinationRuleFile] = z.destinationRule(i, firstConnections)
		case z.hasRules(i):
			*to = append(*to, z.virtualService(i, firstCanary), z.destinationRule(i, firstConnections))
		}
	}
	for n, list := range docs {
		out[z.namespace(n)+".yaml"] = strings.Join(list, "---\n")
	}
	return out
}

const (
	endpointFile        = "changed-pod.yaml"
	virtualServiceFile  = "changed-virtualservice.yaml"
	destinationRuleFile = "changed-destinationrule.yaml"
)

// change is an edit of one object of the mesh.
type change struct {
	file, text string
	// marker is part of every resource that the edit changes, and of none before it.
	marker []byte
}

// The kinds of changes, as in reports.
const (
	changeEndpoint        = "one endpoint"
	changeVirtualService  = "one VirtualService"
	changeDestinationRule = "one DestinationRule"
)

// changeKinds are the kinds of changes in the order in which they are applied.
var changeKinds = []string{changeEndpoint, changeVirtualService, changeDestinationRule}

// edit is a change of a kind; each turn, from 0, gives another value.
func (z meshSize) edit(kind string, turn int) change {
	i := z.changed()
	switch kind {
	case changeEndpoint:
		ip := fmt.Sprintf("10.160.%d.%d", turn>>8, turn&255)
		return change{endpointFile, z.pod(i, z.Endpoints-1, ip), []byte(ip)}
	case changeVirtualService:
		canary := fmt.Sprintf("edit-%d-of-the-route", turn)
		return change{virtualServiceFile, z.virtualService(i, canary), []byte(canary)}
	case changeDestinationRule:
		n := 1_000_000 + turn
		// max_connections, field 1 or 2 of a message by its holder, is a UInt32Value: its bytes.
		value := binary.AppendUvarint([]byte{1 << 3}, uint64(n))
		return change{destinationRuleFile, z.destinationRule(i, n), append([]byte{2<<3 | 2, byte(len(value))}, value...)}
	}
	panic("there is no change of the kind " + kind)
}

// writeFile puts a whole file into a directory in one step. The directory's parent must be on the same file
// system.
func writeFile(dir, name, text string) error {
	spare := filepath.Join(filepath.Dir(dir), "next-"+name)
	if err := os.WriteFile(spare, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(spare, filepath.Join(dir, name))
}
