package discovery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/proxyless"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// proxylessProblems names the fields of objects in force that gRPC libraries do not apply, while any is connected: they have an
// effect on Envoys, so that they are no mistakes in a mesh without libraries.
func (l *loop) proxylessProblems() []object.Problem {
	connected := 0
	for _, c := range l.views.classes {
		if c.class.Scope.Caps.Has(mesh.Proxyless) {
			connected += len(c.proxies)
		}
	}
	if connected == 0 {
		return nil
	}
	var out []object.Problem
	for _, o := range l.store.Good() {
		if names := proxyless.NotApplied(o.Spec); len(names) > 0 {
			out = append(out, object.Problem{Severity: object.Warning, Key: o.Key, Origin: o.Origin, Text: fmt.Sprintf(
				"not applied by the %d gRPC libraries that are connected as proxies of their own: %s", connected, strings.Join(names, ", "))})
		}
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}
