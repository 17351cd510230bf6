package dir

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// reading is the result of reading a file once.
type reading struct {
	path string
	// result is the decoded content; it is ignored if gone or unreadable is set.
	result decode.Result
	// gone is set if the file does not exist any more.
	gone bool
	// unreadable is why the file could not be read; its objects then stay in force.
	unreadable string
	// beingWritten is set if the file was written to in place, and so recently that its writer may
	// not have finished.
	beingWritten bool
	text         extent
}

// merger converts readings of files to changes of objects. Its result depends on the sequence of
// readings only. An object is removed after two consecutive readings of its file in which it is
// missing and every document could be identified. Of two objects with the same key, the first one
// by path, then by position, is in force. A reading that may be incomplete (maybeTruncated) is not
// used at all.
type merger struct {
	files    map[string]*fileState
	owners   map[object.Key]map[string]bool // the files that define an object
	shared   map[object.Key]bool            // the objects that several files define
	emitted  map[object.Key]*object.Object
	problems []object.Problem // as emitted last
}

// fileState is the state of one file.
type fileState struct {
	definitions map[object.Key]*definition
	problems    []object.Problem
	text        extent // of the last reading that was used
	waiting     bool   // the last reading was not used
}

// definition is one object in one file.
type definition struct {
	good    *object.Object // the last good value, or nil
	origin  object.Origin
	missing bool // in the last reading
}

func newMerger() *merger {
	return &merger{files: map[string]*fileState{}, owners: map[object.Key]map[string]bool{}, shared: map[object.Key]bool{}, emitted: map[object.Key]*object.Object{}}
}

// apply applies the readings of one scan, and the problems of the directories. It returns the batch
// to emit, which is empty if nothing has changed; the files to read once more before objects missing
// in them are removed (reread); and those to read when they have not been modified for a while
// (wait).
func (m *merger) apply(readings []reading, dirs []object.Problem) (batch object.Batch, reread, wait []string) {
	touched := map[object.Key]bool{}
	// Files that are being written come last: objects missing in them may have moved to another file.
	for _, r := range slices.SortedStableFunc(slices.Values(readings), func(a, b reading) int { return cmp.Compare(priority(a), priority(b)) }) {
		state := m.state(r.path)
		if state.waiting = m.maybeTruncated(state, r); state.waiting {
			wait = append(wait, r.path)
			continue
		}
		switch more := m.file(state, r, touched); {
		case more && r.beingWritten:
			wait = append(wait, r.path)
		case more:
			reread = append(reread, r.path)
		}
	}
	for k := range touched {
		if c, changed := m.resolve(k); changed {
			batch.Changes = append(batch.Changes, c)
		}
	}
	sortChanges(batch.Changes)
	if now := m.allProblems(dirs); !slices.Equal(now, m.problems) {
		m.problems = now
		batch.Problems = append([]object.Problem{}, now...)
	}
	return batch, reread, wait
}

func (m *merger) state(path string) *fileState {
	state := m.files[path]
	if state == nil {
		state = &fileState{definitions: map[object.Key]*definition{}}
		m.files[path] = state
	}
	return state
}

// file applies one reading and adds the affected keys to touched. It reports whether the file must
// be read again.
func (m *merger) file(state *fileState, r reading, touched map[object.Key]bool) (reread bool) {
	if r.unreadable != "" {
		state.problems = []object.Problem{{Origin: object.Origin{File: r.path}, Text: r.unreadable + "; " + state.fallback()}}
		return false
	}
	state.text = r.text
	present := m.present(state, r, touched)
	assignPolicyKeys(state, present)
	complete := r.gone || r.result.Whole()
	for k, c := range state.definitions {
		switch {
		case present[k]:
			c.missing = false
		case !complete:
		case c.missing && !r.beingWritten:
			delete(state.definitions, k)
			if delete(m.owners[k], r.path); len(m.owners[k]) < 2 {
				delete(m.shared, k)
			}
			touched[k] = true
		default:
			c.missing, reread = true, true
			touched[k] = true // the definition in another file has priority now
		}
	}
	if r.gone && len(state.definitions) == 0 {
		delete(m.files, r.path)
	}
	return reread
}

