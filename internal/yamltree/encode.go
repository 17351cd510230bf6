package yamltree

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// mark is the offset of a value in encoded JSON, and its place in the tree.
type mark struct {
	start  int
	tree   *Tree
	parent int // index of the mark of the containing value, -1 for the root
	key    string
	index  int
}

// encoder encodes a tree as JSON and records the offset of each value.
type encoder struct {
	out   []byte
	marks []mark
}

func (e *encoder) value(t *Tree, parent int, key string, index int) {
	self := len(e.marks)
	e.marks = append(e.marks, mark{start: len(e.out), tree: t, parent: parent, key: key, index: index})
	switch t.Kind {
	case Null:
		e.out = append(e.out, "null"...)
	case Bool, Number:
		e.out = append(e.out, t.Text...)
	case String:
		e.text(t.Text)
	case Sequence:
		e.out = append(e.out, '[')
		for i, c := range t.Items {
			if i > 0 {
				e.out = append(e.out, ',')
			}
			e.value(c, self, "", i)
		}
		e.out = append(e.out, ']')
	case Mapping:
		e.out = append(e.out, '{')
		for i, c := range t.Entries {
			if i > 0 {
				e.out = append(e.out, ',')
			}
			e.text(c.Key)
			e.out = append(e.out, ':')
			e.value(c.Value, self, c.Key, -1)
		}
		e.out = append(e.out, '}')
	default:
		panic(fmt.Sprintf("yamltree: unknown kind %d", t.Kind))
	}
}

func (e *encoder) text(s string) {
	b, _ := json.Marshal(s) // cannot fail for a string
	e.out = append(e.out, b...)
}

// path returns the field path of the value of mark i, given that of the root.
func (e *encoder) path(i int, path string) string {
	m := e.marks[i]
	if m.parent < 0 {
		return path
	}
	path = e.path(m.parent, path)
	if m.index >= 0 {
		return path + "[" + strconv.Itoa(m.index) + "]"
	}
	return JoinPath(path, m.key)
}

// JSON returns the tree as JSON.
func (t *Tree) JSON() []byte {
	var e encoder
	e.value(t, -1, "", -1)
	return e.out
}
