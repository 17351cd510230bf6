package model

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

func TestEveryKindHasARow(t *testing.T) {
	for _, k := range object.Kinds() {
		if row := kinds[k]; row.put == nil || row.remove == nil {
			t.Errorf("%s has no complete row", k)
		}
	}
	if len(kinds) != len(object.Kinds()) {
		t.Errorf("%d rows, want one for each of %d kinds", len(kinds), len(object.Kinds()))
	}
}

// Otherwise the object would be accepted and then ignored.
func TestAnObjectThatCannotBeStoredPanics(t *testing.T) {
	m := New(incr.New(), "cluster.local")
	for want, o := range map[string]object.Object{
		"unknown kind of object: Teapot a/b":         {Key: object.Key{Kind: "Teapot", Namespace: "a", Name: "b"}},
		"Sidecar a/b has a spec of type <nil>, want": {Key: object.Key{Kind: object.Sidecar, Namespace: "a", Name: "b"}},
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("panic %q, want one with %q", got, want)
				}
			}()
			m.Apply([]object.Change{{Key: o.Key, Object: &o}})
		}()
	}
}
