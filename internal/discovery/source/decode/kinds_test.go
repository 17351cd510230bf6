package decode

import (
	"strings"
	"testing"
	"unicode/utf8"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Every kind can be read in the first version of its group, and nothing else is a kind.
func TestEveryKindHasARow(t *testing.T) {
	if len(kinds) != len(object.Kinds()) {
		t.Errorf("%d rows, want one for each of %d kinds", len(kinds), len(object.Kinds()))
	}
	for _, k := range object.Kinds() {
		text := "apiVersion: " + kinds[k].apiVersions()[0] + "\nkind: " + APIKind(k) + "\nmetadata: {name: a}\n"
		r := Documents("a.yaml", []byte(text))
		if len(r.Objects) != 1 || r.Objects[0].Kind != k || len(r.Problems) > 0 {
			t.Errorf("%s: read %+v, problems %v", k, r.Objects, r.Problems)
		}
		if (NewSpec(k) != nil) != strings.HasSuffix(kinds[k].group, ".istio.io") {
			t.Errorf("%s of group %q: message %T", k, kinds[k].group, NewSpec(k))
		}
	}
}

func TestPolicyKindsAreThoseThatEnforce(t *testing.T) {
	var got []string
	for _, k := range policyKinds {
		got = append(got, string(k))
	}
	if strings.Join(got, " ") != "AuthorizationPolicy PeerAuthentication RequestAuthentication" {
		t.Errorf("policy kinds %v", got)
	}
}

// A message with a string that is not UTF-8 could not be encoded for proxies: such text is a
// problem, or its bad bytes are replaced, as JSON is read everywhere in Go.
func TestInvalidUTF8IsRejected(t *testing.T) {
	for file, text := range map[string]string{
		"a.yaml": "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [\"\xff\"]}\n",
		"a.json": `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a"},"spec":{"hosts":["` + "\xff" + `"]}}`,
		"b.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {a: \"\xff\"}}\n",
	} {
		r := Documents(file, []byte(text))
		if len(r.Objects)+len(r.Problems) != 1 {
			t.Fatalf("%s: %d objects, problems %v", file, len(r.Objects), r.Problems)
		}
		for _, o := range r.Objects {
			if spec, ok := o.Spec.(*networking.VirtualService); !ok || !utf8.ValidString(spec.Hosts[0]) {
				t.Errorf("%s: read %+v", file, o)
			}
		}
	}
}
