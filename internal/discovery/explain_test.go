package discovery

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/explain"
)

// explained is a mesh with a server in two versions, one of which is not connected, a client with a proxy and one without, and a
// policy of each action. The policies come one line after the other, so that each has a line of its own.
const explained = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: 9080}, {name: tcp-raw, port: 90, targetPort: 9090}]}
---
apiVersion: v1
kind: Service
metadata: {name: old, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: old}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: shop, labels: {app: reviews, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: reviews}
status: {phase: Running, podIP: 10.99.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: web}
status: {phase: Running, podIP: 10.99.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: old-1, namespace: shop, labels: {app: old}}
status: {phase: Running, podIP: 10.99.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: away-1, namespace: shop, labels: {app: away, security.istio.io/tlsMode: istio}}
status: {phase: Running, podIP: 10.99.0.4}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, jwtRules: [{issuer: a.example, audiences: [shop], fromCookies: [session]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: viewers, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, rules: [{from: [{source: {serviceAccounts: [web]}}], to: [{operation: {methods: [GET]}}]}, {from: [{source: {requestPrincipals: [a.example/ann]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: never, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, action: DENY, rules: [{to: [{operation: {paths: [/nothing]}}]}, {to: [{operation: {paths: [/secret]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: seen, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, action: AUDIT, rules: [{to: [{operation: {paths: [/audited]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: maybe, namespace: shop, annotations: {istio.io/dry-run: "true"}}
spec: {selector: {matchLabels: {app: reviews}}, action: DENY, rules: [{to: [{operation: {paths: [/dry]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, action: CUSTOM, provider: {name: opa}, rules: [{to: [{operation: {paths: [/asked]}}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: old.shop.svc.cluster.local, port: 80}}]"}
`

func (p *plane) explain(query string) (int, explain.Answer, string) {
	p.t.Helper()
	code, body := p.get(p.addr.HTTP, "/debug/explain?"+query)
	var out explain.Answer
	if code == http.StatusOK {
		if err := json.Unmarshal([]byte(body), &out); err != nil {
			p.t.Fatal(err)
		}
	}
	return code, out, body
}

func TestExplain(t *testing.T) {
	p := start(t)
	p.emit(explained, true)
	server, web := p.connectAs("reviews", p.addr.GRPC, insecure.NewCredentials(), "").open(), p.connectApp("web").open()
	server.wait("the configuration", func() bool { return server.have["virtualInbound"] != "" })
	web.wait("the configuration", func() bool { return web.have["outbound|80||reviews.shop.svc.cluster.local"] != "" })
	const reviews = "to=reviews.shop&port=80"
	for query, want := range map[string]struct {
		decision explain.Decision
		status   int
		// reason is part of it, and of the notes.
		reason string
	}{
		"from=web-1.shop&" + reviews:                                                          {explain.Allowed, 0, "ALLOW by spec.rules[0] of AuthorizationPolicy shop/viewers (input.yaml:"},
		"from=web-1.shop&to=reviews.shop.svc.cluster.local&port=80":                           {explain.Allowed, 0, "ALLOW by spec.rules[0] of AuthorizationPolicy shop/viewers"},
		"from=web-1.shop&to=reviews-1.shop&port=9080":                                         {explain.Allowed, 0, "ALLOW by spec.rules[0] of AuthorizationPolicy shop/viewers"},
		"from=shop/web&" + reviews:                                                            {explain.Allowed, 0, "the client is an identity: DestinationRules for how it connects, and routes, are not considered"},
		"from=spiffe://cluster.local/ns/shop/sa/web&" + reviews:                               {explain.Allowed, 0, "ALLOW by spec.rules[0]"},
		"from=shop/other&" + reviews:                                                          {explain.Denied, 403, "no rule matches of AuthorizationPolicy shop/viewers (input.yaml:"},
		"from=spiffe://other/ns/shop/sa/web&" + reviews:                                       {explain.Denied, 0, "the client's identity is of no accepted trust domain"},
		"from=none&" + reviews:                                                                {explain.Denied, 0, "the port accepts mutual TLS only: PeerAuthentication shop/strict (input.yaml:"},
		"from=old-1.shop&" + reviews:                                                          {explain.Denied, 0, "the port accepts mutual TLS only"},
		"from=web-1.shop&method=PUT&" + reviews:                                               {explain.Denied, 403, "no rule matches"},
		"from=web-1.shop&path=/x/../secret?a%3Db&" + reviews:                                  {explain.Denied, 403, "DENY by spec.rules[1] of AuthorizationPolicy shop/never (input.yaml:"},
		"from=web-1.shop&path=/audited&" + reviews:                                            {explain.Allowed, 0, "AUDIT by spec.rules[0] of AuthorizationPolicy shop/seen"},
		"from=web-1.shop&path=/dry&" + reviews:                                                {explain.Allowed, 0, "dry run: it would be DENY by spec.rules[0] of AuthorizationPolicy shop/maybe"},
		"from=web-1.shop&path=/asked&" + reviews:                                              {explain.Asks, 0, "opa decides, by spec.rules[0] of AuthorizationPolicy shop/asked"},
		"from=shop/other&path=/asked&" + reviews:                                              {explain.Denied, 403, "no rule matches"},
		"from=shop/other&" + reviews + claims(`{"iss":"a.example","sub":"ann"}`):              {explain.Denied, 403, "the token is for none of the audiences"},
		"from=shop/other&" + reviews + claims(`{"iss":"a.example","sub":"ann","aud":"shop"}`): {explain.Allowed, 0, "ALLOW by spec.rules[1] of AuthorizationPolicy shop/viewers"},
		"from=shop/other&" + reviews + claims(`{"iss":"a.example","exp":1,"aud":"shop"}`):     {explain.Denied, 401, "not one that the JWT rules accept: want a valid one of a.example"},
		"from=web-1.shop&to=reviews.shop&port=90&tcp=true":                                    {explain.Denied, 0, "DENY by spec.rules[0] of AuthorizationPolicy shop/never"},
		"from=web-1.shop&to=old.shop":                                                         {explain.Allowed, 0, "it has no proxy: nobody enforces policies"},
		"from=web-1.shop&to=away-1.shop&port=80":                                              {explain.Unknown, 0, "its proxy is not connected"},
	} {
		code, got, body := p.explain(query)
		if code != http.StatusOK || got.Decision != want.decision || len(got.Workloads) != 1 {
			t.Errorf("%s: response %d: %s", query, code, body)
			continue
		}
		w := got.Workloads[0]
		if text := w.Reason + "\n" + strings.Join(w.Notes, "\n"); w.Status != want.status || !strings.Contains(text, want.reason) {
			t.Errorf("%s: status %d, %s; want %d, %s", query, w.Status, text, want.status, want.reason)
		}
	}
	_, got, body := p.explain("from=web-1.shop&path=/secret&" + reviews)
	w := got.Workloads[0]
	if w.Name != "reviews-1.shop" || w.Port != 9080 || w.Mode != "STRICT" || w.Connects != explain.MutualTLS || len(w.By) != 1 || w.By[0] != "reviews.shop.svc.cluster.local:80" || got.From.Identity != "spiffe://cluster.local/ns/shop/sa/web" {
		t.Error(body)
	}
	if len(w.Tokens) != 1 || w.Tokens[0].Object != "RequestAuthentication shop/tokens" || w.Tokens[0].From[0] != "cookie session" {
		t.Errorf("tokens %+v", w.Tokens)
	}
	var states []string
	for _, r := range w.Rules {
		states = append(states, r.Action+" "+r.State)
	}
	if got, want := strings.Join(states, ", "), "CUSTOM no match, AUDIT no match, DENY no match, DENY no match, DENY matches, ALLOW not reached, ALLOW not reached"; got != want {
		t.Errorf("rules %s, want %s", got, want)
	}
}

func claims(text string) string { return "&claims=" + url.QueryEscape(text) }

func TestExplainRefuses(t *testing.T) {
	p := start(t)
	p.emit(explained, true)
	for query, want := range map[string]string{
		"":                                      "missing from",
		"from=none":                             "missing to",
		"from=nobody.shop&to=old.shop":          `no Pod and no connected proxy "nobody.shop"`,
		"from=none&to=nobody.shop":              `no Pod, no connected proxy and no service "nobody.shop"`,
		"from=a/b/c&to=old.shop":                "want NAMESPACE/ACCOUNT",
		"from=spiffe://x&to=old.shop":           "invalid identity",
		"from=none&to=reviews.shop":             "service reviews.shop.svc.cluster.local has the ports 80, 90: want one of them as port",
		"from=none&to=reviews.shop&port=1":      "has no port 1: want one of 80, 90",
		"from=none&to=old.shop&port=0":          "invalid port",
		"from=none&to=old.shop&path=x":          "want one that begins with /",
		"from=none&to=old.shop&method=A%20B":    "invalid method",
		"from=none&to=old.shop&header=a":        "want NAME=VALUE",
		"from=none&to=old.shop&header=host=a":   "header host: want host",
		"from=none&to=old.shop&claims={}":       "claims without an issuer",
		"from=none&to=old.shop&tcp=true&path=/": "want them without tcp",
		"from=none&to=old.shop&address=x":       "invalid address",
	} {
		code, _, body := p.explain(query)
		if code == http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: response %d: %s; want %s", query, code, body, want)
		}
	}
	post := func(typ, body string) (int, string) {
		resp, err := http.Post("http://"+p.addr.HTTP+"/debug/explain", typ, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if code, body := post("application/json", `{"from": "none", "to": "old.shop"}`); code != http.StatusOK || !strings.Contains(body, "nobody enforces policies") {
		t.Errorf("response %d: %s", code, body)
	}
	if code, body := post("text/plain", `{"from": "none", "to": "old.shop"}`); code != http.StatusBadRequest {
		t.Errorf("response %d: %s", code, body)
	}
	if code, body := post("application/json", `{"path": "`+strings.Repeat("x", maxQuestion)+`"}`); code != http.StatusBadRequest || !strings.Contains(body, "too large") {
		t.Errorf("response %d: %s", code, body)
	}
}

// routed has clients' routes: two subsets, one of which no workload has, rewrites, an answer, a fault, a redirect, and another host.
const routed = `
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews.shop.svc.cluster.local, subsets: [{name: v1, labels: {app: reviews}}, {name: none, labels: {app: nobody}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.shop.svc.cluster.local]
  http:
  - {name: split, match: [{uri: {prefix: /split}}], route: [{destination: {host: reviews, subset: v1, port: {number: 80}}, weight: 90}, {destination: {host: old, port: {number: 80}}, weight: 10}]}
  - {name: rewritten, match: [{uri: {prefix: /public}}], rewrite: {uri: /secret, authority: other.example}, route: [{destination: {host: reviews, subset: v1, port: {number: 80}}}]}
  - {name: nobody, match: [{headers: {x-v: {exact: none}}}], route: [{destination: {host: reviews, subset: none, port: {number: 80}}}]}
  - {name: lost, match: [{uri: {prefix: /lost}}], route: [{destination: {host: missing.example, port: {number: 80}}}]}
  - {name: teapot, match: [{uri: {prefix: /answer}}], directResponse: {status: 418}}
  - {name: moved, match: [{uri: {prefix: /moved}}], redirect: {uri: /}}
  - {name: fails, match: [{uri: {prefix: /fails}}], fault: {abort: {httpStatus: 500, percentage: {value: 10}}}, mirror: {host: old, port: {number: 80}}, route: [{destination: {host: reviews, subset: v1, port: {number: 80}}}]}
  - {name: others, match: [{method: {exact: GET}}], route: [{destination: {host: reviews, subset: v1, port: {number: 80}}}]}
`

// TestExplainRoutes asks about requests that a client's routes send to different places.
func TestExplainRoutes(t *testing.T) {
	p := start(t)
	p.emit(explained+routed, true)
	server, web := p.connectAs("reviews", p.addr.GRPC, insecure.NewCredentials(), "").open(), p.connectApp("web").open()
	server.wait("the configuration", func() bool { return server.have["virtualInbound"] != "" })
	web.wait("the configuration", func() bool { return web.have["outbound|80|v1|reviews.shop.svc.cluster.local"] != "" })
	const v1, old = "outbound|80|v1|reviews.shop.svc.cluster.local", "outbound|80||old.shop.svc.cluster.local"
	for query, want := range map[string]struct {
		decision explain.Decision
		status   int
		// reason is part of the first reason, route the name of the route, clusters where it leads.
		reason, route string
		clusters      []string
	}{
		"from=web-1.shop&to=reviews.shop&port=80":                           {explain.Allowed, 0, "ALLOW by spec.rules[0]", "others", []string{v1}},
		"from=shop/web-1&to=shop/reviews&port=80":                           {explain.Allowed, 0, "ALLOW by spec.rules[0]", "others", []string{v1}},
		"from=shop/web-1&to=http://reviews/x":                               {explain.Allowed, 0, "ALLOW by spec.rules[0]", "others", []string{v1}},
		"from=shop/web-1&to=http://reviews.shop:80?x=y":                     {explain.Allowed, 0, "ALLOW by spec.rules[0]", "others", []string{v1}},
		"from=shop/web-1&to=http://reviews/split":                           {explain.Allowed, 0, "ALLOW by spec.rules[0]", "split", []string{v1, old}},
		"from=shop/web-1&to=http://reviews/secret":                          {explain.Denied, 403, "DENY by spec.rules[1]", "others", []string{v1}},
		"from=shop/web-1&to=http://reviews/public":                          {explain.Denied, 403, "DENY by spec.rules[1]", "rewritten", []string{v1}},
		"from=shop/web-1&to=http://reviews/&header=x-v=none":                {explain.Answered, 503, "cluster outbound|80|none|reviews.shop.svc.cluster.local has no endpoint", "nobody", []string{"outbound|80|none|reviews.shop.svc.cluster.local"}},
		"from=shop/web-1&to=http://reviews/lost":                            {explain.Answered, 503, "leads to cluster outbound|80||missing.example, which it does not have", "lost", []string{"outbound|80||missing.example"}},
		"from=shop/web-1&to=http://reviews/answer":                          {explain.Answered, 418, "answers itself, by VirtualService shop/reviews (input.yaml:", "teapot", nil},
		"from=shop/web-1&to=http://reviews/moved":                           {explain.Answered, 301, "answers itself, by VirtualService shop/reviews", "moved", nil},
		"from=shop/web-1&to=http://reviews/fails":                           {explain.Allowed, 0, "ALLOW by spec.rules[0]", "fails", []string{v1}},
		"from=shop/web-1&to=http://reviews/&method=PUT":                     {explain.Answered, 404, "no route of virtual host reviews.shop.svc.cluster.local:80 matches", "", nil},
		"from=shop/web-1&to=http://old/":                                    {explain.Allowed, 0, "nobody enforces policies", "default", []string{old}},
		"from=shop/web-1&to=reviews.shop&port=90&tcp=true":                  {explain.Denied, 0, "DENY by spec.rules[0]", "", []string{"outbound|90||reviews.shop.svc.cluster.local"}},
		"from=shop/web-1&to=reviews.shop&port=80&host=old.shop":             {explain.Allowed, 0, "nobody enforces policies", "default", []string{old}},
		"from=shop/web-1&to=reviews.shop&port=80&tcp=true":                  {explain.Denied, 0, "the port accepts mutual TLS only", "", []string{"PassthroughCluster"}},
		"from=shop/web-1&to=reviews.shop&port=80&host=unknown.example":      {explain.Denied, 0, "the port accepts mutual TLS only", "allow_any", []string{"PassthroughCluster"}},
		"from=shop/web-1&to=http://reviews/public&header=x-v=none&method=X": {explain.Denied, 403, "DENY by spec.rules[1]", "rewritten", []string{v1}},
	} {
		code, got, body := p.explain(query)
		if code != http.StatusOK || got.Route == nil || len(got.Workloads) == 0 {
			t.Errorf("%s: response %d: %s", query, code, body)
			continue
		}
		var clusters []string
		for _, c := range got.Route.Clusters {
			clusters = append(clusters, c.Name)
		}
		w := got.Workloads[0]
		if got.Decision != want.decision || w.Status != want.status || !strings.Contains(w.Reason, want.reason) || got.Route.Name != want.route || !slices.Equal(clusters, want.clusters) {
			t.Errorf("%s: %s, want %+v", query, body, want)
		}
	}
	_, got, body := p.explain("from=shop/web-1&to=http://reviews/public/x?y")
	if c := got.Route.Clusters[0]; c.Request == nil || *c.Request != (explain.Asked{Method: "GET", Host: "other.example", Path: "/secret/x?y"}) || c.Endpoints == nil || *c.Endpoints != 1 || !got.Workloads[0].Changed || got.Route.Object != "VirtualService shop/reviews" {
		t.Error(body)
	}
	if got.Request.Host != "reviews" || got.Request.Path != "/public/x?y" || got.Route.Listener != "0.0.0.0_80" {
		t.Error(body)
	}
	_, got, body = p.explain("from=shop/web-1&to=http://reviews/fails")
	if notes := strings.Join(got.Route.Notes, "\n"); !strings.Contains(notes, "10 % of requests are aborted with 500") || !strings.Contains(notes, "a copy of requests is sent to "+old) {
		t.Error(body)
	}
	for query, want := range map[string]string{
		"from=shop/web-1&to=https://reviews/":                   "want http://",
		"from=shop/web-1&to=http://":                            "want http://HOST:PORT/PATH",
		"from=shop/web-1&to=http://reviews:0/":                  "want a port of 1–65535",
		"from=shop/web-1&to=http://reviews/&port=80":            "port and path are those of the URL",
		"from=shop/web-1&to=http://reviews/&tcp=true":           "has no URL",
		"from=shop/web-1&to=http://nobody/":                     `no service "nobody"`,
		"from=shop/web-1&to=http://reviews:81/":                 "has no port 81",
		"from=shop/web-1&to=http://u:p@reviews/":                "want http://HOST:PORT/PATH",
		"from=none&to=http://reviews/":                          `NAME.NAMESPACE; there is reviews.shop`,
		"from=shop/web-1&to=" + url.QueryEscape("http://a\x00"): "invalid URL",
	} {
		if code, _, body := p.explain(query); code == http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: response %d: %s; want %s", query, code, body, want)
		}
	}
}
