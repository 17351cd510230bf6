package model_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The workload is app=w of namespace a, whose policies allow plaintext.
func TestDenialsOverridePolicies(t *testing.T) {
	const selected = "selector: {matchLabels: {app: w}}, "
	policies := peer("istio-system", "d", "mtls: {mode: DISABLE}", 1) + peer("a", "d", "mtls: {mode: DISABLE}", 1) +
		peer("a", "w", selected+"mtls: {mode: DISABLE}, portLevelMtls: {9000: {mode: DISABLE}}", 1)
	strict, closed, open := model.Modes{Default: mesh.Strict}, model.Modes{Default: mesh.Strict, Closed: true}, model.Modes{Default: mesh.Disable}
	for name, c := range map[string]struct {
		denials []model.Denial
		want    model.Modes
	}{
		"none":                          {nil, open},
		"the whole mesh":                {[]model.Denial{{Name: "x"}}, strict},
		"the root namespace":            {[]model.Denial{{Name: "x", Namespace: "istio-system"}}, strict},
		"the namespace":                 {[]model.Denial{{Name: "x", Namespace: "a"}}, strict},
		"another namespace":             {[]model.Denial{{Name: "x", Namespace: "b"}}, open},
		"the workload":                  {[]model.Denial{{Name: "x", Namespace: "a", Labels: "app=w"}}, strict},
		"another workload":              {[]model.Denial{{Name: "x", Namespace: "a", Labels: "app=w,version=v9"}}, open},
		"a workload of the root":        {[]model.Denial{{Name: "x", Namespace: "istio-system", Labels: "app=w"}}, open},
		"everything there, by label":    {[]model.Denial{{Name: "x", Namespace: "istio-system", Labels: "app=w", Everything: true}}, closed},
		"everything there, not this":    {[]model.Denial{{Name: "x", Namespace: "istio-system", Labels: "app=v", Everything: true}}, open},
		"everything":                    {[]model.Denial{{Name: "x", Namespace: "a", Everything: true}}, closed},
		"plaintext, then everything":    {[]model.Denial{{Name: "x", Namespace: "a"}, {Name: "y", Namespace: "a", Labels: "app=w", Everything: true}}, closed},
		"everything there, little here": {[]model.Denial{{Name: "x", Namespace: "b", Everything: true}, {Name: "y", Namespace: "a"}}, strict},
	} {
		g := incr.New()
		m := model.New(g, "cluster.local")
		for _, o := range decode.Documents("input.yaml", []byte(policies)).Objects {
			m.Apply([]object.Change{{Key: o.Key, Object: &o}})
		}
		labels := map[string]string{"app": "w"}
		rule := incr.Derive(g, model.LevelCompile, "question", func(r *incr.Reader, byKey bool) [3]mesh.MTLSMode {
			modes := m.ModesFor(r, "a", labels)
			if byKey { // as the inbound listener does, with the policies of the class
				id := model.ProxyKey{Namespace: "a", Labels: "app=w"}
				modes = m.ModesOf(r, "a", strings.Fields(m.Classify().Of(r, id).Workload.Policies))
			}
			shut := mesh.Permissive
			if modes.Closed {
				shut = mesh.Strict
			}
			return [3]mesh.MTLSMode{modes.Of(80), modes.Of(9000), shut}
		})
		for _, byKey := range []bool{false, true} {
			rule.Want(byKey)
		}
		check := func(when string, want model.Modes) {
			t.Helper()
			shut := mesh.Permissive
			if want.Closed {
				shut = mesh.Strict
			}
			for _, byKey := range []bool{false, true} {
				if got, _ := rule.Value(byKey); got != [3]mesh.MTLSMode{want.Of(80), want.Of(9000), shut} {
					t.Errorf("%s, %s, by key %v: %v, want %v", name, when, byKey, got, want)
				}
			}
		}
		m.Deny(c.denials)
		g.Run()
		check("denied", c.want)
		m.Deny(nil)
		g.Run()
		check("over", open)
		if n := m.Counts()["peer_authentications"]; n != 3 {
			t.Errorf("%s: %d policies are counted", name, n)
		}
	}
}
