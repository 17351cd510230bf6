package simulate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/policytest"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/token"
)

func TestMain(m *testing.M) {
	require.Envoy()
	os.Exit(m.Run())
}

const (
	setsOfPolicies     = 50
	requestsOfEach     = 200
	seedVariable       = "PILOTHOUSE_SIMULATE_SEED"
	wantCases      int = 10_000
)

// mesh are listeners of random policies: for each set of policies, one for HTTP and one for TCP.
type mesh struct {
	gen
	sets      [][]authz.Policy
	listeners []*listenerv3.Listener
	at        map[string]string
	pki       *policytest.PKI
}

// seedOf is the seed of a test's random choices.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(1)
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	return seed
}

// newMesh starts an Envoy with n sets of policies.
func newMesh(t *testing.T, n int) *mesh {
	t.Helper()
	seed := seedOf(t)
	m := &mesh{gen: gen{rand.New(rand.NewPCG(seed, 0)), map[string]*token.Issuer{}, t}, pki: policytest.NewPKI(t)}
	for _, name := range []string{"a.example", "b.example", "none.example", "stranger.example"} {
		m.issuers[name] = token.New(t, name)
	}
	m.issuers["impostor"] = token.New(t, "a.example")
	for i := range n {
		m.sets = append(m.sets, m.policies())
		f := authz.Build(m.sets[i], []string{"cluster.local", "old-td"}, nil, jwt.Build(m.tokens(), false))
		m.listeners = append(m.listeners,
			m.pki.Listener(t, fmt.Sprintf("http-%d", i), policytest.Manager(t, f.HTTP, m.edit())),
			m.pki.Listener(t, fmt.Sprintf("tcp-%d", i), append(f.TCP, policytest.Filter(t, "envoy.filters.network.echo", &echov3.Echo{}))))
	}
	b := envoytest.Bootstrap()
	b.StaticResources.Listeners = m.listeners
	m.at = envoytest.Start(t, b)
	return m
}

// compare sends n random requests to each listener for HTTP, and a connection of each identity to each for TCP, and compares
// what Envoy does with the simulation of the listener after change, which may be nil. It returns what Envoy has answered.
func (m *mesh) compare(t *testing.T, n int, change func(*listenerv3.Listener), differs func(set []authz.Policy, what string)) (statuses map[int]int) {
	t.Helper()
	statuses = map[int]int{}
	evaluate := func(l *listenerv3.Listener, c *policytest.Conn, identity string, r *simulate.Request) simulate.Verdict {
		v, err := simulate.Evaluate(l, connection(c, identity), r, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	changed := func(l *listenerv3.Listener) *listenerv3.Listener {
		if change == nil {
			return l
		}
		l = proto.CloneOf(l)
		change(l)
		return l
	}
	for i, set := range m.sets {
		l := changed(m.listeners[2*i])
		conns := map[string]*policytest.Conn{}
		for range n {
			identity, r := pick(m.gen, identities), m.request()
			c := conns[identity]
			if c == nil {
				c = m.pki.Dial(t, m.at[l.GetName()], identity)
				conns[identity] = c
			}
			v := evaluate(l, c, identity, received(r))
			want := v.Status
			if v.Allowed {
				want = http.StatusOK
			}
			status, path := c.Ask(t, r)
			if status == http.StatusBadRequest {
				delete(conns, identity) // Envoy closes it
			}
			if status != want || v.Allowed && withoutQuery(path) != withoutQuery(v.Path) { // Envoy removes tokens from the query
				differs(set, fmt.Sprintf("%s\nfrom %q: Envoy says %d with path %q; the simulation says %s", brief(r), identity, status, brief(path), brief(v)))
			}
			statuses[status]++
		}
		l = changed(m.listeners[2*i+1])
		for _, identity := range identities {
			c := m.pki.Dial(t, m.at[l.GetName()], identity)
			v := evaluate(l, c, identity, nil)
			got := c.Echoes(t)
			if got != v.Allowed {
				differs(set, fmt.Sprintf("TCP from %q: Envoy says %v; the simulation says %+v", identity, got, v))
			}
			if got {
				statuses[http.StatusOK]++
			} else {
				statuses[http.StatusForbidden]++
			}
		}
	}
	return statuses
}

// TestAgreesWithEnvoy makes policies and requests, and compares the simulation of the compiled filters with a real Envoy: the
// status, and the path that is forwarded. PILOTHOUSE_SIMULATE_SEED chooses other ones.
func TestAgreesWithEnvoy(t *testing.T) {
	m := newMesh(t, setsOfPolicies)
	failures := 0
	statuses := m.compare(t, requestsOfEach, nil, func(set []authz.Policy, what string) {
		if failures++; failures <= 5 {
			var specs strings.Builder
			for _, p := range set {
				fmt.Fprintf(&specs, "%s (dry run: %v): %s\n", p.Name, p.DryRun, p.Spec)
			}
			t.Errorf("%s\n%s", what, specs.String())
		}
	})
	cases := 0
	for _, n := range statuses {
		cases += n
	}
	t.Logf("%d cases, statuses %v, %d failures", cases, statuses, failures)
	if cases < wantCases {
		t.Errorf("%d cases, want %d", cases, wantCases)
	}
	for _, status := range []int{200, 400, 401, 403} {
		if statuses[status] < cases/200 {
			t.Errorf("only %d of %d cases have status %d: the generator makes nothing of interest", statuses[status], cases, status)
		}
	}
}

// TestFindsBrokenRules changes what the simulation evaluates, as a wrong translation would: it must not agree with Envoy any
// more.
func TestFindsBrokenRules(t *testing.T) {
	m := newMesh(t, 12)
	rules := func(changeRules func(*rbacv3.RBAC)) func(*listenerv3.Listener) {
		change := func(r *rbacv3.RBAC) {
			if r != nil { // a filter of dry runs has none
				changeRules(r)
			}
		}
		return func(l *listenerv3.Listener) {
			for _, f := range l.GetFilterChains()[0].GetFilters() {
				repack(t, f.GetTypedConfig(), func(m *networkrbacv3.RBAC) { change(m.GetRules()) })
				repack(t, f.GetTypedConfig(), func(m *hcmv3.HttpConnectionManager) {
					for _, h := range m.GetHttpFilters() {
						repack(t, h.GetTypedConfig(), func(m *httprbacv3.RBAC) { change(m.GetRules()) })
					}
				})
			}
		}
	}
	each := func(change func(*rbacv3.Policy)) func(*listenerv3.Listener) {
		return rules(func(r *rbacv3.RBAC) {
			for _, p := range r.GetPolicies() {
				change(p)
			}
		})
	}
	anyone := []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}
	anything := []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}
	for name, change := range map[string]func(*listenerv3.Listener){
		"any principal":   each(func(p *rbacv3.Policy) { p.Principals = anyone }),
		"any permission":  each(func(p *rbacv3.Policy) { p.Permissions = anything }),
		"denials allowed": rules(func(r *rbacv3.RBAC) { r.Action = rbacv3.RBAC_ALLOW }),
		"a rule less": rules(func(r *rbacv3.RBAC) {
			for _, name := range slices.Sorted(maps.Keys(r.GetPolicies())) {
				delete(r.Policies, name)
				return
			}
		}),
		"tokens not checked": func(l *listenerv3.Listener) {
			for _, f := range l.GetFilterChains()[0].GetFilters() {
				repack(t, f.GetTypedConfig(), func(m *hcmv3.HttpConnectionManager) {
					m.HttpFilters = slices.DeleteFunc(m.HttpFilters, func(h *hcmv3.HttpFilter) bool { return h.GetName() == jwt.Filter })
				})
			}
		},
		"paths not normalized": func(l *listenerv3.Listener) {
			for _, f := range l.GetFilterChains()[0].GetFilters() {
				repack(t, f.GetTypedConfig(), func(m *hcmv3.HttpConnectionManager) {
					m.NormalizePath, m.MergeSlashes, m.PathWithEscapedSlashesAction = nil, false, 0
				})
			}
		},
	} {
		found := 0
		m.compare(t, 40, change, func([]authz.Policy, string) { found++ })
		if found == 0 {
			t.Errorf("%s: the simulation agrees with Envoy", name)
		}
	}
}

