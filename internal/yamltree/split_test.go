package yamltree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// whole decodes a YAML stream without splitting it. It returns false if the stream does not parse.
func whole(text []byte) (docs []Document, ok bool) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		if err := dec.Decode(&node); errors.Is(err, io.EOF) {
			return docs, true
		} else if err != nil {
			return nil, false
		}
		b := builder{anchors: map[*yaml.Node]*Tree{}}
		root, fault := b.build(&node, 0)
		switch {
		case fault != nil:
			docs = append(docs, Document{Line: fault.Line, Fault: fault})
		case root.Kind != Null:
			docs = append(docs, Document{Line: root.Line, Root: root})
		}
	}
}

// lineNumbers returns all lines of a tree's values.
func lineNumbers(t *Tree) string {
	out := fmt.Sprint(t.Line)
	for _, e := range t.Entries {
		out += fmt.Sprintf(" %d:%s", e.Line, lineNumbers(e.Value))
	}
	for _, i := range t.Items {
		out += " " + lineNumbers(i)
	}
	return out
}

func described(docs []Document) string {
	var out strings.Builder
	for _, d := range docs {
		switch {
		case d.Fault != nil:
			fmt.Fprintf(&out, "%s\n", d.Fault)
		case d.Root != nil:
			fmt.Fprintf(&out, "%d %s %s\n", d.Line, d.Root.JSON(), lineNumbers(d.Root))
		}
	}
	return out.String()
}

// FuzzSplit checks that a stream means the same whether it is split or not.
func FuzzSplit(f *testing.F) {
	for _, text := range []string{
		"a: 1\n---\nb: |\n  ---\n  x\n--- # c\nc: 'x\n  y'\n...\n# end\n---\n- &a 1\n- *a\n",
		"a: 1\n...\n--- {b: [1,\n2]}\n", "---\n---\n--- ~\n--- |\n text\n--- >+\n\n\n---\tx\n", "a: 1\r\n---\r\nb: \"x\\\r\n  y\"\r\n",
		"a\r---\rb\r", "a: x\u0085---\u2028b", "\ufeffa: 1\n---\n\ufeffb: 2\n", "a: 1\n... b\n", "# x\ra: 1\n", "\f\n---\n\u00a0\n", "---- a\n", "a: '\n---\n'",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("%")) {
			return // directives are left out; what follows one without "---" is an error when it is split only
		}
		want, ok := whole(bytes.TrimPrefix(text, []byte("\ufeff")))
		if !ok {
			return
		}
		if got, want := described(Parse(text, false)), described(want); got != want {
			t.Errorf("%q\nsplit: %s\nwhole: %s", text, got, want)
		}
	})
}

// FuzzList checks that a list whose items are parsed on their own has the items of the whole document.
func FuzzList(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nitems:\n- a: 1\n  b:\n  - c\n  - d\n# x\n\n- |+\n  text\n\n- >-\n  y\n- \"q\n  r\"\nkind: List\n",
		"kind: List\nitems:\n  - &a {x: 1}\n  - *a\n", "x: \"\nitems:\n- a\ny\"\nitems:\n", "--- # m\nitems: \n-\n  a: b\n- ? c\n  : d\n- - 1\n  - 2\n",
		"items:\n- 'a\n- b'\n", "items:\n- [a,\n- b]\n", "items:\n- a\n b\n- !!str 1\n-\t2\n", "items:\r\n- a: 1\r\n- b: 2\r\n", "items:\n- a\nitems:\n- b\n", "items:\n- |2\n    a\n  - b\n- c\n",
	} {
		f.Add([]byte(text), false)
	}
	f.Add([]byte("{\"items\": [\n{\"a\":\n1}, [2, {}], \"x\", -0.5e3 , null],\n\"b\": {\"items\": []}}"), true)
	f.Add([]byte(`{"items":[1],"items":[2]}`), true)
	f.Fuzz(func(t *testing.T, text []byte, json bool) {
		for _, c := range Split(text, json) {
			head, items, ok := c.List()
			if !ok {
				continue
			}
			var got []Document
			for _, item := range items {
				docs := item.Parse()
				if docs[0].Fault != nil {
					return // the whole must be parsed
				}
				got = append(got, docs...)
			}
			whole := c.Parse()
			if len(whole) != 1 || whole[0].Root == nil {
				t.Fatalf("%q is split, and parsed as %s", c.Text, described(whole))
			}
			var want []Document
			for _, item := range whole[0].Root.Get("items").Items {
				want = append(want, Document{Line: item.Line, Root: item})
			}
			if got, want := described(got), described(want); got != want {
				t.Errorf("%q\nitems: %s\nwhole: %s", c.Text, got, want)
			}
			if len(head.Entries) != len(whole[0].Root.Entries) {
				t.Errorf("%q: the head has %d fields, want %d", c.Text, len(head.Entries), len(whole[0].Root.Entries))
			}
		}
	})
}
