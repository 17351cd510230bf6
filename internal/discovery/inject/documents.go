package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Note is something to tell about one object of a text.
type Note struct {
	Line   int    // of the document, from 1
	Object string // such as Deployment demo/web
	Text   string
}

// String returns the note with its line and object.
func (n Note) String() string { return fmt.Sprintf("line %d: %s: %s", n.Line, n.Object, n.Text) }

// templatePaths say where the Pod template of a kind is; that of a Pod is the object itself.
var templatePaths = map[string][]string{
	"v1/Pod":                   {},
	"v1/ReplicationController": {"spec", "template"},
	"apps/v1/Deployment":       {"spec", "template"},
	"apps/v1/StatefulSet":      {"spec", "template"},
	"apps/v1/DaemonSet":        {"spec", "template"},
	"apps/v1/ReplicaSet":       {"spec", "template"},
	"batch/v1/Job":             {"spec", "template"},
	"batch/v1/CronJob":         {"spec", "jobTemplate", "spec", "template"},
}

// Documents injects the Pods and Pod templates of a text, YAML documents or JSON values. What gets no proxy is
// returned byte by byte as it was. Of r, the Pod and its owner are those of the text, and Namespace is that of
// objects without one. Notes say what was left alone and why, and what was warned about. The error has all
// mistakes of the text, each with its document and line; then nothing is returned.
func (c *Config) Documents(text []byte, r Request) ([]byte, []Note, error) {
	isJSON := json.Valid(text) || len(bytes.TrimSpace(text)) > 0 && bytes.TrimSpace(text)[0] == '{' && jsonStream(text)
	var out bytes.Buffer
	var notes []Note
	var bad []error
	number := 0
	for _, chunk := range yamltree.Split(text, isJSON) {
		docs := chunk.Parse()
		changed := false
		var parts []json.RawMessage
		for _, d := range docs {
			number++
			at := func(err error) error { return fmt.Errorf("document %d (line %d): %w", number, d.Line, err) }
			if d.Fault != nil {
				bad = append(bad, at(d.Fault))
				continue
			}
			if d.Root == nil {
				continue
			}
			w := &document{c: c, r: r, line: d.Line}
			tree, did, err := w.object(d.Root)
			if err != nil {
				bad = append(bad, at(err))
				continue
			}
			notes = append(notes, w.notes...)
			changed = changed || did
			parts = append(parts, tree)
		}
		if !changed {
			out.Write(chunk.Text)
			continue
		}
		if err := write(&out, chunk.Text, parts, isJSON); err != nil {
			bad = append(bad, err)
		}
	}
	if len(bad) > 0 {
		return nil, nil, errors.Join(bad...)
	}
	return out.Bytes(), notes, nil
}

// jsonStream reports whether a text begins with a JSON object.
func jsonStream(text []byte) bool {
	var first json.RawMessage
	return json.NewDecoder(bytes.NewReader(text)).Decode(&first) == nil
}

// write writes changed documents in the form of the text.
func write(out *bytes.Buffer, before []byte, parts []json.RawMessage, isJSON bool) error {
	if isJSON {
		for _, p := range parts {
			if err := json.Indent(out, p, "", "  "); err != nil {
				return fmt.Errorf("encode the result: %w", err)
			}
			out.WriteByte('\n')
		}
		return nil
	}
	if bytes.HasPrefix(before, []byte("---")) {
		out.WriteString("---\n")
	}
	for _, p := range parts {
		text, err := yaml.JSONToYAML(p)
		if err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		out.Write(text)
	}
	return nil
}

// document is one document of a text.
type document struct {
	c     *Config
	r     Request
	line  int
	notes []Note
}

// object injects one object, or those of a list. It returns the object as JSON, and whether it changed.
func (w *document) object(t *yamltree.Tree) (json.RawMessage, bool, error) {
	whole := json.RawMessage(t.JSON())
	if t.Kind != yamltree.Mapping {
		return whole, false, nil
	}
	version, kind := t.Get("apiVersion").Str(), t.Get("kind").Str()
	if items := t.Get("items"); items != nil && items.Kind == yamltree.Sequence && strings.HasSuffix(kind, "List") {
		return w.list(t, items)
	}
	path, ok := templatePaths[version+"/"+kind]
	if !ok {
		return whole, false, nil
	}
	template := t
	for i, field := range path {
		if template = template.Get(field); template == nil {
			return nil, false, fmt.Errorf("%s: no field %s", describe(t), strings.Join(path[:i+1], "."))
		}
	}
	injected, err := w.template(t, template, strings.Join(path, "."))
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", describe(t), err)
	}
	if injected == nil {
		return whole, false, nil
	}
	text, err := replaceAt(whole, path, injected)
	return text, err == nil, err
}

