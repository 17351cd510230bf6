package yamltree

import (
	"encoding/json"
	"strconv"
)

// mark says where in encoded JSON a value starts, and how to name it.
type mark struct {
	start int
	tree  *Tree
	up    int // index of the value it lies in, -1 at the top
	key   string
	index int
}

// encoder writes a tree as JSON and remembers where each value went.
type encoder struct {
	out   []byte
	marks []mark
}

func (e *encoder) value(t *Tree, up int, key string, index int) {
	me := len(e.marks)
	e.marks = append(e.marks, mark{start: len(e.out), tree: t, up: up, key: key, index: index})
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
			e.value(c, me, "", i)
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
			e.value(c.Value, me, c.Key, -1)
		}
		e.out = append(e.out, '}')
	}
}

func (e *encoder) text(s string) {
	b, _ := json.Marshal(s) // a string always marshals
	e.out = append(e.out, b...)
}

// path names marked value i below path.
func (e *encoder) path(i int, path string) string {
	m := e.marks[i]
	if m.up < 0 {
		return path
	}
	path = e.path(m.up, path)
	if m.index >= 0 {
		return path + "[" + strconv.Itoa(m.index) + "]"
	}
	return JoinPath(path, m.key)
}

// JSON is the tree as JSON.
func (t *Tree) JSON() []byte {
	var e encoder
	e.value(t, -1, "", -1)
	return e.out
}
