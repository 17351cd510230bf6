package yamltree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// jsonReader parses a sequence of JSON values. The YAML parser cannot be used: not all of JSON's
// escapes and tabs are valid YAML.
type jsonReader struct {
	text []byte
	dec  *json.Decoder
	at   int64 // the offset up to which lines have been counted
	line int
}

func parseJSON(text []byte) []Document {
	r := &jsonReader{text: text, dec: json.NewDecoder(bytes.NewReader(text)), line: 1}
	r.dec.UseNumber()
	var docs []Document
	for {
		rest := r.text[min(r.dec.InputOffset(), int64(len(r.text))):]
		if len(docs) == MaxDocuments {
			f := &Fault{Line: r.currentLine(), Text: fmt.Sprintf("more than %d documents: the rest is not read; split the file", MaxDocuments)}
			return append(docs, Document{Line: f.Line, Fault: f, Text: rest})
		}
		tok, err := r.dec.Token()
		if errors.Is(err, io.EOF) {
			return docs
		}
		doc := Document{Line: r.currentLine()}
		if err == nil {
			doc.Root, err = r.value(tok, 0)
		}
		if err != nil {
			var f *Fault
			if !errors.As(err, &f) {
				f = &Fault{Line: r.currentLine(), Text: "the JSON does not parse: " + err.Error()}
			}
			doc.Root, doc.Fault, doc.Text = nil, f, rest
			return append(docs, doc)
		}
		if doc.Root.Kind == Null {
			doc.Root = nil
		}
		docs = append(docs, doc)
	}
}

// currentLine returns the line of the last token.
func (r *jsonReader) currentLine() int {
	to := min(r.dec.InputOffset(), int64(len(r.text)))
	r.line += bytes.Count(r.text[r.at:to], []byte("\n"))
	r.at = to
	return r.line
}

func (r *jsonReader) value(tok json.Token, depth int) (*Tree, error) {
	t := &Tree{Line: r.currentLine(), cost: 4}
	if depth > MaxDepth {
		return nil, &Fault{Line: t.Line, Text: fmt.Sprintf("nested deeper than %d levels; flatten the document", MaxDepth)}
	}
	switch v := tok.(type) {
	case bool:
		t.Kind, t.Text = Bool, fmt.Sprint(v)
	case json.Number:
		t.Kind, t.Text = Number, v.String()
	case string:
		t.Kind, t.Text = String, v
	case json.Delim:
		if v == '[' {
			return t, r.list(t, depth)
		}
		return t, r.object(t, depth)
	}
	return t, nil
}

func (r *jsonReader) list(t *Tree, depth int) error {
	t.Kind = Sequence
	for r.dec.More() {
		tok, err := r.dec.Token()
		if err != nil {
			return err
		}
		child, err := r.value(tok, depth+1)
		if err != nil {
			return err
		}
		t.Items = append(t.Items, child)
	}
	_, err := r.dec.Token()
	return err
}

func (r *jsonReader) object(t *Tree, depth int) error {
	t.Kind = Mapping
	seen := map[string]int{}
	for r.dec.More() {
		tok, err := r.dec.Token()
		if err != nil {
			return err
		}
		e := Entry{Line: r.currentLine()}
		e.Key, _ = tok.(string)
		if first, dup := seen[e.Key]; dup {
			return &Fault{Line: e.Line, Text: fmt.Sprintf("key %q is given twice, first on line %d; remove one", e.Key, first)}
		}
		seen[e.Key] = e.Line
		if tok, err = r.dec.Token(); err != nil {
			return err
		}
		if e.Value, err = r.value(tok, depth+1); err != nil {
			return err
		}
		t.Entries = append(t.Entries, e)
	}
	_, err := r.dec.Token()
	return err
}
