package config_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

func TestTrustDomainFromOptionOrMeshConfig(t *testing.T) {
	for _, c := range []struct {
		name, option string
		objects      []object.Object
		want         string
		errors       []string
	}{
		{"nothing set", "", nil, "cluster.local", nil},
		{"the option", "a.example", nil, "a.example", nil},
		{"mesh configuration", "", []object.Object{meshMap("istio-system", "trustDomain: b.example")}, "b.example", nil},
		{"both the same", "a.example", []object.Object{meshMap("istio-system", "trustDomain: a.example")}, "a.example", nil},
		{"mesh configuration without one", "a.example", []object.Object{meshMap("istio-system", "connectTimeout: 1s")}, "a.example", nil},
		{"set in neither", "", []object.Object{meshMap("istio-system", "connectTimeout: 1s")}, "cluster.local", nil},
		{"the one in istio-system", "", []object.Object{meshMap("(file)", "trustDomain: f.example"), meshMap("istio-system", "trustDomain: b.example"), meshMap("a", "trustDomain: c.example")}, "b.example", nil},
		{"the one in another namespace", "", []object.Object{meshMap("a", "trustDomain: c.example")}, "cluster.local", nil},
		{"the one in another namespace, and the option", "a.example", []object.Object{meshMap("a", "trustDomain: c.example")}, "a.example", nil},
		{"another field invalid", "", []object.Object{meshMap("istio-system", "{trustDomain: b.example, proxyListenPort: 0}")}, "b.example", nil},
		{"another field invalid, none set", "", []object.Object{meshMap("istio-system", "proxyListenPort: 0")}, "cluster.local", nil},
		{"invalid YAML, and the option", "a.example", []object.Object{meshMap("istio-system", "trustDomain: [")}, "a.example", nil},
		{"both and different", "a.example", []object.Object{meshMap("istio-system", "trustDomain: b.example")}, "",
			[]string{"TRUST_DOMAIN", `"a.example"`, `"b.example"`, "istio-system/istio", "one of the two, or the same in both"}},
		{"the default is a value, too", "a.example", []object.Object{meshMap("(file)", "trustDomain: cluster.local")}, "", []string{`"a.example"`, `"cluster.local"`}},
		{"invalid YAML", "", []object.Object{meshMap("istio-system", "trustDomain: [")}, "", []string{"read the trust domain", "set TRUST_DOMAIN"}},
		{"invalid domain", "", []object.Object{meshMap("istio-system", "trustDomain: a/b")}, "", []string{"a/b"}},
		{"invalid option", "a/b", nil, "", []string{`TRUST_DOMAIN "a/b"`}},
	} {
		got, err := config.TrustDomain(c.option, config.MeshConfigKey("istio-system", ""), c.objects)
		if got != c.want || (err != nil) != (c.errors != nil) {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
		for _, want := range c.errors {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %s", c.name, err, want)
			}
		}
	}
}

func TestTrustDomainInForceDoesNotChange(t *testing.T) {
	for _, option := range []bool{false, true} {
		s := config.NewStore()
		s.FixTrustDomain("a.example", option)
		step := func(text, timeout, verdict string, severity object.Severity) {
			t.Helper()
			s.Apply([]object.Change{change(meshMap("istio-system", text))})
			m, _ := s.MeshConfig()
			if m.TrustDomain != "a.example" || m.ConnectTimeout.AsDuration().String() != timeout {
				t.Errorf("%s: trust domain %s, timeout %s; want a.example, %s", text, m.TrustDomain, m.ConnectTimeout.AsDuration(), timeout)
			}
			vs := s.Verdicts()
			if verdict == "" && len(vs) > 0 {
				t.Errorf("%s: verdicts %v", text, vs)
			}
			if verdict != "" && (len(vs) != 1 || vs[0].Severity != severity || vs[0].Field != "data.mesh.trustDomain" || !strings.Contains(vs[0].Text, verdict)) {
				t.Errorf("%s: verdicts %v, want %s", text, vs, verdict)
			}
		}
		step("{trustDomain: a.example, connectTimeout: 1s}", "1s", "", 0)
		step("{trustDomain: b.example, connectTimeout: 2s}", "1s", `"b.example" differs from the trust domain in force, "a.example"`, object.Error)
		step("{trustDomain: a.example, connectTimeout: 3s}", "3s", "", 0)
		if option {
			step("{connectTimeout: 4s}", "4s", "", 0)
		} else {
			step("{connectTimeout: 4s}", "4s", `"a.example" stays in force`, object.Warning)
		}
		s.Apply([]object.Change{{Key: meshMap("istio-system", "").Key}})
		if m, _ := s.MeshConfig(); m.TrustDomain != "a.example" {
			t.Errorf("without mesh configuration: %s", m.TrustDomain)
		}
	}
}
