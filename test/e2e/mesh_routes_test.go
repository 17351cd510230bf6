package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const consumerRoute = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: use}
spec:
  parentRefs: [{group: "", kind: Service, name: web, namespace: shop}]
  rules:
  - filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-route, value: consumer}]}}]
    backendRefs: [{name: web, namespace: shop, port: 80}]
`

const producerRoute = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web, port: 80}]
  rules:
  - filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-route, value: producer}]}}]
    backendRefs: [{name: web-v2, port: 80}]
`

// TestMeshRoutes makes requests between workloads by HTTPRoutes of a Service: one of the Service's namespace for all clients, and one of a
// client's namespace for the clients there only, to a Service of another namespace without a ReferenceGrant.
func TestMeshRoutes(t *testing.T) {
	m, config := start(t, "meshroutes")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(config, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	gets := func(pod, host, route string) {
		t.Helper()
		client := meshup.Client(m.Pod(pod).Net, 0)
		err := meshup.Await(t.Context(), time.Minute, fmt.Sprintf("the requests of %s to %s take the route %q", pod, host, route), func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.96.50.1/", http.NoBody)
			if err != nil {
				return err
			}
			req.Host = host
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			answer, err := meshup.ReadAnswer(res)
			if err != nil {
				return err
			}
			if got := res.Header.Get("x-route"); got != route || route == "producer" && answer.Version != "v2" {
				return fmt.Errorf("the route %q, version %s", got, answer.Version)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const near, far = "web.shop", "web.shop.svc.cluster.local"
	for _, host := range []string{near, far} {
		gets("client-1.shop", host, "")
		gets("client-1.use", host, "")
	}
	// A route to what does not exist must not leave the one before in force.
	fails := func(what string) {
		t.Helper()
		client := meshup.Client(m.Pod("client-1.use").Net, 0)
		err := meshup.Await(t.Context(), time.Minute, "requests by a route to "+what+" get 500", func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.96.50.1/", http.NoBody)
			if err != nil {
				return err
			}
			req.Host = near
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			res.Body.Close()
			if res.StatusCode != http.StatusInternalServerError {
				return fmt.Errorf("status %d", res.StatusCode)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write("consumer.yaml", strings.ReplaceAll(consumerRoute, "[{name: web, namespace: shop, port: 80}]", "[{group: x.y, kind: Z, name: nosuch, port: 80}]"))
	fails("something that is no Service")
	write("consumer.yaml", consumerRoute)
	for _, host := range []string{near, far} {
		gets("client-1.use", host, "consumer")
		gets("client-1.shop", host, "")
	}
	write("consumer.yaml", strings.ReplaceAll(consumerRoute, "[{name: web, namespace: shop, port: 80}]", "[{name: nosuch, port: 80}]"))
	fails("a Service that does not exist")
	write("consumer.yaml", consumerRoute)
	gets("client-1.use", near, "consumer")
	write("producer.yaml", producerRoute)
	gets("client-1.shop", near, "producer")
	gets("client-1.use", near, "consumer")
	if err := os.Remove(filepath.Join(config, "consumer.yaml")); err != nil {
		t.Fatal(err)
	}
	gets("client-1.use", near, "producer")
}
