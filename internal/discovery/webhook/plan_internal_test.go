package webhook

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
)

var target = Target{
	Names: ConfigurationNames("istio-validator", "canary", "istio-system"), Revision: "canary", Namespace: "istio-system",
	Services: []string{"istiod", "istiod-canary"}, Hosts: []string{"istiod.example.com", "192.0.2.1"}, Bundle: []byte("roots"),
}

func service(namespace, name, path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: name, Path: &path}}
}

func urlOf(u string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{URL: &u}
}

func bundled(c admissionregistrationv1.WebhookClientConfig, pem string) admissionregistrationv1.WebhookClientConfig {
	c.CABundle = []byte(pem)
	return c
}

func TestPlan(t *testing.T) {
	const fail, ignore = admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	mine := service("istio-system", "istiod", "/validate")
	one := func(c admissionregistrationv1.WebhookClientConfig, p admissionregistrationv1.FailurePolicyType) []hook {
		return []hook{{"rev.validation.istio.io", c, p}}
	}
	const bundle, toFail, toIgnore = "/webhooks/0/clientConfig/caBundle=roots", "/webhooks/0/failurePolicy=Fail", "/webhooks/0/failurePolicy=Ignore"
	for name, tt := range map[string]struct {
		c        configuration
		policy   FailurePolicy
		noBundle bool
		proven   bool
		want     string
		unproven bool
	}{
		"fresh":                             {c: configuration{kind: validating, revision: "canary", hooks: one(mine, ignore)}, want: bundle, unproven: true},
		"not known to work":                 {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "roots"), ignore)}, unproven: true},
		"known to work":                     {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "roots"), ignore)}, proven: true, want: toFail},
		"known to work with another bundle": {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "old"), ignore)}, proven: true, want: bundle, unproven: true},
		"true":                              {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "roots"), fail)}},
		"changed by others":                 {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "others"), fail)}, want: bundle},
		"open":                              {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "roots"), fail)}, policy: Open, want: toIgnore},
		"open and ignored":                  {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "roots"), ignore)}, policy: Open},
		"without a bundle":                  {c: configuration{kind: validating, revision: "canary", hooks: one(bundled(mine, "others"), ignore)}, noBundle: true, proven: true, want: toFail},
		"mutating":                          {c: configuration{kind: mutating, revision: "canary", hooks: one(service("istio-system", "istiod-canary", "/inject/cluster/a/net/b"), ignore)}, want: bundle},
		"a URL of ours":                     {c: configuration{kind: mutating, revision: "canary", hooks: one(urlOf("https://istiod.example.com:15017/inject"), fail)}, want: bundle},
		"an address of ours":                {c: configuration{kind: mutating, revision: "canary", hooks: one(urlOf("https://192.0.2.1/inject"), fail)}, want: bundle},
		"by name":                           {c: configuration{kind: validating, name: "istio-validator-canary-istio-system", hooks: one(mine, fail)}, want: bundle},
		"by name without the revision":      {c: configuration{kind: validating, name: "istio-validator-istio-system", hooks: one(mine, fail)}, want: bundle},
		"another revision by the same name": {c: configuration{kind: validating, name: "istio-validator-istio-system", revision: "default", hooks: one(mine, fail)}},
		"another name":                      {c: configuration{kind: validating, name: "gatekeeper", hooks: one(mine, fail)}},
		"another namespace's service":       {c: configuration{kind: validating, revision: "canary", hooks: one(service("shop", "istiod", "/validate"), fail)}},
		"another service":                   {c: configuration{kind: validating, revision: "canary", hooks: one(service("istio-system", "gatekeeper", "/validate"), fail)}},
		"another path":                      {c: configuration{kind: validating, revision: "canary", hooks: one(service("istio-system", "istiod", "/injected"), fail)}},
		"no path":                           {c: configuration{kind: validating, revision: "canary", hooks: []hook{{"x", admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "istio-system", Name: "istiod"}}, fail}}}},
		"a URL of others":                   {c: configuration{kind: validating, revision: "canary", hooks: one(urlOf("https://example.com/validate"), fail)}},
		"an invalid URL":                    {c: configuration{kind: validating, revision: "canary", hooks: one(urlOf("https://%zz/validate"), fail)}},
		"one of several": {
			c:    configuration{kind: mutating, revision: "canary", hooks: []hook{{"a", service("shop", "a", "/inject"), fail}, {"b", service("istio-system", "istiod", "/inject"), fail}}},
			want: "/webhooks/1/clientConfig/caBundle=roots",
		},
	} {
		target := target
		target.Policy = tt.policy
		if tt.noBundle {
			target.Bundle = nil
		}
		tt.c.version = "17"
		got := target.plan(tt.c, func(admissionregistrationv1.WebhookClientConfig) bool { return tt.proven })
		var ops []string
		for i, op := range got.patch {
			if i == 0 {
				if op != (operation{"test", "/metadata/resourceVersion", "17"}) {
					t.Errorf("%s: the first operation is %+v: want a test of the version", name, op)
				}
				continue
			}
			value := op.Value
			if b, ok := value.([]byte); ok {
				value = string(b)
			}
			text, _ := json.Marshal(value)
			ops = append(ops, op.Path+"="+strings.Trim(string(text), `"`))
		}
		if strings.Join(ops, " ") != tt.want || got.unproven != tt.unproven || len(got.what) != len(ops) {
			t.Errorf("%s: %q (%q), unproven %v; want %q, %v", name, ops, got.what, got.unproven, tt.want, tt.unproven)
		}
	}
}

func TestConfigurationNames(t *testing.T) {
	want := []string{"istio-validator", "istio-validator-istio-system", "istio-validator-canary", "istio-validator-canary-istio-system"}
	if got := target.Names; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRefuser(t *testing.T) {
	for text, want := range map[string]string{
		`admission webhook "rev.validation.istio.io" denied the request: ` + admit.Rejected:              "rev.validation.istio.io",
		`admission webhook "rev.validation.istio.io" denied the request: another program`:                "",
		`gateways.networking.istio.io "a" is forbidden: ` + admit.Rejected:                               "",
		`Internal error occurred: failed calling webhook "validation.istio.io": x509: unknown authority`: "",
		"": "",
	} {
		if got, ok := refuser(text); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, ok, want)
		}
	}
}

func TestPaceSpreadsAttempts(t *testing.T) {
	now := time.Unix(1000, 0)
	var p pace
	if w := p.wait(now); w > 0 {
		t.Errorf("the first attempt waits for %s", w)
	}
	last := time.Duration(0)
	for range 20 {
		p.tried(now, true)
		w := p.wait(now)
		if w < last || w < minPause || w > maxPause {
			t.Errorf("attempt %d waits for %s after %s", p.streak, w, last)
		}
		last, now = w, now.Add(w)
	}
	if last != maxPause {
		t.Errorf("the last attempt waits for %s, want %s", last, maxPause)
	}
	now = now.Add(calm + 1)
	if w := p.wait(now); w > 0 {
		t.Errorf("after a calm the next attempt waits for %s", w)
	}
	p.tried(now, false)
	if w := p.wait(now); w > 2*minPause {
		t.Errorf("after a calm the second attempt waits for %s", w)
	}
}
