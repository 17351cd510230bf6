package config

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// memory is the part of a Store that outlives the process: what an earlier process has saved, and
// whether there is something to save.
type memory struct {
	// remembered are the saved valid versions of objects of which the source has not yet reported a
	// valid one.
	remembered map[object.Key]*object.Object
	// restored are the objects that are in force as they were saved, with the time at which they were.
	restored map[object.Key]time.Time
	// oldest is the earliest of these times; it is valid while oldestKnown is set.
	oldest      time.Time
	oldestKnown bool
	// version counts the changes of valid versions and of their origins.
	version uint64
}

func newMemory() memory {
	return memory{remembered: map[object.Key]*object.Object{}, restored: map[object.Key]time.Time{}}
}

// Remember gives the store the last valid versions that an earlier process has saved. If the first
// version of an object that the source reports is invalid, the remembered one is in force; otherwise
// the remembered one has no effect. Remembered objects that are no longer valid are ignored.
func (s *Store) Remember(objects []object.Object) {
	for _, o := range objects {
		if !Rejected(Validate(o)) {
			s.memory.remembered[o.Key] = &o
		}
	}
}

// Forget drops the remembered objects that the source has not reported yet and for which done returns
// true: an object of that name that is reported later is a new one.
func (s *Store) Forget(done func(object.Key) bool) {
	for k := range s.memory.remembered {
		if done(k) {
			delete(s.memory.remembered, k)
		}
	}
}

// lastGood returns the version that stays in force for an object whose latest version is invalid: the
// last valid one, with the origin of the latest; nil if there is none.
func (s *Store) lastGood(bad, before *object.Object) *object.Object {
	last := before
	if last == nil {
		last = s.memory.remembered[bad.Key]
	}
	if last == nil || last.Origin == bad.Origin {
		return last
	}
	moved := *last
	moved.Origin = bad.Origin
	return &moved
}

// put stores an object's valid version; nil removes the object.
func (s *Store) put(k object.Key, o *object.Object) {
	if s.good[k] != o {
		s.memory.version++
	}
	if k.Kind == object.ServiceEntry {
		s.hosts.replace(s.good[k], o)
	}
	delete(s.memory.remembered, k)
	if _, ok := s.memory.restored[k]; ok {
		delete(s.memory.restored, k)
		s.memory.oldestKnown = false
	}
	if o == nil {
		delete(s.good, k)
		return
	}
	s.good[k] = o
	if !o.Saved.IsZero() {
		s.memory.restored[k] = o.Saved
		s.memory.oldestKnown = false
	}
}

// Len returns the number of objects in force.
func (s *Store) Len() int { return len(s.good) }

// Version returns a number that changes whenever the result of Good changes.
func (s *Store) Version() uint64 { return s.memory.version }

// Good returns all objects in force, in no order. They are shared and must not be modified.
func (s *Store) Good() []*object.Object {
	out := make([]*object.Object, 0, len(s.good))
	for _, o := range s.good {
		out = append(out, o)
	}
	return out
}

// Restored returns how many objects are in force as an earlier process saved them, because their
// source cannot be read now, and when the oldest of them was saved (the zero time if there are none).
func (s *Store) Restored() (n int, oldest time.Time) {
	m := &s.memory
	if !m.oldestKnown {
		m.oldest, m.oldestKnown = time.Time{}, true
		for _, at := range m.restored {
			if m.oldest.IsZero() || at.Before(m.oldest) {
				m.oldest = at
			}
		}
	}
	return len(m.restored), m.oldest
}
