package register

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// beats are the signs of life of the instances that hold entries, as the leader sees them. The clocks of others are not
// compared: an instance is alive while what it writes changes.
type beats struct {
	// since is from when all signs of life have been seen; zero if they cannot be read.
	since time.Time
	seen  map[string]beat
}

type beat struct {
	text string
	at   time.Time
}

// Beats tells which sign of life each instance has written last, so that entries of those that have ended can be found. It returns the
// registered entries. A nil map says that they could not be read: no instance is taken for gone until they have been again
// for the whole of Orphaned.
func (m *Machine) Beats(all map[string]string, now time.Time) []object.Key {
	if all == nil {
		m.beats.since = time.Time{}
		return nil
	}
	if m.beats.since.IsZero() {
		m.beats = beats{since: now, seen: map[string]beat{}}
	}
	for instance, text := range all {
		if b, ok := m.beats.seen[instance]; !ok || b.text != text {
			m.beats.seen[instance] = beat{text, now}
		}
	}
	return m.Registered()
}

// Dead returns the instances that have shown no sign of life for longer than Orphaned, and hold no entry.
func (m *Machine) Dead(now time.Time) (out []string) {
	holds := map[string]bool{}
	for _, e := range m.entries {
		if isRegistered(e.Object) {
			holds[controllerOf(e.Object)] = true
		}
	}
	for instance := range m.beats.seen {
		if at, known := m.beats.goneAt(instance); known && !now.Before(at) && !holds[instance] {
			out = append(out, instance)
		}
	}
	return out
}

// Forget says that the sign of life of an instance has been removed.
func (m *Machine) Forget(instance string) { delete(m.beats.seen, instance) }

// goneAt returns when an instance is taken for gone if it shows no sign of life until then; false if that is not known.
func (b *beats) goneAt(instance string) (time.Time, bool) {
	if b.since.IsZero() {
		return time.Time{}, false
	}
	at := b.since
	if last, ok := b.seen[instance]; ok {
		at = last.at
	}
	return at.Add(Orphaned), true
}
