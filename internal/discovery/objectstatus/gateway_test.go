package objectstatus_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/object"
)

var acceptedGateway = &object.GatewayStatus{
	Kind: object.KubernetesGateway, Addresses: []object.GatewayAddress{{Type: "Hostname", Value: "gw.edge.svc"}},
	Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}},
	Listeners: []object.ListenerStatus{
		{Name: "a", Kinds: []string{"HTTPRoute", "GRPCRoute"}, Attached: 2, Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}, {Type: "ResolvedRefs", True: true, Reason: "ResolvedRefs"}}},
		{Name: "b", Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}, {Type: "ResolvedRefs", Reason: "InvalidCertificateRef"}}},
	},
}

// conditionsOf has the conditions of a merged status, "where Type=Status/Reason" each.
func conditionsOf(t *testing.T, status map[string]any) string {
	t.Helper()
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	type condition struct{ Type, Status, Reason string }
	var s struct {
		Conditions []condition
		Listeners  []struct {
			Name       string
			Conditions []condition
		}
		Parents []struct {
			ControllerName string
			Conditions     []condition
		}
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	var out []string
	add := func(where string, list []condition) {
		for _, c := range list {
			out = append(out, where+c.Type+"="+c.Status+"/"+c.Reason)
		}
	}
	add("", s.Conditions)
	for _, l := range s.Listeners {
		add(l.Name+":", l.Conditions)
	}
	for _, p := range s.Parents {
		add(p.ControllerName+":", p.Conditions)
	}
	return strings.Join(out, " ")
}

func TestStatusOfAKubernetesGateway(t *testing.T) {
	for name, tt := range map[string]struct {
		o    objectstatus.Observation
		want string
	}{
		"served": {objectstatus.Observation{Counts: objectstatus.Counts{Proxies: 1}},
			"Accepted=True/Accepted Programmed=True/Programmed a:Accepted=True/Accepted a:ResolvedRefs=True/ResolvedRefs a:Programmed=True/Programmed b:Accepted=True/Accepted b:ResolvedRefs=False/InvalidCertificateRef b:Programmed=False/Invalid"},
		"by no proxy": {objectstatus.Observation{},
			"Accepted=True/Accepted Programmed=False/Pending a:Accepted=True/Accepted a:ResolvedRefs=True/ResolvedRefs a:Programmed=False/Pending b:Accepted=True/Accepted b:ResolvedRefs=False/InvalidCertificateRef b:Programmed=False/Pending"},
		"refused by a proxy": {objectstatus.Observation{Refusals: []objectstatus.Finding{refused}, Counts: objectstatus.Counts{Proxies: 1, Refused: 1}},
			"Accepted=True/Accepted Programmed=False/Invalid a:Accepted=True/Accepted a:ResolvedRefs=True/ResolvedRefs a:Programmed=False/Invalid b:Accepted=True/Accepted b:ResolvedRefs=False/InvalidCertificateRef b:Programmed=False/Invalid"},
		"rejected": {objectstatus.Observation{Findings: []objectstatus.Finding{broken}, Counts: objectstatus.Counts{Proxies: 1}},
			"Accepted=False/Invalid Programmed=False/Invalid a:Accepted=False/Invalid a:ResolvedRefs=True/ResolvedRefs a:Programmed=False/Invalid b:Accepted=False/Invalid b:ResolvedRefs=False/InvalidCertificateRef b:Programmed=False/Invalid"},
	} {
		o := tt.o
		o.Generation, o.GatewayAPI, o.Gateway = 3, true, acceptedGateway
		want, ok := objectstatus.Decide(3, &o, 0)
		if !ok {
			t.Fatalf("%s: nothing is said", name)
		}
		merged, change := objectstatus.Merge(nil, want, now)
		if got := conditionsOf(t, merged); got != tt.want || change != objectstatus.VersionChange {
			t.Errorf("%s: %s\nwant %s (%v)", name, got, tt.want, change)
		}
		again, change := objectstatus.Merge(merged, want, now.Add(time.Hour))
		if change != objectstatus.Unchanged || !reflect.DeepEqual(again, merged) {
			t.Errorf("%s: written again (%v): %v", name, change, again)
		}
	}
	o := objectstatus.Observation{Generation: 3, GatewayAPI: true}
	if _, ok := objectstatus.Decide(3, &o, 0); ok {
		t.Error("the status of another controller's Gateway is written")
	}
	o.Gateway = acceptedGateway
	if _, ok := objectstatus.Decide(4, &o, 0); ok {
		t.Error("the status of a version is written that is not known")
	}
}

// A Gateway with an address that cannot be used is not programmed, but its listeners are; that it is rejected or refused comes first.
func TestStatusOfAGatewayWithAnUnusableAddress(t *testing.T) {
	g := &object.GatewayStatus{
		Kind: object.KubernetesGateway, Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}, {Type: "Programmed", Reason: "AddressNotUsable"}},
		Listeners: []object.ListenerStatus{{Name: "a", Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}, {Type: "ResolvedRefs", True: true, Reason: "ResolvedRefs"}}}},
	}
	for name, tt := range map[string]struct {
		o                 objectstatus.Observation
		gateway, listener string
	}{
		"served":      {objectstatus.Observation{Counts: objectstatus.Counts{Proxies: 1}}, "False/AddressNotUsable", "True/Programmed"},
		"by no proxy": {objectstatus.Observation{}, "False/AddressNotUsable", "False/Pending"},
		"refused":     {objectstatus.Observation{Refusals: []objectstatus.Finding{refused}, Counts: objectstatus.Counts{Proxies: 1, Refused: 1}}, "False/Invalid", "False/Invalid"},
	} {
		o := tt.o
		o.Generation, o.GatewayAPI, o.Gateway = 3, true, g
		decided, ok := objectstatus.Decide(3, &o, 0)
		if !ok {
			t.Fatalf("%s: nothing is said", name)
		}
		merged, _ := objectstatus.Merge(nil, decided, now)
		want := "Accepted=True/Accepted Programmed=" + tt.gateway + " a:Accepted=True/Accepted a:ResolvedRefs=True/ResolvedRefs a:Programmed=" + tt.listener
		if got := conditionsOf(t, merged); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
}

