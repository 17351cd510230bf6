package config

import (
	"cmp"
	"reflect"
	"slices"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Store keeps the last valid version of every object, and the verdicts on the latest version of every
// object. It is not safe for concurrent use.
type Store struct {
	good     map[object.Key]*object.Object
	verdicts map[object.Key][]Verdict
	// conflicts are those verdicts that other Gateways or ServiceEntries are the reason for, the last ones on each object.
	conflicts map[object.Key][]Verdict
	hosts     entryHosts
	// replaced has, for the objects whose verdicts have changed since the last call of
	// VerdictChanges, the verdicts at that call.
	replaced map[object.Key][]Verdict
	// meshChanged is set if mesh configuration has changed since the last call of MeshConfig.
	meshChanged bool
	mesh        *meshv1.MeshConfig
	memory      memory
	trust       trust
	own         object.Key // of the ConfigMap with the mesh configuration
	events      map[Events]uint64
}

// NewStore returns an empty store, whose mesh configuration is the default, of a control plane in
// namespace istio-system.
func NewStore() *Store {
	return &Store{
		own:  MeshConfigKey(mesh.DefaultRootNamespace, ""),
		good: map[object.Key]*object.Object{}, verdicts: map[object.Key][]Verdict{}, conflicts: map[object.Key][]Verdict{}, replaced: map[object.Key][]Verdict{},
		hosts: newEntryHosts(), mesh: mesh.DefaultMeshConfig(), meshChanged: true, memory: newMemory(), events: map[Events]uint64{},
	}
}

// SetMeshConfig sets the key of the ConfigMap with the mesh configuration, which MeshConfigKey returns. It must be
// called before Apply.
func (s *Store) SetMeshConfig(own object.Key) { s.own = own }

// Apply validates a source's changes and returns those to be applied, in their order: valid objects
// that differ from the last valid version, and removals of objects that have a valid version. An
// invalid object is not returned: its last valid version stays in force until the object is valid
// again or is removed.
func (s *Store) Apply(changes []object.Change) []object.Change {
	var accepted []object.Change
	gateways := false
	for _, c := range changes {
		before := s.good[c.Key]
		gateways = gateways || c.Key.Kind == object.Gateway
		delete(s.conflicts, c.Key) // its verdicts are replaced
		if c.Object == nil {
			s.setVerdicts(c.Key, nil)
			delete(s.memory.remembered, c.Key)
			if before == nil {
				continue
			}
			s.put(c.Key, nil)
		} else {
			verdicts := s.validate(before, c.Object)
			s.setVerdicts(c.Key, verdicts)
			if Rejected(verdicts) {
				if c.Object = s.lastGood(c.Object, before); c.Object == nil {
					continue
				}
			}
			s.put(c.Key, c.Object)
			if before != nil && SameContents(before, c.Object) {
				continue
			}
		}
		s.meshChanged = s.meshChanged || s.IsMeshConfig(c.Key)
		s.countEvent(c, before)
		accepted = append(accepted, c)
	}
	if gateways {
		s.compareGateways()
	}
	s.compareEntries()
	return accepted
}

// SameContents reports whether two versions of an object are equal, apart from their origin and
// resource version.
func SameContents(a, b *object.Object) bool {
	return a.Meta.Generation == b.Meta.Generation && a.Meta.Created.Equal(b.Meta.Created) &&
		sameMap(a.Meta.Labels, b.Meta.Labels) && sameMap(a.Meta.Annotations, b.Meta.Annotations) && object.SameSpec(a, b)
}

func sameMap(a, b map[string]string) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// Get returns the last valid version of an object, if there is one.
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
	if _, ok := s.replaced[k]; !ok {
		s.replaced[k] = old
	}
	if len(verdicts) == 0 {
		delete(s.verdicts, k)
	} else {
		s.verdicts[k] = verdicts
	}
}

// VerdictChanges returns the verdicts added and removed since its last call, both in the order of
// CompareVerdicts. If the verdicts of an object have changed, all of its former ones are removed and
// all of its current ones added, so that their order is known. The cost depends on the number of
// changes, not on that of all verdicts.
func (s *Store) VerdictChanges() (added, removed []Verdict) {
	for k, before := range s.replaced {
		if now := s.verdicts[k]; !slices.Equal(before, now) {
			added, removed = append(added, now...), append(removed, before...)
		}
	}
	clear(s.replaced)
	slices.SortStableFunc(added, CompareVerdicts)
	slices.SortStableFunc(removed, CompareVerdicts)
	return added, removed
}

// Verdicts returns all current verdicts, in the order of CompareVerdicts.
func (s *Store) Verdicts() []Verdict {
	var all []Verdict
	for _, vs := range s.verdicts {
		all = append(all, vs...)
	}
	slices.SortStableFunc(all, CompareVerdicts)
	return all
}

// VerdictsOf returns the current verdicts on one object. They are shared and must not be modified.
func (s *Store) VerdictsOf(k object.Key) []Verdict { return s.verdicts[k] }

// CompareVerdicts orders verdicts by file and line, then by kind, namespace and name.
func CompareVerdicts(a, b Verdict) int {
	return cmp.Or(
		cmp.Compare(a.Origin.File, b.Origin.File), cmp.Compare(a.Origin.Line, b.Origin.Line),
		cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name), cmp.Compare(a.Key.Cluster, b.Key.Cluster))
}

// MeshConfig returns the mesh configuration in force, and whether it has changed since the last call;
// for the first call it is true. The message is shared and must not be modified.
func (s *Store) MeshConfig() (*meshv1.MeshConfig, bool) {
	changed := s.meshChanged
	s.mesh, s.meshChanged = s.CurrentMesh(), false
	return s.mesh, changed
}

// CurrentMesh returns the mesh configuration in force, and leaves MeshConfig to report whether it has changed.
func (s *Store) CurrentMesh() *meshv1.MeshConfig {
	if !s.meshChanged {
		return s.mesh
	}
	out := mesh.DefaultMeshConfig()
	if first := s.firstMesh(); first != nil {
		// It was valid when it was stored, and parsing it again gives the same result.
		out, _ = MeshConfig(meshText(first))
	}
	if s.trust.domain != "" {
		out.TrustDomain = s.trust.domain
	}
	return out
}

// meshKeys are the keys of the objects that may have mesh configuration, by priority.
func (s *Store) meshKeys() []object.Key {
	return []object.Key{s.own, MeshFileKey}
}

// MeshObject is the key of the object whose mesh configuration is used, the zero key if there is none.
func (s *Store) MeshObject() object.Key {
	if first := s.firstMesh(); first != nil {
		return first.Key
	}
	return object.Key{}
}

// firstMesh returns the object whose mesh configuration is used, nil if there is none: the ConfigMap, else
// the file.
func (s *Store) firstMesh() (first *object.Object) {
	for _, k := range s.meshKeys() {
		if o := s.good[k]; o != nil && meshText(o) != "" {
			return o
		}
	}
	return nil
}
