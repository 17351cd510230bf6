package config

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// memory is what a Store knows of the time before the control plane started, and what
// has to be saved for the time after.
type memory struct {
	// remembered are good values of objects that this store has not had a good value of.
	remembered map[object.Key]*object.Object
	// restored are the objects in force whose value was saved.
	restored map[object.Key]time.Time
	// oldest is when the oldest of these was saved; it counts while oldestKnown is set.
	oldest      time.Time
	oldestKnown bool
	// version counts the changes of what is good, of what was saved, and of places.
	version uint64
}

func newMemory() memory {
	return memory{remembered: map[object.Key]*object.Object{}, restored: map[object.Key]time.Time{}}
}

// Remember gives the store the last good values of a former one. An object whose first
// value here is bad counts as that; a remembered value that is bad by today's rules is
// none. What is remembered and never mentioned is not in force.
func (s *Store) Remember(objects []object.Object) {
	for _, o := range objects {
		if !Rejected(Validate(o)) {
			s.memory.remembered[o.Key] = &o
		}
	}
}

// Forget ends that for the objects that have not been mentioned yet, and for which done
// is true: one that comes later is new, whatever its name.
func (s *Store) Forget(done func(object.Key) bool) {
	for k := range s.memory.remembered {
		if done(k) {
			delete(s.memory.remembered, k)
		}
	}
}

// instead is the value that counts for an object whose latest value is bad: the last
// good one, at the place where the object now stands; nil where there is none.
func (s *Store) instead(bad, before *object.Object) *object.Object {
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

// put stores what is good of an object, nil where it has ended.
func (s *Store) put(k object.Key, o *object.Object) {
	if s.good[k] != o {
		s.memory.version++
	}
	delete(s.memory.remembered, k)
	if _, was := s.memory.restored[k]; was {
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

// Len is how many objects are in force.
func (s *Store) Len() int { return len(s.good) }

// Version changes whenever Good says something else.
func (s *Store) Version() uint64 { return s.memory.version }

// Good is every object in force. The objects are shared: never change them.
func (s *Store) Good() []*object.Object {
	out := make([]*object.Object, 0, len(s.good))
	for _, o := range s.good {
		out = append(out, o)
	}
	return out
}

// Restored says how many objects are in force with a value that was saved before the
// control plane started, because their source cannot say it now, and when the oldest of
// these values was saved.
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
