package model

import (
	"slices"
	"strings"

	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// targeting is a specification with targetRefs.
type targeting interface {
	GetTargetRefs() []*typev1.PolicyTargetReference
}

// Targets returns the objects to which a specification is attached: those of targetRefs, else that of the older targetRef.
func Targets(spec targeting) (out []object.Target) {
	refs := spec.GetTargetRefs()
	if old, ok := spec.(interface {
		GetTargetRef() *typev1.PolicyTargetReference
	}); ok && len(refs) == 0 && old.GetTargetRef() != nil {
		refs = []*typev1.PolicyTargetReference{old.GetTargetRef()}
	}
	for _, t := range refs {
		out = append(out, object.Target{Group: t.GetGroup(), Kind: t.GetKind(), Name: t.GetName(), Namespace: t.GetNamespace()})
	}
	return out
}

// targeted reports whether a specification has targets. It is then for nothing else.
func targeted(spec targeting) bool { return len(Targets(spec)) > 0 }

// targets reports whether a target of a specification in a namespace is one of these Gateways of the namespace.
// Services, ServiceEntries and GatewayClasses are targets for waypoints only.
func targets(spec targeting, ns string, gateways []string) bool {
	return slices.ContainsFunc(Targets(spec), func(t object.Target) bool {
		return t.IsGateway() && (t.Namespace == "" || t.Namespace == ns) && slices.Contains(gateways, t.Name)
	})
}

// gatewayNames returns the names of the Gateways of the Gateway API, in the namespace of a proxy, of which it is one: that in
// its label, as in Istio, and those whose addresses name its Service.
func (m *Model) gatewayNames(r *incr.Reader, k ProxyKey, labels map[string]string, services string) (out []string) {
	if name, ok := labels[gatewayNameLabel]; ok {
		out = append(out, name)
	}
	if k.Role != mesh.Router {
		return out
	}
	for _, key := range m.kubernetesGatewaysFor(r, k, labels, services) {
		ns, name, _ := strings.Cut(strings.TrimPrefix(key, kubernetesPrefix), "/")
		if name, _, _ = strings.Cut(name, "/"); ns == k.Namespace && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// denies reports whether a denial is for proxies of one of these Gateways of its namespace.
func (p *PeerAuthentication) denies(gateways []string) bool {
	return slices.ContainsFunc(p.gateways, func(name string) bool {
		return name == "*" && len(gateways) > 0 || slices.Contains(gateways, name)
	})
}