// A condition that a Gateway has because of a field goes with the field; those that others have written stay.
func TestConditionsOfFieldsThatAGatewayHasNoMoreAreRemoved(t *testing.T) {
	decide := func(conditions ...object.GatewayCondition) objectstatus.Status {
		g := &object.GatewayStatus{Kind: object.KubernetesGateway, Conditions: append([]object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}}, conditions...)}
		want, ok := objectstatus.Decide(3, &objectstatus.Observation{Generation: 3, GatewayAPI: true, Gateway: g, Counts: objectstatus.Counts{Proxies: 1}}, 0)
		if !ok {
			t.Fatal("nothing is said")
		}
		return want
	}
	with, without := decide(
		object.GatewayCondition{Type: "ResolvedRefs", Reason: "RefNotPermitted"}, object.GatewayCondition{Type: "InsecureFrontendValidationMode", True: true, Reason: "ConfigurationChanged"},
	), decide()
	merged, _ := objectstatus.Merge(map[string]any{"conditions": []any{map[string]any{"type": "Other", "status": "True", "reason": "Other"}}}, with, now)
	const others = "Other=True/Other Accepted=True/Accepted"
	if got, want := conditionsOf(t, merged), others+" ResolvedRefs=False/RefNotPermitted InsecureFrontendValidationMode=True/ConfigurationChanged Programmed=True/Programmed"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	merged, change := objectstatus.Merge(merged, without, now)
	if got, want := conditionsOf(t, merged), others+" Programmed=True/Programmed"; got != want || change != objectstatus.VersionChange {
		t.Errorf("%s\nwant %s (%v)", got, want, change)
	}
	if _, change := objectstatus.Merge(merged, without, now); change != objectstatus.Unchanged {
		t.Errorf("written again (%v)", change)
	}
}

