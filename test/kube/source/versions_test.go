package source_test

import (
	"strings"
	"testing"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

// The API server has PeerAuthentications in a version that nobody knows: nothing is served until it has them in one that is read, and
// that is told. A VirtualService in such a version holds up nothing.
func TestDefinitionsInVersionsThatNobodyKnows(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	unknown := strings.ReplaceAll(permissive, "name: v1,", "name: v9,")
	policies := strings.NewReplacer("virtualservice", "peerauthentication", "VirtualService", "PeerAuthentication", "networking", "security").Replace(unknown)
	install(t, c, unknown+"---\n"+policies)
	o := options(c)
	r := start(t, o)
	says := func(kind, text string) bool {
		for _, p := range r.problems {
			if strings.HasPrefix(p.Text, kind+" objects cannot be read: ") && strings.Contains(p.Text, " serves v9: ") && strings.HasSuffix(p.Text, text) {
				return true
			}
		}
		return false
	}
	r.until(t, "both problems", func() bool {
		return says("VirtualService", "have no effect") && says("PeerAuthentication", "; nothing is served until it has been read once")
	})
	r.mu.Lock()
	if r.synced {
		t.Error("synced without policies")
	}
	r.mu.Unlock()
	const served = "storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}"
	known := strings.Replace(policies, served, served+"\n  - {name: v1, served: true, "+strings.Replace(served, "storage: true", "storage: false", 1), 1)
	if _, err := c.ApplyYAML(t.Context(), "", known); err != nil {
		t.Fatal(err)
	}
	r.until(t, "the sync, with a problem of VirtualServices", func() bool { return r.synced && len(r.problems) == 1 && says("VirtualService", "have no effect") })
}
