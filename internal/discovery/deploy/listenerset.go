package deploy

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// namespaceNameLabel is a label that the API server gives every namespace.
const namespaceNameLabel = "kubernetes.io/metadata.name"

// OfGateway reports whether the parent of a ListenerSet is a Gateway, as it is by default.
func OfGateway(s *gatewayv1.ListenerSetSpec) bool {
	p := s.ParentRef
	return (p.Group == nil || *p.Group == gatewayv1.GroupName) && (p.Kind == nil || *p.Kind == "Gateway")
}

// ParentOf returns "namespace/name" of the parent of a ListenerSet in a namespace.
func ParentOf(namespace string, s *gatewayv1.ListenerSetSpec) string {
	if ns := s.ParentRef.Namespace; ns != nil {
		namespace = cmp.Or(string(*ns), namespace)
	}
	return namespace + "/" + string(s.ParentRef.Name)
}

// LetsIn reports whether a Gateway takes the listeners of a ListenerSet that names it: by default, of none. labels returns the labels of the
// ListenerSet's namespace. [control-plane 1.11.7]
func LetsIn(gateway string, g *gatewayv1.GatewaySpec, set string, s *gatewayv1.ListenerSetSpec, labels func() map[string]string) bool {
	if !OfGateway(s) || g.AllowedListeners == nil || g.AllowedListeners.Namespaces == nil || g.AllowedListeners.Namespaces.From == nil {
		return false
	}
	switch n := g.AllowedListeners.Namespaces; *n.From {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return gateway == set
	case gatewayv1.NamespacesFromSelector:
		return Selects(n.Selector, set, labels())
	}
	return false
}

// ListenersOf returns the listeners of the ListenerSets that a Gateway lets in, those of older ones first. labels returns the labels of a namespace.
func ListenersOf(g Gateway, sets []*object.Object, labels func(namespace string) map[string]string) (out []gatewayv1.Listener) {
	sets = slices.Clone(sets)
	slices.SortFunc(sets, func(a, b *object.Object) int {
		return cmp.Or(a.Meta.Created.Compare(b.Meta.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range sets {
		s, ok := o.Spec.(*gatewayv1.ListenerSetSpec)
		if !ok || ParentOf(o.Namespace, s) != g.Namespace+"/"+g.Name || !LetsIn(g.Namespace, g.Spec, o.Namespace, s, func() map[string]string { return labels(o.Namespace) }) {
			continue
		}
		for _, l := range s.Listeners {
			out = append(out, gatewayv1.Listener(l))
		}
	}
	return out
}

// Selects evaluates a selector of Kubernetes on a namespace; one with an unknown operator, and none, select nothing.
func Selects(s *metav1.LabelSelector, namespace string, labels map[string]string) bool {
	if s == nil {
		return false
	}
	get := func(key string) (string, bool) {
		if v, ok := labels[key]; ok || key != namespaceNameLabel {
			return v, ok
		}
		return namespace, true
	}
	for key, want := range s.MatchLabels {
		if v, ok := get(key); !ok || v != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		v, ok := get(e.Key)
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = ok && slices.Contains(e.Values, v)
		case metav1.LabelSelectorOpNotIn:
			ok = !ok || !slices.Contains(e.Values, v)
		case metav1.LabelSelectorOpExists:
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !ok
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}
