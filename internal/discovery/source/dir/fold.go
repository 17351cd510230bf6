package dir

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// reading is what one look at one file found.
type reading struct {
	path string
	// result is what the file holds; of no account where one of the following is set.
	result decode.Result
	// gone is set where the file is not there any more.
	gone bool
	// unreadable says why the file could not be read; it then holds what it held.
	unreadable string
	// unfinished is set where the file was written to in place and has not been still for
	// so long that its writer must have finished.
	unfinished bool
	text       extent
}

// fold turns readings of files into changes of objects. It is a machine: what it
// returns depends on the order of readings alone. A file's object is dropped only by two
// readings in a row that miss it, both of which could tell every document; of two
// objects with one key the first by path, then position, counts. A reading that may be
// only the first part of what is being written (fold_cut.go) is not used at all.
type fold struct {
	files    map[string]*fileState
	owners   map[object.Key]map[string]bool // the files that hold a key
	out      map[object.Key]*object.Object  // what was emitted
	problems []object.Problem               // what was emitted
}

// fileState is what is known of one file.
type fileState struct {
	claims   map[object.Key]*claim
	problems []object.Problem
	text     extent // of the last reading that was used
	held     bool   // the last reading was not
}

// claim is one file's word on one object.
type claim struct {
	good    *object.Object // the last good value, nil where there never was one
	origin  object.Origin
	doubted bool // the last reading missed it
}

func newFold() *fold {
	return &fold{files: map[string]*fileState{}, owners: map[object.Key]map[string]bool{}, out: map[object.Key]*object.Object{}}
}

// step takes what one look found, and the problems of the directories themselves. It
// returns the batch to emit (empty where nothing changed), the files that must be read
// once more before what they miss is dropped (again), and those that must be read once
// they have been still (hold).
func (f *fold) step(readings []reading, dirs []object.Problem) (batch object.Batch, again, hold []string) {
	touched := map[object.Key]bool{}
	// Files that may be half written come last: what they lost may have moved to another.
	for _, r := range slices.SortedStableFunc(slices.Values(readings), func(a, b reading) int { return cmp.Compare(order(a), order(b)) }) {
		state := f.state(r.path)
		if state.held = f.cut(state, r); state.held {
			hold = append(hold, r.path)
			continue
		}
		switch more := f.file(state, r, touched); {
		case more && r.unfinished:
			hold = append(hold, r.path)
		case more:
			again = append(again, r.path)
		}
	}
	for k := range touched {
		if c, changed := f.settle(k); changed {
			batch.Changes = append(batch.Changes, c)
		}
	}
	inOrder(batch.Changes)
	if now := f.allProblems(dirs); !slices.Equal(now, f.problems) {
		f.problems = now
		batch.Problems = append([]object.Problem{}, now...)
	}
	return batch, again, hold
}

func (f *fold) state(path string) *fileState {
	state := f.files[path]
	if state == nil {
		state = &fileState{claims: map[object.Key]*claim{}}
		f.files[path] = state
	}
	return state
}

// file takes one reading and marks the keys that it touches. It returns true where the
// file must be read again.
func (f *fold) file(state *fileState, r reading, touched map[object.Key]bool) (again bool) {
	if r.unreadable != "" {
		state.problems = []object.Problem{{Origin: object.Origin{File: r.path}, Text: r.unreadable + "; " + state.holds()}}
		return false
	}
	state.text = r.text
	present := f.present(state, r, touched)
	assign(state, present)
	whole := r.gone || r.result.Whole()
	for k, c := range state.claims {
		switch {
		case present[k]:
			c.doubted = false
		case !whole:
		case c.doubted && !r.unfinished:
			delete(state.claims, k)
			delete(f.owners[k], r.path)
			touched[k] = true
		default:
			c.doubted, again = true, true
			touched[k] = true // another file's word now counts more
		}
	}
	if r.gone && len(state.claims) == 0 {
		delete(f.files, r.path)
	}
	return again
}

