package discovery

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// patchID names a patch of an EnvoyFilter.
type patchID struct {
	filter string // "namespace/name"
	index  int
}

// object returns the object that has the patch, and whether it is one that extends proxies and not an EnvoyFilter.
func (id patchID) object() (k object.Key, extension bool) {
	if of, ok := model.ExtensionObject(id.filter); ok {
		return of, true
	}
	namespace, name, _ := strings.Cut(id.filter, "/")
	return object.Key{Kind: object.EnvoyFilter, Namespace: namespace, Name: name}, false
}

// patchEffect is what a patch does at the connected proxies that its EnvoyFilter selects.
type patchEffect struct {
	// applied is how many resources it has changed or added, refused how many it would have made invalid.
	applied, refused int
	// example is the type and name of the first resource, by type and name, that it would have made invalid, and why says what
	// would be wrong.
	example, why string
	// missing is an extension configuration that it names, the first by name, and that one of the proxies lacks; bare says that its filter
	// has no default one.
	missing string
	bare    bool
	// unnamed is set of one that adds an extension configuration that no patch at its proxies names.
	unnamed bool
}

// lacks notes that a proxy lacks an extension configuration that the patch names.
func (e *patchEffect) lacks(d patch.Discovery) {
	if e.missing == "" || d.Name < e.missing {
		e.missing, e.bare = d.Name, !d.Default
	}
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

// extensionEffects adds to effects, per patch, which extension configurations it names that connected proxies of a class have not, and
// whether none of those has a filter for the one that it adds. What is in quarantine counts as there: it is told by itself.
func (p *publisher) extensionEffects(effects map[patchID]*patchEffect) {
	named := map[patchID]bool{}
	for _, c := range p.classes {
		if len(c.proxies) == 0 {
			continue
		}
		names, added := map[string]bool{}, map[patchID]string{}
		for _, l := range c.layers {
			for _, of := range p.compiler.LayerPatches(l.key) {
				id := patchID{of.Filter, of.Index}
				if effects[id] == nil {
					continue
				}
				if of.Extension != "" {
					added[id] = of.Extension
				}
				for _, d := range of.Discovers {
					names[d.Name] = true
					if !slices.ContainsFunc(c.layers[:], func(l *publishedLayer) bool { return l.layer.Get(xds.ECDS, d.Name) != nil }) {
						effects[id].lacks(d)
					}
				}
			}
		}
		for id, name := range added {
			named[id] = named[id] || names[name]
			effects[id].unnamed = !named[id]
		}
	}
}

// extensionProblem says what is missing between filters and extension configurations; empty for nothing.
func (e *patchEffect) extensionProblem() string {
	switch {
	case e.missing != "" && e.bare:
		return fmt.Sprintf("no patch adds the extension configuration %s for its proxies: without one Envoy answers requests with 500, or closes connections, when "+
			"initial_fetch_timeout is over; add it with applyTo EXTENSION_CONFIG, or set default_config", printable.Quote(e.missing, 200))
	case e.missing != "":
		return fmt.Sprintf("no patch adds the extension configuration %s for its proxies: default_config is used; add it with applyTo EXTENSION_CONFIG", printable.Quote(e.missing, 200))
	case e.unnamed:
		return "has no effect: no filter at the connected proxies names the extension configuration; add a filter with this name and config_discovery"
	}
	return ""
}

// patchEffects returns what all patches do at connected proxies, and at the bootstraps of the agents that ask.
func (l *loop) patchEffects() map[patchID]*patchEffect {
	effects := l.views.layers.patchEffects()
	l.views.extensionEffects(effects)
	l.bootstraps.effects(effects)
	return effects
}

// filterStatus has the labels of pilot_envoy_filter_status: an EnvoyFilter, "namespace/name", a type of patch and what may have become
// of its patches of this type.
type filterStatus struct {
	filter, patch, result string
}

// The results, as Istio names them.
const (
	patchApplied = "applied"
	patchFailed  = "error"
)

// patchTypes are Istio's names of the types of patches; it has none of the last two.
var patchTypes = map[networking.EnvoyFilter_ApplyTo]string{
	networking.EnvoyFilter_CLUSTER: "cluster", networking.EnvoyFilter_LISTENER: "listener", networking.EnvoyFilter_FILTER_CHAIN: "filterchain",
	networking.EnvoyFilter_NETWORK_FILTER: "networkfilter", networking.EnvoyFilter_HTTP_FILTER: "httpfilter", networking.EnvoyFilter_ROUTE_CONFIGURATION: "route",
	networking.EnvoyFilter_VIRTUAL_HOST: "vhost", networking.EnvoyFilter_HTTP_ROUTE: "route", networking.EnvoyFilter_BOOTSTRAP: "bootstrap",
	networking.EnvoyFilter_LISTENER_FILTER: "listenerfilter", networking.EnvoyFilter_EXTENSION_CONFIG: "extensionconfig",
}

// filterStatuses says of the EnvoyFilters that select connected proxies, and of each type of patch that they have for them, whether one
// has been applied, and whether one has been left out because it would have made something invalid. [control-plane 1.13]
func (l *loop) filterStatuses(effects map[patchID]*patchEffect) map[filterStatus]bool {
	out := map[filterStatus]bool{}
	for id, e := range effects {
		key, extension := id.object()
		o, ok := l.store.Get(key)
		if extension || !ok {
			continue
		}
		patches := o.Spec.(*networking.EnvoyFilter).ConfigPatches
		if id.index >= len(patches) {
			continue
		}
		name := patchTypes[patches[id.index].ApplyTo]
		applied, failed := filterStatus{id.filter, name, patchApplied}, filterStatus{id.filter, name, patchFailed}
		out[applied], out[failed] = out[applied] || e.applied > 0, out[failed] || e.refused > 0
	}
	return out
}

// patchProblems names the patches that are left out because what they match would be invalid, and those that match nothing of
// the proxies that they are for. Patches for proxies that are not connected are not spoken of.
func (l *loop) patchProblems(effects map[patchID]*patchEffect) []object.Problem {
	var out []object.Problem
	for id, e := range effects {
		p := object.Problem{Severity: object.Warning}
		of, extension := id.object()
		if p.Key = of; !extension {
			p.Field = fmt.Sprintf("spec.configPatches[%d]", id.index)
		}
		switch {
		case extension && id.index > 0: // the configuration goes where the filter is
			continue
		case extension && e.refused == 0 && e.applied == 0:
			p.Field, p.Text = "spec.match", "matches no listener of the connected proxies: check match and type; pilotctl config shows names"
		case e.refused > 0:
			p.Text = fmt.Sprintf("left out at %d resources, such as %s: %s", e.refused, printable.Escape(e.example), printable.Escape(e.why))
		case e.applied == 0:
			p.Text = "matches nothing that the connected proxies are sent: check match; pilotctl config shows names"
		default:
			if p.Text = e.extensionProblem(); p.Text == "" {
				continue
			}
		}
		if o, ok := l.store.Get(p.Key); ok {
			p.Origin, p.Generation = o.Origin, o.Meta.Generation
		}
		out = append(out, p)
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}
