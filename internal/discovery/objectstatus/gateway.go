package objectstatus

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// gatewayGroup is the API group of the Gateway API.
const gatewayGroup = "gateway.networking.k8s.io"

// decideGateway returns what the status of an object of the Gateway API says: of a version that is rejected that it is not accepted,
// and of a Gateway whether proxies serve it. [control-plane 1.11.9]
func decideGateway(o *Observation) *object.GatewayStatus {
	out := *o.Gateway
	rejected := ""
	if hasCode(o.Findings, CodeRejected) {
		rejected = analysis(o.Findings).Message
	}
	// rejecting returns conditions with Accepted as False if the version is rejected.
	rejecting := func(list []object.GatewayCondition, reason string) []object.GatewayCondition {
		list = slices.Clone(list)
		for i := range list {
			if rejected != "" && list[i].Type == "Accepted" {
				list[i] = object.GatewayCondition{Type: "Accepted", Reason: reason, Message: rejected}
			}
		}
		return list
	}
	out.Conditions = rejecting(out.Conditions, map[object.Kind]string{object.GatewayClass: "InvalidParameters"}[out.Kind])
	out.Parents = slices.Clone(out.Parents)
	reason := "UnsupportedValue"
	if out.Kind == object.BackendTLSPolicy {
		reason = "Invalid"
	}
	for i := range out.Parents {
		out.Parents[i].Conditions = rejecting(out.Parents[i].Conditions, reason)
	}
	if out.Kind != object.KubernetesGateway && out.Kind != object.ListenerSet {
		return &out
	}
	out.Conditions = rejecting(o.Gateway.Conditions, "Invalid")
	served := object.GatewayCondition{Type: "Programmed", True: true, Reason: "Programmed"}
	switch {
	case rejected != "":
		served = object.GatewayCondition{Type: "Programmed", Reason: "Invalid", Message: rejected}
	case out.Kind == object.ListenerSet && !isTrue(out.Conditions, "Accepted"):
		accepted := out.Conditions[slices.IndexFunc(out.Conditions, func(c object.GatewayCondition) bool { return c.Type == "Accepted" })]
		served = object.GatewayCondition{Type: "Programmed", Reason: accepted.Reason, Message: accepted.Message}
	case !isTrue(out.Conditions, "Accepted"):
		served = object.GatewayCondition{Type: "Programmed", Reason: "Invalid", Message: "the Gateway is not accepted"}
	case o.Refused > 0:
		served = object.GatewayCondition{Type: "Programmed", Reason: "Invalid", Message: analysis(o.Refusals).Message}
	case o.Proxies == 0:
		served = object.GatewayCondition{Type: "Programmed", Reason: "Pending", Message: "no gateway is connected: want a Pod with the label " + gatewayGroup + "/gateway-name, or one that the Service in spec.addresses selects"}
	}
	// The listeners are served, too, if an address is missing at which clients are to reach them, or one more.
	reachable := served
	if i := slices.IndexFunc(out.Conditions, func(c object.GatewayCondition) bool { return c.Type == served.Type }); i >= 0 {
		if served.True || served.Reason == "Pending" {
			reachable = out.Conditions[i]
		}
		out.Conditions = slices.Delete(out.Conditions, i, i+1)
	}
	out.Conditions = append(out.Conditions, reachable)
	out.Listeners = slices.Clone(out.Listeners)
	for i, l := range out.Listeners {
		programmed := served
		// What conflicts is told by the reason of its conflict.
		if i := slices.IndexFunc(l.Conditions, func(c object.GatewayCondition) bool { return c.Type == "Conflicted" && c.True }); i >= 0 && rejected == "" {
			programmed = object.GatewayCondition{Type: "Programmed", Reason: l.Conditions[i].Reason, Message: l.Conditions[i].Message}
		}
		for _, need := range []string{"Accepted", "ResolvedRefs"} {
			if programmed.True && !isTrue(l.Conditions, need) {
				programmed = object.GatewayCondition{Type: "Programmed", Reason: "Invalid", Message: fmt.Sprintf("the condition %s is not True", need)}
			}
		}
		out.Listeners[i].Conditions = append(rejecting(l.Conditions, "Invalid"), programmed)
	}
	return &out
}

