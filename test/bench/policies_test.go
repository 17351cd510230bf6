package bench

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/policytest"
	security "istio.io/api/security/v1beta1"
)

// policyYAML is one of a namespace, for the workloads of a service; without a service it is for all of the namespace.
func policyYAML(name, namespace, service, path string) string {
	selector := ""
	if service != "" {
		selector = fmt.Sprintf("selector: {matchLabels: {app: %s}}, ", service)
	}
	return fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %s, namespace: %s}
spec: {%srules: [{from: [{source: {principals: ["cluster.local/ns/%[2]s/sa/*"]}}], to: [{operation: {methods: [GET], paths: [%[4]s]}}]}]}
`, name, namespace, selector, path)
}

// BenchmarkPolicy changes one of 1,000 policies of a namespace with 50 workloads: 20 select each of them.
func BenchmarkPolicy(b *testing.B) {
	z := standard
	objects := changes(b, z.yaml()...)
	const policies = 1000
	workloads := z.services / z.namespaces
	for i := range policies {
		objects = append(objects, changes(b, policyYAML(fmt.Sprintf("p-%04d", i), z.namespace(0), z.name(i%workloads*z.namespaces), "/a"))...)
	}
	objects = append(objects, changes(b, policyYAML("all", z.namespace(0), "", "/a"))...)
	for _, c := range []struct{ name, policy, service string }{{"ofOneWorkload", "p-0000", z.name(0)}, {"ofTheNamespace", "all", ""}} {
		b.Run(c.name, func(b *testing.B) {
			w := load(objects)
			for i := range workloads {
				w.join(z.proxy(b, i*z.namespaces))
			}
			w.graph.Run()
			values := [2]string{policyYAML(c.policy, z.namespace(0), c.service, "/b"), policyYAML(c.policy, z.namespace(0), c.service, "/a")}
			moved := 0
			measure(b, nil, func(i int) { moved += len(w.change(changes(b, values[i%2]))) })
			b.ReportMetric(float64(moved)/float64(b.N), "moved")
		})
	}
}

// BenchmarkPolicyRequests sends requests one after another through a real Envoy, whose last rule permits them.
func BenchmarkPolicyRequests(b *testing.B) {
	for _, rules := range []int{0, 10, 100, 1000} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			var policies []authz.Policy
			for i := range rules {
				path := fmt.Sprintf("/other-%d*", i)
				if i == rules-1 {
					path = "/wanted"
				}
				policies = append(policies, authz.Policy{Namespace: "shop", Name: fmt.Sprintf("p-%04d", i), Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{{
					From: []*security.Rule_From{{Source: &security.Source{Principals: []string{"cluster.local/ns/shop/sa/*"}}}},
					To:   []*security.Rule_To{{Operation: &security.Operation{Methods: []string{"GET"}, Paths: []string{path}}}},
				}}}})
			}
			pki, boot := policytest.NewPKI(b), envoytest.Bootstrap()
			f := authz.Build(policies, []string{"cluster.local"}, nil, nil)
			boot.StaticResources.Listeners = append(boot.StaticResources.Listeners, pki.Listener(b, "l", policytest.Manager(b, f.HTTP, nil)))
			c := pki.Dial(b, envoytest.Start(b, boot)["l"], "cluster.local/ns/shop/sa/client")
			request := policytest.Request{Method: http.MethodGet, Host: "web", Path: "/wanted"}
			for b.Loop() {
				if status, _ := c.Ask(b, request); status != http.StatusOK {
					b.Fatalf("status %d", status)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
