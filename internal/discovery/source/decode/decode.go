// Package decode converts YAML, JSON and typed Kubernetes objects to values of package object.
//
// Documents parses a text; Typed and Istio convert objects of a client of the Kubernetes API. The
// results are the same, whatever the source. Decoding is strict for Istio's kinds (an unknown field is
// an error) and lenient for Kubernetes' own kinds and for metadata (unknown fields are warnings, wrong types are
// errors). It reports what cannot be parsed; package config validates the result. All functions are
// pure, and safe for texts from untrusted sources.
package decode

import (
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Result is the result of parsing one text.
type Result struct {
	// Objects are those that were parsed, in the order of the text. Several of them may have the
	// same key; the caller decides which one is used.
	Objects []object.Object
	// Problems are those of the other documents, and warnings about the objects. Key is zero if that of a document is unknown; if
	// the kind is misspelt, it is that of the object that was probably meant. A problem of severity
	// Info counts the skipped objects.
	Problems []object.Problem
	// Skipped are objects of kinds that the mesh does not use.
	Skipped []Skipped
}

// Skipped is one object of a kind that the mesh does not use.
type Skipped struct {
	Origin           object.Origin
	APIVersion, Kind string
	Name             string
}

// Whole reports whether the keys of all documents are known, so that an object that is in neither
// Objects nor Problems is not in the text.
func (r Result) Whole() bool {
	for _, p := range r.Problems {
		if p.Key == (object.Key{}) && p.Severity != object.Info {
			return false
		}
	}
	return true
}

// Documents parses all documents of a file: JSON if its name ends in ".json", otherwise YAML. A list
// (kind List) is replaced by its items, and a missing namespace by "default". A text larger than
// yamltree.MaxBytes (bytes) and more documents than yamltree.MaxDocuments are reported as problems.
func Documents(file string, text []byte) Result { return NewFile(file).Documents(text) }

// decoder collects the result of one file.
type decoder struct {
	file   string
	count  int           // of objects
	policy object.Policy // for the problems of the current document
	Result
}

// chunk parses the documents of a part of the file.
func (d *decoder) chunk(c yamltree.Chunk) {
	for _, doc := range c.Parse() {
		switch {
		case doc.Fault != nil:
			d.policy = policyIn(doc.Text)
			d.problem(object.Key{}, doc.Fault)
		case doc.Root != nil:
			d.document(doc.Root, "")
		}
	}
}

func (d *decoder) problem(k object.Key, f *yamltree.Fault) {
	d.Problems = append(d.Problems, object.Problem{
		Origin: object.Origin{File: d.file, Line: f.Line}, Key: k, Field: f.Path, Text: f.Text, Policy: d.policy,
	})
}

// document parses one object or list of objects; at is its path in the document.
func (d *decoder) document(t *yamltree.Tree, at string) {
	d.policy = policyOf(t)
	if d.count++; d.count > yamltree.MaxDocuments {
		if d.count == yamltree.MaxDocuments+1 || d.policy.Broken {
			d.problem(object.Key{}, &yamltree.Fault{Line: t.Line, Path: at, Text: fmt.Sprintf("more than %d objects: the others are ignored; split the file", yamltree.MaxDocuments)})
		}
		return
	}
	kind, version := t.Get("kind").Str(), t.Get("apiVersion").Str()
	kind = string(ownKind(groupIn(version), object.Kind(kind)))
	switch {
	case t.Kind != yamltree.Mapping:
		d.problem(object.Key{}, &yamltree.Fault{Line: t.Line, Path: at, Text: "want an object with apiVersion, kind and metadata, not " + t.Kind.String()})
	case kind == "" || version == "":
		d.problem(object.Key{}, headerFault(t, at, object.Kind(kind)))
	case isList(t):
		d.list(t, at)
	default:
		d.object(t, version, object.Kind(kind))
	}
}

// headerFault says what is wrong with apiVersion and kind, of which one is no string or is empty; kind is the kind if there is one.
func headerFault(t *yamltree.Tree, at string, kind object.Kind) *yamltree.Fault {
	version := t.Get("apiVersion")
	if version.IsNull() && t.Get("kind").IsNull() {
		return &yamltree.Fault{Line: t.Line, Path: at, Text: "apiVersion and kind are missing: an object needs both"}
	}
	for _, name := range []string{"apiVersion", "kind"} {
		switch v := t.Get(name); {
		case v.IsNull() || v.Kind == yamltree.String && v.Str() == "":
			return &yamltree.Fault{Line: t.Line, Path: at, Text: name + " is missing: an object needs apiVersion and kind" + versionFor(version.Str(), kind)}
		case v.Kind != yamltree.String:
			return &yamltree.Fault{Line: v.Line, Path: yamltree.JoinPath(at, name), Text: "want a string, not " + v.Kind.String()}
		}
	}
	return nil // not reached: one of them is no string or is empty
}

// isList reports whether a mapping is a list of objects.
func isList(t *yamltree.Tree) bool {
	return t.Get("kind").Str() == "List" && t.Get("apiVersion").Str() == "v1"
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
		d.problem(key, &yamltree.Fault{Line: t.Line, Path: "apiVersion", Text: fmt.Sprintf("unsupported version %q: want %s", version, strings.Join(versions, " or "))})
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
	d.unknownFields(key, t)
	if len(faults) == 0 {
		o.Origin = object.Origin{File: d.file, Line: t.Line}
		d.Objects = append(d.Objects, o)
	}
}

// unknownFields adds a warning for each field of an object that has no effect because its kind does not have it.
func (d *decoder) unknownFields(k object.Key, t *yamltree.Tree) {
	for _, f := range UnknownFields(t) {
		d.Problems = append(d.Problems, object.Problem{
			Origin: object.Origin{File: d.file, Line: f.Line}, Key: k, Field: f.Path, Text: f.Text, Severity: object.Warning,
		})
	}
}

// notRead handles an object of a kind that is not supported.
func (d *decoder) notRead(t *yamltree.Tree, version string, kind object.Kind) {
	at, m := object.Origin{File: d.file, Line: t.Line}, t.Get("metadata")
	name, namespace := m.Get("name").Str(), m.Get("namespace").Str()
	meant, p, known := notRead(version, kind)
	if !known {
		d.Skipped = append(d.Skipped, Skipped{Origin: at, APIVersion: version, Kind: string(kind), Name: name})
		if workloadKinds[groupKind{group: groupIn(version), kind: kind}] != nil {
			d.unknownFields(KeyOf(kind, namespace, name), t)
		}
		return
	}
	p.Origin, p.Key = at, KeyOf(meant, namespace, name)
	d.Problems = append(d.Problems, p)
}

// header parses metadata. With a fault, too, it returns the key if the name is known.
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
		return meta, object.Key{}, &yamltree.Fault{Line: line, Path: "metadata.name", Text: fmt.Sprintf("the name of the %s is missing", kind)}
	}
	key := KeyOf(kind, namespace, name)
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

