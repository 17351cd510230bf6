package ui

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// policyOf is a policy of the namespace shop.
func policyOf(t *testing.T, spec string) Policy {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	out := Policy{Namespace: "shop", Name: "p", Spec: &security.AuthorizationPolicy{}}
	if err := protojson.Unmarshal(text, out.Spec); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhoMayTalkToAWorkload(t *testing.T) {
	cart := Caller{mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}, true}
	ops := Caller{mesh.Identity{TrustDomain: "cluster.local", Namespace: "ops", ServiceAccount: "cart"}, true}
	plain := Caller{}
	for name, c := range map[string]struct {
		policies         []string
		strict, closed   bool
		cart, ops, plain Answer
	}{
		"no policy":           {nil, false, false, Allowed, Allowed, Allowed},
		"mutual TLS only":     {nil, true, false, Allowed, Allowed, Denied},
		"closed":              {nil, false, true, Denied, Denied, Denied},
		"nothing is allowed":  {[]string{`{}`}, false, false, Denied, Denied, Denied},
		"all is allowed":      {[]string{`{rules: [{}]}`}, false, false, Allowed, Allowed, Allowed},
		"all is denied":       {[]string{`{action: DENY, rules: [{}]}`}, false, false, Denied, Denied, Denied},
		"a denial of nothing": {[]string{`{action: DENY}`}, false, false, Allowed, Allowed, Allowed},
		"a principal":         {[]string{`{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/cart]}}]}]}`}, false, false, Allowed, Denied, Denied},
		"any principal":       {[]string{`{rules: [{from: [{source: {principals: ["*"]}}]}]}`}, false, false, Allowed, Allowed, Denied},
		"an end of one":       {[]string{`{rules: [{from: [{source: {principals: ["*/ns/shop/sa/cart"]}}]}]}`}, false, false, Allowed, Denied, Denied},
		"a beginning of one":  {[]string{`{rules: [{from: [{source: {principals: ["cluster.local/ns/ops/*"]}}]}]}`}, false, false, Denied, Allowed, Denied},
		"a namespace":         {[]string{`{rules: [{from: [{source: {namespaces: [shop]}}]}]}`}, false, false, Allowed, Denied, Denied},
		"other namespaces":    {[]string{`{action: DENY, rules: [{from: [{source: {notNamespaces: [shop]}}]}]}`}, false, false, Allowed, Denied, Denied},
		"an account":          {[]string{`{rules: [{from: [{source: {serviceAccounts: [cart]}}]}]}`}, false, false, Allowed, Denied, Denied},
		"another's account":   {[]string{`{rules: [{from: [{source: {serviceAccounts: [ops/cart]}}]}]}`}, false, false, Denied, Allowed, Denied},
		"all fields of one":   {[]string{`{rules: [{from: [{source: {namespaces: [shop], notPrincipals: ["*/sa/cart"]}}]}]}`}, false, false, Denied, Denied, Denied},
		"one of two sources":  {[]string{`{rules: [{from: [{source: {namespaces: [ops]}}, {source: {namespaces: [shop]}}]}]}`}, false, false, Allowed, Allowed, Denied},
		"some requests":       {[]string{`{rules: [{from: [{source: {namespaces: [shop]}}], to: [{operation: {methods: [GET]}}]}]}`}, false, false, Depends, Denied, Denied},
		"some are denied":     {[]string{`{action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}`}, false, false, Depends, Depends, Depends},
		"some addresses":      {[]string{`{rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]}`}, false, false, Depends, Depends, Depends},
		"a token":             {[]string{`{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`}, false, false, Depends, Depends, Depends},
		"a condition":         {[]string{`{rules: [{when: [{key: "request.headers[a]", values: [b]}]}]}`}, false, false, Depends, Depends, Depends},
		"another program":     {[]string{`{action: CUSTOM, provider: {name: x}, rules: [{from: [{source: {namespaces: [shop]}}]}]}`}, false, false, Depends, Allowed, Allowed},
		"a denial is first":   {[]string{`{rules: [{}]}`, `{action: DENY, rules: [{from: [{source: {namespaces: [ops]}}]}]}`}, false, false, Allowed, Denied, Allowed},
		"two that allow":      {[]string{`{rules: [{from: [{source: {namespaces: [ops]}}]}]}`, `{rules: [{from: [{source: {namespaces: [shop]}}]}]}`}, false, false, Allowed, Allowed, Denied},
		"an alias":            {[]string{`{rules: [{from: [{source: {principals: [old.example/ns/shop/sa/cart]}}]}]}`}, false, false, Allowed, Denied, Denied},
		"another mesh":        {[]string{`{rules: [{from: [{source: {principals: [else.example/ns/shop/sa/cart]}}]}]}`}, false, false, Denied, Denied, Denied},
		"not an alias":        {[]string{`{rules: [{from: [{source: {notPrincipals: [old.example/ns/shop/sa/cart]}}]}]}`}, false, false, Denied, Allowed, Allowed},
		"a trust domain":      {[]string{`{rules: [{from: [{source: {trustDomains: [cluster.local]}}]}]}`}, false, false, Allowed, Allowed, Denied},
		"an audit":            {[]string{`{action: AUDIT, rules: [{}]}`}, false, false, Allowed, Allowed, Allowed},
	} {
		g := Group{Strict: c.strict, Closed: c.closed, TrustDomains: []string{"cluster.local", "old.example"}}
		for _, spec := range c.policies {
			g.Policies = append(g.Policies, policyOf(t, spec))
		}
		if a, b, d := Decide(g, cart), Decide(g, ops), Decide(g, plain); a != c.cart || b != c.ops || d != c.plain {
			t.Errorf("%s: %s, %s, %s; want %s, %s, %s", name, a, b, d, c.cart, c.ops, c.plain)
		}
	}
}

