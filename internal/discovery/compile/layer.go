package compile

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// LayerKind is which part of a class decides a layer.
type LayerKind uint8

// The layers of a class. Each resource is in exactly one.
const (
	// ScopeLayer is by scope: nearly everything outbound.
	ScopeLayer LayerKind = iota
	// LocationLayer is by scope and location: what ranks endpoints.
	LocationLayer
	// WorkloadLayer is by workload and capabilities: everything inbound.
	WorkloadLayer
	// NumLayers is how many layers a class has.
	NumLayers
)

// Layer names a set of resources that classes share. What does not decide it is zero.
type Layer struct {
	Kind     LayerKind
	Scope    mesh.ScopeID
	Location mesh.LocationID
	Workload mesh.WorkloadID
}

// Layers are the layers of a class, by their kind; all of a class's resources are in them.
func Layers(class mesh.Class) [NumLayers]Layer {
	scope := class.Scope.ID()
	// Of the scope, inbound resources depend only on what the proxy can do.
	abilities := mesh.Scope{Role: class.Scope.Role, Caps: class.Scope.Caps}.ID()
	return [NumLayers]Layer{
		{Kind: ScopeLayer, Scope: scope},
		{Kind: LocationLayer, Scope: scope, Location: class.Location.ID()},
		{Kind: WorkloadLayer, Scope: abilities, Workload: class.Workload.ID()},
	}
}

// Layer is the layer that the resource is in.
func (k Key) Layer() Layer {
	return Layer{Kind: k.Kind.row().layer, Scope: k.Scope, Location: k.Location, Workload: k.Workload}
}

// Compare orders the keys of one layer: by kind, name, and whether EDS is set.
func (k Key) Compare(o Key) int {
	eds := func(k Key) int {
		if k.EDS {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), strings.Compare(k.Name, o.Name), eds(k)-eds(o))
}

// Contents says what is in a layer: Keys, and of a derived layer also the resources of its base, except
// those in Hidden and those that have the type and name of one of Keys. Both are sorted by Key.Compare and
// without repetition.
type Contents struct {
	Keys []Key
	// Derived is set if the layer has a base.
	Derived bool
	Base    Layer
	Hidden  []Key
}

// layerNames lists what is in a layer.
func (c *Compiler) layerNames(r *incr.Reader, l Layer) (out Contents) {
	if l.patches() != "" {
		return c.patchedNames(r, l)
	}
	if l.Kind == WorkloadLayer {
		return Contents{Keys: sorted(c.inboundNames(r, l))}
	}
	if l.Scope.Value().Role == mesh.Router {
		return Contents{Keys: l.only(c.inner.routerNames.Of(r, l.Scope))}
	}
	if base, derived := c.model.Base(l.Scope); derived {
		d := c.inner.derived.Of(r, l.Scope)
		return Contents{
			Keys: l.only(d.own), Derived: true, Hidden: l.only(d.hidden),
			Base: Layer{Kind: l.Kind, Scope: base, Location: l.Location},
		}
	}
	return Contents{Keys: l.only(c.inner.scopeNames.Of(r, l.Scope))}
}

// only returns those of a scope's keys that are in its layer l.
func (l Layer) only(keys []Key) (out []Key) {
	for _, k := range keys {
		if k.Kind.row().layer == l.Kind {
			k.Location = l.Location
			out = append(out, k)
		}
	}
	return sorted(out)
}

func sorted(keys []Key) []Key {
	slices.SortFunc(keys, Key.Compare)
	return slices.Compact(keys)
}
