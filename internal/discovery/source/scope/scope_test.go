package scope_test

import (
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/source/scope"
	"github.com/pilothouse/pilothouse/internal/object"
)

func namespace(name string, labels ...string) object.Change {
	return labelled(object.Key{Kind: object.Namespace, Name: name}, nil, labels)
}

func service(ns, name string, labels ...string) object.Change {
	return labelled(object.Key{Kind: object.Service, Namespace: ns, Name: name}, &object.ServiceSpec{}, labels)
}

func route(ns, name string, labels ...string) object.Change {
	return labelled(object.Key{Kind: object.VirtualService, Namespace: ns, Name: name}, &networking.VirtualService{}, labels)
}

func labelled(k object.Key, spec any, labels []string) object.Change {
	o := &object.Object{Key: k, Spec: spec, Meta: object.Meta{Labels: map[string]string{}}}
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		o.Meta.Labels[name] = value
	}
	return object.Change{Key: k, Object: o}
}

func gone(c object.Change) object.Change { return object.Change{Key: c.Key} }

func selecting(labels ...string) *meshv1.MeshConfig {
	m := &meshv1.MeshConfig{RootNamespace: "root"}
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		m.DiscoverySelectors = append(m.DiscoverySelectors, &meshv1.LabelSelector{MatchLabels: map[string]string{name: value}})
	}
	return m
}

// text is a batch as "Kind ns/name" of what is put, with a "-" before what is removed.
func text(b object.Batch) string {
	var out []string
	for _, c := range b.Changes {
		s := c.Key.String()
		if c.Object == nil {
			s = "-" + s
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestNamespacesAreSelected(t *testing.T) {
	f := scope.New("default", "istio-system")
	step := func(what string, b object.Batch, want string) {
		t.Helper()
		if got := text(b); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	step("no objects", f.Select(selecting("mesh=on")), "")
	first := object.Batch{Synced: true, Changes: []object.Change{
		namespace("in", "mesh=on"), namespace("out"), service("in", "a"), service("out", "b"), service("istio-system", "c"), service("root", "d"), service("unknown", "e"),
	}, Problems: []object.Problem{{Text: "of none"}, {Key: object.Key{Kind: object.Service, Namespace: "out", Name: "x"}, Text: "out"}}}
	b := f.Apply(first)
	step("the first batch", b, "Namespace in, Namespace out, Service in/a, Service istio-system/c, Service root/d")
	if !b.Synced || len(b.Problems) != 1 || b.Problems[0].Text != "of none" {
		t.Errorf("%+v", b)
	}
	b = f.Apply(object.Batch{Changes: []object.Change{namespace("out", "mesh=on"), service("out", "c")}})
	step("a namespace is labelled", b, "Namespace out, Service out/b, Service out/c")
	if len(b.Problems) != 2 {
		t.Errorf("problems %v", b.Problems)
	}
	step("a change in it", f.Apply(object.Batch{Changes: []object.Change{gone(service("out", "c"))}}), "-Service out/c")
	step("its label is removed", f.Apply(object.Batch{Changes: []object.Change{namespace("out")}}), "Namespace out, -Service out/b")
	step("a change that is not seen", f.Apply(object.Batch{Changes: []object.Change{service("out", "d"), gone(service("out", "b"))}}), "")
	step("other selectors", f.Select(selecting("other=x", "kubernetes.io/metadata.name=unknown")), "-Service in/a, Service unknown/e")
	step("no selectors", f.Select(selecting()), "Service in/a, Service out/d")
	step("another root namespace", f.Select(&meshv1.MeshConfig{RootNamespace: "in", DiscoverySelectors: selecting("a=b").DiscoverySelectors}), "-Service out/d, -Service root/d, -Service unknown/e")
	step("a namespace is deleted", f.Apply(object.Batch{Changes: []object.Change{gone(namespace("in"))}}), "-Namespace in")
}

func TestRevisions(t *testing.T) {
	f := scope.New("canary", "istio-system")
	got := text(f.Apply(object.Batch{Changes: []object.Change{
		route("a", "any"), route("a", "own", "istio.io/rev=canary"), route("a", "other", "istio.io/rev=stable"), service("a", "s", "istio.io/rev=stable"), namespace("a", "istio.io/rev=stable"),
	}}))
	if want := "VirtualService a/any, VirtualService a/own, Service a/s, Namespace a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	got = text(f.Apply(object.Batch{Changes: []object.Change{route("a", "own", "istio.io/rev=stable"), route("a", "other", "istio.io/rev=canary"), gone(route("a", "any"))}}))
	if want := "-VirtualService a/own, VirtualService a/other, -VirtualService a/any"; got != want {
		t.Errorf("labels change: %q, want %q", got, want)
	}
}

func TestMatches(t *testing.T) {
	labels := map[string]string{"a": "1", "b": ""}
	for _, tt := range []struct {
		key, op string
		values  []string
		want    bool
	}{
		{"a", "In", []string{"0", "1"}, true}, {"a", "In", []string{"2"}, false}, {"c", "In", []string{""}, false},
		{"a", "NotIn", []string{"1"}, false}, {"a", "NotIn", []string{"2"}, true}, {"c", "NotIn", []string{"1"}, true},
		{"b", "Exists", nil, true}, {"c", "Exists", nil, false}, {"b", "DoesNotExist", nil, false}, {"c", "DoesNotExist", nil, true}, {"a", "Near", nil, false},
	} {
		s := &meshv1.LabelSelector{MatchExpressions: []*meshv1.LabelSelectorRequirement{{Key: tt.key, Operator: tt.op, Values: tt.values}}}
		if got := scope.Matches(s, labels); got != tt.want {
			t.Errorf("%s %s %v: %v", tt.key, tt.op, tt.values, got)
		}
		if known := slices.Contains(scope.Operators, tt.op); known != (tt.op != "Near") {
			t.Errorf("operator %s: known %v", tt.op, known)
		}
	}
	if !scope.Matches(&meshv1.LabelSelector{MatchLabels: map[string]string{"a": "1", "b": ""}}, labels) || scope.Matches(&meshv1.LabelSelector{MatchLabels: map[string]string{"c": ""}}, labels) {
		t.Error("labels")
	}
}
