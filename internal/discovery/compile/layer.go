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

// layerNames lists what is in a layer.
func (c *Compiler) layerNames(r *incr.Reader, l Layer) (out []Key) {
	if l.Kind == WorkloadLayer {
		out = inboundNames(l)
	} else {
		for _, k := range c.inner.scopeNames.Of(r, l.Scope) {
			if k.Kind.row().layer != l.Kind {
				continue
			}
			k.Location = l.Location
			out = append(out, k)
		}
	}
	slices.SortFunc(out, Key.Compare)
	return slices.Compact(out)
}