// KeyOf returns the key of an object: the namespace is left out for kinds that are in none, and "default" if it is empty.
func KeyOf(kind object.Kind, namespace, name string) object.Key {
	switch {
	case kind == object.Namespace || kind == object.Node || kind == object.GatewayClass || kind == object.IngressClass:
		namespace = ""
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	return object.Key{Kind: kind, Namespace: namespace, Name: name}
}

// badName returns what is wrong with a name by Kubernetes' rules, "" if it is valid: an object's name
// is a DNS subdomain (dots), that of a namespace a DNS label.
func badName(s string, dots bool) string {
	limit := 63
	if dots {
		limit = 253
	}
	if len(s) > limit {
		return fmt.Sprintf("invalid name %.100q: want at most %d characters", s, limit)
	}
	alphanumeric := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := 0; i < len(s); i++ {
		inside := i > 0 && i < len(s)-1
		if alphanumeric(s[i]) || inside && (s[i] == '-' || dots && s[i] == '.') {
			continue
		}
		if dots {
			return fmt.Sprintf("invalid name %q: want lower-case letters, digits, \"-\" and \".\", with a letter or digit at both ends", s)
		}
		return fmt.Sprintf("invalid namespace %q: want lower-case letters, digits and \"-\", with a letter or digit at both ends", s)
	}
	return ""
}

// appliedAnnotation has the whole object once more, as kubectl has sent it.
const appliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"

func metaOf(m *metav1.ObjectMeta) object.Meta {
	annotations := m.Annotations
	if _, ok := annotations[appliedAnnotation]; ok {
		annotations = maps.Clone(annotations)
		if delete(annotations, appliedAnnotation); len(annotations) == 0 {
			annotations = nil
		}
	}
	return object.Meta{
		Labels: m.Labels, Annotations: annotations, Created: m.CreationTimestamp.Time,
		Generation: m.Generation, ResourceVersion: m.ResourceVersion, UID: string(m.UID),
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
