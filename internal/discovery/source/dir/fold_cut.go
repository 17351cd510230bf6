package dir

import (
	"bytes"

	"github.com/pilothouse/pilothouse/internal/object"
)

// extent is how much text a file holds.
type extent struct {
	bytes, lines int // a last line that is not ended does not count as one
}

func extentOf(text []byte) extent {
	return extent{bytes: len(text), lines: bytes.Count(text, []byte("\n"))}
}

// order puts readings of files that may be half written behind the others.
func order(r reading) int {
	if r.unfinished {
		return 1
	}
	return 0
}

// cut says whether a reading may be only the first part of what is being written, so that
// nothing of it is to be used: using the part that is there could take a subset away from
// a route that follows further down. It may be where the file is the one that was used
// last, written to in place a short time ago, and
//
//   - it is smaller than it was, and has lost an object that no other file holds, or
//   - it has fewer lines than it had, and its last document, which may break off anywhere,
//     is broken or is not what it was: a VirtualService that ends early is still a
//     VirtualService.
//
// Once a file was found so, it counts as smaller until a reading is used: it may grow past
// its former size before it is whole.
func (f *fold) cut(state *fileState, r reading) bool {
	if !r.unfinished {
		return false
	}
	fewer := state.held || r.text.lines < state.text.lines
	smaller := fewer || r.text.bytes < state.text.bytes
	return smaller && f.loses(state, r) || fewer && f.ragged(state, r)
}

// loses says whether a reading misses an object of the file that is in no other file.
func (f *fold) loses(state *fileState, r reading) bool {
	if !r.result.Whole() {
		return false // what cannot be told may be any of them, and keeps them
	}
	present := map[object.Key]bool{}
	for _, o := range r.result.Objects {
		present[o.Key] = true
	}
	for _, p := range r.result.Problems {
		present[p.Key] = true
	}
	for k := range state.claims {
		if !present[k] && !f.heldElsewhere(k, r.path) {
			return true
		}
	}
	return false
}

func (f *fold) heldElsewhere(k object.Key, path string) bool {
	for other := range f.owners[k] {
		if c := f.files[other].claims[k]; other != path && !c.doubted && c.good != nil {
			return true
		}
	}
	return false
}

// ragged says whether a reading's last document is broken, new or changed.
func (f *fold) ragged(state *fileState, r reading) bool {
	last := 0
	for _, o := range r.result.Objects {
		last = max(last, o.Origin.Line)
	}
	for _, s := range r.result.Skipped {
		last = max(last, s.Origin.Line)
	}
	for _, p := range r.result.Problems {
		if p.Origin.Line >= last && p.Severity != object.Info {
			return true
		}
	}
	for _, o := range r.result.Objects {
		if c := state.claims[o.Key]; o.Origin.Line == last && (c == nil || c.good == nil || !equal(c.good, &o)) {
			return true
		}
	}
	return false
}
