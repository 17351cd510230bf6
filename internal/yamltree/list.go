package yamltree

import (
	"bytes"
	"encoding/json"
)

// List splits a chunk that is one mapping with a list "items", so that items that are known need not be parsed:
// YAML in block style, as kubectl writes it, or JSON. It returns the mapping without the items, and a chunk of each
// item. ok is false for other chunks, and for those that do not parse. If Parse returns a Fault for an item, or a
// YAML item needs an anchor of another one, the whole chunk must be parsed, for which Parse returns a Fault, too, or
// the document.
func (c Chunk) List() (head *Tree, items []Chunk, ok bool) {
	switch {
	case c.fault != "" || c.item:
		return nil, nil, false
	case c.json:
		return c.jsonList()
	}
	return c.yamlList()
}

// itemsKey is the line that begins the items of a YAML list.
const itemsKey = "items:"

// yamlList splits at lines only. That is right if all parts parse on their own: then no scalar or flow collection
// reaches beyond the end of its part, and a line that is less indented than what is in an item ends it.
func (c Chunk) yamlList() (head *Tree, items []Chunk, ok bool) {
	text := c.blanked()
	var rest []byte                               // the lines that are not of items
	begin, line, indent, after := 0, 0, -1, false // the line of "items:" in rest; that in text; the items' indentation
	for l := newLines(text); l.next(); line++ {
		whole, trimmed := text[l.at:l.end], bytes.TrimLeft(l.line, " ")
		column := len(l.line) - len(trimmed)
		dash := bytes.HasPrefix(trimmed, []byte("- ")) || string(trimmed) == "-"
		switch {
		case begin == 0 || after:
			rest = append(rest, whole...)
			if begin == 0 && string(bytes.TrimRight(l.line, " \t")) == itemsKey {
				begin = line + 1
			}
		case dash && (indent < 0 || column == indent):
			indent = column
			items = append(items, Chunk{Text: whole, Line: c.Line + line, item: true})
		case len(items) > 0 && (len(trimmed) == 0 || trimmed[0] == '#' || column > indent):
			last := &items[len(items)-1]
			last.Text = last.Text[:len(last.Text)+len(whole)] // it follows in text
		case len(trimmed) == 0 || trimmed[0] == '#':
			rest = append(rest, whole...)
		case len(items) > 0 && column == 0:
			after = true
			rest = append(rest, whole...)
		default:
			return nil, nil, false
		}
	}
	if len(items) == 0 {
		return nil, nil, false
	}
	doc := parseYAML(Chunk{Text: rest, Line: 1})
	if doc.Root == nil || doc.Root.Kind != Mapping {
		return nil, nil, false
	}
	for _, e := range doc.Root.Entries {
		ok = ok || e.Key == "items" && e.Line == begin && e.Value.Kind == Null && e.Value.Text == ""
	}
	return doc.Root, items, ok
}

// jsonList splits a text that is one JSON object.
func (c Chunk) jsonList() (head *Tree, items []Chunk, ok bool) {
	d := json.NewDecoder(bytes.NewReader(c.Text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, false
	}
	rest, line, at := []byte("{"), c.Line, int64(0)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, nil, false
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, nil, false
		}
		rest = append(append(rest, name...), ':')
		if key != "items" {
			var raw json.RawMessage
			if d.Decode(&raw) != nil {
				return nil, nil, false
			}
			rest = append(rest, raw...)
			continue
		}
		rest = append(rest, "null"...)
		if t, err := d.Token(); err != nil || t != json.Delim('[') || ok {
			return nil, nil, false
		}
		for ok = true; d.More(); {
			var raw json.RawMessage
			if d.Decode(&raw) != nil {
				return nil, nil, false
			}
			start := d.InputOffset() - int64(len(raw))
			if !bytes.Equal(c.Text[start:d.InputOffset()], raw) {
				return nil, nil, false
			}
			line += bytes.Count(c.Text[at:start], []byte("\n"))
			at = start
			items = append(items, Chunk{Text: c.Text[start:d.InputOffset()], Line: line, json: true, item: true})
		}
		if _, err := d.Token(); err != nil {
			return nil, nil, false
		}
	}
	if _, err := d.Token(); err != nil || len(bytes.TrimSpace(c.Text[d.InputOffset():])) > 0 || !ok {
		return nil, nil, false
	}
	docs := parseJSON(append(rest, '}'))
	if len(docs) != 1 || docs[0].Root == nil || docs[0].Root.Kind != Mapping {
		return nil, nil, false
	}
	return docs[0].Root, items, true
}

// parseItem parses an item of a list, at the depth that it has in the list. A Fault may be one of the whole list.
func (c Chunk) parseItem() Document {
	var docs []Document
	if c.json {
		docs = parseJSON(append(append([]byte(`{"items":[`), c.Text...), "]}"...))
		shiftLines(docs, c.Line-1)
	} else {
		docs = []Document{parseYAML(Chunk{Text: append([]byte(itemsKey+"\n"), c.Text...), Line: c.Line - 1})}
	}
	doc := docs[0]
	if doc.Fault == nil && len(docs) == 1 && doc.Root != nil && len(doc.Root.Entries) == 1 {
		if list := doc.Root.Entries[0].Value; doc.Root.Kind == Mapping && list.Kind == Sequence && len(list.Items) == 1 {
			return Document{Line: list.Items[0].Line, Root: list.Items[0]}
		}
	}
	return Document{Line: c.Line, Text: c.Text, Fault: &Fault{Line: c.Line, Text: "the item does not parse on its own"}}
}

// shiftLines adds a number to all lines of documents that have been parsed without a Fault.
func shiftLines(docs []Document, by int) {
	for i := range docs {
		docs[i].Line += by
		docs[i].Root.shift(by)
	}
}

func (t *Tree) shift(by int) {
	if t == nil {
		return
	}
	t.Line += by
	for i := range t.Entries {
		t.Entries[i].Line += by
		t.Entries[i].Value.shift(by)
	}
	for _, item := range t.Items {
		item.shift(by)
	}
}
