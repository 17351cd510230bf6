package discovery

import (
	"fmt"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

// gatewayStatuses are what the statuses of the objects of the Gateway API say. One may depend on many other objects, so that it is the
// value of a rule. It belongs to the loop's goroutine.
type gatewayStatuses struct {
	rule *incr.Rule[object.Key, *object.GatewayStatus]
	// kept are the objects whose values are kept up to date, and fresh those that have changed since the last run.
	kept  map[object.Key]bool
	fresh map[object.Key]bool
}

func newGatewayStatuses(g *incr.Graph, m *model.Model) *gatewayStatuses {
	return &gatewayStatuses{
		rule: incr.Derive(g, model.LevelCompile, "gateway statuses", m.GatewayStatus), kept: map[object.Key]bool{}, fresh: map[object.Key]bool{},
	}
}

// apply notes a change of an object.
func (s *gatewayStatuses) apply(k object.Key) {
	if hasGatewayStatus(k.Kind) {
		s.fresh[k] = true
	}
}

// ran is called after a run of the graph with what has moved. It returns the objects whose statuses say something else, and what else has moved.
// While nobody wants them, which keep says, nothing is kept up to date.
func (s *gatewayStatuses) ran(moved []incr.Moved, keep bool, exists func(object.Key) bool) (changed []object.Key, others []incr.Moved) {
	for _, m := range moved {
		if k, ok := m.Key.(object.Key); ok && m.Rule == "gateway statuses" {
			changed = append(changed, k)
		} else {
			others = append(others, m)
		}
	}
	for k := range s.fresh {
		switch has := exists(k); {
		case keep && has && !s.kept[k]:
			s.rule.Want(k)
			s.kept[k] = true
		case !has && s.kept[k]:
			s.rule.Unwant(k)
			delete(s.kept, k)
		}
	}
	clear(s.fresh)
	return changed, others
}

// of returns what the status of an object says; nil for nothing.
func (s *gatewayStatuses) of(k object.Key) *object.GatewayStatus {
	v := s.rule.Want(k)
	s.rule.Unwant(k)
	return v
}

// gatewayProblems are what the statuses of the objects of the Gateway API in force say is wrong with them, as in a cluster their conditions
// do. Nothing is found while the source is read for the first time.
func (s *Server) gatewayProblems() (out []object.Problem) {
	l := s.loop
	l.ask(func() {
		if !l.gate.open.Load() {
			return
		}
		for _, o := range l.store.Good() {
			if !hasGatewayStatus(o.Kind) {
				continue
			}
			if status := l.gatewayStatuses.of(o.Key); status != nil {
				for _, f := range conditionsUnmet(status) {
					f.Key, f.Origin, f.Severity = o.Key, o.Origin, object.Warning
					out = append(out, f)
				}
			}
		}
	})
	return out
}

// conditionsUnmet are the fields and texts of the conditions that say that something is wrong.
func conditionsUnmet(s *object.GatewayStatus) (out []object.Problem) {
	add := func(field string, list []object.GatewayCondition) {
		for _, c := range list {
			// What conflicts is not accepted either, and what is wrong with listeners is a condition of them.
			if !c.True && c.Type != "Conflicted" && c.Reason != "ListenersNotResolved" {
				out = append(out, object.Problem{Field: field, Text: fmt.Sprintf("not %s: %s: %s", c.Type, c.Reason, c.Message)})
			}
		}
	}
	add("spec", s.Conditions)
	for _, l := range s.Listeners {
		add("spec.listeners["+l.Name+"]", l.Conditions)
	}
	for i, p := range s.Parents {
		list := p.Conditions
		if i > 0 { // what is wrong with backends is the same for all parents
			list = slices.DeleteFunc(slices.Clone(list), func(c object.GatewayCondition) bool { return c.Type == "ResolvedRefs" })
		}
		switch {
		case s.Kind != object.BackendTLSPolicy:
			add("spec.parentRefs["+p.Name+"]", list)
		case i == 0: // the same for all ancestors
			add("spec", list)
		}
	}
	return out
}
