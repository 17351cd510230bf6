package config

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

func TestEveryKindHasRules(t *testing.T) {
	for _, k := range object.Kinds() {
		if kinds[k] == nil {
			t.Errorf("%s has no row", k)
		}
	}
	if len(kinds) != len(object.Kinds()) {
		t.Errorf("%d rows, want one for each of %d kinds", len(kinds), len(object.Kinds()))
	}
}

func TestUnknownKindsAndSpecsAreRejected(t *testing.T) {
	key := object.Key{Kind: object.Sidecar, Namespace: "a", Name: "b"}
	if v := Validate(object.Object{Key: key, Spec: 1}); !Rejected(v) || !strings.Contains(v[0].Text, "invalid spec of type int: want that of kind Sidecar") {
		t.Errorf("a spec of another type: %v", v)
	}
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "unknown kind of object: Teapot a/b") {
			t.Errorf("panic %q", got)
		}
	}()
	key.Kind = "Teapot"
	Validate(object.Object{Key: key})
}
