package xds

import (
	"maps"
	"slices"
)

// Progress says whether the client has answered everything that it shall have of the view, and whether
// it refuses nothing of that. A client that does not have what it asked for has not answered.
func (s *Sub) Progress() (answered, applied bool) {
	if s.cur == nil || s.begins || s.warming.owed > 0 {
		return false, false
	}
	applied = true
	for t := range numTypes {
		if s.pending[t] {
			return false, false
		}
		applied = applied && len(s.states[t].refused) == 0
	}
	return true, applied
}

// outstanding says whether something of a type is to be sent, or to be answered by the client.
func (s *Sub) outstanding(t Type) bool {
	c := &s.states[t]
	if c.flight != nil || !c.asked || s.level(t) {
		return c.flight != nil
	}
	return s.pendingUpserts(t) || s.pendingRemovals(t)
}

// Synced says whether the client has asked for a type and has accepted all of it that it shall have.
func (s *Sub) Synced(t Type) bool {
	c := &s.states[t]
	return s.cur != nil && c.asked && len(c.refused) == 0 && !s.pending[t]
}

// Refused are the names of the resources of a type that the client refuses in the version that it was
// sent last, in order.
func (s *Sub) Refused(t Type) []string {
	refused := s.states[t].refused
	if len(refused) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(refused))
}
