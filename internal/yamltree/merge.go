package yamltree

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Merge lays the tree, which path names, over dst: a field that the tree names, be it
// with a zero, replaces dst's; one that it leaves out or gives as null stays. Messages
// and maps merge key by key, lists are replaced. Faults are as IntoMessage's; dst is
// untouched unless all of them are unknown fields.
func Merge(t *Tree, path string, dst proto.Message) []*Fault {
	src := dst.ProtoReflect().New()
	faults := IntoMessage(t, path, src.Interface())
	for _, f := range faults {
		if !f.Unknown {
			return faults
		}
	}
	merge(dst.ProtoReflect(), src, t)
	return faults
}

func merge(dst, src protoreflect.Message, t *Tree) {
	for _, e := range t.Entries {
		fd := fieldOf(src.Descriptor(), e.Key)
		if fd == nil || e.Value.Kind == Null {
			continue
		}
		switch {
		case fd.IsMap():
			mergeMap(dst.Mutable(fd).Map(), src.Get(fd).Map(), fd, e.Value)
		case !fd.IsList() && fd.Message() != nil && fd.Message().FullName().Parent() != "google.protobuf" && src.Has(fd) && dst.Has(fd):
			merge(dst.Mutable(fd).Message(), src.Get(fd).Message(), e.Value)
		case src.Has(fd):
			dst.Set(fd, src.Get(fd))
		default: // named, with a zero value
			dst.Clear(fd)
			if o := fd.ContainingOneof(); o != nil {
				dst.Set(fd, src.Get(fd))
			}
		}
	}
}

func mergeMap(dst, src protoreflect.Map, fd protoreflect.FieldDescriptor, t *Tree) {
	src.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if value := fd.MapValue(); value.Message() != nil && value.Message().FullName().Parent() != "google.protobuf" && dst.Has(k) {
			if sub := t.Get(k.String()); sub != nil {
				merge(dst.Mutable(k).Message(), v.Message(), sub)
				return true
			}
		}
		dst.Set(k, v)
		return true
	})
}
