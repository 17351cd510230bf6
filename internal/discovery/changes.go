package discovery

import (
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Bounds of what is remembered of changes.
const (
	// maxRemovals is how many removed objects are remembered.
	maxRemovals = 1000
	// maxEffectNames is how many resources of an effect are told apart.
	maxEffectNames = 256
)

// acceptedChange is a change of an object in a commit. Changes that the graph cannot tell apart have the
// same cause.
type acceptedChange struct {
	key     object.Key
	removed bool
	cause   incr.Causes
}

// causeNumber is the cause of the change with an index in its commit. All from incr.MaxCauses-1 on share
// one.
func causeNumber(index int) incr.Causes { return 1 << min(index, incr.MaxCauses-1) }

// resourceName is the name of a resource of a type.
type resourceName struct {
	typ  xds.Type
	name string
}

// move is something that changed in a commit: a resource in a layer, or, where proxy is set, the class of
// that connection.
type move struct {
	layer  compile.Layer
	name   resourceName
	proxy  string
	causes incr.Causes
}

// effect is what a change of an object has changed for proxies. It is immutable; objects of one cause
// share it.
type effect struct {
	layers  []compile.Layer
	proxies []string // connections with another class
	// names are the resources; nil if they are too many or unknown.
	names map[resourceName]bool
}

// has says whether a resource may be part of the effect.
func (e *effect) has(n resourceName) bool { return e.names == nil || e.names[n] }

// objectChange is the newest change of an object.
type objectChange struct {
	generation uint64
	removed    bool
	effect     *effect
}

// changeLog has the newest change of each object in force, and of those removed last. It belongs to the
// loop's goroutine.
type changeLog struct {
	objects map[object.Key]objectChange
	removed []removal // oldest first
}

type removal struct {
	key        object.Key
	generation uint64
}

func newChangeLog() *changeLog { return &changeLog{objects: map[object.Key]objectChange{}} }

// commit notes the changes of a generation and what they moved.
func (l *changeLog) commit(generation uint64, changes []acceptedChange, moves []move) {
	effects := map[incr.Causes]*effect{}
	for _, c := range changes {
		e := effects[c.cause]
		if e == nil {
			e = effectOf(c.cause, moves)
			effects[c.cause] = e
		}
		l.objects[c.key] = objectChange{generation: generation, removed: c.removed, effect: e}
		if c.removed {
			l.removed = append(l.removed, removal{c.key, generation})
		}
	}
	for ; len(l.removed) > maxRemovals; l.removed = l.removed[1:] {
		oldest := l.removed[0]
		if now := l.objects[oldest.key]; now.removed && now.generation == oldest.generation {
			delete(l.objects, oldest.key)
		}
	}
}

// effectOf is what a cause moved.
func effectOf(cause incr.Causes, moves []move) *effect {
	e := &effect{names: map[resourceName]bool{}}
	layers := map[compile.Layer]bool{}
	for _, m := range moves {
		switch {
		case m.causes&cause == 0:
		case m.proxy != "":
			e.proxies, e.names = append(e.proxies, m.proxy), nil
		default:
			if !layers[m.layer] {
				layers[m.layer] = true
				e.layers = append(e.layers, m.layer)
			}
			if e.names != nil {
				e.names[m.name] = true
			}
		}
		if len(e.names) > maxEffectNames {
			e.names = nil
		}
	}
	slices.Sort(e.proxies)
	e.proxies = slices.Compact(e.proxies)
	return e
}
