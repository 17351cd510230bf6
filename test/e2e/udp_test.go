package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// datagrams has a listener of UDP, at the number of one of TCP, with a route to both versions by weight.
const datagrams = `apiVersion: v1
kind: Service
metadata: {name: ingress-udp, namespace: istio-system}
spec: {clusterIP: 10.96.40.9, selector: {istio: ingressgateway}, ports: [{name: dns, port: 53, targetPort: 9000, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: udp-v1, namespace: gateway}
spec: {clusterIP: 10.96.40.5, selector: {app: echo, version: v1}, ports: [{name: dns, port: 53, targetPort: 5353, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: udp-v2, namespace: gateway}
spec: {clusterIP: 10.96.40.6, selector: {app: echo, version: v2}, ports: [{name: dns, port: 53, targetPort: 5353, protocol: UDP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: udp, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress-udp.istio-system.svc.cluster.local}]
  listeners: [{name: dns, port: 53, protocol: UDP, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: udp, namespace: gateway}
spec:
  parentRefs: [{name: udp, namespace: istio-system}]
  rules: [{backendRefs: [{name: udp-v1, port: 53, weight: ONE}, {name: udp-v2, port: 53, weight: TWO}]}]
---
`

const datagramPolicy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: udp, namespace: istio-system}
spec: {selector: {matchLabels: {istio: ingressgateway}}, action: DENY, rules: [{to: [{operation: {ports: ["1"]}}]}]}
`

// TestDatagramsThroughAGateway sends datagrams through a listener of UDP: clients reach the backends by their weights, those of one socket one
// endpoint, a change of the weights holds for new clients, and with a policy, which cannot decide about datagrams, none is forwarded.
func TestDatagramsThroughAGateway(t *testing.T) {
	m, config := start(t, "gateway")
	write := func(one, two, more string) {
		t.Helper()
		path := filepath.Join(config, "udp.yaml")
		if err := os.WriteFile(path+".new", []byte(strings.NewReplacer("ONE", one, "TWO", two).Replace(datagrams)+more), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"v1", "v2"} {
		answerDatagrams(t, m, "echo-"+version+"-1.gateway", version)
	}
	// share makes clients and returns how many of n the first version answers; each asks twice.
	const n = 300
	share := func(ctx context.Context, n int) (first int, err error) {
		for range n {
			answers, err := askDatagrams(ctx, m)
			switch {
			case err != nil:
				return 0, err
			case answers[0] != answers[1]:
				return 0, fmt.Errorf("one client has answers of %v", answers)
			case answers[0] == "v1":
				first++
			}
		}
		return first, nil
	}
	await := func(what string, check func(ctx context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, check); err != nil {
			t.Fatal(err)
		}
	}
	write("70", "30", "")
	await("datagrams are answered", func(ctx context.Context) error {
		_, err := askDatagrams(ctx, m)
		return err
	})
	first, err := share(t.Context(), n)
	if err != nil || first < n*55/100 || first > n*85/100 {
		t.Fatalf("version v1 has %d of %d clients, want about 70 of 100 (%v)", first, n, err)
	}
	write("0", "30", "")
	await("all new clients reach v2", func(ctx context.Context) error {
		if first, err := share(ctx, 20); err != nil || first > 0 {
			return fmt.Errorf("v1 answers %d of 20: %w", first, err)
		}
		return nil
	})
	write("70", "30", datagramPolicy)
	await("nothing is forwarded", func(ctx context.Context) error {
		if answers, err := askDatagrams(ctx, m); err == nil {
			return fmt.Errorf("answers of %v", answers)
		} else if e := net.Error(nil); !errors.As(err, &e) || !e.Timeout() {
			return err
		}
		return nil
	})
	write("70", "30", "")
	await("datagrams are answered again", func(ctx context.Context) error {
		_, err := askDatagrams(ctx, m)
		return err
	})
}

// answerDatagrams answers each datagram to a Pod with a text.
func answerDatagrams(t *testing.T, m *meshup.Mesh, pod, text string) {
	t.Helper()
	c, err := m.Pod(pod).Net.ListenPacket("udp", ":5353")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for {
			_, from, err := c.ReadFrom(buf)
			if err == nil {
				_, err = c.WriteTo([]byte(text), from)
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}

// askDatagrams sends two datagrams of a new client to the gateway and returns the answers.
func askDatagrams(ctx context.Context, m *meshup.Mesh) (answers [2]string, err error) {
	c, err := m.Pod("outside-1.gateway").Net.Dial(ctx, "udp", "10.99.0.9:9000")
	if err != nil {
		return answers, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return answers, err
	}
	buf := make([]byte, 100)
	for i := range answers {
		if _, err := c.Write([]byte("ask")); err != nil {
			return answers, err
		}
		k, err := c.Read(buf)
		if err != nil {
			return answers, err
		}
		answers[i] = string(buf[:k])
	}
	return answers, nil
}