// present updates the file's definitions from a reading and returns the keys in it.
func (m *merger) present(state *fileState, r reading, touched map[object.Key]bool) map[object.Key]bool {
	present := map[object.Key]bool{}
	state.problems = nil
	if r.gone {
		return present
	}
	state.problems = append(state.problems, r.result.Problems...)
	for i := range r.result.Objects {
		o := &r.result.Objects[i]
		if present[o.Key] {
			state.problems = append(state.problems, duplicate(o.Key, o.Origin, state.definitions[o.Key].origin))
			continue
		}
		present[o.Key] = true
		c := m.definition(state, r.path, o.Key)
		if !c.missing && c.good != nil && decodedOnce(c.good, o) && c.origin == o.Origin {
			continue // nothing of it has changed
		}
		good := *o // the other objects of the reading are not kept
		c.good, c.origin, c.missing = &good, o.Origin, false
		touched[o.Key] = true
	}
	for _, p := range r.result.Problems {
		if !slices.Contains(object.Kinds(), p.Key.Kind) || present[p.Key] {
			continue // not identified, or of a kind that is not read
		}
		present[p.Key] = true
		if c := m.definition(state, r.path, p.Key); c.good == nil {
			c.origin = p.Origin
		}
		touched[p.Key] = true
	}
	return present
}

func (m *merger) definition(state *fileState, path string, k object.Key) *definition {
	c := state.definitions[k]
	if c == nil {
		c = &definition{}
		state.definitions[k] = c
		if m.owners[k] == nil {
			m.owners[k] = map[string]bool{}
		}
		if m.owners[k][path] = true; len(m.owners[k]) > 1 {
			m.shared[k] = true
		}
	}
	return c
}

// resolve returns the change, if any, of the value that is in force for a key.
func (m *merger) resolve(k object.Key) (object.Change, bool) {
	winner := m.winner(k)
	before := m.emitted[k]
	switch {
	case winner == nil && len(m.owners[k]) == 0:
		delete(m.owners, k)
		if before == nil {
			return object.Change{}, false
		}
		delete(m.emitted, k)
		return object.Change{Key: k}, true
	case winner == nil: // it never had a good value, so nothing was emitted
		return object.Change{}, false
	case before != nil && same(before, winner):
		return object.Change{}, false
	}
	m.emitted[k] = winner
	return object.Change{Key: k, Object: winner}, true
}

// winner returns the good value of the first file that defines the key. A definition that is missing
// in its file is used only if there is no other, so that objects can move between files.
func (m *merger) winner(k object.Key) *object.Object {
	var fallback *object.Object
	for _, path := range slices.Sorted(maps.Keys(m.owners[k])) {
		c := m.files[path].definitions[k]
		switch {
		case c.good == nil:
		case !c.missing:
			return c.good
		case fallback == nil:
			fallback = c.good
		}
	}
	return fallback
}

