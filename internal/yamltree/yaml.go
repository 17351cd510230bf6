package yamltree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func parseYAML(c Chunk) Document {
	doc := Document{Line: c.Line}
	dec := yaml.NewDecoder(bytes.NewReader(c.Text))
	var node, more yaml.Node
	err := dec.Decode(&node)
	if errors.Is(err, io.EOF) {
		return doc
	}
	if err == nil {
		if err = dec.Decode(&more); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("a second value follows the first; separate documents with ---")
		}
	}
	if err != nil {
		doc.Fault, doc.Text = syntaxFault(err, c.Line), c.Text
		return doc
	}
	b := builder{shift: c.Line - 1, anchors: map[*yaml.Node]*Tree{}}
	root, fault := b.build(&node, 0)
	if fault != nil {
		doc.Fault, doc.Text = fault, c.Text
		return doc
	}
	if root.Kind != Null {
		doc.Root = root
	}
	doc.Line = root.Line
	return doc
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxFault converts a parser's error, whose line is relative to the chunk's first line.
func syntaxFault(err error, first int) *Fault {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := first
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		line, text = first+n-1, text[len(m[0]):]
	}
	return &Fault{Line: line, Text: "the YAML does not parse: " + text}
}

// builder converts the nodes of one document to a tree. An anchored value is built once and shared
// by its aliases; cost and height count it once for each.
type builder struct {
	shift   int
	spent   int64
	anchors map[*yaml.Node]*Tree // nil while the value is being built
}

func (b *builder) fault(n *yaml.Node, format string, args ...any) *Fault {
	return &Fault{Line: n.Line + b.shift, Text: fmt.Sprintf(format, args...)}
}

func (b *builder) build(n *yaml.Node, depth int) (*Tree, *Fault) {
	if depth > MaxDepth {
		return nil, b.fault(n, "nested deeper than %d levels; flatten the document", MaxDepth)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return b.build(n.Content[0], depth)
	case yaml.AliasNode:
		t, known := b.anchors[n.Alias]
		if t == nil && known {
			return nil, b.fault(n, "alias *%s refers to a value that contains it; write out the value", n.Value)
		}
		if t == nil {
			return b.build(n.Alias, depth)
		}
		return t, nil
	}
	if n.Anchor != "" {
		b.anchors[n] = nil
	}
	t := &Tree{Line: n.Line + b.shift, cost: 4}
	var fault *Fault
	switch n.Kind {
	case yaml.MappingNode:
		fault = b.mapping(n, t, depth)
	case yaml.SequenceNode:
		fault = b.sequence(n, t, depth)
	default:
		scalar(n, t)
	}
	if fault != nil {
		return nil, fault
	}
	if n.Anchor != "" {
		b.anchors[n] = t
	}
	return t, nil
}

// add adds the cost and height of a child and checks the limits.
func (b *builder) add(n *yaml.Node, t, child *Tree, key string) *Fault {
	t.cost += child.cost + int64(len(key))
	t.height = max(t.height, child.height+1)
	b.spent++
	switch {
	case t.cost > maxCost || b.spent > maxCost/4:
		return b.fault(n, "the document is more than %d bytes with its aliases written out; split it", maxCost)
	case t.height > MaxDepth:
		return b.fault(n, "nested deeper than %d levels; flatten the document", MaxDepth)
	}
	return nil
}

func (b *builder) sequence(n *yaml.Node, t *Tree, depth int) *Fault {
	t.Kind = Sequence
	t.Items = make([]*Tree, 0, len(n.Content))
	for _, c := range n.Content {
		child, fault := b.build(c, depth+1)
		if fault == nil {
			fault = b.add(c, t, child, "")
		}
		if fault != nil {
			return fault
		}
		t.Items = append(t.Items, child)
	}
	return nil
}

func (b *builder) mapping(n *yaml.Node, t *Tree, depth int) *Fault {
	t.Kind = Mapping
	t.Entries = make([]Entry, 0, len(n.Content)/2)
	seen := make(map[string]int, len(n.Content)/2)
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode {
			return b.fault(n.Content[i], "invalid key: %s; write a scalar", strings.ToLower(nodeKind(k)))
		}
		if k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		if first, dup := seen[k.Value]; dup {
			return b.fault(k, "key %q is given twice, first on line %d; remove one", k.Value, first)
		}
		seen[k.Value] = k.Line + b.shift
		child, fault := b.build(v, depth+1)
		if fault == nil {
			fault = b.add(k, t, child, k.Value)
		}
		if fault != nil {
			return fault
		}
		t.Entries = append(t.Entries, Entry{Key: k.Value, Line: k.Line + b.shift, Value: child})
	}
	for _, m := range merges {
		if fault := b.merge(m, t, seen, depth); fault != nil {
			return fault
		}
	}
	return nil
}

// merge adds the keys of "<<" that the mapping itself lacks; of several merged mappings the first
// wins.
func (b *builder) merge(n *yaml.Node, t *Tree, seen map[string]int, depth int) *Fault {
	from, fault := b.build(n, depth+1)
	if fault != nil {
		return fault
	}
	list := []*Tree{from}
	if from.Kind == Sequence {
		list = from.Items
	}
	for _, m := range list {
		if m.Kind != Mapping {
			return b.fault(n, "invalid << of %s; want a mapping or a list of mappings", m.Kind)
		}
		for _, e := range m.Entries {
			if _, has := seen[e.Key]; has {
				continue
			}
			seen[e.Key] = e.Line
			if fault := b.add(n, t, e.Value, e.Key); fault != nil {
				return fault
			}
			t.Entries = append(t.Entries, e)
		}
	}
	return nil
}

func scalar(n *yaml.Node, t *Tree) {
	t.Kind, t.Text = String, n.Value
	switch n.ShortTag() {
	case "!!null":
		t.Kind, t.Text = Null, ""
	case "!!bool":
		var v bool
		if n.Decode(&v) == nil {
			t.Kind, t.Text = Bool, strconv.FormatBool(v)
		}
	case "!!int", "!!float":
		if s, ok := number(n); ok {
			t.Kind, t.Text = Number, s
		}
	}
	t.cost += int64(len(t.Text))
}

// number returns a numeric scalar in JSON's notation, and false for what JSON cannot express.
func number(n *yaml.Node) (string, bool) {
	if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil && (len(n.Value) == 1 || n.Value[0] >= '1' && n.Value[0] <= '9') {
		return strconv.FormatInt(i, 10), true
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return "", false
	}
	switch v := v.(type) {
	case int:
		return strconv.Itoa(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case uint64:
		return strconv.FormatUint(v, 10), true
	case float64:
		if !math.IsInf(v, 0) && !math.IsNaN(v) {
			return strconv.FormatFloat(v, 'g', -1, 64), true
		}
	}
	return "", false
}

func nodeKind(n *yaml.Node) string {
	if n.Kind == yaml.SequenceNode {
		return "a list"
	}
	return "a mapping"
}
