// Package authz translates AuthorizationPolicies to Envoy's RBAC and ext_authz filters.
//
// It consists of pure functions of values: equal policies give equal filters. The filters of a workload are in Istio's
// order, CUSTOM, AUDIT, DENY, ALLOW, once for HTTP and once for TCP connections, with Istio's names of policies and
// statistics [control-plane 1.10.5–1.10.14]. What cannot be expressed for a connection is never permission: an ALLOW
// rule with HTTP fields matches no TCP connection, and a rule of another action loses these fields and matches more.
// Policies must have passed package config.
package authz

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The names of the filters.
const (
	HTTPFilter    = "envoy.filters.http.rbac"
	NetworkFilter = "envoy.filters.network.rbac"
)

// Prefixes of statistics [control-plane 1.10.12].
const (
	allowShadow = "istio_dry_run_allow_"
	denyShadow  = "istio_dry_run_deny_"
	tcpPrefix   = "tcp."
)

// Policy is an AuthorizationPolicy that is in force for a workload.
type Policy struct {
	Namespace, Name string
	Spec            *security.AuthorizationPolicy
	// DryRun counts what the policy would decide, and decides nothing. It is for ALLOW and DENY only.
	DryRun bool
}

// Filters are what a workload's policies add to its filter chains, in their order: HTTP before all other filters of a
// connection manager, TCP before all other network filters of a chain that is not HTTP. Both are nil without policies.
type Filters struct {
	HTTP []*hcmv3.HttpFilter
	TCP  []*listenerv3.Filter
	// Needs are the filters that a proxy must have: one without them cannot tell whom to let in.
	Needs mesh.Capability
	// Cluster is that of the external authorizer, empty for none. Custom are "namespace/name" of the CUSTOM policies, and Fault says
	// why what they match is denied, empty if the authorizer is asked.
	Cluster string
	Custom  []string
	Fault   string
	// Keys are the rules of RequestAuthentications whose keys proxies fetch.
	Keys []RemoteKeys
}

// RemoteKeys is a rule of a RequestAuthentication, "namespace/name", whose keys a proxy fetches through a cluster. Fault says why it
// cannot, so that every token of the issuer is refused, empty if it can.
type RemoteKeys struct {
	Policy         string
	Rule           int
	Cluster, Fault string
}