// A ListenerSet is programmed as its Gateway is, with the reason for which it is not accepted; a Gateway has the number of those that are.
func TestStatusOfAListenerSet(t *testing.T) {
	yes := func(kind string) object.GatewayCondition {
		return object.GatewayCondition{Type: kind, True: true, Reason: kind}
	}
	set := func(accepted object.GatewayCondition) *object.GatewayStatus {
		return &object.GatewayStatus{Kind: object.ListenerSet, Conditions: []object.GatewayCondition{accepted}, Listeners: []object.ListenerStatus{
			{Name: "a", Attached: 1, Conditions: []object.GatewayCondition{yes("Accepted"), yes("ResolvedRefs")}},
			{Name: "b", Conditions: []object.GatewayCondition{{Type: "Accepted", Reason: "HostnameConflict"}, {Type: "Conflicted", True: true, Reason: "HostnameConflict"}}},
		}}
	}
	const ofB = " b:Accepted=False/HostnameConflict b:Conflicted=True/HostnameConflict b:Programmed=False/HostnameConflict"
	for name, tt := range map[string]struct {
		o    objectstatus.Observation
		want string
	}{
		"served": {objectstatus.Observation{Gateway: set(yes("Accepted")), Counts: objectstatus.Counts{Proxies: 1}},
			"Accepted=True/Accepted Programmed=True/Programmed a:Accepted=True/Accepted a:ResolvedRefs=True/ResolvedRefs a:Programmed=True/Programmed" + ofB},
		"by no proxy": {objectstatus.Observation{Gateway: set(yes("Accepted"))},
			"Accepted=True/Accepted Programmed=False/Pending a:Accepted=True/Accepted a:ResolvedRefs=True/ResolvedRefs a:Programmed=False/Pending" + ofB},
		"not allowed": {objectstatus.Observation{Gateway: &object.GatewayStatus{Kind: object.ListenerSet, Conditions: []object.GatewayCondition{{Type: "Accepted", Reason: "NotAllowed"}}}, Counts: objectstatus.Counts{Proxies: 1}},
			"Accepted=False/NotAllowed Programmed=False/NotAllowed"},
		"rejected": {objectstatus.Observation{Gateway: set(yes("Accepted")), Findings: []objectstatus.Finding{broken}, Counts: objectstatus.Counts{Proxies: 1}},
			"Accepted=False/Invalid Programmed=False/Invalid a:Accepted=False/Invalid a:ResolvedRefs=True/ResolvedRefs a:Programmed=False/Invalid b:Accepted=False/Invalid b:Conflicted=True/HostnameConflict b:Programmed=False/Invalid"},
	} {
		o := tt.o
		o.Generation, o.GatewayAPI = 3, true
		want, ok := objectstatus.Decide(3, &o, 0)
		if !ok {
			t.Fatalf("%s: nothing is said", name)
		}
		merged, change := objectstatus.Merge(nil, want, now)
		if got := conditionsOf(t, merged); got != tt.want || change != objectstatus.VersionChange {
			t.Errorf("%s: %s\nwant %s (%v)", name, got, tt.want, change)
		}
		if _, change := objectstatus.Merge(merged, want, now.Add(time.Hour)); change != objectstatus.Unchanged {
			t.Errorf("%s: written again (%v)", name, change)
		}
	}
	decide := func(sets int) objectstatus.Status {
		g := *acceptedGateway
		g.Sets = sets
		s, _ := objectstatus.Decide(1, &objectstatus.Observation{Generation: 1, GatewayAPI: true, Gateway: &g, Counts: objectstatus.Counts{Proxies: 1}}, 0)
		return s
	}
	status, _ := objectstatus.Merge(nil, decide(0), now)
	if _, has := status["attachedListenerSets"]; has {
		t.Error("a definition of before ListenerSets does not have the field")
	}
	for _, n := range []int{2, 1, 0} {
		next, change := objectstatus.Merge(status, decide(n), now)
		if got := next["attachedListenerSets"]; got != int64(n) || change != objectstatus.FindingChange {
			t.Errorf("%d sets: %v (%v)", n, got, change)
		}
		status = next
	}
	if _, change := objectstatus.Merge(status, decide(0), now); change != objectstatus.Unchanged {
		t.Errorf("written again (%v)", change)
	}
}