// allProblems returns all present problems: of directories, of files, and of keys that several
// files define.
func (m *merger) allProblems(dirs []object.Problem) []object.Problem {
	all := slices.Clone(dirs)
	for _, s := range m.files {
		all = append(all, s.problems...)
	}
	for k := range m.shared {
		first := object.Origin{}
		for _, path := range slices.Sorted(maps.Keys(m.owners[k])) {
			switch c := m.files[path].definitions[k]; {
			case c.missing:
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
	return object.Problem{Origin: at, Key: k, Text: fmt.Sprintf("duplicate of the object at %s, which is in force; remove one of them", first)}
}

// same reports whether two values of an object are equal, including their origins.
func same(a, b *object.Object) bool {
	return a.Origin == b.Origin && a.Saved.Equal(b.Saved) && equal(a, b)
}

// decodedOnce reports whether two values of an object come from the same decoding of a document, so that they
// differ at most in the line. It is false for kinds without a spec.
func decodedOnce(a, b *object.Object) bool { return a.Spec != nil && a.Spec == b.Spec }

// equal reports whether two values of an object have equal metadata and specs.
func equal(a, b *object.Object) bool {
	return decodedOnce(a, b) || reflect.DeepEqual(a.Meta, b.Meta) && object.SameSpec(a, b)
}

// extent is the size of a file.
type extent struct {
	bytes, lines int // lines without a line end are not counted
}

func extentOf(text []byte) extent {
	return extent{bytes: len(text), lines: bytes.Count(text, []byte("\n"))}
}

// priority sorts files that are being written after the others.
func priority(r reading) int {
	if r.beingWritten {
		return 1
	}
	return 0
}

// maybeTruncated reports whether a reading may be incomplete because the file is being written.
// Nothing of such a reading is used: its objects may refer to others that are not written yet. A
// reading may be incomplete if the file was recently written to in place, and
//
//   - it is smaller than in the last reading used, and an object that no other file defines is
//     missing, or
//   - it has fewer lines, and its last document is invalid, new or changed: a VirtualService that
//     is truncated may still be a valid VirtualService.
//
// After such a reading the file counts as smaller until a reading is used, because it may exceed
// its previous size before it is complete.
func (m *merger) maybeTruncated(state *fileState, r reading) bool {
	if !r.beingWritten {
		return false
	}
	fewer := state.waiting || r.text.lines < state.text.lines
	smaller := fewer || r.text.bytes < state.text.bytes
	return smaller && m.losesObject(state, r) || fewer && m.lastDocumentChanged(state, r)
}

// losesObject reports whether an object of the file is missing in the reading and in all other
// files.
func (m *merger) losesObject(state *fileState, r reading) bool {
	if !r.result.Whole() {
		return false // a document that is not identified may be any object, so all stay in force
	}
	present := map[object.Key]bool{}
	for i := range r.result.Objects {
		present[r.result.Objects[i].Key] = true
	}
	for _, p := range r.result.Problems {
		present[p.Key] = true
	}
	for k := range state.definitions {
		if !present[k] && !m.definedElsewhere(k, r.path) {
			return true
		}
	}
	return false
}

func (m *merger) definedElsewhere(k object.Key, path string) bool {
	for other := range m.owners[k] {
		if c := m.files[other].definitions[k]; other != path && !c.missing && c.good != nil {
			return true
		}
	}
	return false
}

// lastDocumentChanged reports whether the last document of a reading is invalid, new or changed.
func (m *merger) lastDocumentChanged(state *fileState, r reading) bool {
	last := 0
	for i := range r.result.Objects {
		last = max(last, r.result.Objects[i].Origin.Line)
	}
	for _, s := range r.result.Skipped {
		last = max(last, s.Origin.Line)
	}
	decoded := map[object.Key]bool{}
	for i := range r.result.Objects {
		decoded[r.result.Objects[i].Key] = true
	}
	for _, p := range r.result.Problems {
		// A warning about an object that was decoded says nothing about the end of the file.
		if p.Origin.Line >= last && p.Severity != object.Info && !decoded[p.Key] {
			return true
		}
	}
	for i := range r.result.Objects {
		o := &r.result.Objects[i]
		if c := state.definitions[o.Key]; o.Origin.Line == last && (c == nil || c.good == nil || !equal(c.good, o)) {
			return true
		}
	}
	return false
}

// restore sets the state to that of a merger that has emitted these objects: each is the last good
// value of its file.
func (m *merger) restore(objects []object.Object) {
	for _, o := range objects {
		state := m.files[o.Origin.File]
		if state == nil {
			state = &fileState{definitions: map[object.Key]*definition{}}
			m.files[o.Origin.File] = state
		}
		c := m.definition(state, o.Origin.File, o.Key)
		c.good, c.origin = &o, o.Origin
		m.emitted[o.Key] = &o
	}
}

// snapshot returns all objects in force and all problems as a batch.
func (m *merger) snapshot() object.Batch {
	b := object.Batch{Synced: true}
	for k, o := range m.emitted {
		b.Changes = append(b.Changes, object.Change{Key: k, Object: o})
	}
	sortChanges(b.Changes)
	if len(m.problems) > 0 {
		b.Problems = slices.Clone(m.problems)
	}
	return b
}

// sortChanges sorts changes by kind, namespace and name.
func sortChanges(changes []object.Change) {
	order := map[object.Kind]int{}
	for i, k := range object.Kinds() {
		order[k] = i
	}
	slices.SortFunc(changes, func(a, b object.Change) int {
		return cmp.Or(cmp.Compare(order[a.Key.Kind], order[b.Key.Kind]), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
}

// fallback describes what is in force while the file cannot be read.
func (s *fileState) fallback() string {
	for _, c := range s.definitions {
		if c.good != nil {
			return "the objects last read from it stay in force"
		}
	}
	return "no objects have been read from it before"
}

// assignPolicyKeys completes the keys of a file's broken security policies that are only partially
// known: each gets the key of a policy that the file had and that is missing in this reading, in the
// order of names. Policies with a known name come first.
func assignPolicyKeys(state *fileState, present map[object.Key]bool) {
	var missing []object.Key
	for k, c := range state.definitions {
		if !present[k] && c.good != nil && (k.Kind == object.PeerAuthentication || k.Kind == object.AuthorizationPolicy) {
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
			j := slices.IndexFunc(missing, func(k object.Key) bool { return matches(p.Key, k) })
			if j >= 0 {
				p.Key = missing[j]
				missing = slices.Delete(missing, j, j+1)
			}
		}
	}
}

// matches reports whether k may be the partially known key.
func matches(partial, k object.Key) bool {
	return (partial.Kind == "" || partial.Kind == k.Kind) && (partial.Namespace == "" || partial.Namespace == k.Namespace) && (partial.Name == "" || partial.Name == k.Name)
}
