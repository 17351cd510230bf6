// Package decode turns YAML and JSON, and typed Kubernetes objects, into the objects that configuration is made of.
//
// Documents reads a text; Typed and Istio take what a client of the Kubernetes API
// already holds. All of them reduce an object in the same way, so that nothing behind a
// source knows where it came from. Reading is strict for Istio's kinds (an unknown
// field is a problem) and tolerant for Kubernetes' own (unknown fields are ignored, wrong
// types are problems). Decoding says what does not parse; what parses and makes no sense
// is for package config to say. Functions only; text of any content is safe to read.
package decode

import (
	"fmt"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Result is what one text holds.
type Result struct {
	// Objects are those that parse, in the order in which they are written. Two of them
	// may have the same key: who reads several texts says which one counts.
	Objects []object.Object
	// Problems are those of the other documents; Key is zero where a document is too
	// broken to say what it is, and names the object that is meant where its kind is
	// misspelt. One, of severity Info, counts the objects that were left out.
	Problems []object.Problem
	// Skipped are objects that belong to others.
	Skipped []Skipped
}

// Skipped is one object that was left out on purpose.
type Skipped struct {
	Origin           object.Origin
	APIVersion, Kind string
	Name             string
}

// Whole says whether the key of every document is known, so that an object that is
// not in the result is not in the text either.
func (r Result) Whole() bool {
	for _, p := range r.Problems {
		if p.Key == (object.Key{}) && p.Severity != object.Info {
			return false
		}
	}
	return true
}

// Documents reads all documents of a file's text: YAML, or JSON where the file's name
// ends in ".json". Lists (kind List) count as their items. A namespace that is not given
// is "default". At most yamltree.MaxBytes and yamltree.MaxDocuments are read.
func Documents(file string, text []byte) Result {
	d := decoder{file: file}
	for _, doc := range yamltree.Parse(text, path.Ext(file) == ".json") {
		switch {
		case doc.Fault != nil:
			d.policy = policyIn(doc.Text)
			d.problem(object.Key{}, doc.Fault)
		case doc.Root != nil:
			d.document(doc.Root, "")
		}
	}
	if p, some := leftOut(file, d.Skipped); some {
		d.Problems = append(d.Problems, p)
	}
	return d.Result
}

// decoder collects the result of one file.
type decoder struct {
	file   string
	count  int
	policy object.Policy // what the document at hand would be, were it broken
	Result
}

func (d *decoder) problem(k object.Key, f *yamltree.Fault) {
	d.Problems = append(d.Problems, object.Problem{
		Origin: object.Origin{File: d.file, Line: f.Line}, Key: k, Field: f.Path, Text: f.Text, Policy: d.policy,
	})
}

// document reads one object or list of objects; at is its path in the document.
func (d *decoder) document(t *yamltree.Tree, at string) {
	d.policy = policyOf(t)
	if d.count++; d.count > yamltree.MaxDocuments {
		if d.count == yamltree.MaxDocuments+1 || d.policy.Broken {
			d.problem(object.Key{}, &yamltree.Fault{Line: t.Line, Path: at, Text: fmt.Sprintf("more than %d objects: the rest is not read; split the file", yamltree.MaxDocuments)})
		}
		return
	}
	kind, version := t.Get("kind").Str(), t.Get("apiVersion").Str()
	switch {
	case t.Kind != yamltree.Mapping:
		d.problem(object.Key{}, &yamltree.Fault{Line: t.Line, Path: at, Text: "want an object with apiVersion, kind and metadata, not " + t.Kind.String()})
	case kind == "" || version == "":
		d.problem(object.Key{}, &yamltree.Fault{Line: t.Line, Path: at, Text: "an object needs apiVersion and kind, both as strings" + versionFor(version, object.Kind(kind))})
	case kind == "List" && version == "v1":
		d.list(t, at)
	default:
		d.object(t, version, object.Kind(kind))
	}
}

func (d *decoder) list(t *yamltree.Tree, at string) {
	items := t.Get("items")
	if items.IsNull() {
		return
	}
	if items.Kind != yamltree.Sequence {
		d.policy = policyIn(t.JSON())
		d.problem(object.Key{}, &yamltree.Fault{Line: items.Line, Path: yamltree.JoinPath(at, "items"), Text: "want a list, not " + items.Kind.String()})
		return
	}
	for i, item := range items.Items {
		d.document(item, fmt.Sprintf("%s[%d]", yamltree.JoinPath(at, "items"), i))
	}
}

func (d *decoder) object(t *yamltree.Tree, version string, kind object.Kind) {
	versions, known := versionsOf(kind, version)
	if !known {
		d.notRead(t, version, kind)
		return
	}
	meta, key, fault := header(t, kind)
	if fault != nil {
		d.problem(key, fault)
		return
	}
	if !contains(versions, version) {
		d.problem(key, &yamltree.Fault{Line: t.Line, Path: "apiVersion", Text: fmt.Sprintf("%q is not read; use %s", version, strings.Join(versions, " or "))})
		return
	}
	var o object.Object
	var faults []*yamltree.Fault
	if kinds[kind].newSpec != nil {
		o, faults = istioFrom(t, kind, meta)
	} else {
		o, faults = coreFrom(t, kind, meta)
	}
	for _, f := range faults {
		if f.Line == 0 {
			f.Line = t.Line
		}
		d.problem(key, f)
	}
	if len(faults) == 0 {
		o.Origin = object.Origin{File: d.file, Line: t.Line}
		d.Objects = append(d.Objects, o)
	}
}

// notRead handles an object of a kind that is not read.
func (d *decoder) notRead(t *yamltree.Tree, version string, kind object.Kind) {
	at, m := object.Origin{File: d.file, Line: t.Line}, t.Get("metadata")
	name, namespace := m.Get("name").Str(), m.Get("namespace").Str()
	meant, p, known := notRead(version, kind)
	if !known {
		d.Skipped = append(d.Skipped, Skipped{Origin: at, APIVersion: version, Kind: string(kind), Name: name})
		return
	}
	p.Origin, p.Key = at, keyOf(meant, namespace, name)
	d.Problems = append(d.Problems, p)
}

// header reads metadata. The key is returned as far as it is known, also with a fault;
// it is zero only where the name cannot be.
func header(t *yamltree.Tree, kind object.Kind) (metav1.ObjectMeta, object.Key, *yamltree.Fault) {
	var meta metav1.ObjectMeta
	m := t.Get("metadata")
	name, namespace := m.Get("name").Str(), m.Get("namespace").Str()
	line := t.Line
	if m != nil {
		line = m.Line
	}
	if n := m.Get("name"); name == "" && !n.IsNull() && n.Kind != yamltree.String {
		return meta, object.Key{}, &yamltree.Fault{Line: n.Line, Path: "metadata.name", Text: fmt.Sprintf("want a string, not %s; put it in quotes: %q", n.Kind, n.Text)}
	}
	if name == "" {
		return meta, object.Key{}, &yamltree.Fault{Line: line, Path: "metadata.name", Text: fmt.Sprintf("the %s has no name; give it one", kind)}
	}
	key := keyOf(kind, namespace, name)
	for _, f := range []struct{ path, value string }{{"metadata.name", name}, {"metadata.namespace", key.Namespace}} {
		if why := badName(f.value, f.path == "metadata.name"); why != "" && f.value != "" {
			return meta, key, &yamltree.Fault{Line: line, Path: f.path, Text: why}
		}
	}
	if f := yamltree.Into(m, "metadata", &meta); f != nil {
		return meta, key, f
	}
	return meta, key, nil
}

func keyOf(kind object.Kind, namespace, name string) object.Key {
	switch {
	case kind == object.Namespace:
		namespace = ""
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	return object.Key{Kind: kind, Namespace: namespace, Name: name}
}

// badName says what is wrong with an object's name, by Kubernetes' rule for names: a DNS
// subdomain, and for a namespace a single label of one.
func badName(s string, dots bool) string {
	most := 63
	if dots {
		most = 253
	}
	if len(s) > most {
		return fmt.Sprintf("invalid name %.100q: longer than %d characters", s, most)
	}
	word := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := 0; i < len(s); i++ {
		inside := i > 0 && i < len(s)-1
		if word(s[i]) || inside && (s[i] == '-' || dots && s[i] == '.') {
			continue
		}
		if dots {
			return fmt.Sprintf("invalid name %q: want lower-case letters, digits, \"-\" and \".\", with a letter or digit at both ends", s)
		}
		return fmt.Sprintf("invalid namespace %q: want lower-case letters, digits and \"-\", with a letter or digit at both ends", s)
	}
	return ""
}

func metaOf(m *metav1.ObjectMeta) object.Meta {
	return object.Meta{
		Labels: m.Labels, Annotations: m.Annotations, Created: m.CreationTimestamp.Time,
		Generation: m.Generation, ResourceVersion: m.ResourceVersion,
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
