package discovery

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestInvalidPolicyPreventsReadinessAtStart(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown kind": {brokenShop, "it seems to be PeerAuthentication shop/default"},
		"is rejected":  {strings.Replace(strictShop, "spec: {", "spec: {portLevelMtls: {80: {mode: STRICT}}, ", 1), "PeerAuthentication shop/default: spec.portLevelMtls: needs a selector"},
		"another kind": {"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\nspec: {rules: [}\n", "it seems to be AuthorizationPolicy shop/a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": c.text})
			l.start()
			l.ready(http.StatusServiceUnavailable, c.want, "--broken-policies=ignore")
			if err := l.plane.dial("", "").refusal(); !strings.Contains(err.Error(), "security policy is invalid") {
				t.Errorf("the stream ends with %v", err)
			}
			if !strings.Contains(l.log.String(), "streams are rejected") {
				t.Errorf("the log does not say it:\n%s", l.log.String())
			}
			l.write("policy.yaml", strictShop)
			l.ready(http.StatusOK, "ready")
			if c := l.listener(); !strict(c) {
				t.Error("STRICT is not enforced")
			}
		})
	}
}

func TestInvalidPolicyAfterStartDeniesWhatItMightSelect(t *testing.T) {
	const authorization = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\nspec: {rules: [}\n"
	for name, c := range map[string]struct {
		text           string
		strict, closed bool
	}{
		"a PeerAuthentication":                          {brokenShop, true, false},
		"one with a selector":                           {strings.Replace(strictShop, "spec: {", "spec: {selector: {matchLabels: {app: reviews}}, x: 1, ", 1), true, false},
		"one that selects others":                       {strings.Replace(strictShop, "spec: {", "spec: {selector: {matchLabels: {app: other}}, x: 1, ", 1), false, false},
		"one of another namespace":                      {strings.Replace(brokenShop, "shop", "other", 1), false, false},
		"one of the root namespace":                     {strings.Replace(brokenShop, "shop", "istio-system", 1), true, false},
		"one of an unknown namespace":                   {strings.Replace(brokenShop, ", namespace: shop", "", 1), true, false},
		"an AuthorizationPolicy":                        {authorization, true, true},
		"one of them of another namespace":              {strings.Replace(authorization, "shop", "other", 1), false, false},
		"one of them of an unknown namespace":           {strings.Replace(authorization, ", namespace: shop", "", 1), true, false},
		"a Pod with the label that Pods of meshes have": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop, labels: {security.istio.io/tlsMode: istio}\n", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, map[string]string{"shop.yaml": shop})
			l.start()
			l.ready(http.StatusOK, "ready")
			p := l.listener()
			l.write("policy.yaml", c.text)
			wait.Until(t, "the invalid document is reported", func() bool { return len(l.plane.objects()) > 0 })
			switch {
			case c.closed:
				p.wait("a listener that accepts nothing", func() bool { return closed(p) })
			case c.strict:
				p.untilGone("virtualInbound", "raw_buffer")
			}
			if p = l.listener(); strict(p) != c.strict || closed(p) != c.closed {
				t.Errorf("strict %v, closed %v, want %+v", strict(p), closed(p), c)
			}
			got := l.plane.objects()[0]
			if broken := strings.Contains(got.Text, "is denied (unless --broken-policies=ignore is set)"); broken == strings.Contains(name, "Pod") || got.Origin == "" {
				t.Errorf("objects say %+v", got)
			}
			if c.strict {
				l.ready(http.StatusOK, "ready", "what they might select is denied: 1")
			}
			l.remove("policy.yaml")
			p.until("virtualInbound", "raw_buffer")
		})
	}
}

func TestInvalidPoliciesAreIgnoredWithTheFlag(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": brokenShop})
	l.adjust = func(o *Options) { o.Lenience.BrokenPolicies = true }
	l.start()
	l.ready(http.StatusOK, "NOT enforced")
	if c := l.listener(); strict(c) {
		t.Error("it is enforced")
	}
	if got := l.plane.objects(); len(got) != 1 || !strings.Contains(got[0].Text, "NOT enforced") {
		t.Errorf("objects say %+v", got)
	}
}

func TestInvalidEditOfAPolicyKeepsTheLastGoodOne(t *testing.T) {
	permissive := strings.Replace(strictShop, "STRICT", "PERMISSIVE", 1)
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": permissive})
	l.start()
	l.ready(http.StatusOK, "ready")
	for _, text := range []string{brokenShop, strings.Replace(permissive, "mtls", "mtsl", 1), strings.Replace(brokenShop, "name: default", "name: [", 1)} {
		l.write("policy.yaml", text)
		wait.Until(t, "it is reported", func() bool { return len(l.plane.objects()) > 0 })
		if c := l.listener(); strict(c) {
			t.Errorf("the last good value does not stay with %s", text)
		}
		l.write("policy.yaml", permissive)
		wait.Until(t, "it is fixed", func() bool { return len(l.plane.objects()) == 0 })
	}
}

// An AuthorizationPolicy that becomes invalid stays in force as it was, and one of the root namespace that never was valid
// closes what it selects in all namespaces.
func TestInvalidAuthorizationPolicy(t *testing.T) {
	const good = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\nspec: {selector: {matchLabels: {app: reviews}}, action: DENY, rules: [{}]}\n"
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": good})
	l.start()
	l.ready(http.StatusOK, "ready")
	const rule = "ns[shop]-policy[a]-rule[0]"
	l.listener().until("virtualInbound", rule)
	for _, text := range []string{strings.Replace(good, "DENY", "DENI", 1), strings.Replace(good, "[{}]", "[{]", 1), strings.Replace(good, "rules: [{}]", "rules: [{when: [{key: x}]}]", 1)} {
		l.write("policy.yaml", text)
		wait.Until(t, "it is reported", func() bool { return len(l.plane.objects()) > 0 })
		p := l.listener()
		if p.until("virtualInbound", rule); closed(p) {
			t.Errorf("the last good value does not stay with %s", text)
		}
		l.write("policy.yaml", good)
		wait.Until(t, "it is fixed", func() bool { return len(l.plane.objects()) == 0 })
	}
	l.remove("policy.yaml")
	l.listener().untilGone("virtualInbound", rule)
	l.write("root.yaml", strings.NewReplacer("DENY", "DENI", "namespace: shop", "namespace: istio-system").Replace(good))
	p := l.listener()
	p.wait("a listener that accepts nothing", func() bool { return closed(p) })
}
