package simulate_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	meshv1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	keys "github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/token"
)

// fromMesh is a connection of a sidecar to the port 1002, for HTTP, or 1003, for TCP.
func fromMesh(port uint16) simulate.Connection {
	return simulate.Connection{
		Source: netip.MustParseAddrPort("10.0.0.1:40000"), Destination: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port),
		TLS: &simulate.TLS{ALPN: []string{"istio-http/1.1", "istio-h2", "istio"}, Identities: []string{"spiffe://cluster.local/ns/shop/sa/cart"}},
	}
}

func evaluated(t *testing.T, l *listenerv3.Listener, c simulate.Connection, r *simulate.Request) simulate.Verdict {
	t.Helper()
	v, err := simulate.Evaluate(l, c, r, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestClaims compares the claims of a token that is taken for signed with a token that is signed, where its issuer's rule looks
// for it.
func TestClaims(t *testing.T) {
	a, b := token.New(t, "a.example"), token.New(t, "b.example")
	policies := []authz.Policy{{Namespace: "shop", Name: "p", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{
		{From: []*security.Rule_From{{Source: &security.Source{RequestPrincipals: []string{"a.example/me"}}}}},
		{When: []*security.Condition{{Key: "request.auth.claims[groups]", Values: []string{"dev"}}}},
	}}}}
	for name, c := range map[string]struct {
		rule   *security.JWTRule
		keys   string
		issuer *token.Issuer
		put    func(r *simulate.Request, token string)
	}{
		"default": {&security.JWTRule{Issuer: "a.example", Audiences: []string{"one"}}, a.Keys(t), a, func(r *simulate.Request, token string) {
			r.Headers["authorization"] = []string{"Bearer " + token}
		}},
		"header": {&security.JWTRule{Issuer: "a.example", FromHeaders: []*security.JWTHeader{{Name: "X-Tok", Prefix: "Tok "}}, FromParams: []string{"tok"}}, a.Keys(t), a, func(r *simulate.Request, token string) {
			r.Headers["x-tok"] = []string{"Tok " + token}
		}},
		"parameter": {&security.JWTRule{Issuer: "a.example", FromParams: []string{"tok"}}, a.Keys(t), a, func(r *simulate.Request, token string) {
			r.Path += "?tok=" + token
		}},
		"cookie": {&security.JWTRule{Issuer: "a.example", FromCookies: []string{"ck"}}, a.Keys(t), a, func(r *simulate.Request, token string) {
			r.Headers["cookie"] = []string{"ck=" + token}
		}},
		"another issuer": {&security.JWTRule{Issuer: "a.example"}, a.Keys(t), b, func(r *simulate.Request, token string) {
			r.Headers["authorization"] = []string{"Bearer " + token}
		}},
	} {
		l := inbound(authz.Build(policies, []string{"cluster.local"}, nil, jwt.Build([]jwt.Rule{{Spec: c.rule, Keys: c.keys}}, false)))
		for _, claims := range []map[string]any{
			{"sub": "me", "aud": "one"}, {"sub": "you", "aud": "one"}, {"sub": "you", "aud": "one", "groups": []any{"dev", "ops"}}, {"sub": "me", "aud": "other"},
			{"sub": "me", "aud": "one", "exp": float64(time.Now().Add(-time.Hour).Unix())}, {"aud": "one"},
		} {
			request := func() *simulate.Request {
				return &simulate.Request{Method: "GET", Authority: "x", Path: "/", Headers: map[string][]string{}}
			}
			signed, taken := request(), request()
			c.put(signed, c.issuer.Sign(t, claims))
			taken.Claims = map[string]any{"iss": map[*token.Issuer]string{a: "a.example", b: "b.example"}[c.issuer]}
			for k, v := range claims {
				taken.Claims[k] = v
			}
			want, got := evaluated(t, l, fromMesh(1002), signed), evaluated(t, l, fromMesh(1002), taken)
			if got.Allowed != want.Allowed || got.Status != want.Status || got.By != want.By {
				t.Errorf("%s, claims %v: %+v, signed %+v", name, claims, got, want)
			}
		}
	}
	// Claims stand for keys that are not there.
	l := inbound(authz.Build(policies, []string{"cluster.local"}, nil, jwt.Build([]jwt.Rule{{Spec: &security.JWTRule{Issuer: "a.example"}, Keys: keys.NoKeys}}, false)))
	if v := evaluated(t, l, fromMesh(1002), &simulate.Request{Method: "GET", Authority: "x", Path: "/", Claims: map[string]any{"iss": "a.example", "sub": "me"}}); !v.Allowed {
		t.Errorf("%+v", v)
	}
}

// TestAsksAnAuthorizer has CUSTOM policies, over HTTP and TCP.
func TestAsksAnAuthorizer(t *testing.T) {
	provider := &meshv1.MeshConfig_ExtensionProvider{Name: "opa", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
		EnvoyExtAuthzGrpc: &meshv1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: "opa.shop", Port: 9000},
	}}
	known := map[string]authz.Authorizer{"opa": {Provider: provider, Host: "opa.shop", Cluster: "outbound|9000||opa.shop"}}
	of := func(action security.AuthorizationPolicy_Action, name string, r ...*security.Rule) authz.Policy {
		out := authz.Policy{Namespace: "shop", Name: name, Spec: &security.AuthorizationPolicy{Action: action, Rules: r}}
		if action == security.AuthorizationPolicy_CUSTOM {
			out.Spec.ActionDetail = &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: "opa"}}
		}
		return out
	}
	to := func(path string) *security.Rule {
		return &security.Rule{To: []*security.Rule_To{{Operation: &security.Operation{Paths: []string{path}}}}}
	}
	l := inbound(authz.Build([]authz.Policy{
		of(security.AuthorizationPolicy_CUSTOM, "ask", to("/admin"), to("/never")), of(security.AuthorizationPolicy_DENY, "never", to("/never")),
	}, []string{"cluster.local"}, known, nil))
	const asks = "istio-ext-authz-opa-ns[shop]-policy[ask]-rule"
	for path, want := range map[string]struct {
		allowed bool
		asks    []string
	}{
		"/": {allowed: true}, "/admin": {true, []string{asks + "[0]"}}, "/never": {false, []string{asks + "[1]"}},
	} {
		v := evaluated(t, l, fromMesh(1002), &simulate.Request{Method: "GET", Authority: "x", Path: path})
		if v.Allowed != want.allowed || !slices.Equal(v.Asks, want.asks) {
			t.Errorf("%s: %+v", path, v)
		}
	}
	// A connection has no path, so that it is asked about all of them, and none is let in.
	if v := evaluated(t, l, fromMesh(1003), nil); v.Allowed || !slices.Equal(v.Asks, []string{asks + "[0]"}) {
		t.Errorf("TCP: %+v", v)
	}
	// Without the provider everything that would be asked about is denied.
	l = inbound(authz.Build([]authz.Policy{of(security.AuthorizationPolicy_CUSTOM, "ask", to("/admin"))}, []string{"cluster.local"}, nil, nil))
	v := evaluated(t, l, fromMesh(1002), &simulate.Request{Method: "GET", Authority: "x", Path: "/admin"})
	if v.Allowed || v.By != asks+"[0]-deny-due-to-bad-CUSTOM-action" || len(v.Asks) > 0 {
		t.Errorf("no provider: %+v", v)
	}
}

// TestAnUnknownAddress has a client whose address is not known: a rule about it is an error, and no other.
func TestAnUnknownAddress(t *testing.T) {
	source := func(s *security.Source) *security.Rule {
		return &security.Rule{From: []*security.Rule_From{{Source: s}}}
	}
	for name, c := range map[string]struct {
		source *security.Source
		fails  bool
	}{
		"ipBlocks": {&security.Source{IpBlocks: []string{"10.0.0.0/8"}}, true}, "notRemoteIpBlocks": {&security.Source{NotRemoteIpBlocks: []string{"10.0.0.0/8"}}, true},
		"namespaces": {&security.Source{Namespaces: []string{"shop"}}, false},
	} {
		l := inbound(authz.Build([]authz.Policy{{Namespace: "shop", Name: "p", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{source(c.source)}}}}, []string{"cluster.local"}, nil, nil))
		from := fromMesh(1002)
		from.Source = netip.AddrPort{}
		v, err := simulate.Evaluate(l, from, &simulate.Request{Method: "GET", Authority: "x", Path: "/"}, time.Now())
		if c.fails != (err != nil) || err == nil && !v.Allowed || err != nil && !strings.Contains(err.Error(), "the client's address: not known") {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}
