package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
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
	isJSON := startsAsJSON(text)
	var out bytes.Buffer
	var notes []Note
	var bad []error
	number := 0
	for _, p := range pieces(text, isJSON) {
		if p.doc == nil || p.doc.Fault == nil && p.doc.Root == nil {
			out.Write(p.text)
			continue
		}
		number++
		w := &document{c: c, r: r, line: p.doc.Line}
		injected, changed, err := w.document(p.doc)
		notes = append(notes, w.notes...)
		switch {
		case err != nil:
			err = fmt.Errorf("document %d (line %d): %w", number, p.doc.Line, err)
		case !changed:
			out.Write(p.text)
		default:
			err = write(&out, p.text, injected, isJSON)
		}
		if err != nil {
			bad = append(bad, err)
		}
	}
	if len(bad) > 0 {
		return nil, nil, errors.Join(bad...)
	}
	return out.Bytes(), notes, nil
}

// startsAsJSON reports whether a text is JSON: YAML may begin with a brace, too.
func startsAsJSON(text []byte) bool {
	var first json.RawMessage
	text = bytes.TrimSpace(text)
	return len(text) > 0 && text[0] == '{' && json.NewDecoder(bytes.NewReader(text)).Decode(&first) == nil
}

// piece is a part of a text with at most one document; all pieces together are the text.
type piece struct {
	text []byte
	doc  *yamltree.Document
}

func pieces(text []byte, isJSON bool) []piece {
	var out []piece
	if !isJSON || len(text) > yamltree.MaxBytes {
		for _, chunk := range yamltree.Split(text, false) {
			docs := chunk.Parse()
			// Documents that are blank are no chunks.
			if at := bytes.Index(text, chunk.Text); at > 0 {
				out, text = append(out, piece{text: text[:at]}), text[at:]
			}
			out = append(out, piece{text: chunk.Text, doc: &docs[0]})
			text = text[min(len(chunk.Text), len(text)):]
		}
		return append(out, piece{text: text})
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		start, line := decoder.InputOffset(), bytes.Count(text[:decoder.InputOffset()], []byte("\n"))
		var value json.RawMessage
		err := decoder.Decode(&value)
		part := text[start:]
		if err == nil {
			part = text[start:decoder.InputOffset()]
		}
		docs := yamltree.Parse(append(bytes.Repeat([]byte("\n"), line), part...), true)
		if len(docs) == 0 || errors.Is(err, io.EOF) {
			return append(out, piece{text: part})
		}
		out = append(out, piece{text: part, doc: &docs[0]})
		if err != nil {
			return out
		}
	}
}

// write writes a changed document in the form of the text.
func write(out *bytes.Buffer, before []byte, object json.RawMessage, isJSON bool) error {
	if isJSON {
		out.Write(before[:len(before)-len(bytes.TrimLeft(before, " \t\r\n"))])
		if err := json.Indent(out, object, "", "  "); err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		return nil
	}
	if bytes.HasPrefix(before, []byte("---")) {
		out.WriteString("---\n")
	}
	text, err := yaml.JSONToYAML(object)
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	out.Write(text)
	return nil
}

// document is one document of a text.
type document struct {
	c     *Config
	r     Request
	line  int
	notes []Note
}

// document injects what one document has.
func (w *document) document(d *yamltree.Document) (json.RawMessage, bool, error) {
	if d.Fault != nil {
		return nil, false, d.Fault
	}
	return w.object(d.Root)
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
			return nil, false, fmt.Errorf("%s: field %s is missing", describe(t), strings.Join(path[:i+1], "."))
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
		return nil, strictFault(t, path, unknown[0].Error())
	}
	if path != "" {
		pod.TypeMeta = metav1.TypeMeta{}
	}
	return pod, nil
}

// strictFault is the first field that a Pod does not have, with its line.
func strictFault(t *yamltree.Tree, path, text string) *yamltree.Fault {
	_, rest, ok := strings.Cut(text, "unknown field \"")
	if !ok {
		return &yamltree.Fault{Line: t.Line, Path: path, Text: text}
	}
	field := strings.TrimSuffix(rest, "\"")
	line := t.Line
	for _, step := range strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		i, err := strconv.Atoi(step)
		switch {
		case err == nil && t != nil && i < len(t.Items):
			t = t.Items[i]
		default:
			for _, e := range entries(t) {
				if e.Key == step {
					line = e.Line
				}
			}
			t = t.Get(step)
		}
	}
	if path != "" {
		field = path + "." + field
	}
	return &yamltree.Fault{Line: line, Path: clip(field), Text: "unknown field"}
}

func entries(t *yamltree.Tree) []yamltree.Entry {
	if t == nil {
		return nil
	}
	return t.Entries
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
