package authz_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/policytest"
)

var trustDomains = []string{"cluster.local", "old-td"}

const serverName = policytest.ServerName

// sets are policies of namespace shop, each as YAML of specs; a spec that begins with "dry" is a dry run.
var sets = []string{
	`{}`, `{rules: [{}]}`, `{action: DENY}`, `{action: DENY, rules: [{}]}`, `{action: AUDIT, rules: [{}]}`,
	`{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}`,
	`{rules: [{from: [{source: {principals: [old-td/ns/shop/sa/client]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["cluster.local/ns/bad/*", "*/sa/client"]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["*"]}}]}]}`,
	`{rules: [{from: [{source: {principals: [other.td/ns/bad/sa/b]}}]}]}`,
	`{action: DENY, rules: [{from: [{source: {notPrincipals: ["*"]}}]}]}`,
	`{rules: [{from: [{source: {notPrincipals: [old-td/ns/shop/sa/client]}}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop]}}]}]}`, `{rules: [{from: [{source: {namespaces: ["b*", "*hop"]}}]}]}`,
	`{action: DENY, rules: [{from: [{source: {notNamespaces: [shop]}}]}]}`,
	`{rules: [{from: [{source: {serviceAccounts: [client]}}]}]}`, `{rules: [{from: [{source: {serviceAccounts: [bad/b]}}]}]}`,
	`{rules: [{from: [{source: {notServiceAccounts: [shop/client]}}]}]}`,
	`{rules: [{from: [{source: {trustDomains: [other.td]}}]}]}`, `{rules: [{from: [{source: {trustDomains: ["o*"], notTrustDomains: ["*.td"]}}]}]}`,
	`{rules: [{from: [{source: {ipBlocks: [127.0.0.0/8], notIpBlocks: [127.0.0.2]}}]}]}`, `{rules: [{from: [{source: {ipBlocks: ["2001:db8::/32", 10.1.1.1]}}]}]}`,
	`{rules: [{from: [{source: {remoteIpBlocks: [192.0.2.0/24], notRemoteIpBlocks: [192.0.2.7/32]}}]}]}`,
	`{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`, `{rules: [{from: [{source: {notRequestPrincipals: [a/b, "c*"]}}]}]}`,
	`{rules: [{to: [{operation: {methods: [GET]}}]}]}`, `{rules: [{to: [{operation: {notMethods: ["P*"]}}]}]}`,
	`{action: DENY, rules: [{to: [{operation: {methods: [GET], paths: ["/admin*"]}}]}]}`,
	`{rules: [{to: [{operation: {hosts: [a.example.com]}}]}]}`, `{rules: [{to: [{operation: {hosts: ["*.EXAMPLE.com", "a.example.com:*"]}}]}]}`,
	`{action: DENY, rules: [{to: [{operation: {notHosts: [a.example.com]}}]}]}`,
	`{rules: [{to: [{operation: {paths: [/exact, "/pre*", "*/suf"]}}]}]}`, `{rules: [{to: [{operation: {paths: ["*"]}}]}]}`,
	`{rules: [{to: [{operation: {paths: ["/a/{*}/b", "/c/{**}"]}}]}]}`, `{rules: [{to: [{operation: {paths: ["/d/{*}/{**}/e"], notPaths: ["/d/{*}/no/e"]}}]}]}`,
	`{rules: [{to: [{operation: {notPaths: ["/admin", "/a/{*}/b"]}}]}]}`,
	`{action: DENY, rules: [{to: [{operation: {ports: ["1"]}}]}]}`, `{rules: [{to: [{operation: {notPorts: ["1"]}}]}]}`,
	`{rules: [{when: [{key: "request.headers[x-a]", values: [one, "pre*", "*suf"], notValues: [presuf]}]}]}`,
	`{rules: [{when: [{key: "request.headers[x-a]", values: ["*"]}]}]}`, `{action: DENY, rules: [{when: [{key: "request.headers[x-a]", notValues: [one]}]}]}`,
	`{rules: [{when: [{key: source.ip, values: [127.0.0.1]}]}]}`, `{rules: [{when: [{key: remote.ip, notValues: [192.0.2.0/24]}]}]}`,
	`{rules: [{when: [{key: source.namespace, values: ["s*"]}, {key: source.trustDomain, values: [cluster.local]}]}]}`,
	`{rules: [{when: [{key: source.serviceAccount, values: [client]}, {key: source.principal, notValues: [old-td/ns/shop/sa/x]}]}]}`,
	`{rules: [{when: [{key: destination.ip, values: [127.0.0.0/8], notValues: [10.0.0.1]}]}]}`, `{rules: [{when: [{key: destination.port, values: ["1"]}]}]}`,
	`{rules: [{when: [{key: connection.sni, values: ["*.example.com"]}]}]}`, `{rules: [{when: [{key: connection.sni, notValues: [www.example.com]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[a]", values: [x]}]}]}`, `{action: DENY, rules: [{when: [{key: "request.auth.claims[a]", notValues: [x]}]}]}`,
	`{rules: [{when: [{key: "experimental.envoy.filters.a[b]", values: ["[x]"]}]}]}`, `{rules: [{when: [{key: "experimental.envoy.filters.a[b]", notValues: [x, "y*"]}]}]}`,
	`{action: CUSTOM, provider: {name: none}, rules: [{to: [{operation: {paths: [/exact]}}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop], trustDomains: [old-td]}}, {source: {remoteIpBlocks: [192.0.2.0/24]}}], to: [{operation: {methods: [GET]}}, {operation: {paths: [/exact]}}], when: [{key: "request.headers[x-a]", notValues: [one]}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop]}}]}]} | {rules: [{to: [{operation: {methods: [PUT]}}]}]} | {action: DENY, rules: [{to: [{operation: {paths: [/exact]}}]}]}`,
	`dry {action: DENY, rules: [{}]} | dry {rules: [{from: [{source: {namespaces: [none]}}]}]}`,
	`dry {rules: [{}]} | {rules: [{from: [{source: {namespaces: [bad]}}]}]}`,
	`{action: DENY, rules: [{from: [{source: {namespaces: [bad]}}], to: [{operation: {methods: [GET]}}]}]}`,
	`{rules: [{from: [{source: {namespaces: [shop], requestPrincipals: ["*"]}}, {source: {namespaces: [bad]}}]}, {from: [{source: {principals: [other.td/ns/bad/sa/b]}}]}]}`,
	// Principals that have not all parts of an identity, and trust domains with wildcards.
	`{rules: [{from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]}]}`, `{rules: [{from: [{source: {principals: ["cluster.local/*", "old-td/ns/none/*"]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["old-td/ns/shop/sa/*"]}}]}]}`, `{action: DENY, rules: [{from: [{source: {notPrincipals: ["old-td/ns/shop/sa/cl*"]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["*-td/ns/shop/sa/client"]}}]}]}`, `{rules: [{from: [{source: {principals: ["*.td/ns/bad/sa/b"]}}]}]}`,
	`{rules: [{from: [{source: {principals: ["old*/ns/shop/sa/client"]}}]}]}`, `{rules: [{from: [{source: {principals: ["oth*/ns/bad/sa/b", sa/client, "*/ns/shop/sa/none"]}}]}]}`,
	`{rules: [{from: [{source: {notPrincipals: ["*l/ns/shop/sa/client", "other.td*"]}}]}]}`, `{action: DENY, rules: [{when: [{key: source.principal, notValues: ["*"]}]}]}`,
	`{rules: [{when: [{key: source.principal, values: ["old-td/*"]}]}]}`, `{rules: [{from: [{source: {notNamespaces: ["*"]}}]}]}`, `{rules: [{from: [{source: {namespaces: ["s*p"], notTrustDomains: ["*"]}}, {source: {trustDomains: ["*"], notNamespaces: ["*o*"]}}]}]}`,
	// Wildcards alone and in the middle, negations of them, and case.
	`{rules: [{to: [{operation: {hosts: ["*"], notMethods: ["*"]}}]}]}`, `{action: DENY, rules: [{to: [{operation: {notHosts: ["*"]}}, {operation: {notPaths: ["*"]}}]}]}`,
	`{rules: [{to: [{operation: {methods: [get, "*T"]}}]}]}`, `{rules: [{to: [{operation: {hosts: ["A.EXAMPLE.com:8080", "*.example.COM:80", "c:80"]}}]}]}`, `{rules: [{to: [{operation: {hosts: ["*:8080", "*a*"]}}]}]}`,
	`{rules: [{to: [{operation: {paths: ["*admin", "/d/*/e", "/Admin"]}}]}]}`, `{action: DENY, rules: [{to: [{operation: {paths: ["*/x*", "*?*"]}}]}]}`, `{action: DENY, rules: [{to: [{operation: {paths: ["/a/{*}/{*}", "/c/{*}"], notPaths: ["/a/{**}"]}}]}]}`,
	`{rules: [{when: [{key: "request.headers[X-A]", notValues: ["*"]}]}]}`, `{rules: [{when: [{key: "request.headers[x-a]", values: ["*"], notValues: ["p*", "*f"]}]}]}`, `{action: DENY, rules: [{when: [{key: "request.headers[x-a]", notValues: ["*suf"]}]}]}`,
	`{rules: [{when: [{key: "request.headers[x-none]", notValues: [one]}, {key: "request.headers[x-none]", notValues: ["*"]}]}]}`,
	`{rules: [{when: [{key: source.ip, values: [0.0.0.0/0], notValues: ["::/0"]}]}]}`, `{rules: [{when: [{key: source.ip, values: ["::/0"]}]}]}`, `{rules: [{when: [{key: remote.ip, values: ["192.0.2.1/24"]}]}]}`,
	`{rules: [{when: [{key: connection.sni, values: ["*"]}]}]}`, `{rules: [{when: [{key: connection.sni, values: ["www.*", "x*y"]}]}]}`, `{action: DENY, rules: [{when: [{key: connection.sni, notValues: ["*"]}]}]}`,
	`{rules: [{when: [{key: "experimental.envoy.filters.a[b]", notValues: ["*", "[*]"]}]}]}`, `{action: DENY, rules: [{when: [{key: "experimental.envoy.filters.a[b]", values: ["*"]}]}]}`,
}

