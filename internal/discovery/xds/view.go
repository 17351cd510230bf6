package xds

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"
	"strings"
)

// Resource is one encoded resource. It is immutable and shared by every view and stream
// that has it; Body must not be changed.
type Resource struct {
	Type Type
	Name string
	// Version is the hex form of 128 bits of the content's SHA-256, the same in every
	// process, so that a proxy's initial versions mean something to a new server.
	Version string
	// Body is an encoded google.protobuf.Any, ready for the wire.
	Body []byte
	// Needs is, for a cluster that takes its endpoints from EDS, the name it asks for.
	Needs string
}

// NewResource wraps a message, encoded deterministically by the caller, for the wire.
func NewResource(typ Type, name string, value []byte) *Resource {
	h := sha256.New()
	h.Write([]byte(typ.URL()))
	h.Write(value)
	body := make([]byte, 0, len(typ.URL())+len(value)+2+2*binary.MaxVarintLen32)
	body = appendBytes(body, 1, typ.URL())
	body = appendBytes(body, 2, string(value))
	return &Resource{Type: typ, Name: name, Version: hex.EncodeToString(h.Sum(nil)[:16]), Body: body}
}

// NewCluster is NewResource for a CDS resource whose endpoints come under the EDS name
// needs; with an empty needs the cluster has no EDS.
func NewCluster(name string, value []byte, needs string) *Resource {
	r := NewResource(CDS, name, value)
	r.Needs = needs
	return r
}

// appendBytes appends a length-delimited protobuf field with a number below 16.
func appendBytes(b []byte, field byte, v string) []byte {
	b = append(b, field<<3|2)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// same says that a client that has a needs no b.
func same(a, b *Resource) bool { return a == b || a.Version == b.Version }

// equal says that a and b may be the same pointer.
func (r *Resource) equal(o *Resource) bool {
	return r.Type == o.Type && r.Name == o.Name && r.Needs == o.Needs && bytes.Equal(r.Body, o.Body)
}

// TypeView is an immutable set of resources of one type, sorted by name. A nil TypeView
// is empty.
type TypeView struct{ list []*Resource }

// Len is the number of resources.
func (v *TypeView) Len() int {
	if v == nil {
		return 0
	}
	return len(v.list)
}

// Get is the resource of that name, or nil.
func (v *TypeView) Get(name string) *Resource {
	if v == nil {
		return nil
	}
	if i, ok := slices.BinarySearchFunc(v.list, name, byName); ok {
		return v.list[i]
	}
	return nil
}

// All ranges over the resources in order of their names.
func (v *TypeView) All() iter.Seq[*Resource] {
	if v == nil {
		return slices.Values[[]*Resource](nil)
	}
	return slices.Values(v.list)
}

func byName(r *Resource, name string) int { return strings.Compare(r.Name, name) }

func order(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) }

// With is the set with upserts added or replaced and removes removed; a name in both stays in.
// It returns v itself where nothing would change, so that equal pointers mean equal sets.
func (v *TypeView) With(upserts []*Resource, removes []string) *TypeView {
	up := make(map[string]*Resource, len(upserts))
	for _, r := range upserts {
		if old := v.Get(r.Name); old == nil || !same(old, r) || old.Needs != r.Needs {
			up[r.Name] = r
		} else {
			delete(up, r.Name)
		}
	}
	gone := make(map[string]bool, len(removes))
	for _, n := range removes {
		if v.Get(n) != nil {
			gone[n] = true
		}
	}
	for _, r := range upserts {
		delete(gone, r.Name)
	}
	if len(up) == 0 && len(gone) == 0 {
		return v
	}
	list := make([]*Resource, 0, v.Len()+len(up))
	for r := range v.All() {
		if n, ok := up[r.Name]; ok {
			list = append(list, n)
			delete(up, r.Name)
		} else if !gone[r.Name] {
			list = append(list, r)
		}
	}
	for _, r := range up {
		list = append(list, r)
	}
	slices.SortFunc(list, order)
	return &TypeView{list: list}
}

// View is everything that proxies of one class shall have. It is immutable.
type View struct {
	// Generation grows with every view of a class.
	Generation uint64
	sets       [numTypes]*TypeView
}

// Of is the view's resources of a type.
func (v *View) Of(t Type) *TypeView { return v.sets[t] }

// With is a view of the same generation with one type changed; the other types are shared.
func (v *View) With(t Type, upserts []*Resource, removes []string) *View {
	n := *v
	n.sets[t] = v.sets[t].With(upserts, removes)
	return &n
}

// At is the same view under another generation.
func (v *View) At(generation uint64) *View {
	n := *v
	n.Generation = generation
	return &n
}

// Delta is the difference between two sets of resources.
type Delta struct {
	// Upserts are the resources that the old set lacks or has in another version.
	Upserts []*Resource
	// Removed are the old set's resources that the new one lacks.
	Removed []*Resource
	// Union is the new set and Removed together: what a client has while the
	// removals are held back.
	Union *TypeView
}

// Diff compares two sets.
func Diff(old, cur *TypeView) *Delta {
	d := &Delta{Union: cur}
	if old == cur {
		return d
	}
	var a, b []*Resource
	if old != nil {
		a = old.list
	}
	if cur != nil {
		b = cur.list
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			d.Removed = append(d.Removed, a[0])
			a = a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			d.Upserts = append(d.Upserts, b[0])
			b = b[1:]
		default:
			if !same(a[0], b[0]) {
				d.Upserts = append(d.Upserts, b[0])
			}
			a, b = a[1:], b[1:]
		}
	}
	if len(d.Removed) > 0 {
		d.Union = cur.With(d.Removed, nil)
	}
	return d
}
