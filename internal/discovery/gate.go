package discovery

import (
	"fmt"
	"hash/fnv"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Lenience allows conditions that otherwise prevent readiness.
type Lenience struct {
	// EmptyConfig serves an empty configuration although objects were saved. Otherwise that prevents
	// readiness, since a volume that has not been filled looks the same.
	EmptyConfig bool
	// BrokenPolicies ignores invalid security policies without a last good version. Otherwise they
	// prevent readiness at start; later, what they might select is denied.
	BrokenPolicies bool
}

// gate decides whether proxies are served. It opens once and stays open. Only the loop's goroutine
// changes it; the atomic fields are read by others.
type gate struct {
	lenience   Lenience
	remembered int       // the number of saved objects at the start
	since      time.Time // when they were saved
	synced     bool
	restored   bool            // it has been logged that saved objects are in force
	shown      bool            // the source has read an object
	ends       []object.Change // delayed removals
	open       atomic.Bool
	why        atomic.Pointer[string] // why it is not open
	notes      atomic.Pointer[notes]
}

// notes are further parts of the response to a readiness probe, as of the last commit, so that probes do
// not wait for the loop.
type notes struct {
	restored, objects int       // the number of objects in force as they were saved, and of all
	oldest            time.Time // when the oldest was saved
	broken            int       // invalid policies without a last good version
	ends              int       // delayed removals
	ignored           bool      // invalid policies are ignored
}

// mayLack reports whether the configuration in force may lack something that another replica has: changes of the source may be missing,
// or objects are in force as they were saved.
func (s *Server) mayLack() bool {
	_, behind := s.behind()
	n := s.loop.gate.notes.Load()
	return behind || n.restored > 0 || n.ends > 0
}

func (g *gate) shut(why string) { g.why.Store(&why) }

// openGate opens the gate, or logs why it stays closed.
func (l *loop) openGate() {
	broken := l.problems.unenforced
	n := notes{objects: l.store.Len(), broken: len(broken), ends: len(l.gate.ends), ignored: l.gate.lenience.BrokenPolicies}
	n.restored, n.oldest = l.store.Restored()
	if text := n.endsText(); text != "" && l.gate.notes.Load().ends == 0 {
		l.log.Error(text)
	}
	l.gate.notes.Store(&n)
	if l.gate.open.Load() {
		return
	}
	why, fetching := l.gate.against(l.holdsAnything(), broken), false
	if why == "" {
		why = l.keys.against(time.Now())
		fetching = why != ""
	}
	if why == "" {
		l.gate.open.Store(true)
		l.keys.first.served = true
		l.log.Info("ready")
		for _, f := range l.onOpen {
			f()
		}
		return
	}
	if why != *l.gate.why.Load() {
		l.gate.shut(why)
		switch {
		case fetching:
			l.log.Info("not ready yet", "reason", why)
		case l.gate.synced:
			l.log.Error("not ready: streams are rejected, so that proxies keep their configuration", "reason", why)
		}
	}
}

// against returns why proxies must not be served yet, "" if they may be. holds is whether the source has
// a valid object; broken are its invalid policies without a last good version.
func (g *gate) against(holds bool, broken []object.Problem) string {
	if !g.synced {
		return "configuration has not been read yet"
	}
	if !g.lenience.EmptyConfig && g.remembered > 0 && !holds {
		return fmt.Sprintf("the configuration has no valid object, but %d objects were saved at %s: restore them, or start with --accept-empty-config if it is meant to be empty",
			g.remembered, g.since.UTC().Format(time.RFC3339))
	}
	if len(broken) > 0 && !g.lenience.BrokenPolicies {
		why := fmt.Sprintf("a security policy is invalid, and there is no last good version of it: %s%s", broken[0], seems(broken[0]))
		if n := len(broken) - 1; n > 0 {
			why += fmt.Sprintf(" (and %d more; pilotctl objects lists them)", n)
		}
		return why + "; fix or remove it, or start with --broken-policies=ignore to serve without it"
	}
	return ""
}

// admit returns the changes to be applied. A source that has not read an object since the start and
// reports removals may be a volume that has not been filled yet: removals are delayed until it reads an
// object, unless an empty configuration is accepted.
func (g *gate) admit(changes []object.Change, not *apart) []object.Change {
	for _, c := range changes {
		g.shown = g.shown || c.Object != nil && c.Object.Saved.IsZero() && c.Key != config.MeshFileKey && !not.has(c.Object)
	}
	if g.shown || g.lenience.EmptyConfig {
		all := append(g.ends, changes...)
		g.ends = nil
		return all
	}
	var now []object.Change
	for _, c := range changes {
		if c.Object == nil && c.Key != config.MeshFileKey {
			g.ends = append(g.ends, c)
		} else {
			now = append(now, c)
		}
	}
	return now
}

// holdsAnything reports whether an object of the source is in force.
func (l *loop) holdsAnything() bool {
	_, file := l.store.Get(config.MeshFileKey)
	others := len(l.apart.keys)
	if file {
		others++
	}
	return l.store.Len() > others
}

// deny denies what invalid policies without a last good version might select.
func (l *loop) deny() {
	var denials []model.Denial
	if !l.gate.lenience.BrokenPolicies {
		for _, p := range l.problems.unenforced {
			denials = append(denials, denialOf(p.Policy))
		}
	}
	l.model.Deny(denials)
}

func denialOf(p object.Policy) model.Denial {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q", []string{string(p.Key.Kind), p.Key.Namespace, p.Key.Name, p.Labels, p.Gateways})
	return model.Denial{Name: fmt.Sprintf("broken-%x", h.Sum64()), Namespace: p.Key.Namespace, Labels: p.Labels, Gateways: p.Gateways, Everything: !p.OnlyPlaintext()}
}

// seems describes a policy whose key is unknown.
func seems(p object.Problem) string {
	if p.Key != (object.Key{}) {
		return ""
	}
	return fmt.Sprintf(" (it seems to be %s)", p.Policy)
}

// effect describes the effect of an invalid policy without a last good version.
func (l *loop) effect(of object.Problem) string {
	p := of.Policy
	if l.gate.lenience.BrokenPolicies {
		return seems(of) + "; it is NOT enforced, since --broken-policies=ignore is set"
	}
	return fmt.Sprintf("%s; until it is fixed or removed, %s is denied (unless --broken-policies=ignore is set)", seems(of), p.Denies())
}

// meanwhile describes what is in force instead of what is rejected; placeInForce reports whether an
// object from a file or directory is in force.
func (l *loop) meanwhile(v config.Verdict, placeInForce func(string) bool) string {
	if v.Key != (object.Key{}) {
		o, ok := l.store.Get(v.Key)
		switch {
		case !ok:
			return "no good value of it is known"
		case !o.Saved.IsZero():
			return "its last good value stays, as saved at " + o.Saved.UTC().Format(time.RFC3339)
		}
		return "its last good value stays"
	}
	if placeInForce(v.Origin.File) {
		return "what was read from there before stays"
	}
	return "nothing was read from there before"
}

// placesInForce returns a function that reports whether an object from a file or directory is in force.
// It visits all objects once, at its first call.
func (l *loop) placesInForce() func(string) bool {
	var places map[string]bool
	return func(place string) bool {
		if places == nil {
			places = map[string]bool{}
			for _, o := range l.store.Good() {
				for at := o.Origin.File; !places[at] && at != "." && at != "/" && at != ""; at = filepath.Dir(at) {
					places[at] = true
				}
			}
		}
		return places[place]
	}
}

// logRestored logs when saved objects come into force, and when all objects have been read again.
func (l *loop) logRestored() {
	n, oldest := l.store.Restored()
	if (n > 0) == l.gate.restored {
		return
	}
	if l.gate.restored = n > 0; n > 0 {
		l.log.Warn("objects are in force as they were saved, because their source cannot be read", "objects", n, "saved", oldest.UTC().Format(time.RFC3339), "age", time.Since(oldest).Round(time.Second))
		return
	}
	l.log.Info("every object in force has been read from its source")
}

// restoredText describes the objects in force as they were saved, "" if there are none.
func (n notes) restoredText(now time.Time) string {
	if n.restored == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d objects in force are those of the saved configuration, the oldest saved at %s, %s ago: their source cannot be read",
		n.restored, n.objects, n.oldest.UTC().Format(time.RFC3339), now.Sub(n.oldest).Round(time.Second))
}

// endsText describes the delayed removals, "" if there are none.
func (n notes) endsText() string {
	if n.ends == 0 {
		return ""
	}
	return fmt.Sprintf("the source is empty: %d objects of the saved configuration stay in force until it has a valid one (--accept-empty-config removes them)", n.ends)
}

// brokenText describes the effect of invalid policies, "" if there are none.
func (n notes) brokenText() string {
	switch {
	case n.broken == 0:
		return ""
	case n.ignored:
		return fmt.Sprintf("invalid security policies, NOT enforced: %d; pilotctl objects lists them", n.broken)
	}
	return fmt.Sprintf("invalid security policies, what they might select is denied: %d; pilotctl objects lists them", n.broken)
}
