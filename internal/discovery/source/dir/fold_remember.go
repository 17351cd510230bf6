package dir

import (
	"cmp"
	"slices"

	"github.com/pilothouse/pilothouse/internal/object"
)

// remember puts the machine into the state in which another one ended, which had emitted
// these objects: each is the last good value of the file that it came from.
func (f *fold) remember(objects []object.Object) {
	for _, o := range objects {
		state := f.files[o.Origin.File]
		if state == nil {
			state = &fileState{claims: map[object.Key]*claim{}}
			f.files[o.Origin.File] = state
		}
		c := f.claim(state, o.Origin.File, o.Key)
		c.good, c.origin = &o, o.Origin
		f.out[o.Key] = &o
	}
}

// everything is the batch for somebody who has had none: all that is in force, and all
// problems.
func (f *fold) everything() object.Batch {
	b := object.Batch{Synced: true}
	for k, o := range f.out {
		b.Changes = append(b.Changes, object.Change{Key: k, Object: o})
	}
	inOrder(b.Changes)
	if len(f.problems) > 0 {
		b.Problems = slices.Clone(f.problems)
	}
	return b
}

// inOrder sorts changes as a listing shows them: by kind, namespace and name.
func inOrder(changes []object.Change) {
	order := map[object.Kind]int{}
	for i, k := range object.Kinds() {
		order[k] = i
	}
	slices.SortFunc(changes, func(a, b object.Change) int {
		return cmp.Or(cmp.Compare(order[a.Key.Kind], order[b.Key.Kind]), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
}

// holds says what counts while a file cannot be read.
func (s *fileState) holds() string {
	for _, c := range s.claims {
		if c.good != nil {
			return "what was read from it before still counts"
		}
	}
	return "nothing was read from it before"
}

// assign says of the broken security policies of a file whose keys cannot be told in full
// which ones they are: those that the file held and that this reading misses, one each, in
// the order of their names; the ones that can be told best choose first.
func assign(state *fileState, present map[object.Key]bool) {
	var missing []object.Key
	for k, c := range state.claims {
		if !present[k] && c.good != nil && k.Kind == object.PeerAuthentication {
			missing = append(missing, k)
		}
	}
	slices.SortFunc(missing, func(a, b object.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, named := range []bool{true, false} {
		for i := range state.problems {
			p := &state.problems[i].Policy
			if !p.Broken || (p.Key.Name != "") != named {
				continue
			}
			j := slices.IndexFunc(missing, func(k object.Key) bool { return mayBe(p.Key, k) })
			if j >= 0 {
				p.Key = missing[j]
				missing = slices.Delete(missing, j, j+1)
			}
		}
	}
}

// mayBe says whether a key of which parts cannot be told may be k.
func mayBe(told, k object.Key) bool {
	return (told.Kind == "" || told.Kind == k.Kind) && (told.Namespace == "" || told.Namespace == k.Namespace) && (told.Name == "" || told.Name == k.Name)
}
