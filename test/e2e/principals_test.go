package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
)

// byPrincipal are policies of three actions for three identities. AUDIT and dry run refuse nobody.
const byPrincipal = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: people}
spec:
  selector: {matchLabels: {app: server}}
  rules:
  - from: [{source: {principals: [cluster.local/ns/people/sa/ann]}}]
    to: [{operation: {ports: ["9080"]}}]
  - from: [{source: {principals: [cluster.local/ns/people/sa/bob]}}]
    to: [{operation: {ports: ["9080"], methods: [GET]}}]
  - from: [{source: {namespaces: [guests]}}]
    to: [{operation: {ports: ["9100"]}}]
  - from: [{source: {namespaces: [guests]}}]
    to: [{operation: {ports: ["9080"], paths: [/public]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: people}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{from: [{source: {notPrincipals: [cluster.local/ns/people/sa/bob]}}], to: [{operation: {ports: ["9080"], paths: ["/bobs*"]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: audit, namespace: people}
spec:
  selector: {matchLabels: {app: server}}
  action: AUDIT
  rules: [{from: [{source: {principals: [cluster.local/ns/people/sa/bob]}}], to: [{operation: {ports: ["9080"]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: planned, namespace: people, annotations: {istio.io/dry-run: "true"}}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{from: [{source: {principals: [cluster.local/ns/people/sa/ann]}}], to: [{operation: {ports: ["9080"], paths: [/planned]}}]}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: audit, namespace: people}
spec: {selector: {matchLabels: {app: server}}, accessLogging: [{providers: [{name: audit}], match: {mode: SERVER}}]}
`

// statusOf makes a request from a Pod and returns its status.
func statusOf(ctx context.Context, m *meshup.Mesh, from, method, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := meshup.Client(m.Pod(from).Net, 0).Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}

// TestPoliciesByPrincipal has policies of each action but CUSTOM between three identities, with STRICT mutual TLS: what each may is
// what the policies say of it, and who has no identity may nothing.
func TestPoliciesByPrincipal(t *testing.T) {
	m, config := start(t, "principals")
	const ann, bob, carol = "ann-1.people", "bob-1.people", "carol-1.guests"
	const url = "http://server.people:9080"
	server := m.Pod("server-1.people")
	if err := server.Write("logs/audit", nil); err != nil { // Envoy appends to the file, which is its user's
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, config, "mesh.yaml", strings.Replace(string(text), "  mesh: |\n", fmt.Sprintf(`  mesh: |
    extensionProviders:
    - {name: audit, envoyFileAccessLog: {path: %s, logFormat: {text: "%%REQ(:PATH)%% audit=%%DYNAMIC_METADATA(envoy.common:access_log_hint)%%"}}}
`, filepath.Join(server.Dir, "logs", "audit")), 1))
	put(t, config, "policies.yaml", byPrincipal)
	for _, c := range []struct {
		from, method, path string
		want               int
	}{
		{ann, http.MethodGet, "/", 200},
		{ann, http.MethodPost, "/", 200},
		{ann, http.MethodGet, "/bobs/x", 403},
		{ann, http.MethodGet, "/planned", 200},
		{bob, http.MethodGet, "/", 200},
		{bob, http.MethodPost, "/", 403},
		{bob, http.MethodGet, "/bobs/x", 200},
		{bob, http.MethodPost, "/bobs/x", 403},
		{carol, http.MethodGet, "/", 403},
		{carol, http.MethodGet, "/public", 200},
		{carol, http.MethodPost, "/public", 200},
		{carol, http.MethodGet, "/bobs/x", 403},
	} {
		steady(t, fmt.Sprintf("%s %s from %s has status %d", c.method, c.path, c.from, c.want), func(ctx context.Context) error {
			got, err := statusOf(ctx, m, c.from, c.method, url+c.path)
			if err == nil && got != c.want {
				err = fmt.Errorf("status %d", got)
			}
			return err
		})
	}
	for from, want := range map[string]bool{ann: false, bob: false, carol: true} {
		steady(t, fmt.Sprintf("a connection from %s passes: %v", from, want), func(ctx context.Context) error {
			line, err := meshup.Line(ctx, m.Pod(from).Net, "server.people:9100", "hello")
			if passed := err == nil && line != ""; passed != want {
				return fmt.Errorf("it answers %q, error %s", line, fmt.Sprint(err))
			}
			return nil
		})
	}
	steady(t, "who has no identity gets no answer", func(ctx context.Context) error {
		if got, err := statusOf(ctx, m, "plain-1.people", http.MethodGet, "http://10.99.0.14:9080/public"); err == nil {
			return fmt.Errorf("a request in plaintext has status %d", got)
		}
		if line, err := meshup.Line(ctx, m.Pod("plain-1.people").Net, "10.99.0.14:9100", "hello"); err == nil {
			return fmt.Errorf("a connection in plaintext answers %q", line)
		}
		return nil
	})
	// What refuses nobody is told: AUDIT marks the requests for access logs, dry run is counted.
	if err := meshup.Await(t.Context(), time.Minute, "bob's requests are marked, ann's and carol's are not, and ann's in dry run are counted", func(ctx context.Context) error {
		for from, want := range map[string]string{ann: "false", bob: "true", carol: "false"} {
			path := fmt.Sprintf("/public?%d", time.Now().UnixNano())
			if _, err := statusOf(ctx, m, from, http.MethodGet, url+path); err != nil {
				return err
			}
			line := fmt.Sprintf("%s audit=%s\n", path, want)
			if err := meshup.Await(ctx, 10*time.Second, "the request is logged", func(context.Context) error {
				text, err := os.ReadFile(filepath.Join(server.Dir, "logs", "audit"))
				if err == nil && !strings.Contains(string(text), line) {
					err = fmt.Errorf("no line %q in the last of the log: %.200q", line, text[max(0, len(text)-200):])
				}
				return err
			}); err != nil {
				return err
			}
		}
		n, err := server.Stats(ctx, "istio_dry_run_deny_.shadow_denied")
		if err != nil {
			return err
		}
		for name, v := range n {
			if strings.HasPrefix(name, "http.") && v > 0 {
				return nil
			}
		}
		return fmt.Errorf("nothing is counted: %v", n)
	}); err != nil {
		t.Fatal(err)
	}
}

// probe is a request that a policy is to deny.
type probe struct {
	began  time.Time
	status int
	err    error
}

// TestPolicyAddedUnderLoad adds and removes a DENY under load. No allowed request fails. Of the forbidden ones, each on a connection of
// its own, none passes that begins after the acknowledgement, which pilotctl wait waits for; a second is left for Envoy's threads, which
// take the listener after its main thread has acknowledged it.
func TestPolicyAddedUnderLoad(t *testing.T) {
	m, config := start(t, "principals")
	const url = "http://server.people:9080/secret"
	const policy = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: secret, namespace: people, annotations: {round: "ROUND"}}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{from: [{source: {principals: [cluster.local/ns/people/sa/bob]}}], to: [{operation: {paths: [/secret]}}]}]
`
	allowed := load.New(t.Context(), m.Pod("ann-1.people").Net.Dial)
	allowed.KeepAlive("server.people:9080", 3, 10*time.Millisecond)
	allowed.HTTP2("server.people:9080", 1, 10*time.Millisecond)
	allowed.Churn("server.people:9080", 1, 20*time.Millisecond)
	for round := range 3 {
		steady(t, "/secret is open", func(ctx context.Context) error {
			got, err := statusOf(ctx, m, "bob-1.people", http.MethodGet, url)
			if err == nil && got != http.StatusOK {
				err = fmt.Errorf("status %d", got)
			}
			return err
		})
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		var probes []probe
		var done sync.WaitGroup
		for range 3 {
			done.Go(func() {
				for ctx.Err() == nil {
					p := probe{began: time.Now()}
					p.status, p.err = statusOf(t.Context(), m, "bob-1.people", http.MethodGet, url)
					mu.Lock()
					probes = append(probes, p)
					mu.Unlock()
				}
			})
		}
		halt := sync.OnceFunc(func() {
			stop()
			done.Wait()
		})
		defer halt()
		put(t, config, "policy.yaml", strings.Replace(policy, "ROUND", fmt.Sprint(round), 1))
		if code, out, log := pilotctl(t, m, "wait", "-f", filepath.Join(config, "policy.yaml"), "--timeout", "60s"); code != 0 {
			t.Fatalf("pilotctl wait has exit code %d:\n%s%s", code, out, log)
		}
		inForce := time.Now().Add(time.Second)
		await(t, "there are requests after the acknowledgement", func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, p := range probes {
				if p.began.After(inForce) {
					n++
				}
			}
			if n < 100 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		halt()
		before := 0
		for _, p := range probes {
			switch late := p.began.After(inForce); {
			case p.err != nil:
				t.Errorf("round %d: a forbidden request has no answer: %v", round, p.err)
			case p.status == http.StatusOK && late:
				t.Errorf("round %d: a forbidden request passed that began %v after the acknowledgement", round, p.began.Sub(inForce)+time.Second)
			case p.status == http.StatusOK:
				before++
			case p.status != http.StatusForbidden:
				t.Errorf("round %d: a forbidden request has status %d", round, p.status)
			}
		}
		t.Logf("round %d: %d forbidden requests, of which %d passed before the policy was in force", round, len(probes), before)
		put(t, config, "policy.yaml", "")
	}
	if r := allowed.Stop(); r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d allowed requests failed: %v", r.Sent, r.Failures)
	}
}
