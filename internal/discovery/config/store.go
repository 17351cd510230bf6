package config

import (
	"cmp"
	"reflect"
	"slices"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Store keeps the last good value of every object and the verdicts on every object's
// latest value. Not for concurrent use.
type Store struct {
	good     map[object.Key]*object.Object
	verdicts map[object.Key][]Verdict
	// replaced are the verdicts, as they were when VerdictChanges was called last, on objects
	// whose verdicts have been replaced since.
	replaced map[object.Key][]Verdict
	moved    bool // a mesh configuration changed since MeshConfig was asked last
	mesh     *meshv1.MeshConfig
	memory   memory
	trust    trust
}

// NewStore makes an empty store, whose mesh configuration is the default.
func NewStore() *Store {
	return &Store{
		good: map[object.Key]*object.Object{}, verdicts: map[object.Key][]Verdict{}, replaced: map[object.Key][]Verdict{},
		mesh: mesh.DefaultMeshConfig(), moved: true, memory: newMemory(),
	}
}

// Apply takes a source's changes and returns those to act on, in their order: good
// values that say something new, and ends of objects that were good once. A bad value
// returns nothing; the last good one stays until the object is good again or gone.
func (s *Store) Apply(changes []object.Change) []object.Change {
	var accepted []object.Change
	for _, c := range changes {
		before := s.good[c.Key]
		if c.Object == nil {
			s.setVerdicts(c.Key, nil)
			delete(s.memory.remembered, c.Key)
			if before == nil {
				continue
			}
			s.put(c.Key, nil)
		} else {
			verdicts := append(Validate(*c.Object), s.trust.check(before, c.Object)...)
			s.setVerdicts(c.Key, verdicts)
			if Rejected(verdicts) {
				if c.Object = s.instead(c.Object, before); c.Object == nil {
					continue
				}
			}
			s.put(c.Key, c.Object)
			if before != nil && says(before, c.Object) {
				continue
			}
		}
		s.moved = s.moved || IsMeshConfig(c.Key)
		accepted = append(accepted, c)
	}
	return accepted
}

// says tells whether two values of one object say the same, wherever they are written
// and however often they were stored.
func says(a, b *object.Object) bool {
	return a.Meta.Generation == b.Meta.Generation && a.Meta.Created.Equal(b.Meta.Created) &&
		sameMap(a.Meta.Labels, b.Meta.Labels) && sameMap(a.Meta.Annotations, b.Meta.Annotations) && object.SameSpec(a, b)
}

func sameMap(a, b map[string]string) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// Get is the last good value of an object.
func (s *Store) Get(k object.Key) (object.Object, bool) {
	if o := s.good[k]; o != nil {
		return *o, true
	}
	return object.Object{}, false
}

func (s *Store) setVerdicts(k object.Key, verdicts []Verdict) {
	old := s.verdicts[k]
	if len(old) == 0 && len(verdicts) == 0 {
		return
	}
	if _, noted := s.replaced[k]; !noted {
		s.replaced[k] = old
	}
	if len(verdicts) == 0 {
		delete(s.verdicts, k)
	} else {
		s.verdicts[k] = verdicts
	}
}

// VerdictChanges returns the verdicts that have come up and those that have gone since it
// was called last, both in the order of CompareVerdicts. It costs what has changed, however
// many verdicts stand.
func (s *Store) VerdictChanges() (added, removed []Verdict) {
	for k, before := range s.replaced {
		count := map[Verdict]int{}
		for _, v := range before {
			count[v]--
		}
		for _, v := range s.verdicts[k] {
			count[v]++
		}
		for _, v := range s.verdicts[k] {
			if count[v] > 0 {
				count[v]--
				added = append(added, v)
			}
		}
		for _, v := range before {
			if count[v] < 0 {
				count[v]++
				removed = append(removed, v)
			}
		}
	}
	clear(s.replaced)
	slices.SortStableFunc(added, CompareVerdicts)
	slices.SortStableFunc(removed, CompareVerdicts)
	return added, removed
}

// Verdicts is every verdict that stands, in the order of CompareVerdicts.
func (s *Store) Verdicts() []Verdict {
	var all []Verdict
	for _, vs := range s.verdicts {
		all = append(all, vs...)
	}
	slices.SortStableFunc(all, CompareVerdicts)
	return all
}

// CompareVerdicts orders verdicts by place, then by kind and name.
func CompareVerdicts(a, b Verdict) int {
	return cmp.Or(
		cmp.Compare(a.Origin.File, b.Origin.File), cmp.Compare(a.Origin.Line, b.Origin.Line),
		cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
}

// MeshConfig is the mesh configuration in force, and whether it changed since it was
// asked for last; the first answer is a change. The message is shared: never change it.
func (s *Store) MeshConfig() (*meshv1.MeshConfig, bool) {
	if !s.moved {
		return s.mesh, false
	}
	s.moved = false
	first := s.firstMesh()
	s.mesh = mesh.DefaultMeshConfig()
	if first != nil {
		// It was good when it was stored, and is read the same way now.
		s.mesh, _ = MeshConfig(meshText(first))
	}
	if s.trust.domain != "" {
		s.mesh.TrustDomain = s.trust.domain
	}
	return s.mesh, true
}

// firstMesh is the object whose mesh configuration counts, nil where there is none.
func (s *Store) firstMesh() (first *object.Object) {
	for k, o := range s.good {
		if !IsMeshConfig(k) || meshText(o) == "" {
			continue
		}
		rank := func(o *object.Object) string {
			if o.Namespace == mesh.DefaultRootNamespace {
				return ""
			}
			return o.Namespace
		}
		if first == nil || rank(o) < rank(first) {
			first = o
		}
	}
	return first
}

// meshText is an object's mesh configuration, empty where it has none.
func meshText(o *object.Object) string {
	if s, ok := o.Spec.(*object.ConfigMapSpec); ok && IsMeshConfig(o.Key) {
		return s.Data[MeshKey]
	}
	return ""
}
