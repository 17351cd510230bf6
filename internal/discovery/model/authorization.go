package model

import (
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// DryRunAnnotation makes an AuthorizationPolicy one that decides nothing [control-plane 1.10.12].
const DryRunAnnotation = "istio.io/dry-run"

// The buckets of a namespace's AuthorizationPolicies: those for all of its workloads, and those with a selector.
func wholeBucket(ns string) string     { return "whole:" + ns }
func selectingBucket(ns string) string { return "selecting:" + ns }

func putAuthorization(m *Model, o *object.Object, spec *security.AuthorizationPolicy) {
	p := &AuthorizationPolicy{Row: rowOf(o), Spec: spec, DryRun: DryRun(o.Meta.Annotations[DryRunAnnotation])}
	bucket := wholeBucket(o.Namespace)
	if len(spec.GetSelector().GetMatchLabels()) > 0 {
		bucket = selectingBucket(o.Namespace)
	}
	m.tables.authz.Put(rowKey(o.Key), p, bucket)
}

// DryRun reports whether a value of DryRunAnnotation is true, as strconv.ParseBool has it.
func DryRun(value string) bool {
	return slices.Contains([]string{"1", "t", "T", "true", "TRUE", "True"}, value)
}

// authorizing returns the keys of the AuthorizationPolicies that select the workload by label, separated by spaces:
// those of its namespace, and those of the root namespace, which are for the whole mesh. [control-plane 1.10.5]
func (m *Model) authorizing(r *incr.Reader, ns string, labels map[string]string) string {
	var out []string
	for _, in := range m.scopesOf(r, ns) {
		for key, p := range incr.In(r, m.tables.authz, selectingBucket(in)) {
			if subset(p.Spec.GetSelector().GetMatchLabels(), labels) {
				out = append(out, key)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// scopesOf returns the namespaces whose policies may be for a workload of a namespace.
func (m *Model) scopesOf(r *incr.Reader, ns string) []string {
	if root := m.Mesh(r).RootNamespace; root != ns {
		return []string{root, ns}
	}
	return []string{ns}
}

// AuthorizationOf returns the AuthorizationPolicies that are in force for a workload, sorted by key.
func (m *Model) AuthorizationOf(r *incr.Reader, w mesh.Workload) []*AuthorizationPolicy {
	var out []*AuthorizationPolicy
	for _, ns := range m.scopesOf(r, w.Namespace) {
		for _, p := range incr.In(r, m.tables.authz, wholeBucket(ns)) {
			out = append(out, p)
		}
	}
	for _, key := range strings.Fields(w.Authorization) {
		if p, ok := incr.Get(r, m.tables.authz, key); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *AuthorizationPolicy) int { return strings.Compare(a.Key(), b.Key()) })
	return out
}
