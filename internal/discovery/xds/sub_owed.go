package xds

import "slices"

// debt is a cluster that was sent and whose assignment was not sent after it yet.
//
// Envoy takes a new or changed cluster into use only when its assignment arrives, accepts
// no other change of clusters meanwhile, and does not ask again for an assignment that it
// subscribes to already. So the assignment is owed for every cluster that is sent, whatever
// the client claims to have or asked for before. [control-plane 5.2.1]
type debt struct {
	cluster *Resource
	// late: listeners and routes wait for it no longer.
	late bool
}

// owe takes note of the clusters in a response that need an assignment after it. In SotW
// these are the ones that are new or changed; the client passes over the others.
func (s *Sub) owe(send Send, d *Delta, gone bool) {
	sent := send.Upserts
	if !s.delta {
		forced := s.chans[CDS].forced
		sent = slices.DeleteFunc(slices.Clone(sent), func(r *Resource) bool {
			return !holds(d.Upserts, r.Name) && !forced[r.Name]
		})
	}
	replaced := func(o debt) bool {
		return holds(sent, o.cluster.Name) || gone && holds(d.Removed, o.cluster.Name)
	}
	s.owed = slices.DeleteFunc(s.owed, replaced)
	for _, r := range sent {
		if r.Needs != "" {
			s.owed = append(s.owed, debt{cluster: r})
		}
	}
}

// pay strikes out the debts that a response with assignments settles.
func (s *Sub) pay(send Send) {
	s.owed = slices.DeleteFunc(s.owed, func(o debt) bool {
		_, told := slices.BinarySearch(send.Removed, o.cluster.Needs)
		return told || holds(send.Upserts, o.cluster.Needs)
	})
	if len(s.owed) == 0 {
		s.owed = nil // the room is for thousands
	}
}

// payable says whether an assignment is owed that the client subscribes to.
func (s *Sub) payable() bool {
	return slices.ContainsFunc(s.owed, func(o debt) bool { return s.chans[EDS].has(o.cluster.Needs) })
}

// despair ends the waiting for the assignments of clusters that were refused: the client
// may not ask for them. They stay owed, for a client may use some clusters of a response
// that it refuses.
func (s *Sub) despair(refused map[string]rejection) {
	for i, o := range s.owed {
		if f, ok := refused[o.cluster.Name]; ok && f.version == o.cluster.Version {
			s.owed[i].late = true
		}
	}
}

// expects says whether listeners and routes wait for an assignment that is owed.
func (s *Sub) expects() bool {
	return slices.ContainsFunc(s.owed, func(o debt) bool { return !o.late })
}

// holds says whether a list in order of names has the name.
func holds(list []*Resource, name string) bool {
	_, ok := slices.BinarySearchFunc(list, name, byName)
	return ok
}