func TestStatusOfARouteKeepsThatOfOthers(t *testing.T) {
	parent := func(section, reason string, yes bool) object.ParentStatus {
		return object.ParentStatus{Group: "gateway.networking.k8s.io", Kind: "Gateway", Name: "edge", Section: section, Conditions: []object.GatewayCondition{{Type: "Accepted", True: yes, Reason: reason}}}
	}
	decide := func(parents ...object.ParentStatus) objectstatus.Status {
		o := objectstatus.Observation{Generation: 1, GatewayAPI: true, Gateway: &object.GatewayStatus{Kind: object.HTTPRoute, Parents: parents}}
		s, _ := objectstatus.Decide(1, &o, 0)
		return s
	}
	other := map[string]any{"controllerName": "example.com/other", "parentRef": map[string]any{"name": "edge"}, "conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "Accepted"}}}
	stored := map[string]any{"parents": []any{other}}
	first, change := objectstatus.Merge(stored, decide(parent("a", "Accepted", true), parent("b", "NoMatchingParent", false), parent("b", "NoMatchingParent", false)), now)
	if got := conditionsOf(t, first); change != objectstatus.VersionChange ||
		got != "example.com/other:Accepted=True/Accepted istio.io/gateway-controller:Accepted=True/Accepted istio.io/gateway-controller:Accepted=False/NoMatchingParent" {
		t.Errorf("%v: %s", change, got)
	}
	if len(stored["parents"].([]any)) != 1 {
		t.Error("what was stored was modified")
	}
	second, change := objectstatus.Merge(first, decide(parent("b", "Accepted", true)), now.Add(time.Hour))
	if got := conditionsOf(t, second); change != objectstatus.FindingChange || got != "example.com/other:Accepted=True/Accepted istio.io/gateway-controller:Accepted=True/Accepted" {
		t.Errorf("%v: %s", change, got)
	}
}

// The status of a policy has its ancestors, at most 16 with those of other controllers, which stay; what has gone is removed.
func TestStatusOfABackendTLSPolicy(t *testing.T) {
	decide := func(names ...string) objectstatus.Status {
		g := &object.GatewayStatus{Kind: object.BackendTLSPolicy}
		for _, name := range names {
			g.Parents = append(g.Parents, object.ParentStatus{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "edge", Name: name, Conditions: []object.GatewayCondition{{Type: "Accepted", True: true, Reason: "Accepted"}}})
		}
		o := objectstatus.Observation{Generation: 1, GatewayAPI: true, Gateway: g}
		s, _ := objectstatus.Decide(1, &o, 0)
		return s
	}
	ancestors := func(status map[string]any) (out []string) {
		list, _ := status["ancestors"].([]any)
		for _, x := range list {
			one := x.(map[string]any)
			ref := one["ancestorRef"].(map[string]any)
			out = append(out, one["controllerName"].(string)+" "+ref["name"].(string))
		}
		return out
	}
	other := map[string]any{"controllerName": "example.com/other", "ancestorRef": map[string]any{"name": "edge"}}
	var many []string
	for i := range 20 {
		many = append(many, string(rune('a'+i)))
	}
	if merged, change := objectstatus.Merge(nil, decide(), now); change != objectstatus.Unchanged || merged["ancestors"] != nil {
		t.Errorf("without ancestors %v is written (%v)", merged, change)
	}
	first, change := objectstatus.Merge(map[string]any{"ancestors": []any{other}}, decide(many...), now)
	if got := ancestors(first); change == objectstatus.Unchanged || len(got) != 16 || got[0] != "example.com/other edge" || got[1] != "istio.io/gateway-controller a" {
		t.Errorf("%v: %v", change, got)
	}
	if _, change := objectstatus.Merge(first, decide(many...), now.Add(time.Hour)); change != objectstatus.Unchanged {
		t.Errorf("it is written again: %v", change)
	}
	if last, change := objectstatus.Merge(first, decide(), now); change != objectstatus.FindingChange || len(ancestors(last)) != 1 {
		t.Errorf("%v: %v", change, ancestors(last))
	}
}
