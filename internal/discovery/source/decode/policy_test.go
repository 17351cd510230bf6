package decode_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// TestInvalidDocumentsThatMayBePolicies: each text is broken; want is what is
// known of the policy that it is, as "kind namespace/name labels >Gateways", empty where it is none.
func TestInvalidDocumentsThatMayBePolicies(t *testing.T) {
	const pa = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n"
	const ap = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\nspec: {action: DENI, "
	for name, c := range map[string]struct{ text, want string }{
		"a spec that makes no sense":       {pa + "metadata: {name: a, namespace: shop}\nspec: {mtls: {mode: STRIKT}}\n", "PeerAuthentication shop/a "},
		"with a selector":                  {pa + "metadata: {name: a, namespace: shop}\nspec: {selector: {matchLabels: {b: c, a: b}}, mtls: 1}\n", "PeerAuthentication shop/a a=b,b=c"},
		"with a selector that is broken":   {pa + "metadata: {name: a, namespace: shop}\nspec: {selector: {matchLabels: {app: 1}}, mtls: {mode: STRICT}}\n", "PeerAuthentication shop/a "},
		"with a selector that is unknown":  {pa + "metadata: {name: a, namespace: shop}\nspec: {selector: {matchLabel: {app: a}}}\n", "PeerAuthentication shop/a "},
		"no namespace is default":          {pa + "metadata: {name: a}\nspec: 1\n", "PeerAuthentication default/a "},
		"no name":                          {pa + "metadata: {namespace: shop}\n", "PeerAuthentication shop/ "},
		"a namespace that is none":         {pa + "metadata: {name: a, namespace: Shop}\n", "PeerAuthentication /a "},
		"metadata that is none":            {pa + "metadata: 7\n", "PeerAuthentication / "},
		"another version":                  {"apiVersion: security.istio.io/v9\nkind: PeerAuthentication\nmetadata: {name: a, namespace: shop}\n", "PeerAuthentication shop/a "},
		"no kind":                          {"apiVersion: security.istio.io/v1\nmetadata: {name: a, namespace: shop}\n", " shop/ "},
		"a syntax error":                   {pa + "metadata: {name: a, namespace: shop}\nspec: {mtls: {mode: STRICT}\n", "PeerAuthentication shop/a "},
		"a syntax error, block style":      {pa + "metadata:\n  name: a\n  namespace: shop\nspec:\n  mtls:\n mode: STRICT\n", "PeerAuthentication shop/a "},
		"a syntax error in the name":       {pa + "metadata: {name: [a, namespace: shop}\n", "PeerAuthentication shop/ "},
		"a syntax error, no namespace":     {pa + "metadata: {name: a\n", "PeerAuthentication /a "},
		"two namespaces":                   {pa + "metadata: {name: a, namespace: shop}\nx: {namespace: other\n", "PeerAuthentication /a "},
		"another kind of policy":           {"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\nspec: {rules: [}\n", "AuthorizationPolicy shop/a "},
		"a kind that cannot be found":      {"apiVersion: security.istio.io/v1\nknd PeerAuthentication: [\nmetadata: {name: a, namespace: shop}\n", " shop/ "},
		"nothing but a word":               {"PeerAuthentication: [", " / "},
		"two documents without a mark":     {"apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\n" + pa + "metadata: {name: a, namespace: shop}\n", " shop/ "},
		"in a list":                        {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n- apiVersion: security.istio.io/v1\n  kind: PeerAuthentication\n  metadata: {name: a, namespace: shop\n", " shop/ "},
		"in a list that can be read":       {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: security.istio.io/v1\n  kind: PeerAuthentication\n  metadata: {name: a, namespace: shop}\n  spec: 1\n", "PeerAuthentication shop/a "},
		"in a list that is none":           {"apiVersion: v1\nkind: List\nitems: {apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: a, namespace: shop}}\n", "PeerAuthentication shop/a "},
		"JSON":                             {`{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"name":"a","namespace":"shop"},`, "PeerAuthentication shop/a "},
		"a Pod with the label of a policy": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {security.istio.io/tlsMode: istio}\n", ""},
		"a Pod whose spec is broken":       {"apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {security.istio.io/tlsMode: istio}}\nspec: 7\n", ""},
		"a ConfigMap that holds a policy":  {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: |\n    apiVersion: v1\n    kind: PeerAuthentication\n  b: [\n", ""},
		"with targets":                     {ap + "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: b}, {group: gateway.networking.k8s.io, kind: Gateway, name: a}, {kind: Service, name: c}]}\n", "AuthorizationPolicy shop/a  >a,b"},
		"with a target":                    {ap + "targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: a}}\n", "AuthorizationPolicy shop/a  >a"},
		"with targets for waypoints only":  {ap + "targetRefs: [{kind: Service, name: a}, {group: networking.istio.io, kind: ServiceEntry, name: a}, {group: gateway.networking.k8s.io, kind: GatewayClass, name: a}]}\n", ""},
		"with a target of no kind":         {ap + "targetRefs: [{name: a}, {group: gateway.networking.k8s.io, kind: Gateway, name: a}]}\n", "AuthorizationPolicy shop/a  >*"},
		"with a target without a name":     {ap + "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: [a]}]}\n", "AuthorizationPolicy shop/a  >*"},
		"with targets that are none":       {ap + "targetRefs: 7}\n", "AuthorizationPolicy shop/a  >*"},
		"with no targets":                  {ap + "targetRefs: []}\n", "AuthorizationPolicy shop/a "},
		"with targets and a selector":      {ap + "selector: {matchLabels: {a: b}}, targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: a}]}\n", "AuthorizationPolicy shop/a a=b >a"},
		"with targets and a broken one":    {ap + "selector: {matchLabel: {a: b}}, targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: a}]}\n", "AuthorizationPolicy shop/a "},
		"with targets, in no namespace":    {strings.Replace(ap, "shop", "Shop", 1) + "selector: {matchLabels: {a: b}}, targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: a}]}\n", "AuthorizationPolicy /a "},
		"a kind without targets":           {pa + "metadata: {name: a, namespace: shop}\nspec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: a}]}\n", "PeerAuthentication shop/a "},
		"something else":                   {"hello: [", ""},
	} {
		res := decode.Documents("f.yaml", []byte(c.text))
		if len(res.Problems) == 0 {
			t.Errorf("%s: no problem", name)
			continue
		}
		p, got := res.Problems[0].Policy, ""
		if p.Broken {
			got = string(p.Key.Kind) + " " + p.Key.Namespace + "/" + p.Key.Name + " " + p.Labels
			if p.Gateways != "" {
				got += " >" + p.Gateways
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestPoliciesBeyondTheLimitOfDocumentsAreReported(t *testing.T) {
	text := strings.Repeat("---\na: b\n", 10_000) + "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: a, namespace: shop}\n"
	res := decode.Documents("f.yaml", []byte(text))
	last := res.Problems[len(res.Problems)-1]
	if !strings.Contains(last.Text, "more than") || last.Policy.Key.Kind != object.PeerAuthentication {
		t.Errorf("%+v", last)
	}
}

// FuzzBrokenPolicy: whatever a text says, what is told of a policy can be used as the
// name of a row and as a selector.
func FuzzBrokenPolicy(f *testing.F) {
	f.Add([]byte("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: a, namespace: shop}\nspec: {selector: {matchLabels: {a: b}}, mtls: 1}\n"), false)
	f.Add([]byte("kind: List\nitems: [{kind: PeerAuthentication, metadata: {name: \"a b\", namespace: a,b}}\n"), false)
	f.Add([]byte(`{"apiVersion":"security.istio.io/v1","kind":"X","metadata":{"name":"a","namespace":"shop"},`), true)
	f.Fuzz(func(t *testing.T, text []byte, json bool) {
		name := "f.yaml"
		if json {
			name = "f.json"
		}
		for _, p := range decode.Documents(name, text).Problems {
			policy := p.Policy
			if !policy.Broken && policy != (object.Policy{}) {
				t.Errorf("no policy, and yet %+v", policy)
			}
			if strings.ContainsAny(policy.Key.Namespace+policy.Key.Name, " ,=*\n") || strings.ContainsAny(policy.Labels, " \n") {
				t.Errorf("%+v", policy)
			}
			if policy.Broken && policy.Denies() == "" {
				t.Errorf("%+v denies nothing", policy)
			}
		}
	})
}