// optionalConditions are the types of those that only Gateways with some fields have.
var optionalConditions = []string{"ResolvedRefs", "InsecureFrontendValidationMode"}

// withoutObsolete returns the conditions of a Gateway without those that it had because of fields that it has no more, and whether there are any.
func withoutObsolete(stored any, want []object.GatewayCondition) (kept []any, fewer bool) {
	before, _ := stored.([]any)
	kept = slices.DeleteFunc(slices.Clone(before), func(x any) bool {
		kind := text(x, "type")
		return slices.Contains(optionalConditions, kind) && !slices.ContainsFunc(want, func(c object.GatewayCondition) bool { return c.Type == kind })
	})
	return kept, len(kept) < len(before)
}

func isTrue(list []object.GatewayCondition, kind string) bool {
	return slices.ContainsFunc(list, func(c object.GatewayCondition) bool { return c.Type == kind && c.True })
}

// mergeGateway is Merge for an object of the Gateway API. Conditions of other types, and entries of routes that other controllers have
// written, stay.
func mergeGateway(out map[string]any, want Status, now time.Time) (map[string]any, Change) {
	change := Unchanged
	raise := func(c Change) { change = max(change, c) }
	g := want.Gateway
	if g.Kind == object.Ingress {
		return mergeIngress(out, want)
	}
	conditions := func(stored any, list []object.GatewayCondition) []any {
		before, _ := stored.([]any)
		merged := slices.Clone(before)
		for _, c := range list {
			one := Condition{Type: c.Type, Status: "False", Reason: c.Reason, Message: c.Message}
			if c.True {
				one.Status = "True"
			}
			i := slices.IndexFunc(merged, func(x any) bool { return text(x, "type") == c.Type })
			if i < 0 {
				merged = append(merged, one.encode(nil, want.Generation, now))
				raise(VersionChange)
				continue
			}
			old, _ := merged[i].(map[string]any)
			switch {
			case number(old[fieldGeneration]) != want.Generation:
				raise(VersionChange)
			case text(old, "status") != one.Status || text(old, "reason") != one.Reason || text(old, "message") != one.Message:
				raise(FindingChange)
			}
			merged[i] = one.encode(old, want.Generation, now)
		}
		return merged
	}
	if len(g.Conditions) > 0 {
		out[fieldConditions] = conditions(out[fieldConditions], g.Conditions)
	}
	if len(g.Features) > 0 {
		// An older definition does not have the field, which the API server then removes.
		if stored, has := out["supportedFeatures"].([]any); has && !slices.EqualFunc(stored, g.Features, func(x any, name string) bool { return text(x, "name") == name }) {
			raise(FindingChange)
		}
		var all []any
		for _, name := range g.Features {
			all = append(all, map[string]any{"name": name})
		}
		out["supportedFeatures"] = all
	}
	switch g.Kind {
	case object.KubernetesGateway:
		if kept, fewer := withoutObsolete(out[fieldConditions], g.Conditions); fewer {
			out[fieldConditions] = kept
			raise(VersionChange)
		}
		stored, _ := out[fieldAddresses].([]any)
		if !slices.EqualFunc(stored, g.Addresses, func(x any, a object.GatewayAddress) bool {
			return text(x, "type") == a.Type && text(x, "value") == a.Value
		}) {
			raise(FindingChange)
		}
		all := []any{}
		for _, a := range g.Addresses {
			all = append(all, map[string]any{"type": a.Type, "value": a.Value})
		}
		out[fieldAddresses] = all
		const sets = "attachedListenerSets"
		if _, has := out[sets]; has || g.Sets > 0 {
			if number(out[sets]) != int64(g.Sets) {
				raise(FindingChange)
			}
			out[sets] = int64(g.Sets)
		}
		listeners, differ := mergeListeners(out["listeners"], g.Listeners, conditions)
		if differ {
			raise(FindingChange)
		}
		out["listeners"] = listeners
	case object.ListenerSet:
		listeners, differ := mergeListeners(out["listeners"], g.Listeners, conditions)
		if differ {
			raise(FindingChange)
		}
		out["listeners"] = listeners
	case object.GatewayClass:
	default:
		field, ref := "parents", "parentRef"
		if g.Kind == object.BackendTLSPolicy {
			field, ref = "ancestors", "ancestorRef"
		}
		stored, _ := out[field].([]any)
		own := g.Parents
		if g.Kind == object.BackendTLSPolicy {
			others := 0
			for _, x := range stored {
				if text(x, "controllerName") != mesh.GatewayController {
					others++
				}
			}
			own = own[:min(len(own), max(maxAncestors-others, 0))]
		}
		parents, differ := mergeParents(stored, ref, own, conditions)
		if differ {
			raise(FindingChange)
		}
		if len(parents) > 0 || len(stored) > 0 || g.Kind != object.BackendTLSPolicy {
			out[field] = parents
		}
	}
	return out, change
}

