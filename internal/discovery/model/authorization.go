package model

import (
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// DryRunAnnotation makes an AuthorizationPolicy one that decides nothing [control-plane 1.10.12].
const DryRunAnnotation = "istio.io/dry-run"

// The buckets of a namespace's AuthorizationPolicies or RequestAuthentications: those for all of its workloads, those
// with a selector, and those with targets.
func wholeBucket(ns string) string     { return "whole:" + ns }
func selectingBucket(ns string) string { return "selecting:" + ns }
func targetingBucket(ns string) string { return "targeting:" + ns }

// selecting is the specification of a policy with a selector.
type selecting interface {
	GetSelector() *typev1.WorkloadSelector
	targeting
}

// policyBucket returns the bucket of a policy.
func policyBucket(ns string, spec selecting) string {
	if targeted(spec) {
		return targetingBucket(ns)
	}
	if len(spec.GetSelector().GetMatchLabels()) > 0 {
		return selectingBucket(ns)
	}
	return wholeBucket(ns)
}

// policy is a row of a table of policies.
type policy interface {
	comparable
	spec() selecting
	Key() string
}

func (p *AuthorizationPolicy) spec() selecting   { return p.Spec }
func (p *RequestAuthentication) spec() selecting { return p.Spec }

func putAuthorization(m *Model, o *object.Object, spec *security.AuthorizationPolicy) {
	p := &AuthorizationPolicy{Row: rowOf(o), Spec: spec, DryRun: DryRun(o.Meta.Annotations[DryRunAnnotation])}
	m.tables.authz.Put(rowKey(o.Key), p, policyBucket(o.Namespace, spec))
}

// DryRun reports whether a value of DryRunAnnotation is true, as strconv.ParseBool has it.
func DryRun(value string) bool {
	return slices.Contains([]string{"1", "t", "T", "true", "TRUE", "True"}, value)
}

// policiesFor returns the keys of the policies that select the workload by label, separated by spaces: those of its
// namespace, and those of the root namespace, which are for the whole mesh; and the keys of those of its namespace whose
// targets are Gateways of which it is a proxy. [control-plane 1.10.5]
func policiesFor[P policy](m *Model, r *incr.Reader, table *incr.Table[P], ns string, labels map[string]string, gateways []string) string {
	var out []string
	for _, in := range m.scopesOf(r, ns) {
		for key, p := range incr.In(r, table, selectingBucket(in)) {
			if subset(p.spec().GetSelector().GetMatchLabels(), labels) {
				out = append(out, key)
			}
		}
	}
	if len(gateways) > 0 {
		for key, p := range incr.In(r, table, targetingBucket(ns)) {
			if targets(p.spec(), ns, gateways) {
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
	return inForce(m, r, m.tables.authz, w.Namespace, w.Authorization)
}

// AuthorizationFor returns the AuthorizationPolicies that are in force for a workload of a namespace with these labels, sorted by key.
func (m *Model) AuthorizationFor(r *incr.Reader, ns string, labels map[string]string) []*AuthorizationPolicy {
	return inForce(m, r, m.tables.authz, ns, policiesFor(m, r, m.tables.authz, ns, labels, nil))
}

// TokensOf returns the RequestAuthentications that are in force for a workload, sorted by key.
func (m *Model) TokensOf(r *incr.Reader, w mesh.Workload) []*RequestAuthentication {
	return inForce(m, r, m.tables.tokens, w.Namespace, w.Tokens)
}

// SetKeys stores the key set that was fetched from a source, in the form of pki.PublicKeySet; an empty one removes it.
func (m *Model) SetKeys(s jwks.Source, keys string) {
	if keys == "" {
		m.tables.keys.Delete(s.Key())
		return
	}
	m.tables.keys.Put(s.Key(), keys)
}

// FetchKeysBy says who fetches the keys of tokens. Call it before the first Run.
func (m *Model) FetchKeysBy(mode jwks.Mode) { m.remoteKeys = mode }

// keyHosts returns the hosts from which proxies of a namespace may fetch the keys of tokens.
func (m *Model) keyHosts(r *incr.Reader, ns string) (out []string) {
	if m.remoteKeys == jwks.Discovery {
		return nil
	}
	for _, in := range m.scopesOf(r, ns) {
		for _, bucket := range []string{wholeBucket(in), selectingBucket(in), targetingBucket(in)} {
			for _, p := range incr.In(r, m.tables.tokens, bucket) {
				for _, rule := range p.Spec.GetJwtRules() {
					if _, host, _, ok := m.remoteKeys.Remote(rule); ok {
						out = append(out, host)
					}
				}
			}
		}
	}
	return out
}

// KeysOf returns the key set that was fetched for a rule of a RequestAuthentication; false if there is none.
func (m *Model) KeysOf(r *incr.Reader, rule *security.JWTRule) (string, bool) {
	s, _, ok := jwks.SourceOf(rule)
	if !ok {
		return "", false
	}
	return incr.Get(r, m.tables.keys, s.Key())
}

// inForce returns the policies for all workloads of a namespace, and those with the given keys.
func inForce[P policy](m *Model, r *incr.Reader, table *incr.Table[P], ns, keys string) (out []P) {
	for _, in := range m.scopesOf(r, ns) {
		for _, p := range incr.In(r, table, wholeBucket(in)) {
			out = append(out, p)
		}
	}
	for _, key := range strings.Fields(keys) {
		if p, ok := incr.Get(r, table, key); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b P) int { return strings.Compare(a.Key(), b.Key()) })
	return out
}
