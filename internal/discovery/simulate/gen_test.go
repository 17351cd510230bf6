package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/object"
	keys "github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/policytest"
	"github.com/pilothouse/pilothouse/test/token"
)

// What the generator chooses from. Values and requests share them, so that rules match about as often as they don't.
var (
	identities  = []string{"", "cluster.local/ns/shop/sa/cart", "cluster.local/ns/bad/sa/b", "old-td/ns/shop/sa/cart", "other.td/ns/shop/sa/x"}
	principalsG = []string{"*", "cluster.local/ns/shop/sa/cart", "old-td/ns/shop/sa/cart", "*/sa/b", "cluster.local/ns/bad/*", "other.td/ns/shop/sa/x"}
	namespaces  = []string{"shop", "bad", "s*", "*d", "*"}
	accounts    = []string{"cart", "bad/b", "shop/x"}
	domains     = []string{"cluster.local", "old-td", "o*", "*.td"}
	blocks      = []string{"127.0.0.0/8", "127.0.0.1", "192.0.2.0/24", "192.0.2.7", "2001:db8::/32", "10.0.0.0/8"}
	addresses   = []string{"192.0.2.1", "192.0.2.7", "2001:db8::1", "10.1.2.3, 192.0.2.7", "192.0.2.7, 10.1.2.3", "bad", "192.0.2.7, 10.1.2.3,127.0.0.1"}
	hosts       = []string{"a.example.com", "A.Example.COM", "a.example.com:8080", "b.example.com", "c"}
	hostValues  = []string{"a.example.com", "*.EXAMPLE.com", "a.example.com:*", "c", "*"}
	methods     = []string{"GET", "PUT", "POST", "DELETE", "OPTIONS"}
	segments    = []string{"a", "b", "admin", "Admin", "%61dmin", "adm%69n", "..", ".", "%2e%2E", "%2e", "", "x%2Fy", "x%2fy", "b%5Cc", `b\c`, "~u", "%7Eu", "a;b", "a+b", "%zz", "%4", "%25", "a:b@c", "x*y"}
	paths       = []string{"/admin", "/a/b", "/admin*", "/a/*", "*/b", "/", "*", "/a/{*}/b", "/{**}/admin", "/admin/{**}", "/{*}", "/x/y", "/~u*", "//admin"}
	headerNames = []string{"x-a", "x-b", "user-agent"}
	ruleHeaders = []string{"x-a", "x-b", "user-agent", "authorization", "x-tok", "X-A"}
	headers     = []string{"one", "prefix", "a-suf", "presuf", ""}
	values      = []string{"one", "pre*", "*suf", "*", "one,prefix"}
	names       = []string{"www.example.com", "*.example.com", "www.*", "other.example.com"}
	claims      = []string{"request.auth.claims[groups]", "request.auth.claims[a][b]", "request.auth.claims[scope]", "request.auth.claims[perms]", "request.auth.claims[iss]", "request.auth.audiences", "request.auth.presenter"}
	claimValues = []string{"admin", "dev*", "*", "x", "read", "p2", "a.example", "one", "app"}
	subjects    = []string{"a.example/me", "a.example/*", "*/you", "*", "b*", "b.example/you"}
)

// gen makes policies and requests from a seed.
type gen struct {
	*rand.Rand
	issuers map[string]*token.Issuer
	t       testing.TB
}

func pick[T any](g gen, from []T) T { return from[g.IntN(len(from))] }

// some returns one or two values, and, now and then, some that must not be.
func (g gen) some(from []string) (in, not []string) {
	for range 1 + g.IntN(2) {
		in = append(in, pick(g, from))
	}
	switch g.IntN(4) {
	case 0:
		return nil, in
	case 1:
		return in, []string{pick(g, from)}
	}
	return in, nil
}

func (g gen) maybe() bool { return g.IntN(3) == 0 }

