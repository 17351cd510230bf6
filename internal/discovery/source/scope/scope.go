// Package scope selects the objects of a source that this control plane uses.
//
// A Filter leaves out the namespaces that no discovery selector of the mesh configuration matches, and Istio's
// objects that are labelled for another revision. It knows all objects of the source, so that the selectors, and the
// labels of namespaces, may change at any time. A namespace of a remote cluster has the labels that it has there. The namespaces of the control plane and the root namespace are always
// used: policies for the whole mesh are there. It is pure, and not safe for concurrent use.
package scope

import (
	"cmp"
	"maps"
	"slices"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// nameLabel is the label with its name that an API server gives each namespace.
const nameLabel = "kubernetes.io/metadata.name"

// Filter selects objects. Create one with New.
type Filter struct {
	revision  string
	own       string
	always    []string // namespaces
	selectors []*meshv1.LabelSelector
	// objects are those of the source, by namespace; those in none are in the place without a name.
	objects map[place]map[object.Key]*object.Object
	// used has for each namespace that was asked for whether it is used.
	used     map[place]bool
	problems []object.Problem // of the source
}

// place is a namespace of a cluster; the zero value's are those in none, and those of the control plane's own cluster.
type place struct{ cluster, namespace string }

// of returns the place of an object.
func of(k object.Key) place { return place{k.Cluster, k.Namespace} }

// New returns a filter for a revision of the control plane, which is in a namespace of its own.
func New(revision, namespace string) *Filter {
	return &Filter{revision: revision, own: namespace, always: []string{namespace}, objects: map[place]map[object.Key]*object.Object{}, used: map[place]bool{}}
}

// Select sets the selectors, and the root namespace, of the mesh configuration. It returns the changes that
// follow; the batch is empty if there are none.
func (f *Filter) Select(m *meshv1.MeshConfig) object.Batch {
	before := f.used
	f.selectors, f.always, f.used = m.GetDiscoverySelectors(), []string{f.own, m.GetRootNamespace()}, map[place]bool{}
	var b object.Batch
	for _, ns := range slices.SortedFunc(maps.Keys(before), comparePlaces) {
		b.Changes = append(b.Changes, f.moved(ns, before[ns])...)
	}
	if len(b.Changes) > 0 && len(f.problems) > 0 {
		b.Problems = f.inScope(f.problems)
	}
	return b
}

// Apply returns what is left of a batch of the source.
func (f *Filter) Apply(b object.Batch) object.Batch {
	var out []object.Change
	moved := false
	for _, c := range b.Changes {
		if c.Key.Kind == object.Namespace {
			ns := place{c.Key.Cluster, c.Key.Name}
			before, known := f.used[ns]
			f.store(c)
			delete(f.used, ns)
			if out = append(out, c); known {
				changes := f.moved(ns, before)
				out, moved = append(out, changes...), moved || len(changes) > 0
			}
			continue
		}
		was := f.passes(f.objects[of(c.Key)][c.Key])
		f.store(c)
		switch {
		case f.passes(c.Object) || c.Object == nil && was:
			out = append(out, c)
		case was:
			out = append(out, object.Change{Key: c.Key})
		}
	}
	b.Changes = out
	if b.Problems != nil {
		f.problems = b.Problems
	}
	if b.Problems != nil || moved && len(f.problems) > 0 {
		b.Problems = f.inScope(f.problems)
	}
	return b
}

// moved returns the changes of a namespace that was used or not, and perhaps is not any more.
func (f *Filter) moved(ns place, before bool) []object.Change {
	now := f.uses(ns)
	if now == before {
		return nil
	}
	var out []object.Change
	for k, o := range f.objects[ns] {
		switch {
		case !f.ofRevision(o):
		case now:
			out = append(out, object.Change{Key: k, Object: o})
		default:
			out = append(out, object.Change{Key: k})
		}
	}
	slices.SortFunc(out, func(a, b object.Change) int { return compare(a.Key, b.Key) })
	return out
}

func (f *Filter) store(c object.Change) {
	in := f.objects[of(c.Key)]
	switch {
	case c.Object != nil && in == nil:
		f.objects[of(c.Key)] = map[object.Key]*object.Object{c.Key: c.Object}
	case c.Object != nil:
		in[c.Key] = c.Object
	default:
		if delete(in, c.Key); len(in) == 0 {
			delete(f.objects, of(c.Key))
		}
	}
}

// inScope returns the problems of objects in namespaces that are used, and those of no object.
func (f *Filter) inScope(all []object.Problem) []object.Problem {
	out := []object.Problem{}
	for _, p := range all {
		if f.uses(of(p.Key)) {
			out = append(out, p)
		}
	}
	return out
}

// passes reports whether an object is used; nil is not.
func (f *Filter) passes(o *object.Object) bool {
	return o != nil && f.ofRevision(o) && f.uses(of(o.Key))
}

// ofRevision reports whether an object is for this revision, or for all.
func (f *Filter) ofRevision(o *object.Object) bool {
	rev, labelled := o.Meta.Labels[mesh.RevisionLabel]
	return !labelled || rev == f.revision || !decode.Defined(o.Kind)
}

// uses reports whether the objects of a namespace are used; so are those in none.
func (f *Filter) uses(ns place) bool {
	if used, known := f.used[ns]; known {
		return used
	}
	used := ns.namespace == "" || len(f.selectors) == 0 || slices.Contains(f.always, ns.namespace)
	if !used {
		labels := map[string]string{}
		if o := f.objects[place{cluster: ns.cluster}][object.Key{Kind: object.Namespace, Name: ns.namespace, Cluster: ns.cluster}]; o != nil {
			labels = maps.Clone(o.Meta.Labels)
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[nameLabel] = ns.namespace
		used = slices.ContainsFunc(f.selectors, func(s *meshv1.LabelSelector) bool { return Matches(s, labels) })
	}
	f.used[ns] = used
	return used
}

// Operators are those of a selector's expressions.
var Operators = []string{"In", "NotIn", "Exists", "DoesNotExist"}

// Matches reports whether labels match a selector, as in Kubernetes. An expression with another operator than
// one of Operators matches nothing.
func Matches(s *meshv1.LabelSelector, labels map[string]string) bool {
	for k, v := range s.GetMatchLabels() {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, e := range s.GetMatchExpressions() {
		have, ok := labels[e.GetKey()]
		listed := ok && slices.Contains(e.GetValues(), have)
		match := false
		switch e.GetOperator() {
		case "In":
			match = listed
		case "NotIn":
			match = !listed
		case "Exists":
			match = ok
		case "DoesNotExist":
			match = !ok
		}
		if !match {
			return false
		}
	}
	return true
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.namespace, b.namespace))
}

func compare(a, b object.Key) int {
	kinds := object.Kinds()
	if x, y := slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind); x != y {
		return x - y
	}
	if a.Name < b.Name {
		return -1
	}
	return 1
}