// present enters what a reading holds into the file's claims and returns its keys.
func (f *fold) present(state *fileState, r reading, touched map[object.Key]bool) map[object.Key]bool {
	present := map[object.Key]bool{}
	state.problems = nil
	if r.gone {
		return present
	}
	state.problems = append(state.problems, r.result.Problems...)
	for _, o := range r.result.Objects {
		if present[o.Key] {
			state.problems = append(state.problems, duplicate(o.Key, o.Origin, state.claims[o.Key].origin))
			continue
		}
		present[o.Key] = true
		c := f.claim(state, r.path, o.Key)
		c.good, c.origin, c.doubted = &o, o.Origin, false
		touched[o.Key] = true
	}
	for _, p := range r.result.Problems {
		if !slices.Contains(object.Kinds(), p.Key.Kind) || present[p.Key] {
			continue // it cannot be told, or is none that could have had a good value
		}
		present[p.Key] = true
		if c := f.claim(state, r.path, p.Key); c.good == nil {
			c.origin = p.Origin
		}
		touched[p.Key] = true
	}
	return present
}

func (f *fold) claim(state *fileState, path string, k object.Key) *claim {
	c := state.claims[k]
	if c == nil {
		c = &claim{}
		state.claims[k] = c
		if f.owners[k] == nil {
			f.owners[k] = map[string]bool{}
		}
		f.owners[k][path] = true
	}
	return c
}

// settle decides what counts for a key, and whether that is a change.
func (f *fold) settle(k object.Key) (object.Change, bool) {
	winner := f.winner(k)
	before := f.out[k]
	switch {
	case winner == nil && len(f.owners[k]) == 0:
		delete(f.owners, k)
		if before == nil {
			return object.Change{}, false
		}
		delete(f.out, k)
		return object.Change{Key: k}, true
	case winner == nil: // a document that never was good: nothing to say, nothing to take back
		return object.Change{}, false
	case before != nil && same(before, winner):
		return object.Change{}, false
	}
	f.out[k] = winner
	return object.Change{Key: k, Object: winner}, true
}

// winner is the good value of the first file that holds the key; a doubted one counts
// only where no other does, so that an object may move from file to file.
func (f *fold) winner(k object.Key) *object.Object {
	var doubted *object.Object
	for _, path := range slices.Sorted(maps.Keys(f.owners[k])) {
		c := f.files[path].claims[k]
		switch {
		case c.good == nil:
		case !c.doubted:
			return c.good
		case doubted == nil:
			doubted = c.good
		}
	}
	return doubted
}

// allProblems is every problem that stands: of directories, of files, and of keys that
// several files hold.
func (f *fold) allProblems(dirs []object.Problem) []object.Problem {
	all := slices.Clone(dirs)
	for _, s := range f.files {
		all = append(all, s.problems...)
	}
	for k, paths := range f.owners {
		if len(paths) < 2 {
			continue
		}
		first := object.Origin{}
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			switch c := f.files[path].claims[k]; {
			case c.doubted:
			case first == (object.Origin{}):
				first = c.origin
			default:
				all = append(all, duplicate(k, c.origin, first))
			}
		}
	}
	slices.SortFunc(all, func(a, b object.Problem) int {
		return cmp.Or(cmp.Compare(a.Origin.File, b.Origin.File), cmp.Compare(a.Origin.Line, b.Origin.Line), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Text, b.Text))
	})
	return all
}

func duplicate(k object.Key, at, first object.Origin) object.Problem {
	return object.Problem{Origin: at, Key: k, Text: fmt.Sprintf("the same object is given at %s, which counts; remove one of them", first)}
}

// same says whether two values of one object are equal, their places included.
func same(a, b *object.Object) bool {
	return a.Origin == b.Origin && a.Saved.Equal(b.Saved) && equal(a, b)
}

// equal says whether two values of one object say the same.
func equal(a, b *object.Object) bool {
	if !reflect.DeepEqual(a.Meta, b.Meta) {
		return false
	}
	x, isMessage := a.Spec.(proto.Message)
	y, both := b.Spec.(proto.Message)
	if isMessage && both {
		return proto.Equal(x, y)
	}
	return reflect.DeepEqual(a.Spec, b.Spec)
}
