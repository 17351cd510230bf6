package model

import (
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/delegate"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// hostBucket returns the bucket of rules for a host; all wildcards have the same one.
func hostBucket(host string) string {
	if strings.HasPrefix(host, "*") {
		return "wildcard"
	}
	return "host:" + host
}

// selectors is the bucket of rules that select clients by label.
const selectors = "selectors"

func selectorBucket(labels map[string]string) string {
	if len(labels) == 0 {
		return all
	}
	return selectors
}

// clientBucket is the bucket of the DestinationRules of a namespace with a selector of clients, in canonical form. Those for a host are in
// the bucket with that of the host behind it: who is not selected does not read them.
func clientBucket(ns, selector string) string { return "clients:" + ns + ":" + selector }

// reach has the fields of a VirtualService that determine the scopes that it applies to. Rules that
// read only these are not rerun after an edit of its routes.
type reach struct {
	row             Row
	namespace       string
	mesh            bool // it applies to sidecars
	hosts, exportTo []string
	destinations    []string // hosts, sorted
}

func (v *VirtualService) reach() reach {
	return reach{
		row: v.Row, namespace: v.Namespace, mesh: len(v.Spec.Gateways) == 0 || contains(v.Spec.Gateways, "mesh"),
		hosts: v.Hosts, exportTo: v.Spec.ExportTo, destinations: v.Destinations,
	}
}

// reachOf returns the reach of the VirtualService with that key, the zero value if there is none.
func (m *Model) reachOf(r *incr.Reader, key string) reach {
	v, ok := incr.Get(r, m.tables.virtuals, key)
	if !ok {
		return reach{}
	}
	out := v.reach()
	if delegate.Any(v.Spec) {
		out.destinations = destinations(m.mergedSpec(r, v), v.Namespace, m.domain)
	}
	return out
}

// servesMesh reports whether a VirtualService applies to sidecars of the scope.
func (m *Model) servesMesh(r *incr.Reader, s mesh.ScopeID, v reach) bool {
	if !v.mesh || !mesh.Exported(v.exportTo, m.Mesh(r).DefaultVirtualServiceExportTo, v.namespace, s.Value().Namespace) {
		return false
	}
	e := m.egressOf(r, s)
	return e.everything || slices.ContainsFunc(v.hosts, func(h string) bool { return e.sees(v.namespace, h) })
}

// virtual returns the VirtualService for a host: an exact name has priority over a wildcard, a longer
// wildcard over a shorter one, and of equal ones the oldest. [control-plane 1.7.29]
func (m *Model) virtual(r *incr.Reader, k scopeHost) *VirtualService {
	var best *VirtualService
	length := -1
	consider := func(v *VirtualService, host string) {
		if !hostMatches(host, k.host) || !m.servesMesh(r, k.scope, v.reach()) {
			return
		}
		n := len(host)
		if host == k.host {
			n = 1 << 20
		}
		if n > length || (n == length && v.Older(best.Row)) {
			best, length = v, n
		}
	}
	for _, v := range incr.In(r, m.tables.virtuals, hostBucket(k.host)) {
		for _, h := range v.Hosts {
			consider(v, h)
		}
	}
	if best == nil {
		for _, v := range incr.In(r, m.tables.virtuals, "wildcard") {
			for _, h := range v.Hosts {
				consider(v, h)
			}
		}
	}
	return best
}

// Buckets of VirtualServices of sidecars with tls or tcp routes: all of them, and those for a host or for wildcards.
const connections = "connections"

func connectionBucket(host string) string { return connections + ":" + hostBucket(host) }

// routesConnections reports whether a VirtualService has tls or tcp routes for sidecars.
func (v *VirtualService) routesConnections() bool {
	return len(v.Spec.GetTls())+len(v.Spec.GetTcp()) > 0 && v.reach().mesh
}

// ConnectionRoutes returns the VirtualServices with tls or tcp routes for connections to a service, the oldest first: those
// with its host, a wildcard that matches it, or, if its host is a wildcard, a host that it matches. [control-plane 1.7.27, 1.7.28]
func (m *Model) ConnectionRoutes(r *incr.Reader, s mesh.ScopeID, host string) (out []*VirtualService) {
	add := func(bucket string) {
		for _, v := range incr.In(r, m.tables.virtuals, bucket) {
			matches := func(h string) bool { return hostMatches(h, host) || hostMatches(host, h) }
			if slices.ContainsFunc(v.Hosts, matches) && m.servesMesh(r, s, v.reach()) {
				out = append(out, v)
			}
		}
	}
	if strings.HasPrefix(host, "*") {
		add(connections)
	} else {
		add(connectionBucket(host))
		add(connectionBucket("*"))
	}
	slices.SortFunc(out, func(a, b *VirtualService) int {
		switch {
		case a.Row == b.Row:
			return 0
		case a.Older(b.Row):
			return -1
		}
		return 1
	})
	return slices.CompactFunc(out, func(a, b *VirtualService) bool { return a.Row == b.Row })
}

// dest returns the DestinationRule for a host: that of the client's namespace, else that of the
// service's, else that of the root namespace. Within a namespace the most specific host has priority,
// and the subsets of rules for the same host are merged into the oldest. [control-plane 1.8]
func (m *Model) dest(r *incr.Reader, k scopeHost) *DestinationRule {
	owner := ""
	if svc := m.rules.service.Of(r, k); svc != nil {
		owner = svc.Namespace
	}
	return m.destFor(r, k, owner)
}

// ServerRule returns the DestinationRule for a service whose workloads are in a namespace, as they see it: without those
// that select their clients. [control-plane 1.8]
func (m *Model) ServerRule(r *incr.Reader, namespace string, s *Service) *DestinationRule {
	return m.destFor(r, scopeHost{mesh.Scope{Namespace: namespace}.ID(), s.Host}, s.Namespace)
}

// destFor returns the DestinationRule for a host whose service is of the namespace owner.
func (m *Model) destFor(r *incr.Reader, k scopeHost, owner string) *DestinationRule {
	for _, ns := range []string{k.scope.Value().Namespace, owner, m.Mesh(r).RootNamespace} {
		if ns == "" {
			continue
		}
		if d := m.destIn(r, k, ns); d != nil {
			return d
		}
	}
	return nil
}

func (m *Model) destIn(r *incr.Reader, k scopeHost, ns string) *DestinationRule {
	var found []*DestinationRule
	client := k.scope.Value()
	byDefault := m.Mesh(r).DefaultDestinationRuleExportTo
	buckets := []string{hostBucket(k.host), "wildcard"}
	if ns == client.Namespace {
		for selector := range strings.SplitSeq(client.Selected, ";") {
			// Most selectors of a scope are those of VirtualServices.
			if of := clientBucket(ns, selector); selector != "" && len(incr.Keys(r, m.tables.dests, of)) > 0 {
				buckets = append(buckets, of+" "+hostBucket(k.host), of+" wildcard")
			}
		}
	}
	for _, bucket := range buckets {
		for _, d := range incr.In(r, m.tables.dests, bucket) {
			if d.Namespace != ns || !hostMatches(d.Host, k.host) {
				continue
			}
			if ns != client.Namespace && !mesh.Exported(d.Spec.ExportTo, byDefault, ns, client.Namespace) {
				continue
			}
			found = append(found, d)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortStableFunc(found, compareDests)
	return mergeSubsets(found)
}

// compareDests orders rules by priority: those with a selector, the longer host, the older.
func compareDests(a, b *DestinationRule) int {
	if x, y := a.Spec.WorkloadSelector != nil, b.Spec.WorkloadSelector != nil; x != y {
		if x {
			return -1
		}
		return 1
	}
	if x, y := strings.HasPrefix(a.Host, "*"), strings.HasPrefix(b.Host, "*"); x != y {
		if y {
			return -1
		}
		return 1
	}
	if len(a.Host) != len(b.Host) {
		return len(b.Host) - len(a.Host)
	}
	if a.Older(b.Row) {
		return -1
	}
	return 1
}

// mergeSubsets adds to the first rule the subsets of the others for the same host, unless it has one of
// the same name.
func mergeSubsets(found []*DestinationRule) *DestinationRule {
	first := found[0]
	var extra []*networking.Subset
	has := func(name string) bool {
		same := func(s *networking.Subset) bool { return s.Name == name }
		return slices.ContainsFunc(first.Spec.Subsets, same) || slices.ContainsFunc(extra, same)
	}
	for _, d := range found[1:] {
		if d.Host != first.Host {
			continue
		}
		for _, s := range d.Spec.Subsets {
			if !has(s.Name) {
				extra = append(extra, s)
			}
		}
	}
	if len(extra) == 0 {
		return first
	}
	spec := proto.Clone(first.Spec).(*networking.DestinationRule)
	spec.Subsets = append(spec.Subsets, extra...)
	return &DestinationRule{Row: first.Row, Host: first.Host, Spec: spec}
}

// Selects reports whether labels, a client-side selector or several in one, match the proxies of the scope: each pair is in a selector
// that does.
func Selects(s mesh.Scope, labels map[string]string) bool {
	if len(labels) == 0 {
		return true
	}
	pairs := strings.FieldsFunc(s.Selected, func(r rune) bool { return r == ';' || r == ',' })
	for name, value := range labels {
		if !contains(pairs, name+"="+value) {
			return false
		}
	}
	return true
}

// GetSpec returns the rule's spec, nil for a nil rule.
func (d *DestinationRule) GetSpec() *networking.DestinationRule {
	if d == nil {
		return nil
	}
	return d.Spec
}
