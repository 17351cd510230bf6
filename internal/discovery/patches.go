package discovery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// patchID names a patch of an EnvoyFilter.
type patchID struct {
	filter string // "namespace/name"
	index  int
}

// patchEffect is what a patch does at the connected proxies that its EnvoyFilter selects.
type patchEffect struct {
	// applied is how many resources it has changed or added, refused how many it would have made invalid.
	applied, refused int
	// example is the type and name of the first resource, by type and name, that it would have made invalid, and why says what
	// would be wrong.
	example, why string
}

// add counts what became of a patch at a resource, of which name is the type and name.
func (e *patchEffect) add(name string, r compile.PatchResult) {
	if r.Applied {
		e.applied++
	}
	if r.Refused == "" {
		return
	}
	if e.refused++; e.example == "" || name < e.example {
		e.example, e.why = name, r.Refused
	}
}

// patchEffects returns what the patches of EnvoyFilters do at the connected proxies. Only resources that a patch may match are
// looked at.
func (p *layers) patchEffects() map[patchID]*patchEffect {
	out := map[patchID]*patchEffect{}
	for _, l := range p.byKey {
		if l.used == 0 {
			continue
		}
		for _, of := range p.compiler.LayerPatches(l.key) {
			if id := (patchID{of.Filter, of.Index}); out[id] == nil {
				out[id] = &patchEffect{}
			}
		}
		for _, k := range l.keys {
			for _, r := range p.compiler.PatchResults(k) {
				e := out[patchID{r.Filter, r.Index}]
				if e == nil {
					continue
				}
				e.add(p.typeOf(k.Kind).String()+" "+k.Name, r)
			}
		}
	}
	return out
}

// patchProblems names the patches that are left out because what they match would be invalid, and those that match nothing of
// the proxies that they are for. Patches for proxies that are not connected are not spoken of.
func (l *loop) patchProblems() []object.Problem {
	var out []object.Problem
	effects := l.views.layers.patchEffects()
	l.bootstraps.effects(effects)
	for id, e := range effects {
		namespace, name, _ := strings.Cut(id.filter, "/")
		p := object.Problem{
			Severity: object.Warning, Field: fmt.Sprintf("spec.configPatches[%d]", id.index),
			Key: object.Key{Kind: object.EnvoyFilter, Namespace: namespace, Name: name},
		}
		switch {
		case e.refused > 0:
			p.Text = fmt.Sprintf("left out at %d resources, such as %s: %s", e.refused, printable.Escape(e.example), printable.Escape(e.why))
		case e.applied == 0:
			p.Text = "matches nothing that the connected proxies are sent: check match; pilotctl config shows names"
		default:
			continue
		}
		if o, ok := l.store.Get(p.Key); ok {
			p.Origin, p.Generation = o.Origin, o.Meta.Generation
		}
		out = append(out, p)
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}