// requests are combined with each set; seen is what they come to with normalization.
var requests = []request{
	{method: "GET", host: "a.example.com", path: "/exact"},
	{identity: client, method: "GET", host: "a.example.com", path: "/exact?q=/admin"},
	{identity: client, method: "PUT", host: "A.Example.COM", path: "/prefix", headers: map[string]string{"x-a": "one"}},
	{identity: former, method: "POST", host: "a.example.com:8080", path: "/x/suf", headers: map[string]string{"x-a": "prefix"}, remote: "192.0.2.1"},
	{identity: other, method: "GET", host: "b.example.com", path: "/admin/x", headers: map[string]string{"x-a": "a-suf"}, remote: "192.0.2.7"},
	{identity: other, method: "GET", host: "c", path: "/Admin"},
	{identity: client, method: "GET", host: "c", path: "/x/../admin", seen: "/admin"},
	{identity: client, method: "GET", host: "c", path: "/./admin/./x", seen: "/admin/x"},
	{identity: client, method: "GET", host: "c", path: "/x%2F..%2Fadmin"},
	{identity: client, method: "GET", host: "c", path: "//admin"},
	{identity: client, method: "GET", host: "c", path: "/%61dmin", seen: "/admin"},
	{identity: former, method: "GET", host: "c", path: "/a/x/b", headers: map[string]string{"x-a": "presuf"}},
	{identity: former, method: "GET", host: "c", path: "/a/x/y/b"},
	{identity: former, method: "DELETE", host: "c", path: "/a//b"},
	{identity: other, method: "GET", host: "c", path: "/c/x/y"},
	{identity: other, method: "GET", host: "c", path: "/c"},
	{identity: other, method: "GET", host: "c", path: "/d/x/y/z/e?x=1"},
	{identity: other, method: "GET", host: "c", path: "/d/x/no/e"},
}

