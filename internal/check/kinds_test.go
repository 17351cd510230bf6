package check

import (
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// A kind that is read without a permission would keep the control plane of a cluster from being ready.
func TestEveryKindMayBeRead(t *testing.T) {
	rules := AccountRules("istio-system", "")
	unread := []object.Kind{object.ServiceAccount, object.ConfigMap} // of a directory; in a cluster one ConfigMap is read, by its name
	for _, kind := range object.Kinds() {
		if slices.Contains(unread, kind) {
			continue
		}
		r := decode.ResourceOf(kind)
		for _, verb := range []string{"list", "watch"} {
			want := Rule{Group: r.Group, Resource: r.Name, Verb: verb}
			here := want
			here.Namespace = "istio-system"
			if !slices.Contains(rules, want) && !slices.Contains(rules, here) {
				t.Errorf("%s: no rule %s", kind, want)
			}
		}
	}
}