// repack changes a message if it is of the type.
func repack[M proto.Message](t *testing.T, a *anypb.Any, change func(M)) {
	t.Helper()
	m, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := m.(M); ok {
		change(m)
		if err := a.MarshalFrom(m); err != nil {
			t.Fatal(err)
		}
	}
}

// connection is a connection of the test as the simulation takes it.
func connection(c *policytest.Conn, identity string) simulate.Connection {
	out := simulate.Connection{
		Source: netip.MustParseAddrPort(c.LocalAddr().String()), Destination: netip.MustParseAddrPort(c.RemoteAddr().String()),
		TLS: &simulate.TLS{ServerName: policytest.ServerName},
	}
	if identity != "" {
		out.TLS.Identities = []string{"spiffe://" + identity}
	}
	return out
}

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// brief prints a value with its tokens cut.
func brief(v any) string { return encoded.ReplaceAllString(fmt.Sprintf("%+v", v), "$1…") }

var encoded = regexp.MustCompile(`(eyJ[\w-]{10})[\w-]*`)

// TestHeadersOfSeveralValues sends two values of each header, to a rule for what they come to if they are joined.
func TestHeadersOfSeveralValues(t *testing.T) {
	names := []string{
		"accept", "accept-encoding", "accept-language", "access-control-request-headers", "access-control-request-method", "authorization", "cache-control",
		"content-encoding", "content-language", "content-type", "cookie", "date", "etag", "forwarded", "from", "grpc-accept-encoding", "grpc-encoding", "grpc-timeout",
		"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "origin", "pragma", "range", "referer", "user-agent", "warning", "x-a", "x-forwarded-host",
		"x-forwarded-port", "x-real-ip", "x-http-method-override", "b3", "traceparent", "x-b3-traceid", "x-custom",
	}
	pki, b := policytest.NewPKI(t), envoytest.Bootstrap()
	for _, name := range names {
		spec := &security.AuthorizationPolicy{Rules: []*security.Rule{{When: []*security.Condition{{Key: "request.headers[" + name + "]", Values: []string{"one,two"}}}}}}
		f := authz.Build([]authz.Policy{{Namespace: "shop", Name: "p", Spec: spec}}, nil, nil, nil)
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, pki.Listener(t, name, policytest.Manager(t, f.HTTP, nil)))
	}
	at := envoytest.Start(t, b)
	for i, name := range names {
		c := pki.Dial(t, at[name], "")
		r := policytest.Request{Method: "GET", Host: "c", Path: "/", Headers: map[string][]string{name: {"one", "two"}}}
		v, err := simulate.Evaluate(b.StaticResources.Listeners[i], connection(c, ""), received(r), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if status, _ := c.Ask(t, r); (status == http.StatusOK) != v.Allowed {
			t.Errorf("%s: Envoy says %d; the simulation says %+v", name, status, v)
		}
	}
}
