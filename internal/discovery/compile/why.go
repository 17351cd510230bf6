package compile

import (
	"cmp"
	"iter"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Why returns the objects that a resource was made from, sorted by kind, namespace and name: those whose
// rows its rules have read, including objects that had no effect on the bytes, such as a DestinationRule
// that gave way to another. It leaves out the objects that were read only to find these, such as all
// services of the mesh, the mesh configuration, and objects that do not exist. Of more than limit objects it
// returns the limit that were read first. It returns nil for a resource that is not wanted.
func (c *Compiler) Why(k Key, limit int) []object.Key {
	var out []object.Key
	seen := map[object.Key]bool{}
	for read := range c.Resource(k.Kind).Reads(k) {
		if read.Indirect || len(out) == limit {
			break
		}
		if o, ok := model.ObjectOf(read); ok && !seen[o] {
			seen[o] = true
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b object.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Dependents yields the wanted resources that were made from an object, each once, in a fixed order: those
// for which Why has the object. Ask before the removal of an object is applied: afterwards nothing may
// depend on it.
func (c *Compiler) Dependents(o object.Key) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		seen := map[Key]bool{}
		for d := range c.model.Dependents(o) {
			if _, ok := c.byRule[d.Rule]; !ok {
				continue
			}
			if k := d.Key.(Key); !seen[k] {
				seen[k] = true
				if !yield(k) {
					return
				}
			}
		}
	}
}