// list injects the items of a list.
func (w *document) list(t, items *yamltree.Tree) (json.RawMessage, bool, error) {
	changed := false
	out := make([]json.RawMessage, len(items.Items))
	for i, item := range items.Items {
		inner := &document{c: w.c, r: w.r, line: item.Line}
		text, did, err := inner.object(item)
		if err != nil {
			return nil, false, fmt.Errorf("items[%d] (line %d): %w", i, item.Line, err)
		}
		out[i], changed = text, changed || did
		w.notes = append(w.notes, inner.notes...)
	}
	if !changed {
		return json.RawMessage(t.JSON()), false, nil
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, false, fmt.Errorf("encode the result: %w", err)
	}
	text, err = replaceAt(t.JSON(), []string{"items"}, text)
	return text, err == nil, err
}

// template injects one Pod or Pod template; nil if it gets no proxy.
func (w *document) template(object, template *yamltree.Tree, path string) (json.RawMessage, error) {
	pod, err := decodePod(template, path)
	if err != nil {
		return nil, err
	}
	r := w.r
	r.Pod = pod
	if ns := object.Get("metadata").Get("namespace").Str(); ns != "" {
		r.Namespace = ns
	}
	if path != "" {
		r.Owner = &Owner{object.Get("apiVersion").Str(), object.Get("kind").Str(), object.Get("metadata").Get("name").Str()}
	}
	d := w.c.Decide(r)
	if d.Warning != "" {
		w.note(object, d.Warning)
	}
	if !d.Inject {
		w.note(object, "no proxy is injected: "+d.Message)
		return nil, nil
	}
	result, err := w.c.Inject(r)
	if err != nil {
		return nil, err
	}
	for _, text := range result.Warnings {
		w.note(object, text)
	}
	if path == "" {
		return encode(result.Pod)
	}
	text, err := json.Marshal(corev1.PodTemplateSpec{ObjectMeta: result.Pod.ObjectMeta, Spec: result.Pod.Spec})
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return text, nil
}

func (w *document) note(object *yamltree.Tree, text string) {
	w.notes = append(w.notes, Note{Line: w.line, Object: describe(object), Text: text})
}

// decodePod decodes a Pod or a Pod template. Unknown fields are errors, since they would be lost.
func decodePod(t *yamltree.Tree, path string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if f := yamltree.Into(t, path, pod); f != nil {
		return nil, f
	}
	unknown, err := kjson.UnmarshalStrict(t.JSON(), &corev1.Pod{})
	if err != nil {
		return nil, &yamltree.Fault{Line: t.Line, Path: path, Text: err.Error()}
	}
	if len(unknown) > 0 {
		return nil, &yamltree.Fault{Line: t.Line, Path: path, Text: errors.Join(unknown...).Error()}
	}
	if path != "" {
		pod.TypeMeta = metav1.TypeMeta{}
	}
	return pod, nil
}

// describe names an object, such as Deployment demo/web.
func describe(t *yamltree.Tree) string {
	m := t.Get("metadata")
	name := firstNonEmpty(m.Get("name").Str(), m.Get("generateName").Str())
	if ns := m.Get("namespace").Str(); ns != "" {
		name = ns + "/" + name
	}
	return clip(t.Get("kind").Str() + " " + name)
}

// replaceAt replaces the value at a path of a JSON object.
func replaceAt(object json.RawMessage, path []string, value json.RawMessage) (json.RawMessage, error) {
	if len(path) == 0 {
		return value, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(object, &m); err != nil {
		return nil, fmt.Errorf("decode the object: %w", err)
	}
	inner, err := replaceAt(m[path[0]], path[1:], value)
	if err != nil {
		return nil, err
	}
	m[path[0]] = inner
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the object: %w", err)
	}
	return text, nil
}