// A router knows who a client is only where its Gateway asks for certificates.
func TestWhoMayTalkToAGateway(t *testing.T) {
	cart := Caller{mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}, true}
	for spec, want := range map[string]Answer{
		`{rules: [{}]}`: Allowed, `{}`: Denied,
		`{rules: [{from: [{source: {namespaces: [shop]}}]}]}`:               Depends,
		`{action: DENY, rules: [{from: [{source: {namespaces: [shop]}}]}]}`: Depends,
		`{rules: [{from: [{source: {namespaces: [ops]}}]}]}`:                Denied,
	} {
		if got := Decide(Group{Gateway: true, Policies: []Policy{policyOf(t, spec)}}, cart); got != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
}

func TestNeighboursOfAService(t *testing.T) {
	caller := func(account string) []Caller {
		return []Caller{{mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: account}, true}}
	}
	only := policyOf(t, `{rules: [{from: [{source: {serviceAccounts: [cart]}}]}]}`)
	services := []Service{
		{Key: "cart", Callers: caller("cart"), Groups: []Group{{}}},
		{Key: "payments", Callers: caller("payments"), Groups: []Group{{Policies: []Policy{only}}}},
		{Key: "mixed", Callers: append(caller("cart"), caller("other")...), Groups: []Group{{Policies: []Policy{only}}, {}}},
		{Key: "outside", External: true}, {Key: "empty"},
	}
	got, ok := NeighboursOf(services, Traffic{}, "payments")
	if !ok || len(got.Callers) != 2 || got.Callers["cart"] != Allowed || got.Callers["mixed"] != Depends {
		t.Errorf("callers %v", got.Callers)
	}
	if len(got.Callees) != 4 || got.Callees["cart"] != Allowed || got.Callees["mixed"] != Depends || got.Callees["outside"] != Allowed || got.Callees["empty"] != Unknown {
		t.Errorf("callees %v", got.Callees)
	}
	if _, ok := NeighboursOf(services, Traffic{}, "nothing"); ok {
		t.Error("a service that is not there has neighbours")
	}
}

func TestAccessInWords(t *testing.T) {
	for want, specs := range map[string][]string{
		"everybody": nil,
		"nobody":    {`{}`},
		"cluster.local/ns/shop/sa/cart, for POST, path /pay": {`{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/cart]}}], to: [{operation: {methods: [POST], paths: [/pay]}}]}]}`},
		"namespace shop or ops":                              {`{rules: [{from: [{source: {namespaces: [shop, ops, shop]}}]}]}`},
		"everybody|but not: namespace ops":                   {`{action: DENY, rules: [{from: [{source: {namespaces: [ops]}}]}]}`},
		"everybody, if request.headers[a] is b or c":         {`{rules: [{when: [{key: "request.headers[a]", values: [b, c]}]}]}`},
		"everybody|another program decides about: everybody": {`{action: CUSTOM, provider: {name: x}, rules: [{}]}`},
	} {
		g := Group{}
		for _, spec := range specs {
			g.Policies = append(g.Policies, policyOf(t, spec))
		}
		lines, policies := access([]Group{g})
		if got := strings.Join(lines, "|"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if len(specs) > 0 && !slices.Equal(policies, []string{"shop/p"}) {
			t.Errorf("policies %q", policies)
		}
	}
}
