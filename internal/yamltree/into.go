package yamltree

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
)

// Into decodes a tree into the struct that v points to, by its json tags. Path is the field path
// of the tree, for the Fault. Fields that the struct lacks are ignored; the first value of a wrong
// type is returned as a Fault.
func Into(t *Tree, path string, v any) *Fault {
	var e encoder
	e.value(t, -1, "", -1)
	err := json.Unmarshal(e.out, v)
	if err == nil {
		return nil
	}
	var bad *json.UnmarshalTypeError
	if !errors.As(err, &bad) {
		return &Fault{Line: t.Line, Path: path, Text: strings.TrimPrefix(err.Error(), "json: ")}
	}
	i := e.find(bad)
	f := &Fault{Line: e.marks[i].tree.Line, Path: e.path(i, path)}
	want := describe(bad.Type)
	f.Text = fmt.Sprintf("want %s, not %s", want, e.marks[i].tree.Kind)
	switch kind := e.marks[i].tree.Kind; {
	case want == "a string" && (kind == Number || kind == Bool):
		f.Text += fmt.Sprintf("; put it in quotes: %q", e.marks[i].tree.Text)
	case kind == Number:
		f.Text = fmt.Sprintf("%s does not fit %s", e.marks[i].tree.Text, want)
	}
	return f
}

// find returns the mark of the value that a type error is about: the last one that starts before
// the error's offset, which is after the value's first byte.
func (e *encoder) find(bad *json.UnmarshalTypeError) int {
	i := sort.Search(len(e.marks), func(i int) bool { return int64(e.marks[i].start) >= bad.Offset }) - 1
	i = max(i, 0)
	if want, whole := map[string]Kind{"array": Sequence, "object": Mapping}[bad.Value]; whole && e.marks[i].tree.Kind != want && e.marks[i].parent >= 0 {
		i = e.marks[i].parent
	}
	return i
}

// describe returns what a value of type t must be, for messages.
func describe(t reflect.Type) string {
	if t == nil {
		return "another type"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a base64 string"
		}
		return "a list"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "a mapping"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return fmt.Sprintf("a whole number of %d bits", t.Bits())
}
