package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/token"
)

// explainPolicies are policies of each action, by principals, methods, paths, headers and claims. Clients connect to the service
// forced in plaintext.
const explainPolicies = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: ask}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: open, namespace: ask}
spec: {selector: {matchLabels: {app: open}}, mtls: {mode: PERMISSIVE}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: forced, namespace: ask}
spec: {host: forced.ask.svc.cluster.local, trafficPolicy: {tls: {mode: DISABLE}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: ask}
spec:
  selector: {matchLabels: {app: strict}}
  rules:
  - from: [{source: {principals: [cluster.local/ns/ask/sa/ann]}}]
  - from: [{source: {principals: [cluster.local/ns/ask/sa/bob]}}]
    to: [{operation: {methods: [GET], paths: ["/public/*"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: never, namespace: ask}
spec:
  selector: {matchLabels: {app: strict}}
  action: DENY
  rules: [{to: [{operation: {paths: [/secret]}}]}, {when: [{key: "request.headers[x-test]", values: ["bad*"]}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: seen, namespace: ask}
spec: {selector: {matchLabels: {app: strict}}, action: AUDIT, rules: [{to: [{operation: {paths: ["/public/*"]}}]}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: ask}
spec: {selector: {matchLabels: {app: open}}, jwtRules: [{issuer: a.example, audiences: [shop], jwks: 'KEYS'}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tokens, namespace: ask}
spec:
  selector: {matchLabels: {app: open}}
  rules:
  - from: [{source: {requestPrincipals: [a.example/carol]}}]
  - to: [{operation: {paths: [/open]}}]
  - from: [{source: {ipBlocks: [10.99.0.12]}}]
    to: [{operation: {paths: [/outside]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked, namespace: ask}
spec:
  selector: {matchLabels: {app: open}}
  action: CUSTOM
  provider: {name: absent}
  rules: [{to: [{operation: {paths: [/asked]}}]}]
`

// TestExplainAgreesWithTheMesh asks pilotctl explain whether a request is let in, and then sends it: from three clients to servers of
// each mode of mutual TLS, and without a proxy.
func TestExplainAgreesWithTheMesh(t *testing.T) {
	m, config := start(t, "explain")
	issuer := token.New(t, "a.example")
	put(t, config, "policies.yaml", strings.Replace(explainPolicies, "KEYS", issuer.Keys(t), 1))
	if code, _, stderr := pilotctl(t, m, "wait", "-f", filepath.Join(config, "policies.yaml"), "--timeout", "60s"); code != 0 {
		t.Fatalf("pilotctl wait: exit code %d: %s", code, stderr)
	}
	type request struct {
		method, path, header string
		claims               map[string]any
	}
	carol := map[string]any{"sub": "carol", "aud": "shop"}
	requests := map[string][]request{
		"strict": {{path: "/"}, {path: "/public/x"}, {method: "POST", path: "/public/x"}, {path: "/secret"}, {path: "/public/../secret"}, {path: "/public/x", header: "x-test=bad one"}, {path: "/public/x", header: "x-test=good"}},
		"open": {
			{path: "/"}, {path: "/open"}, {path: "/outside"}, {path: "/asked"}, {path: "/", claims: carol}, {path: "/", claims: map[string]any{"sub": "dave", "aud": "shop"}},
			{path: "/open", claims: map[string]any{"sub": "carol", "aud": "other"}}, {path: "/open", claims: map[string]any{"sub": "carol", "aud": "shop", "exp": 1}},
		},
		"forced": {{path: "/"}},
		"bare":   {{path: "/"}},
	}
	addresses := map[string]string{"strict": "10.99.0.20", "open": "10.99.0.21", "forced": "10.99.0.22", "bare": "10.99.0.23"}
	decisions := map[string]int{}
	for server, list := range requests {
		for _, client := range []string{"ann-1.ask", "bob-1.ask", "outside-1.ask"} {
			for _, r := range list {
				args := []string{"explain", client, server + ".ask", "-o", "json", "--path", r.path}
				header := http.Header{}
				if r.method != "" {
					args = append(args, "-X", r.method)
				}
				if r.header != "" {
					args = append(args, "-H", r.header)
					name, value, _ := strings.Cut(r.header, "=")
					header.Set(name, value)
				}
				if r.claims != nil {
					claims := map[string]any{"iss": "a.example"}
					for k, v := range r.claims {
						claims[k] = v
					}
					text, err := json.Marshal(claims)
					if err != nil {
						t.Fatal(err)
					}
					args = append(args, "--jwt-claims", string(text))
					header.Set("authorization", "Bearer "+issuer.Sign(t, r.claims))
				}
				code, out, stderr := pilotctl(t, m, args...)
				var said struct {
					Decision  string
					Workloads []struct {
						Status int
						Reason string
					}
				}
				if err := json.Unmarshal([]byte(out), &said); err != nil || len(said.Workloads) != 1 {
					t.Fatalf("pilotctl %q: exit code %d: %v: %s%s", args, code, err, out, stderr)
				}
				if want := map[string]int{"allowed": 0, "denied": 1}[said.Decision]; code != want || said.Decision != "allowed" && said.Decision != "denied" {
					t.Errorf("pilotctl %q: exit code %d: %s", args, code, out)
					continue
				}
				decisions[said.Decision]++
				url := "http://" + server + ".ask:9080" + r.path
				if client == "outside-1.ask" {
					url = "http://" + addresses[server] + ":9080" + r.path
				}
				agrees(t, fmt.Sprintf("%s to %s: %+v: %s", client, server, r, said.Workloads[0].Reason), said.Decision == "allowed", said.Workloads[0].Status, func(ctx context.Context) (int, error) {
					return sent(ctx, m, client, r.method, url, header)
				})
			}
		}
	}
	if decisions["allowed"] < 10 || decisions["denied"] < 10 {
		t.Errorf("decisions %v: the cases show nothing", decisions)
	}
	t.Logf("decisions %v", decisions)
}

// explainRoutes are routes by path, header, query and method, with weights, rewrites, answers, faults and lost destinations, to a
// service one subset of which refuses some paths.
const explainRoutes = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: split, namespace: ask}
spec:
  host: split.ask.svc.cluster.local
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
  - {name: v3, labels: {version: v3}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: split, namespace: ask}
spec:
  hosts: [split.ask.svc.cluster.local]
  http:
  - {match: [{headers: {end-user: {exact: ann}}}], route: [{destination: {host: split, subset: v2}}]}
  - {match: [{queryParams: {v: {exact: "2"}}}], route: [{destination: {host: split, subset: v2}}]}
  - {match: [{uri: {prefix: /old/}}], rewrite: {uri: /new/}, route: [{destination: {host: split, subset: v2}}]}
  - {match: [{uri: {prefix: /door}}], rewrite: {uri: /secret}, route: [{destination: {host: split, subset: v2}}]}
  - {match: [{uri: {regex: "/items/[0-9]+"}}], rewrite: {uriRegexRewrite: {match: "/items/([0-9]+)", rewrite: '/by/\1'}}, route: [{destination: {host: split, subset: v1}}]}
  - {match: [{uri: {exact: /both}}], route: [{destination: {host: split, subset: v1}, weight: 50}, {destination: {host: split, subset: v2}, weight: 50}]}
  - {match: [{uri: {exact: /empty}}], route: [{destination: {host: split, subset: v3}}]}
  - {match: [{uri: {exact: /lost}}], route: [{destination: {host: missing.example}}]}
  - {match: [{uri: {exact: /teapot}}], directResponse: {status: 418}}
  - {match: [{uri: {exact: /moved}}], redirect: {uri: /both, redirectCode: 302}}
  - {match: [{uri: {exact: /broken}}], fault: {abort: {httpStatus: 501, percentage: {value: 100}}}, route: [{destination: {host: split, subset: v1}}]}
  - {match: [{uri: {exact: /other}}], route: [{destination: {host: bare}}]}
  - {match: [{method: {exact: GET}}], headers: {request: {set: {x-test: bad}}}, route: [{destination: {host: split, subset: v1}}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: split, namespace: ask}
spec:
  selector: {matchLabels: {app: split, version: v2}}
  action: DENY
  rules: [{to: [{operation: {paths: [/secret, /both]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: split-headers, namespace: ask}
spec:
  selector: {matchLabels: {app: split, version: v1}}
  action: DENY
  rules: [{to: [{operation: {paths: [/header]}}], when: [{key: "request.headers[x-test]", values: [bad]}]}]
`

// TestExplainAgreesAboutRoutes asks pilotctl explain where a request goes, and then sends it: the Pod that answers is one of those that
// were named, with the path that was told, or the status is the one that was told.
func TestExplainAgreesAboutRoutes(t *testing.T) {
	m, config := start(t, "explain")
	put(t, config, "routes.yaml", explainRoutes)
	if code, _, stderr := pilotctl(t, m, "wait", "-f", filepath.Join(config, "routes.yaml"), "--timeout", "60s"); code != 0 {
		t.Fatalf("pilotctl wait: exit code %d: %s", code, stderr)
	}
	for _, r := range []struct {
		url, method, header string
		// decision and pods are what must come out, so that the test does not compare two mistakes.
		decision, pods string
	}{
		{url: "/", decision: "allowed", pods: "split-v1"},
		{url: "/", header: "end-user=ann", decision: "allowed", pods: "split-v2"},
		{url: "/", header: "end-user=bob", decision: "allowed", pods: "split-v1"},
		{url: "/?v=2", decision: "allowed", pods: "split-v2"},
		{url: "/?v=22", decision: "allowed", pods: "split-v1"},
		{url: "/old/x?y", decision: "allowed", pods: "split-v2"},
		{url: "/door", decision: "denied", pods: "split-v2"},
		{url: "/secret", decision: "allowed", pods: "split-v1"},
		{url: "/secret", header: "end-user=ann", decision: "denied", pods: "split-v2"},
		{url: "/items/7", decision: "allowed", pods: "split-v1"},
		{url: "/items/x", decision: "allowed", pods: "split-v1"},
		{url: "/header", decision: "denied", pods: "split-v1"},
		{url: "/both", decision: "depends", pods: "split-v1 split-v2"},
		{url: "/empty", decision: "answered", pods: "ann-1"},
		{url: "/lost", decision: "answered", pods: "ann-1"},
		{url: "/teapot", decision: "answered", pods: "ann-1"},
		{url: "/moved", decision: "answered", pods: "ann-1"},
		{url: "/broken", decision: "answered", pods: "ann-1"},
		{url: "/other", decision: "allowed", pods: "bare-1"},
		{url: "/", method: "PUT", decision: "answered", pods: "ann-1"},
		{url: "/x/../teapot", decision: "answered", pods: "ann-1"},
	} {
		url, header := "http://split:9080"+r.url, http.Header{}
		args := []string{"explain", "ask/ann-1", url, "-o", "json"}
		if r.method != "" {
			args = append(args, "-X", r.method)
		}
		if r.header != "" {
			args = append(args, "-H", r.header)
			name, value, _ := strings.Cut(r.header, "=")
			header.Set(name, value)
		}
		code, out, stderr := pilotctl(t, m, args...)
		var said saidOfRoute
		if err := json.Unmarshal([]byte(out), &said); err != nil || len(said.Workloads) == 0 {
			t.Fatalf("pilotctl %q: exit code %d: %v: %s%s", args, code, err, out, stderr)
		}
		var pods []string
		for _, w := range said.Workloads {
			pods = append(pods, strings.TrimSuffix(w.Name, ".ask"))
		}
		if said.Decision != r.decision || strings.Join(pods, " ") != r.pods {
			t.Errorf("pilotctl %q: %s of %v, want %s of %s: %s", args, said.Decision, pods, r.decision, r.pods, out)
			continue
		}
		client := meshup.Client(m.Pod("ann-1.ask").Net, 0)
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		await(t, fmt.Sprintf("%+v: %s", r, said.Workloads[0].Reason), func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, r.method, url, http.NoBody)
			if err != nil {
				return err
			}
			req.Header = header
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			var got meshup.Answer
			if res.StatusCode == http.StatusOK {
				if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
					return err
				}
			}
			return said.agrees(res.StatusCode, got)
		})
		client.CloseIdleConnections()
	}
}

// saidOfRoute is what pilotctl explain says.
type saidOfRoute struct {
	Decision string
	Request  struct{ Path string }
	Route    struct {
		Clusters []struct{ Request struct{ Path string } }
	}
	Workloads []struct {
		Name, Decision, Reason string
		Status                 int
	}
}

// agrees compares it with an answer of the mesh.
func (s *saidOfRoute) agrees(status int, a meshup.Answer) error {
	for _, w := range s.Workloads {
		if w.Decision != "allowed" {
			if status == w.Status && a.Pod == "" {
				return nil
			}
			continue
		}
		path := s.Request.Path
		for _, c := range s.Route.Clusters {
			if c.Request.Path != "" {
				path = c.Request.Path
			}
		}
		path, _, _ = strings.Cut(path, "?")
		if status == http.StatusOK && strings.HasPrefix(w.Name, a.Pod) && a.Pod != "" && a.Path == path {
			return nil
		}
	}
	return fmt.Errorf("the mesh answers %d, %+v, and pilotctl explain says %+v", status, a, *s)
}

// agrees waits until a request is answered as was said. Threads of an Envoy take a new listener at different times.
func agrees(t *testing.T, what string, allowed bool, status int, send func(context.Context) (int, error)) {
	t.Helper()
	await(t, what, func(ctx context.Context) error {
		got, err := send(ctx)
		switch {
		case allowed && (err != nil || got != http.StatusOK):
			return fmt.Errorf("it is allowed, and the mesh answers %d, error %w", got, err)
		case !allowed && err == nil && got < http.StatusBadRequest, !allowed && status != 0 && got != status:
			return fmt.Errorf("it is denied with %d, and the mesh answers %d, error %w", status, got, err)
		}
		return nil
	})
}

// sent sends a request from a Pod and returns the status of the answer.
func sent(ctx context.Context, m *meshup.Mesh, from, method, url string, header http.Header) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := meshup.Client(m.Pod(from).Net, 0).Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}
