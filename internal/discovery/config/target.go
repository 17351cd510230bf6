package config

import (
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// maxTargets is how many targets a policy may have, as in Istio's CustomResourceDefinition.
const maxTargets = 16

// attached is a specification that selects workloads by label, or that is attached to objects.
type attached interface {
	GetSelector() *typev1.WorkloadSelector
	GetTargetRef() *typev1.PolicyTargetReference
	GetTargetRefs() []*typev1.PolicyTargetReference
}

// attachment checks what a security policy is for, and notes what is denied if the policy is invalid. [control-plane 1.10.5]
func (c *check) attachment(o object.Object, s attached) {
	refs := s.GetTargetRefs()
	if s.GetTargetRef() != nil {
		refs = append(refs[:len(refs):len(refs)], s.GetTargetRef())
	}
	var targets []object.Target
	for _, t := range refs {
		targets = append(targets, targetOf(t))
	}
	c.policy = object.BrokenPolicy(o.Key, s.GetSelector() != nil, object.LabelText(s.GetSelector().GetMatchLabels()), targets)
	c.attachedTo(o.Namespace, s)
}

// attachedTo checks what an object in a namespace is for.
func (c *check) attachedTo(namespace string, s attached) {
	c.labels("spec.selector.matchLabels", s.GetSelector().GetMatchLabels())
	if s.GetSelector() != nil && (s.GetTargetRef() != nil || len(s.GetTargetRefs()) > 0) {
		c.fail("spec.selector", "cannot be set together with targetRefs; use one of them")
	}
	if s.GetTargetRef() != nil && len(s.GetTargetRefs()) > 0 {
		c.fail("spec.targetRef", "cannot be set together with targetRefs; use targetRefs")
	} else if s.GetTargetRef() != nil {
		c.target("spec.targetRef", namespace, s.GetTargetRef())
	}
	c.targets(namespace, s.GetTargetRefs())
}

func targetOf(t *typev1.PolicyTargetReference) object.Target {
	return object.Target{Group: t.GetGroup(), Kind: t.GetKind(), Name: t.GetName(), Namespace: t.GetNamespace()}
}

// targets checks spec.targetRefs.
func (c *check) targets(namespace string, refs []*typev1.PolicyTargetReference) {
	if n := len(refs); n > maxTargets {
		c.fail("spec.targetRefs", "has %d targets: want at most %d", n, maxTargets)
	}
	for i, t := range refs {
		c.target(item("spec.targetRefs", i), namespace, t)
	}
}

// target checks one target, and tells if it selects no proxy.
func (c *check) target(at, namespace string, ref *typev1.PolicyTargetReference) {
	t := targetOf(ref)
	switch {
	case !t.IsGateway() && !t.IsWaypoints():
		c.fail(at+".kind", "unknown kind %q of group %q: want a Gateway of group gateway.networking.k8s.io; Services, ServiceEntries and GatewayClasses are for waypoints", t.Kind, t.Group)
	case t.IsWaypoints():
		c.warn(at+".kind", "a %s is a target for waypoints, which are not served: sidecars and gateways ignore it, and nothing is enforced by it; use a selector, or the Gateway", t.Kind)
	}
	if t.Name == "" {
		c.fail(at+".name", "is empty; set the name of the target")
	}
	if t.Namespace != "" && t.Namespace != namespace {
		c.fail(at+".namespace", "invalid namespace %q: want none; a target is in the object's own namespace", t.Namespace)
	}
}
