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

// Lenience allows what otherwise holds back readiness.
type Lenience struct {
	// EmptyConfig serves a source that is readable and empty although objects are
	// remembered: it is meant to be empty. Otherwise that holds back readiness, since a
	// volume that was not filled looks the same.
	EmptyConfig bool
	// BrokenPolicies serves as if a security policy that is broken, and of which no good
	// value is known, were not there. Otherwise that holds back readiness at start and
	// denies what the policy might have selected later.
	BrokenPolicies bool
}

// gate decides whether proxies are served. It opens once and stays open. Only the loop's
// goroutine changes it.
type gate struct {
	lenience   Lenience
	remembered int // objects that were known when the control plane started
	since      time.Time
	synced     bool
	restored   bool            // it was logged that saved values are in force
	shown      bool            // the source has shown an object that it read
	ends       []object.Change // that are put off
	open       atomic.Bool
	why        atomic.Pointer[string] // why it is not open
	notes      atomic.Pointer[notes]
}

// notes are what else the answer to a readiness probe says, as of the last commit, so that a
// probe does not wait for the loop.
type notes struct {
	restored, objects int // in force as they were saved, of all that are in force
	oldest            time.Time
	broken            int // policies that are broken and of which no good value is known
	ends              int // objects that the source says have ended, and that stay
	ignored           bool
}

func (g *gate) shut(why string) { g.why.Store(&why) }

// openGate opens the gate where nothing is against it, and logs what is.
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
	why := l.gate.against(l.holdsAnything(), broken)
	if why == "" {
		l.gate.open.Store(true)
		l.log.Info("ready")
		return
	}
	if why != *l.gate.why.Load() {
		l.gate.shut(why)
		if l.gate.synced {
			l.log.Error("not ready: streams are refused, so that proxies keep what they have", "why", why)
		}
	}
}

// against says why proxies must not be served yet: holds says whether the source has
// anything that can be used, broken are its broken policies.
func (g *gate) against(holds bool, broken []object.Problem) string {
	if !g.synced {
		return "configuration has not been read yet"
	}
	if !g.lenience.EmptyConfig && g.remembered > 0 && !holds {
		return fmt.Sprintf("configuration can be read and holds no object that can be used, but %d objects of %s are remembered: put them back, or start with --accept-empty-config where it is meant to be empty",
			g.remembered, g.since.UTC().Format(time.RFC3339))
	}
	if len(broken) > 0 && !g.lenience.BrokenPolicies {
		why := fmt.Sprintf("a security policy is broken, and no good value of it is known: %s%s", broken[0], seems(broken[0]))
		if n := len(broken) - 1; n > 0 {
			why += fmt.Sprintf(" (and %d more; pilotctl objects lists them)", n)
		}
		return why + "; repair or remove it, or start with --broken-policies=ignore to serve without it"
	}
	return ""
}

// admit returns the changes to act on. A source that has shown nothing since start but
// says that objects have ended may be a volume that was mounted and not filled: the ends
// are put off until it shows an object, unless an empty configuration is accepted.
func (g *gate) admit(changes []object.Change) []object.Change {
	for _, c := range changes {
		g.shown = g.shown || c.Object != nil && c.Object.Saved.IsZero() && c.Key != meshFileKey
	}
	if g.shown || g.lenience.EmptyConfig {
		all := append(g.ends, changes...)
		g.ends = nil
		return all
	}
	var now []object.Change
	for _, c := range changes {
		if c.Object == nil && c.Key != meshFileKey {
			g.ends = append(g.ends, c)
		} else {
			now = append(now, c)
		}
	}
	return now
}

// holdsAnything says whether any object of the source is in force.
func (l *loop) holdsAnything() bool {
	_, file := l.store.Get(meshFileKey)
	return l.store.Len() > 1 || l.store.Len() == 1 && !file
}

// deny denies what broken policies might have selected.
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
	fmt.Fprintf(h, "%q", []string{string(p.Key.Kind), p.Key.Namespace, p.Key.Name, p.Labels})
	return model.Denial{Name: fmt.Sprintf("broken-%x", h.Sum64()), Namespace: p.Key.Namespace, Labels: p.Labels, Everything: !p.OnlyPlaintext()}
}

// seems names a policy whose document has no readable key.
func seems(p object.Problem) string {
	if p.Key != (object.Key{}) {
		return ""
	}
	return fmt.Sprintf(" (it seems to be %s)", p.Policy)
}

// effect is what follows from a broken policy of which no good value is known.
func (l *loop) effect(of object.Problem) string {
	p := of.Policy
	if l.gate.lenience.BrokenPolicies {
		return seems(of) + "; it is NOT enforced, since --broken-policies=ignore is set"
	}
	return fmt.Sprintf("%s; until it is repaired or removed %s is denied (unless --broken-policies=ignore is set)", seems(of), p.Denies())
}

// meanwhile says what is in force instead of something that is refused; placeInForce says
// whether anything that was read from a file or directory is in force.
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

// placesInForce says of files and directories whether anything that was read from them is in
// force. It looks through the objects once, when it is asked first.
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

// logRestored logs when values that were saved come into force and when none is left.
func (l *loop) logRestored() {
	n, oldest := l.store.Restored()
	if (n > 0) == l.gate.restored {
		return
	}
	if l.gate.restored = n > 0; n > 0 {
		l.log.Warn("objects are in force as they were saved, because their source cannot say them now", "objects", n, "saved", oldest.UTC().Format(time.RFC3339))
		return
	}
	l.log.Info("every object in force has been read from its source")
}

// restoredText says how much is in force as it was saved, and how old that is; empty
// where everything in force has been read.
func (n notes) restoredText(now time.Time) string {
	if n.restored == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d objects in force are those of the saved configuration, the oldest saved at %s, %s ago: their source cannot say them now",
		n.restored, n.objects, n.oldest.UTC().Format(time.RFC3339), now.Sub(n.oldest).Round(time.Second))
}

// endsText says that objects stay although their source says that they have ended.
func (n notes) endsText() string {
	if n.ends == 0 {
		return ""
	}
	return fmt.Sprintf("the source can be read and is empty: %d objects of the saved configuration stay until it shows one that can be used (--accept-empty-config takes it for empty)", n.ends)
}

// brokenText says what follows from broken policies; empty where none is broken.
func (n notes) brokenText() string {
	switch {
	case n.broken == 0:
		return ""
	case n.ignored:
		return fmt.Sprintf("security policies that are broken and NOT enforced: %d; pilotctl objects lists them", n.broken)
	}
	return fmt.Sprintf("security policies that are broken, and what they might select is denied: %d; pilotctl objects lists them", n.broken)
}
