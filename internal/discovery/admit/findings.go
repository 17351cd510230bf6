package admit

import (
	"fmt"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

const (
	// maxFindings bounds what is found in one version of an object.
	maxFindings = 10_000
	// maxPasses is how often an object is decoded, each time without the fields that the last time could not be.
	maxPasses = 8
	// fileName makes package decode parse JSON. Answers do not contain it.
	fileName = "object.json"
	// anyName stands for a name that the API server will generate.
	anyName = "generated"
)

// finding is a problem of an object, with the value of its field.
type finding struct {
	object.Problem
	value string // JSON; empty if the field is not there
}

// text returns the finding for people, as one line.
func (f finding) text() string {
	text := printable.Escape(f.Text)
	if f.Field == "" {
		return text
	}
	return printable.Escape(f.Field) + ": " + text
}

// findings are what was found in one version of an object.
type findings struct {
	all     []finding
	skipped string // why nothing was checked
}

// parse returns one version of the object of a request, with the names that the API server has not set yet.
func parse(which string, raw []byte, q *admissionv1.AdmissionRequest) (*yamltree.Tree, error) {
	docs := yamltree.Parse(raw, true)
	if len(docs) != 1 || docs[0].Fault != nil || docs[0].Root == nil || docs[0].Root.Kind != yamltree.Mapping {
		why := "want one object"
		if len(docs) > 0 && docs[0].Fault != nil {
			why = quote(docs[0].Fault.Error(), maxWarning)
		}
		return nil, fmt.Errorf("parse request.%s: %s", which, why)
	}
	t := docs[0].Root
	m := t.Get("metadata")
	if m == nil || m.Kind != yamltree.Mapping {
		return t, nil
	}
	name := q.Name
	if name == "" && m.Get("generateName").Str() != "" {
		name = anyName
	}
	return with(t, "metadata", withDefault(withDefault(m, "name", name), "namespace", q.Namespace)), nil
}

// withDefault returns a mapping in which a key that is missing or empty has a value.
func withDefault(t *yamltree.Tree, key, value string) *yamltree.Tree {
	if old := t.Get(key); value == "" || !old.IsNull() && (old.Kind != yamltree.String || old.Text != "") {
		return t
	}
	return with(t, key, &yamltree.Tree{Kind: yamltree.String, Line: t.Line, Text: value})
}

// with returns a copy of a mapping in which a key has a value; nil removes the key.
func with(t *yamltree.Tree, key string, value *yamltree.Tree) *yamltree.Tree {
	out := *t
	out.Entries = nil
	found := false
	for _, e := range t.Entries {
		if e.Key == key {
			if found = true; value == nil {
				continue
			}
			e.Value = value
		}
		out.Entries = append(out.Entries, e)
	}
	if !found && value != nil {
		out.Entries = append(out.Entries, yamltree.Entry{Key: key, Line: value.Line, Value: value})
	}
	return &out
}

// check finds the problems of an object. What package config finds is known only of what package decode can
// decode: if whole is set, the object is decoded again without the fields that could not be, until the rest
// can.
func check(t *yamltree.Tree, whole bool) findings {
	var out findings
	rest := t
	for range maxPasses {
		r := decode.Documents(fileName, jsonOf(rest))
		for _, p := range r.Problems {
			if p.Severity != object.Info {
				out.add(t, p)
			}
		}
		for _, o := range r.Objects {
			for _, v := range config.ValidateUpTo(o, maxFindings) {
				out.add(t, v)
			}
		}
		if len(r.Skipped) > 0 {
			s := r.Skipped[0]
			out.skipped = fmt.Sprintf("the mesh does not use kind %s of %s", quote(s.Kind, 64), quote(s.APIVersion, 64))
		}
		pruned := rest
		for _, p := range r.Problems {
			pruned = without(pruned, p.Field)
		}
		if !whole || len(r.Objects) > 0 || pruned == rest {
			break
		}
		rest = pruned
	}
	return out
}

// add records a problem of the object t, without the place in the JSON, which says nothing to people.
func (f *findings) add(t *yamltree.Tree, p object.Problem) {
	if len(f.all) == maxFindings {
		return
	}
	p.Origin = object.Origin{}
	n := finding{Problem: p}
	if steps, all := resolve(t, p.Field); all && len(steps) > 0 {
		n.value = string(jsonOf(steps[len(steps)-1].value))
	}
	f.all = append(f.all, n)
}

// fault identifies an error in two versions of an object: lists may have become longer or shorter, so the field
// is without the places in lists, but its value must be the same.
type fault struct{ field, text, value string }

func (f finding) fault() fault {
	var field strings.Builder
	for i := 0; i < len(f.Field); i++ {
		field.WriteByte(f.Field[i])
		if f.Field[i] == '[' {
			for i+1 < len(f.Field) && f.Field[i+1] >= '0' && f.Field[i+1] <= '9' {
				i++
			}
		}
	}
	return fault{field.String(), f.Text, f.value}
}

// faults counts equal errors.
type faults map[fault]int

// errors returns the errors among the findings.
func (f findings) errors() faults {
	out := faults{}
	for _, n := range f.all {
		if n.Severity == object.Error {
			out[n.fault()]++
		}
	}
	return out
}

// take reports whether an error is among those that have not been taken, and takes it.
func (f faults) take(n finding) bool {
	k := n.fault()
	if f[k] == 0 {
		return false
	}
	f[k]--
	return true
}

// jsonOf returns a tree as JSON, nothing for nil.
func jsonOf(t *yamltree.Tree) []byte {
	if t == nil {
		return nil
	}
	return t.JSON()
}

// step is one element of a path in a tree.
type step struct {
	key   string // of a mapping; empty for an element of a list
	index int    // in a list
	line  int    // of the key or of the element
	value *yamltree.Tree
}

// resolve follows a field path, such as spec.http[0].route, as far as the tree has it; all is set if it has the
// whole path. Keys are those of the text or of JSON: match_labels is matchLabels.
func resolve(t *yamltree.Tree, path string) (steps []step, all bool) {
	for path != "" {
		var next step
		switch t.Kind {
		case yamltree.Mapping:
			next, path = entryAt(t, path)
		case yamltree.Sequence:
			next, path = itemAt(t, path)
		}
		if next.value == nil {
			return steps, false
		}
		steps, t = append(steps, next), next.value
	}
	return steps, true
}

// entryAt finds the longest key of a mapping that a path begins with, and returns the rest of the path.
func entryAt(t *yamltree.Tree, path string) (found step, rest string) {
	length := 0
	try := func(e yamltree.Entry, after string, ok bool) {
		if ok && len(path)-len(after) > length && (after == "" || after[0] == '.' || after[0] == '[') {
			found, rest, length = step{key: e.Key, line: e.Line, value: e.Value}, after, len(path)-len(after)
		}
	}
	for _, e := range t.Entries {
		after, ok := strings.CutPrefix(path, "["+e.Key+"]")
		try(e, after, ok)
		after, ok = strings.CutPrefix(strings.TrimPrefix(path, "."), e.Key)
		try(e, after, ok && e.Key != "")
	}
	if found.value != nil {
		return found, rest
	}
	name := strings.TrimPrefix(path, ".")
	if i := strings.IndexAny(name, ".["); i >= 0 {
		name, rest = name[:i], name[i:]
	}
	for _, e := range t.Entries {
		if strings.EqualFold(strings.ReplaceAll(e.Key, "_", ""), name) {
			return step{key: e.Key, line: e.Line, value: e.Value}, rest
		}
	}
	return step{}, path
}

// itemAt finds the element of a list that a path begins with, as in "[3].port", and returns the rest of the path.
func itemAt(t *yamltree.Tree, path string) (step, string) {
	number, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
	i, err := strconv.ParseUint(number, 10, 31)
	if !ok || path[0] != '[' || err != nil || int(i) >= len(t.Items) {
		return step{}, path
	}
	return step{index: int(i), line: t.Items[i].Line, value: t.Items[i]}, rest
}

// without returns a tree without a field: the mapping's entry that it is, or in whose list it is, so that the
// places in lists stay what they are. It returns t itself if it does not have the field, or if it would be
// without spec or metadata.
func without(t *yamltree.Tree, path string) *yamltree.Tree {
	steps, all := resolve(t, path)
	last := len(steps) - 1
	for last >= 0 && steps[last].key == "" {
		last--
	}
	if !all || last < 1 {
		return t
	}
	return removed(t, steps[:last+1])
}

// removed returns a copy of a tree without the entry at which steps end.
func removed(t *yamltree.Tree, steps []step) *yamltree.Tree {
	first := steps[0]
	if first.key == "" {
		out := *t
		out.Items = append([]*yamltree.Tree(nil), t.Items...)
		out.Items[first.index] = removed(first.value, steps[1:])
		return &out
	}
	if len(steps) == 1 {
		return with(t, first.key, nil)
	}
	return with(t, first.key, removed(first.value, steps[1:]))
}