func (g gen) rule() *security.Rule {
	r := &security.Rule{}
	for range g.IntN(3) {
		s := &security.Source{}
		if g.maybe() {
			s.Principals, s.NotPrincipals = g.some(principalsG)
		}
		if g.maybe() {
			s.Namespaces, s.NotNamespaces = g.some(namespaces)
		}
		if g.maybe() {
			s.TrustDomains, s.NotTrustDomains = g.some(domains)
		}
		if g.maybe() {
			s.IpBlocks, s.NotIpBlocks = g.some(blocks)
		}
		if g.maybe() {
			s.RemoteIpBlocks, s.NotRemoteIpBlocks = g.some(blocks)
		}
		if g.maybe() {
			s.RequestPrincipals, s.NotRequestPrincipals = g.some(subjects)
		}
		if g.IntN(4) == 0 {
			s = &security.Source{}
			s.ServiceAccounts, s.NotServiceAccounts = g.some(accounts)
		}
		r.From = append(r.From, &security.Rule_From{Source: s})
	}
	for range g.IntN(3) {
		o := &security.Operation{}
		if g.maybe() {
			o.Hosts, o.NotHosts = g.some(hostValues)
		}
		if g.maybe() {
			o.Methods, o.NotMethods = g.some(methods)
		}
		if g.IntN(2) == 0 {
			o.Paths, o.NotPaths = g.some(paths)
		}
		r.To = append(r.To, &security.Rule_To{Operation: o})
	}
	for range g.IntN(3) {
		c := &security.Condition{}
		switch g.IntN(6) {
		case 0:
			c.Key = "request.headers[" + pick(g, ruleHeaders) + "]"
			c.Values, c.NotValues = g.some(values)
		case 1:
			c.Key = pick(g, []string{"source.ip", "remote.ip", "destination.ip"})
			c.Values, c.NotValues = g.some(blocks)
		case 2:
			c.Key = "connection.sni"
			c.Values, c.NotValues = g.some(names)
		case 3:
			c.Key = pick(g, claims)
			c.Values, c.NotValues = g.some(claimValues)
		case 4:
			c.Key = "source.principal"
			c.Values, c.NotValues = g.some(principalsG)
		case 5:
			c.Key = "experimental.envoy.filters.http.none[x]"
			c.Values, c.NotValues = g.some([]string{"[x]", "y", "*"})
		}
		r.When = append(r.When, c)
	}
	return r
}

