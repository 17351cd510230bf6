package discovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
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

// remoteKeys are the rules of RequestAuthentications whose keys connected proxies fetch; of a rule, one that a proxy cannot fetch comes
// first.
func (p *layers) remoteKeys() []authz.RemoteKeys {
	type id struct {
		policy string
		rule   int
	}
	found := map[id]authz.RemoteKeys{}
	for _, layer := range p.byKey {
		if layer.used == 0 {
			continue
		}
		for _, k := range p.compiler.RemoteKeys(layer.key) {
			at := id{k.Policy, k.Rule}
			if old, known := found[at]; !known || k.Fault != "" && (old.Fault == "" || k.Fault < old.Fault) {
				found[at] = k
			}
		}
	}
	return slices.Collect(maps.Values(found))
}

// remoteKeyProblems says of the rules whose keys proxies fetch from where they do, or why they cannot.
func (l *loop) remoteKeyProblems() (out []object.Problem) {
	for _, k := range l.views.layers.remoteKeys() {
		namespace, name, _ := strings.Cut(k.Policy, "/")
		p := object.Problem{
			Severity: object.Info, Field: fmt.Sprintf("spec.jwtRules[%d].jwksUri", k.Rule), Key: object.Key{Kind: object.RequestAuthentication, Namespace: namespace, Name: name},
			Text: "proxies fetch the keys themselves, by the cluster " + printable.Escape(k.Cluster) + " (PILOT_JWT_ENABLE_REMOTE_JWKS)",
		}
		if k.Fault != "" {
			p.Severity = object.Warning
			p.Text = "every token of the issuer is refused, since only proxies fetch keys (PILOT_JWT_ENABLE_REMOTE_JWKS=envoy) and cannot fetch these: " + printable.Escape(k.Fault)
		}
		if o, ok := l.store.Get(p.Key); ok {
			p.Origin, p.Generation = o.Origin, o.Meta.Generation
		}
		out = append(out, p)
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
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
