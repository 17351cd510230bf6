package yamltree

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilothouse/pilothouse/internal/spelling"
)

// IntoMessage decodes a tree into m by protobuf's JSON mapping, replacing the contents of m. Path is
// the field path of the tree, for Faults. It returns all faults, at most 20. If all of them are
// unknown fields, m has the other fields; otherwise the contents of m are undefined.
func IntoMessage(t *Tree, path string, m proto.Message) []*Fault {
	c := checker{}
	plain := c.message(t, path, m.ProtoReflect().Descriptor())
	for _, f := range c.faults {
		if !f.Unknown {
			return c.faults
		}
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(plain.JSON(), m); err != nil {
		text := strings.Replace(err.Error(), "\u00a0", " ", 1)
		c.faults = append(c.faults, &Fault{Line: t.Line, Path: path, Text: strings.TrimPrefix(text, "proto: ")})
	}
	return c.faults
}

// checker checks a tree against the descriptor of a message. It returns the tree in the notation of
// protojson: the same tree, or a copy if a duration is written as "1m30s", which Istio's parser
// accepts too.
type checker struct{ faults []*Fault }

func (c *checker) add(line int, path, format string, args ...any) {
	if len(c.faults) < maxFaults {
		c.faults = append(c.faults, &Fault{Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
	}
}

func (c *checker) message(t *Tree, path string, md protoreflect.MessageDescriptor) *Tree {
	if md.FullName().Parent() == "google.protobuf" {
		return c.wellKnown(t, path, md)
	}
	if t.Kind != Mapping {
		c.add(t.Line, path, "want a mapping, not %s", t.Kind)
		return t
	}
	out := t
	seen := map[protoreflect.FieldNumber]string{}
	oneofs := map[protoreflect.FullName]string{}
	for i, e := range t.Entries {
		if len(c.faults) == maxFaults {
			break
		}
		at := JoinPath(path, e.Key)
		fd := fieldOf(md, e.Key)
		if fd == nil {
			c.add(e.Line, at, "unknown field; %s", suggest(md, e.Key))
			c.faults[len(c.faults)-1].Unknown = true
			continue
		}
		if other, dup := seen[fd.Number()]; dup {
			c.add(e.Line, at, "duplicate field, also given as %q; remove one", other)
		}
		seen[fd.Number()] = e.Key
		if e.Value.Kind == Null {
			continue
		}
		if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
			if other, set := oneofs[o.FullName()]; set {
				c.add(e.Line, at, "only one of this and %s can be set; remove one", other)
			}
			oneofs[o.FullName()] = e.Key
		}
		out = out.with(t, i, c.field(e.Value, at, fd))
	}
	return out
}

// with returns t with child i replaced if that is not the child of orig. The first replacement
// copies t, later ones modify the copy.
func (t *Tree) with(orig *Tree, i int, child *Tree) *Tree {
	if orig.Kind == Mapping && child == orig.Entries[i].Value || orig.Kind == Sequence && child == orig.Items[i] {
		return t
	}
	if t == orig {
		fresh := *orig
		fresh.Entries = append([]Entry(nil), orig.Entries...)
		fresh.Items = append([]*Tree(nil), orig.Items...)
		t = &fresh
	}
	if t.Kind == Mapping {
		t.Entries[i].Value = child
	} else {
		t.Items[i] = child
	}
	return t
}

func (c *checker) field(t *Tree, path string, fd protoreflect.FieldDescriptor) *Tree {
	out := t
	switch {
	case fd.IsMap():
		if t.Kind != Mapping {
			c.add(t.Line, path, "want a mapping, not %s", t.Kind)
			return t
		}
		for i, e := range t.Entries {
			at := JoinPath(path, e.Key)
			c.singular(&Tree{Kind: String, Text: e.Key, Line: e.Line}, at, fd.MapKey())
			out = out.with(t, i, c.singular(e.Value, at, fd.MapValue()))
		}
	case fd.IsList():
		if t.Kind != Sequence {
			c.add(t.Line, path, "want a list, not %s; write a \"- \" before each element", t.Kind)
			return t
		}
		for i, v := range t.Items {
			out = out.with(t, i, c.singular(v, path+"["+strconv.Itoa(i)+"]", fd))
		}
	default:
		return c.singular(t, path, fd)
	}
	return out
}

// singular checks one value: a singular field, an element of a list, a key or value of a map.
func (c *checker) singular(t *Tree, path string, fd protoreflect.FieldDescriptor) *Tree {
	if t.Kind == Null && (fd.Message() == nil || fd.Message().FullName() != "google.protobuf.Value") {
		c.add(t.Line, path, "the value is missing; give it one or remove it")
		return t
	}
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return c.message(t, path, fd.Message())
	case protoreflect.EnumKind:
		c.enum(t, path, fd.Enum())
	default:
		c.scalar(t, path, fd.Kind())
	}
	return t
}

func (c *checker) enum(t *Tree, path string, ed protoreflect.EnumDescriptor) {
	switch t.Kind {
	case String:
		if ed.Values().ByName(protoreflect.Name(t.Text)) != nil {
			return
		}
	case Number:
		if n, err := strconv.ParseInt(t.Text, 10, 32); err == nil && ed.Values().ByNumber(protoreflect.EnumNumber(n)) != nil {
			return
		}
	}
	var names []string
	for i := 0; i < ed.Values().Len(); i++ {
		names = append(names, string(ed.Values().Get(i).Name()))
	}
	c.add(t.Line, path, "invalid value %s: want %s", t.show(), strings.Join(names, ", "))
}

func (t *Tree) show() string {
	if t.Kind >= Sequence || t.Kind == Null {
		return t.Kind.String()
	}
	return strconv.Quote(t.Text)
}

func fieldOf(md protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByJSONName(key); fd != nil {
		return fd
	}
	return md.Fields().ByTextName(key)
}

// suggest returns the remedy for an unknown field: the most similar name, else all names.
func suggest(md protoreflect.MessageDescriptor, key string) string {
	var names []string
	best, least := "", 3
	for i := 0; i < md.Fields().Len(); i++ {
		n := md.Fields().Get(i).JSONName()
		names = append(names, n)
		if d := spelling.Distance(strings.ToLower(key), strings.ToLower(n)); d < least && d < len(key) {
			best, least = n, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	sort.Strings(names)
	return "remove it; the fields here are " + strings.Join(names, ", ")
}