// policies returns up to four valid policies.
func (g gen) policies() (out []authz.Policy) {
	for n := 1 + g.IntN(4); len(out) < n; {
		spec := &security.AuthorizationPolicy{Action: pick(g, []security.AuthorizationPolicy_Action{
			security.AuthorizationPolicy_ALLOW, security.AuthorizationPolicy_ALLOW, security.AuthorizationPolicy_DENY, security.AuthorizationPolicy_AUDIT,
		})}
		for range g.IntN(4) {
			spec.Rules = append(spec.Rules, g.rule())
		}
		o := object.Object{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop", Name: fmt.Sprintf("p%d", len(out))}, Spec: spec}
		if config.Rejected(config.Validate(o)) {
			continue // an empty source, a value that no field takes
		}
		out = append(out, authz.Policy{Namespace: "shop", Name: o.Key.Name, Spec: spec, DryRun: spec.Action != security.AuthorizationPolicy_AUDIT && g.IntN(8) == 0})
	}
	return out
}

// tokens are the rules of a RequestAuthentication.
func (g gen) tokens() []jwt.Rule {
	a := jwt.Rule{Spec: &security.JWTRule{Issuer: "a.example", Audiences: []string{"one", "two"}}, Keys: g.issuers["a.example"].Keys(g.t)}
	b := jwt.Rule{Spec: &security.JWTRule{
		Issuer: "b.example", FromHeaders: []*security.JWTHeader{{Name: "x-tok", Prefix: "Tok "}}, FromParams: []string{"tok"}, FromCookies: []string{"ck"}, SpaceDelimitedClaims: []string{"perms"},
	}, Keys: g.issuers["b.example"].Keys(g.t)}
	keyless := jwt.Rule{Spec: &security.JWTRule{Issuer: "none.example"}, Keys: keys.NoKeys}
	named := jwt.Rule{Spec: &security.JWTRule{Issuer: "b.example", FromHeaders: []*security.JWTHeader{{Name: "Authorization", Prefix: "Bearer "}}, ForwardOriginalToken: true}, Keys: b.Keys}
	bare := jwt.Rule{Spec: &security.JWTRule{Issuer: "a.example", FromHeaders: []*security.JWTHeader{{Name: "x-tok"}}}, Keys: a.Keys}
	return [][]jwt.Rule{nil, {a}, {a, b}, {b}, {a, b, keyless}, {named}, {bare, b}}[g.IntN(7)]
}

// edit changes what a connection manager does with paths and addresses.
func (g gen) edit() func(*hcmv3.HttpConnectionManager) {
	merge, escaped, normal := g.IntN(2) == 0, pick(g, []hcmv3.HttpConnectionManager_PathWithEscapedSlashesAction{
		hcmv3.HttpConnectionManager_KEEP_UNCHANGED, hcmv3.HttpConnectionManager_KEEP_UNCHANGED, hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD, hcmv3.HttpConnectionManager_REJECT_REQUEST,
	}), g.IntN(5) > 0
	edge, hops, strip := g.IntN(3) == 0, uint32(g.IntN(3)), g.IntN(4) == 0
	return func(m *hcmv3.HttpConnectionManager) {
		m.NormalizePath, m.MergeSlashes, m.PathWithEscapedSlashesAction = wrapperspb.Bool(normal), merge, escaped
		m.UseRemoteAddress, m.XffNumTrustedHops = wrapperspb.Bool(edge), hops
		if strip {
			m.StripPortMode = &hcmv3.HttpConnectionManager_StripAnyHostPort{StripAnyHostPort: true}
		}
	}
}

// request returns what is sent.
func (g gen) request() policytest.Request {
	var path strings.Builder
	for range 1 + g.IntN(4) {
		path.WriteString("/" + pick(g, segments))
	}
	r := policytest.Request{Method: pick(g, methods), Host: pick(g, hosts), Path: path.String(), Headers: map[string][]string{}}
	if g.maybe() {
		r.Path = pick(g, []string{"/admin", "/a/b", "/x/b", "/", "/admin/x", "x/b"})
	}
	for _, name := range headerNames {
		for range g.IntN(3) {
			r.Headers[name] = append(r.Headers[name], pick(g, headers))
		}
	}
	if g.maybe() {
		r.Headers["x-forwarded-for"] = []string{pick(g, addresses)}
	}
	if r.Method == "OPTIONS" && g.maybe() {
		r.Headers["origin"], r.Headers["access-control-request-method"] = []string{"https://c.example"}, []string{"GET"}
	}
	query := ""
	for range g.IntN(4) {
		text := g.token()
		switch g.IntN(6) {
		case 0, 1:
			r.Headers["authorization"] = append(r.Headers["authorization"], "Bearer "+text)
		case 2:
			r.Headers["x-tok"] = append(r.Headers["x-tok"], pick(g, []string{"Tok ", "Tok ", "Tok /", "x Tok ", ""})+text)
		case 3:
			r.Headers["cookie"] = []string{"x=y; ck=" + text}
		case 4:
			query += "&tok=" + url.QueryEscape(text)
		case 5:
			query += "&access_token=" + url.QueryEscape(text)
		}
	}
	if query != "" || g.maybe() {
		r.Path += "?x=/admin" + query
	}
	return r
}

// token returns one that is valid more often than not.
func (g gen) token() string {
	c := map[string]any{"sub": pick(g, []string{"me", "you"}), "aud": "one"}
	if g.maybe() {
		c["aud"] = pick(g, []any{[]string{"two", "three"}, "three", "https://one/"})
	}
	if g.maybe() {
		c["groups"] = pick(g, []any{"admin", []string{"developers", "admin"}, 7, nil})
	}
	if g.maybe() {
		c["a"] = map[string]any{"b": pick(g, []any{"x", []string{"x", "y"}})}
	}
	if g.maybe() {
		c["scope"], c["perms"], c["azp"] = "read write", "p1 p2", "app"
	}
	switch g.IntN(12) {
	case 0:
		c["exp"] = time.Now().Add(-time.Hour).Unix()
	case 1:
		c["nbf"] = time.Now().Add(time.Hour).Unix()
	case 2:
		delete(c, "sub")
	}
	text := g.issuers[pick(g, []string{"a.example", "a.example", "b.example", "b.example", "none.example", "impostor", "stranger.example"})].Sign(g.t, c)
	switch g.IntN(16) {
	case 0:
		return text[:len(text)-8] + "AAAAAAAA"
	case 1:
		return "x.y.z"
	case 2:
		return text + pick(g, []string{" ", "; x", "=", ",", "/", "\""})
	}
	return text
}

// received is a request as the simulation takes it.
func received(r policytest.Request) *simulate.Request {
	return &simulate.Request{Method: r.Method, Authority: r.Host, Path: r.Path, Headers: r.Headers}
}
