package filewatch

import (
	"slices"
	"time"
)

// groupDebounce is how long files that changed must be unchanged before they are read.
const groupDebounce = 50 * time.Millisecond

// setState decides when a Set is due. It is a machine without a clock and without I/O.
type setState struct {
	paths []string // sorted, never changed in place
	due   bool
	asked bool

	used   map[string]Sig // as the files were when they were last read without an error
	tried  []Sig          // as they were when reading was last tried, parallel to paths; nil to read them anyway
	seen   []Sig          // at the last observation
	since  time.Time      // since when they are the same
	retry  time.Time      // when to read again after an error; zero for never
	shrunk Shrunk

	reading bool
}

// setPaths replaces the paths and says whether one is new.
func (s *setState) setPaths(paths []string) (fresh bool) {
	next := slices.Clone(paths)
	slices.Sort(next)
	next = slices.DeleteFunc(slices.Compact(next), func(p string) bool { return p == "" })
	if slices.Equal(next, s.paths) {
		return false
	}
	var tried []Sig
	for _, path := range next {
		i, known := slices.BinarySearch(s.paths, path)
		fresh = fresh || !known
		if known && s.tried != nil {
			tried = append(tried, s.tried[i])
		}
	}
	if s.paths, s.seen, s.tried = next, nil, tried; fresh || len(tried) < len(next) {
		s.tried, s.due = nil, true
	}
	return fresh
}

// begin notes that the files are about to be read.
func (s *setState) begin() { s.due, s.asked, s.reading = false, false, true }

// end notes how it went; sigs are of the files at paths before they were read.
func (s *setState) end(now time.Time, paths []string, sigs []Sig, err error, poll time.Duration) {
	s.reading, s.retry = false, time.Time{}
	if err == nil {
		s.used = make(map[string]Sig, len(paths))
		for i, path := range paths {
			s.used[path] = sigs[i]
		}
	} else {
		s.retry = now.Add(poll)
	}
	if slices.Equal(paths, s.paths) {
		s.tried = sigs
	}
}

// observe takes the current signatures of the files at paths. It reports whether one differs
// from the last observation, whether the group has become due, and when to observe again
// if that is before the next poll (0 if it is not).
func (s *setState) observe(now time.Time, paths []string, sigs []Sig) (changed, due bool, next time.Duration) {
	if !slices.Equal(paths, s.paths) {
		return false, false, time.Millisecond // replaced meanwhile
	}
	if changed = !slices.Equal(sigs, s.seen); changed {
		s.seen, s.since = sigs, now
	}
	if s.due || s.reading {
		return changed, false, 0
	}
	fresh, differs := s.tried == nil, !slices.Equal(sigs, s.tried)
	again := !s.retry.IsZero() && !now.Before(s.retry)
	if !s.asked && !fresh && !differs && !again {
		if !s.retry.IsZero() {
			next = s.retry.Sub(now)
		}
		return changed, false, next
	}
	if quiet := now.Sub(s.since); differs && !fresh && !s.asked && quiet < groupDebounce {
		return changed, false, groupDebounce - quiet
	}
	if wait := s.shrunk.Wait(now, s.used, byPath(paths, sigs)); wait > 0 {
		return changed, false, wait
	}
	s.due = true
	return changed, true, 0
}

func byPath(paths []string, sigs []Sig) map[string]Sig {
	out := make(map[string]Sig, len(paths))
	for i, path := range paths {
		out[path] = sigs[i]
	}
	return out
}