const (
	client = "cluster.local/ns/shop/sa/client"
	former = "old-td/ns/shop/sa/client"
	other  = "other.td/ns/bad/sa/b"
)

// policiesOf parses a set. Each of its specs must be valid.
func policiesOf(t *testing.T, set string) (out []authz.Policy) {
	t.Helper()
	for i, spec := range strings.Split(set, " | ") {
		spec, dry := strings.CutPrefix(spec, "dry ")
		res := decode.Documents("p.yaml", fmt.Appendf(nil, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p%d, namespace: shop}\nspec: %s\n", i, spec))
		if len(res.Objects) != 1 || len(res.Problems) > 0 || config.Rejected(config.Validate(res.Objects[0])) {
			t.Fatalf("%s: %v %v", spec, res.Problems, config.Validate(res.Objects[0]))
		}
		out = append(out, authz.Policy{Namespace: "shop", Name: fmt.Sprintf("p%d", i), Spec: res.Objects[0].Spec.(*security.AuthorizationPolicy), DryRun: dry})
	}
	return out
}

// TestVerdictsOfEnvoy compares what a real Envoy lets in with an evaluation of the policies that knows nothing of their
// translation: each set of policies with each request, and with TCP connections of each identity.
func TestVerdictsOfEnvoy(t *testing.T) {
	pki := policytest.NewPKI(t)
	b := envoytest.Bootstrap()
	for i, set := range sets {
		f := authz.Build(policiesOf(t, set), trustDomains, nil, nil)
		b.StaticResources.Listeners = append(b.StaticResources.Listeners,
			pki.Listener(t, fmt.Sprintf("http-%d", i), policytest.Manager(t, f.HTTP, nil)), pki.Listener(t, fmt.Sprintf("tcp-%d", i), append(f.TCP, policytest.Filter(t, "envoy.filters.network.echo", &echov3.Echo{}))))
	}
	at := envoytest.Start(t, b)
	verdicts := 0
	for i, set := range sets {
		policies := policiesOf(t, set)
		address := at[fmt.Sprintf("http-%d", i)]
		conns := map[string]*policytest.Conn{}
		for _, r := range requests {
			if r.seen == "" {
				r.seen = r.path
			}
			_, r.port, _ = net.SplitHostPort(address)
			c := conns[r.identity]
			if c == nil {
				c = pki.Dial(t, address, r.identity)
				conns[r.identity] = c
			}
			status, seen := c.Ask(t, r.sent())
			if want := allowed(policies, r); status != http.StatusOK && status != http.StatusForbidden || want != (status == http.StatusOK) {
				t.Errorf("%s\n%+v: status %d, want allowed %v", set, r, status, want)
			}
			if status == http.StatusOK && seen != r.seen {
				t.Errorf("%s is forwarded as %s, want %s", r.path, seen, r.seen)
			}
			verdicts++
		}
		address = at[fmt.Sprintf("tcp-%d", i)]
		for _, identity := range []string{"", client, former, other} {
			r := request{identity: identity, tcp: true}
			_, r.port, _ = net.SplitHostPort(address)
			if got, want := pki.Dial(t, address, identity).Echoes(t), allowed(policies, r); got != want {
				t.Errorf("%s\nTCP from %q: %v, want %v", set, identity, got, want)
			}
			verdicts++
		}
	}
	t.Logf("%d verdicts", verdicts)
	if verdicts < 1000 {
		t.Error("the table has become small")
	}
}
