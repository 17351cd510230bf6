package config

import (
	"maps"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Event is what became of an object. The texts are those of Istio's metrics.
type Event string

// The events.
const (
	Added   Event = "add"
	Updated Event = "update"
	Deleted Event = "delete"
)

// Events are the events of a kind of objects.
type Events struct {
	Kind  object.Kind
	Event Event
}

// countEvent counts a change that is applied; before is the version that was in force, nil if there was none.
func (s *Store) countEvent(c object.Change, before *object.Object) {
	e := Events{c.Key.Kind, Updated}
	switch {
	case c.Object == nil:
		e.Event = Deleted
	case before == nil:
		e.Event = Added
	}
	s.events[e]++
}

// EventCounts returns how many changes of each kind Apply has returned.
func (s *Store) EventCounts() map[Events]uint64 { return maps.Clone(s.events) }