// Build returns the filters of a workload with these policies; their order does not matter. trustDomains are the
// mesh's and its aliases: a principal of one of them is one of each. authorizers are the providers of external authorization by
// name. tokens is the filter that validates tokens, nil for none: it is after external authorization, and before what reads the
// claims.
func Build(policies []Policy, trustDomains []string, authorizers map[string]Authorizer, tokens *hcmv3.HttpFilter) Filters {
	var out Filters
	if tokens != nil {
		out.Needs |= mesh.JWT
	}
	if len(policies) > 0 {
		out.Needs |= mesh.RBAC | mesh.NetworkRBAC
	}
	policies = slices.Clone(policies)
	slices.SortFunc(policies, func(a, b Policy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	asked, authorizer := custom(policies, authorizers)
	out.Cluster, out.Fault = authorizer.Cluster, authorizer.Fault
	for _, p := range asked {
		out.Custom = append(out.Custom, p.Namespace+"/"+p.Name)
	}
	for _, tcp := range []bool{false, true} {
		b := builder{trustDomains: trustDomains, tcp: tcp}
		out.external(b, asked, authorizer)
		if tokens != nil && !tcp {
			out.HTTP = append(out.HTTP, tokens)
		}
		for _, action := range []rbacv3.RBAC_Action{rbacv3.RBAC_LOG, rbacv3.RBAC_DENY, rbacv3.RBAC_ALLOW} {
			rules, shadow := b.rules(policies, action)
			if rules == nil && shadow == nil {
				continue
			}
			prefix := allowShadow
			if shadow != nil && action == rbacv3.RBAC_DENY {
				prefix = denyShadow
			}
			out.add(tcp, rules, shadow, prefix)
		}
	}
	return out
}

// Hash identifies the filters; it is "" if there are none.
func (f Filters) Hash() string {
	if len(f.HTTP)+len(f.TCP) == 0 {
		return ""
	}
	h := sha256.New()
	for _, m := range f.HTTP {
		h.Write(m.GetTypedConfig().GetValue())
	}
	for _, m := range f.TCP {
		h.Write(m.GetTypedConfig().GetValue())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// add appends a filter with these rules.
func (f *Filters) add(tcp bool, rules, shadow *rbacv3.RBAC, prefix string) {
	if tcp {
		f.TCP = append(f.TCP, networkFilter(NetworkFilter, &networkrbacv3.RBAC{Rules: rules, ShadowRules: shadow, ShadowRulesStatPrefix: prefix, StatPrefix: tcpPrefix}))
		return
	}
	f.HTTP = append(f.HTTP, httpFilter(HTTPFilter, &httprbacv3.RBAC{Rules: rules, ShadowRules: shadow, ShadowRulesStatPrefix: prefix}))
}

func httpFilter(name string, m proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

func networkFilter(name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

// builder makes the rules for one kind of connections.
type builder struct {
	trustDomains []string
	tcp          bool
}

// actionOf returns Envoy's action for a policy. CUSTOM has none of its own.
func actionOf(p Policy) (a rbacv3.RBAC_Action, custom bool) {
	switch p.Spec.GetAction() {
	case security.AuthorizationPolicy_ALLOW:
		return rbacv3.RBAC_ALLOW, false
	case security.AuthorizationPolicy_DENY:
		return rbacv3.RBAC_DENY, false
	case security.AuthorizationPolicy_AUDIT:
		return rbacv3.RBAC_LOG, false
	case security.AuthorizationPolicy_CUSTOM:
		return rbacv3.RBAC_DENY, true
	}
	panic(fmt.Sprintf("authz: unknown action %d", p.Spec.GetAction())) // package config rejects it
}

// rules returns the rules of the policies with an action, and those of them that are dry runs; nil without such
// policies. Rules without policies are not nil: those of ALLOW permit nothing.
func (b builder) rules(policies []Policy, action rbacv3.RBAC_Action) (enforced, shadow *rbacv3.RBAC) {
	for _, p := range policies {
		if a, custom := actionOf(p); custom || a != action {
			continue
		}
		to := &enforced
		if p.DryRun && action != rbacv3.RBAC_LOG {
			to = &shadow
		}
		if *to == nil {
			*to = &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
		}
		b.add((*to).Policies, p, "", "")
	}
	return enforced, shadow
}

// add adds a policy's rules, whose names have a prefix and a suffix.
func (b builder) add(to map[string]*rbacv3.Policy, p Policy, prefix, suffix string) {
	name := func(i int) string {
		return fmt.Sprintf("%sns[%s]-policy[%s]-rule[%d]%s", prefix, p.Namespace, p.Name, i, suffix)
	}
	if len(p.Spec.GetRules()) == 0 { // it matches nothing, but it is there
		to[name(0)] = &rbacv3.Policy{
			Permissions: []*rbacv3.Permission{permissions.not(permissions.any())},
			Principals:  []*rbacv3.Principal{principals.not(principals.any())},
		}
		return
	}
	for i, r := range p.Spec.GetRules() {
		if policy, ok := b.rule(p, r); ok {
			to[name(i)] = policy
		}
	}
}

// rule translates one rule; false if it cannot be expressed and so must match nothing.
func (b builder) rule(p Policy, r *security.Rule) (*rbacv3.Policy, bool) {
	out := &rbacv3.Policy{}
	allow := p.Spec.GetAction() == security.AuthorizationPolicy_ALLOW
	permissionTerms, principalTerms := b.conditions(r, p.Namespace)
	operations := []*security.Operation{nil}
	if len(r.GetTo()) > 0 {
		operations = nil
		for _, t := range r.To {
			operations = append(operations, t.GetOperation())
		}
	}
	for _, o := range operations {
		perm, ok := lower(permissions, append(operationTerms(o), permissionTerms...), b.tcp, allow)
		if !ok {
			return nil, false
		}
		out.Permissions = append(out.Permissions, perm)
	}
	sources := []*security.Source{nil}
	if len(r.GetFrom()) > 0 {
		sources = nil
		for _, f := range r.From {
			sources = append(sources, f.GetSource())
		}
	}
	for _, s := range sources {
		id, ok := lower(principals, append(b.sourceTerms(s, p.Namespace), principalTerms...), b.tcp, allow)
		if !ok {
			return nil, false
		}
		out.Principals = append(out.Principals, id)
	}
	return out, true
}

// term is a field of a rule: one of the values must match, and none of not. Either one translates each value, or all
// translates them together.
type term[T any] struct {
	// http is set if the field exists for HTTP requests only.
	http        bool
	values, not []string
	one         func(value string) T
	all         func(values []string) T
}

// algebra has the operators of permissions or of principals.
type algebra[T any] struct {
	and, or func([]T) T
	not     func(T) T
	any     func() T
}

// lower returns the conjunction of terms; false if an ALLOW rule has a field that does not exist here.
func lower[T any](a algebra[T], terms []term[T], tcp, allow bool) (out T, ok bool) {
	var all []T
	for _, t := range terms {
		switch {
		case len(t.values)+len(t.not) == 0:
		case t.http && tcp && allow:
			return out, false
		case t.http && tcp:
		default:
			if len(t.values) > 0 {
				all = append(all, t.any(a, t.values))
			}
			if len(t.not) > 0 {
				all = append(all, a.not(t.any(a, t.not)))
			}
		}
	}
	if len(all) == 0 {
		all = append(all, a.any())
	}
	return a.and(all), true
}

// any returns that one of the values matches.
func (t term[T]) any(a algebra[T], values []string) T {
	if t.all != nil {
		return t.all(values)
	}
	var each []T
	for _, v := range values {
		each = append(each, t.one(v))
	}
	return a.or(each)
}
