package xds

import (
	"strings"
	"testing"
)

func TestARowThatLeavesSomethingOutPanics(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*typeInfo)
		want  string
	}{
		"no row":                        {func(r *typeInfo) { *r = typeInfo{} }, "type 4 has no name"},
		"no type URL":                   {func(r *typeInfo) { r.url = "" }, "has no name, type URL"},
		"updates forgotten":             {func(r *typeInfo) { r.after = nil }, "does not say what its updates and removals wait for"},
		"removals forgotten":            {func(r *typeInfo) { r.removedAfter = nil }, "does not say what its updates and removals wait for"},
		"no dump":                       {func(r *typeInfo) { r.dump = nil }, "has no dump"},
		"waits for what is sent behind": {func(r *typeInfo) { r.after = []Type{RDS} }, "sent later"},
	} {
		t.Run(name, func(t *testing.T) {
			rows := types
			c.spoil(&rows[RDS])
			if got := panicOf(func() { checked(rows) }); !strings.Contains(got, c.want) {
				t.Errorf("panic %q, want one with %q", got, c.want)
			}
		})
	}
}

func TestAnUnknownTypePanics(t *testing.T) {
	for name, f := range map[string]func(){
		"URL": func() { _ = numTypes.URL() }, "String": func() { _ = numTypes.String() }, "StatusName": func() { _ = numTypes.StatusName() },
		"NewResource": func() { NewResource(numTypes, "a", nil) },
	} {
		if got := panicOf(f); got != "xds: unknown type 6" {
			t.Errorf("%s: panic %q", name, got)
		}
	}
}

func panicOf(f func()) (text string) {
	defer func() { text, _ = recover().(string) }()
	f()
	return ""
}

func TestTypesAreFoundByTheirURL(t *testing.T) {
	if n := len(Types()); n != int(numTypes) {
		t.Fatalf("%d types", n)
	}
	for _, typ := range Types() {
		if got, ok := ParseType(typ.URL()); !ok || got != typ {
			t.Errorf("%s: found %v, %v", typ, got, ok)
		}
	}
	if _, ok := ParseType("type.googleapis.com/x"); ok {
		t.Error("an unknown type URL is found")
	}
}

// Every type has a part in the dump, and it holds the type's resources.
func TestDumpHasEveryType(t *testing.T) {
	v := &View{}
	for _, typ := range Types() {
		v = v.With(typ, []*Resource{NewResource(typ, "of "+typ.String(), nil)}, nil)
	}
	d := Dump(v)
	if want := int(numTypes) - 1; len(d.Configs) != want {
		t.Fatalf("%d parts, want %d: one for each type but VHDS", len(d.Configs), want)
	}
	for i, part := range d.Configs {
		if url := Type(i).URL(); !strings.Contains(string(part.Value), url) {
			t.Errorf("the part of %s, a %s, holds no %s", Type(i), part.TypeUrl, url)
		}
	}
}
