package yamltree

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Merge merges a tree into dst, as MeshConfig is merged over its defaults: a field in the tree
// replaces that of dst, also with a zero value; a field that is absent or null leaves it. Messages
// and maps are merged by key, lists are replaced. Path is the field path of the tree, for Faults.
// Faults are those of IntoMessage; dst is not modified unless all of them are unknown fields.
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
		default: // present with a zero value
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
