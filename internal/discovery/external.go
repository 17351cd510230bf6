package discovery

import (
	"maps"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// externalFaults says of the CUSTOM policies, "namespace/name", whose provider cannot be asked at a connected proxy, why that is so.
func (p *layers) externalFaults() map[string]string {
	faults := map[string]string{}
	for _, layer := range p.byKey {
		if layer.used == 0 {
			continue
		}
		policies, fault := p.compiler.ExternalAuthorization(layer.key)
		for _, key := range policies {
			if old := faults[key]; fault != "" && (old == "" || fault < old) {
				faults[key] = fault
			}
		}
	}
	return faults
}

// externalProblems names the CUSTOM policies whose provider cannot be asked at a connected proxy, so that what they match is denied
// there.
func (l *loop) externalProblems() []object.Problem {
	faults := l.views.layers.externalFaults()
	var out []object.Problem
	for _, key := range slices.Sorted(maps.Keys(faults)) {
		namespace, name, _ := strings.Cut(key, "/")
		p := object.Problem{
			Severity: object.Warning, Field: "spec.provider", Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: namespace, Name: name},
			Text: "every request and connection that the rules match is denied: " + printable.Escape(faults[key]),
		}
		if o, ok := l.store.Get(p.Key); ok {
			p.Origin, p.Generation = o.Origin, o.Meta.Generation
		}
		out = append(out, p)
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}
