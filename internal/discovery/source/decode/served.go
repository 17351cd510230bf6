package decode

import (
	"fmt"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Resource is where an API server serves the objects of a kind.
type Resource struct {
	// Group is the API group, empty for the core group.
	Group string
	// Versions are those that can be decoded, the preferred one first.
	Versions []string
	// Name is the resource's name in paths, such as "virtualservices".
	Name string
	// Namespaced is whether the objects are in namespaces.
	Namespaced bool
	// Enforces is set if objects of the kind deny requests, so that not reading one may allow what it denies.
	Enforces bool
	// Refusable is set if a control plane that must not read the kind serves all the same, and says so: the roles that users wrote for
	// an earlier version do not have it, and with them an upgrade would serve nothing.
	Refusable bool
}

// ResourceOf returns where an API server serves the objects of a kind. It panics for an unknown kind.
func ResourceOf(kind object.Kind) Resource {
	row, ok := kinds[kind]
	if !ok {
		panic("decode: unknown kind " + string(kind))
	}
	r := Resource{Group: row.group, Name: row.resource, Namespaced: !row.cluster, Enforces: row.enforces, Refusable: row.refusable}
	for _, v := range row.apiVersions() {
		if row.group != "" {
			v = v[len(row.group)+1:]
		}
		r.Versions = append(r.Versions, v)
	}
	return r
}

// Served decodes one object of an Istio kind as an API server has served it: JSON with apiVersion, kind and
// metadata. The object and its problems have no Origin. With problems, only the key of the object may be used.
// If the metadata cannot be used, Key is zero.
func Served(kind object.Kind, text []byte) (object.Object, []object.Problem) {
	var d decoder
	for _, doc := range yamltree.Parse(text, true) {
		switch {
		case doc.Fault != nil:
			d.policy = policyIn(doc.Text)
			d.problem(object.Key{}, doc.Fault)
		case doc.Root != nil:
			d.policy = policyOf(doc.Root)
			d.object(doc.Root, doc.Root.Get("apiVersion").Str(), kind)
		}
	}
	var o object.Object
	switch {
	case len(d.Problems) > 0:
		o.Key = d.Problems[0].Key
	case len(d.Objects) == 1:
		o = d.Objects[0]
	default:
		d.problem(object.Key{}, &yamltree.Fault{Text: fmt.Sprintf("want one object of kind %s", kind)})
	}
	o.Origin = object.Origin{}
	for i := range d.Problems {
		d.Problems[i].Origin = object.Origin{}
	}
	return o, d.Problems
}
