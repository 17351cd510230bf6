// Package faults_test breaks a control plane that the chart has installed, under load, and counts every request.
//
// All tests share a cluster with two replicas of pilot-discovery, a web of two Pods and two shoppers that call it: real Envoys,
// injected by the chart's webhook. Nothing is retried anywhere. A test leaves both replicas ready, with every proxy connected.
package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

const (
	system = "istio-system" // the namespace of the control plane
	shop   = "shop"         // that of the workloads
)

// maxAge is that of the connections of proxies, so that they spread during a test; by default it is half an hour.
const maxAge = 20 * time.Second

// values are those of the chart. Nothing is retried. A connection to the API server that does not answer is given up after
// 10 s; by default it takes 45.
var values = fmt.Sprintf(`autoscaleEnabled: false
replicaCount: 2
keepaliveMaxServerConnectionAge: %v
meshConfig:
  defaultHttpRetryPolicy: {attempts: 0}
env:
  HTTP2_READ_IDLE_TIMEOUT_SECONDS: "5"
  HTTP2_PING_TIMEOUT_SECONDS: "5"
`, maxAge)

// workloads are the web, and shoppers that call it for each request that they get.
const workloads = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=web, "-http=:8080"]
        readinessProbe: {httpGet: {path: /stats, port: 8080}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shopper, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: shopper}}
  template:
    metadata: {labels: {app: shopper}}
    spec:
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=shopper, "-http=:8080", "-calls=http://web:8080/"]
        readinessProbe: {httpGet: {path: /stats, port: 8080}, periodSeconds: 1}
`

// shared is the cluster of all tests.
var shared = clusterup.Shared{
	Name: "faults-test", Before: true, Install: install,
	// Tests restart containers often.
	Backoff: podstate.Backoff{Initial: 100 * time.Millisecond, Max: 100 * time.Millisecond},
}

func TestMain(m *testing.M) { shared.Main(m) }

func install(ctx context.Context, c *clusterup.Cluster) error {
	if err := c.Install(ctx, "mesh", system, c.Control(), values); err != nil {
		return err
	}
	s := site{c}
	if err := s.await(ctx, "both replicas are ready", s.bothReady); err != nil {
		return err
	}
	_, err := s.ApplyYAML(ctx, "", workloads)
	return err
}

// bound is the longest time until a condition holds, on a machine with two processors that all Pods share.
const bound = 3 * time.Minute

// start gives a test the cluster, with both replicas and all workloads ready and every proxy connected.
func start(t *testing.T) site {
	t.Helper()
	s := site{shared.Start(t)}
	s.settled(t)
	return s
}