// mergeListeners returns the stored listeners with what they shall be, and whether they differ in more than conditions.
func mergeListeners(stored any, want []object.ListenerStatus, conditions func(any, []object.GatewayCondition) []any) (out []any, differ bool) {
	before, _ := stored.([]any)
	differ = len(before) != len(want)
	out = []any{}
	for _, l := range want {
		var old map[string]any
		if i := slices.IndexFunc(before, func(x any) bool { return text(x, "name") == l.Name }); i >= 0 {
			old, _ = before[i].(map[string]any)
		}
		kinds := []any{}
		for _, k := range l.Kinds {
			kinds = append(kinds, map[string]any{"group": gatewayGroup, "kind": k})
		}
		had, _ := old["supportedKinds"].([]any)
		if number(old["attachedRoutes"]) != int64(l.Attached) || !slices.EqualFunc(had, l.Kinds, func(x any, kind string) bool { return text(x, "kind") == kind }) {
			differ = true
		}
		out = append(out, map[string]any{
			"name": l.Name, "attachedRoutes": int64(l.Attached), "supportedKinds": kinds, fieldConditions: conditions(old[fieldConditions], l.Conditions),
		})
	}
	return out, differ
}

// maxAncestors is how many ancestors the API server takes, of all controllers.
const maxAncestors = 16

// mergeParents returns the stored parents, whose references are in a field, with those of this control plane replaced, and whether they differ in more than conditions.
func mergeParents(before []any, field string, want []object.ParentStatus, conditions func(any, []object.GatewayCondition) []any) (out []any, differ bool) {
	own := map[string]map[string]any{}
	out = []any{}
	for _, x := range before {
		if text(x, "controllerName") != mesh.GatewayController {
			out = append(out, x)
			continue
		}
		one, _ := x.(map[string]any)
		own[parentKey(one[field])] = one
	}
	seen := map[string]bool{}
	for _, p := range want {
		ref := map[string]any{"group": p.Group, "kind": p.Kind, "name": p.Name}
		if p.Namespace != "" {
			ref["namespace"] = p.Namespace
		}
		if p.Section != "" {
			ref["sectionName"] = p.Section
		}
		if p.Port != 0 {
			ref["port"] = int64(p.Port)
		}
		key := parentKey(ref)
		if seen[key] {
			continue // named twice
		}
		seen[key] = true
		old := own[key]
		differ = differ || old == nil
		out = append(out, map[string]any{field: ref, "controllerName": mesh.GatewayController, fieldConditions: conditions(old[fieldConditions], p.Conditions)})
	}
	return out, differ || len(seen) != len(own)
}

// parentKey identifies the parent that a reference in a status names.
func parentKey(ref any) string {
	m, _ := ref.(map[string]any)
	return fmt.Sprintf("%s/%s/%s/%s/%s/%d", text(m, "group"), cmp.Or(text(m, "kind"), "Gateway"), text(m, "namespace"), text(m, "name"), text(m, "sectionName"), number(m["port"]))
}
