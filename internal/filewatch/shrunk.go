package filewatch

import "time"

// Shrunk finds files that became smaller in place and may still be being written, for a
// group of files that are used together. It is a machine without a clock. The zero value is ready; not for concurrent use.
type Shrunk struct {
	files map[string]shrunken
}

type shrunken struct {
	seen  Sig
	since time.Time // since when it is the same
}

// Wait compares the files as they are (now) with those whose contents are in use, and
// says for how long not to read them: until each that shrank in place has been unchanged
// for DefaultQuietPeriod. 0 means that they may be read. A file that grows again is waited for
// all the same: it may grow further.
func (s *Shrunk) Wait(at time.Time, used, now map[string]Sig) time.Duration {
	if s.files == nil {
		s.files = map[string]shrunken{}
	}
	var wait time.Duration
	for path, sig := range now {
		f, waiting := s.files[path]
		if before := used[path]; sig == (Sig{}) || before.Identity() != sig.Identity() || !waiting && sig.size >= before.size {
			delete(s.files, path) // gone, another file, or one that only grew
			continue
		}
		if !waiting || f.seen != sig {
			f = shrunken{seen: sig, since: at}
			s.files[path] = f
		}
		wait = max(wait, f.since.Add(DefaultQuietPeriod).Sub(at))
	}
	if wait == 0 {
		clear(s.files)
	}
	return wait
}
