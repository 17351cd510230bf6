package model

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Difference lists the hosts for which a scope does not see the same as its base. Its lists are sorted.
// A host may be in a list although what the scope sees of it is the same; never the other way round.
type Difference struct {
	// Services are hosts with another service or another DestinationRule.
	Services []string
	// Routes are Services, and hosts with another VirtualService or with one whose routes depend on
	// the client or lead to one of Services.
	Routes []string
	// Named are hosts of the client's own namespace, which clients there may call by a short name.
	Named []string
	// Extra are the scope's extra hosts that its base lacks. Of its base's it lacks those in Services.
	Extra []string
}

// Base returns the scope from which s is derived: that of a client in no namespace, which sees what is
// exported to all. It returns false for a scope that has none, such as one with a Sidecar.
func (m *Model) Base(s mesh.ScopeID) (mesh.ScopeID, bool) {
	v := s.Value()
	if m.whole || v.Sidecar != "" || v.Namespace == "" && v.Selected == "" {
		return mesh.ScopeID{}, false
	}
	// Every listener depends on the telemetry.
	return mesh.Scope{Role: v.Role, Cluster: v.Cluster, Caps: v.Caps, Telemetry: v.Telemetry, Service: v.Service, Tracing: v.Tracing}.ID(), true
}

// CompileWhole makes every scope one without base. Tests compare the results. It must be called before
// the first rule runs.
func (m *Model) CompileWhole() { m.whole = true }

// Difference returns how a scope differs from its base, the zero value if it has none.
func (m *Model) Difference(r *incr.Reader, s mesh.ScopeID) Difference {
	return m.rules.difference.Of(r, s)
}

// serviceScope returns the scope of which service and DestinationRule of a host are those of s.
func (m *Model) serviceScope(r *incr.Reader, s mesh.ScopeID, host string) mesh.ScopeID {
	if base, derived := m.Base(s); derived && m.rules.differs.Of(r, scopeHost{s, host}) != serviceDiffers {
		return base
	}
	return s
}

// routeScope returns the scope of which the VirtualService of a host is that of s.
func (m *Model) routeScope(r *incr.Reader, s mesh.ScopeID, host string) mesh.ScopeID {
	if base, derived := m.Base(s); derived && m.rules.differs.Of(r, scopeHost{s, host}) == nothingDiffers {
		return base
	}
	return s
}

// differing says in which of its Difference's lists a host is.
type differing uint8

const (
	nothingDiffers differing = iota
	routesDiffer
	serviceDiffers // and so do routes
)

// differs looks a host up, so that what has read one host of a scope is not rerun because of another.
func (m *Model) differs(r *incr.Reader, k scopeHost) differing {
	d := m.rules.difference.Of(r, k.scope)
	switch {
	case listed(d.Services, k.host):
		return serviceDiffers
	case listed(d.Routes, k.host):
		return routesDiffer
	}
	return nothingDiffers
}

// listed reports whether a sorted list has a host.
func listed(list []string, host string) bool {
	_, found := slices.BinarySearch(list, host)
	return found
}

// Buckets of rows by what may make them differ between scopes.
func namespaceBucket(ns string) string        { return "ns:" + ns }
func exportBucket(ns string) string           { return "export:" + ns }
func sourceNamespaceBucket(ns string) string  { return "source:" + ns }
func sourceLabelsBucket(labels string) string { return "labels:" + labels }
func destinationBucket(host string) string    { return "to:" + host }

// exportBuckets returns the buckets of a row with this exportTo: one for each namespace, if it is not
// exported to all.
func exportBuckets(exportTo []string, owner string) (out []string) {
	if contains(exportTo, "*") {
		return nil
	}
	for _, e := range exportTo {
		if e == "." {
			e = owner
		}
		out = append(out, exportBucket(e))
	}
	return out
}

// clientBuckets returns the buckets of a VirtualService whose routes depend on the client, and of the
// hosts that its routes lead to.
func clientBuckets(v *VirtualService) (out []string) {
	from := func(namespace string, labels map[string]string) {
		if namespace != "" {
			out = append(out, sourceNamespaceBucket(namespace))
		}
		if len(labels) > 0 {
			out = append(out, selectors, sourceLabelsBucket(canonical(labels)))
		}
	}
	for _, h := range v.Spec.GetHttp() {
		for _, match := range h.Match {
			from(match.SourceNamespace, match.SourceLabels)
		}
	}
	for _, t := range v.Spec.GetTls() {
		for _, match := range t.Match {
			from(match.SourceNamespace, match.SourceLabels)
		}
	}
	for _, t := range v.Spec.GetTcp() {
		for _, match := range t.Match {
			from(match.SourceNamespace, match.SourceLabels)
		}
	}
	for _, host := range v.Destinations {
		out = append(out, destinationBucket(host))
	}
	return out
}

// destinations returns the hosts that the routes of a VirtualService lead to, mirrors included, sorted.
func destinations(v *networking.VirtualService, namespace, domain string) (out []string) {
	to := func(d *networking.Destination) {
		if d != nil {
			out = append(out, mesh.FullHost(d.Host, namespace, domain))
		}
	}
	for _, h := range v.GetHttp() {
		for _, d := range h.Route {
			to(d.Destination)
		}
		to(h.Mirror)
		for _, d := range h.Mirrors {
			to(d.Destination)
		}
	}
	for _, t := range v.GetTls() {
		for _, d := range t.Route {
			to(d.Destination)
		}
	}
	for _, t := range v.GetTcp() {
		for _, d := range t.Route {
			to(d.Destination)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// private returns the rows that are exported to a namespace and may not be exported to all.
func private[T any](r *incr.Reader, t *incr.Table[T], byDefault []string, client string, exportTo func(T) []string) (out []T) {
	for _, row := range incr.In(r, t, exportBucket(client)) {
		out = append(out, row)
	}
	unset := ""
	switch {
	case contains(byDefault, "*"):
	case contains(byDefault, client):
		unset = all
	case contains(byDefault, "."):
		unset = namespaceBucket(client)
	}
	if unset != "" {
		for _, row := range incr.In(r, t, unset) {
			if len(exportTo(row)) == 0 {
				out = append(out, row)
			}
		}
	}
	return out
}

// comparison compares what a scope sees with what its base sees.
type comparison struct {
	*Model
	r        *incr.Reader
	scope    mesh.ScopeID
	base     mesh.ScopeID
	client   string // the namespace
	services map[string]bool
	routes   map[string]bool
	extra    map[string]bool
}

func (m *Model) difference(r *incr.Reader, s mesh.ScopeID) (d Difference) {
	base, derived := m.Base(s)
	if !derived {
		return d
	}
	c := &comparison{
		Model: m, r: r, scope: s, base: base, client: s.Value().Namespace,
		services: map[string]bool{}, routes: map[string]bool{}, extra: map[string]bool{},
	}
	d.Named = c.compareServices()
	c.compareDests()
	d.Named = c.compareAliases(d.Named)
	c.compareConnections()
	d.Services = slices.Sorted(maps.Keys(c.services))
	maps.Copy(c.routes, c.services)
	c.compareVirtuals()
	d.Routes, d.Extra = slices.Sorted(maps.Keys(c.routes)), slices.Sorted(maps.Keys(c.extra))
	return d
}

// compareServices finds hosts with another service: only rows of the client's namespace and rows exported
// to it can make a difference. It returns the hosts that have a short name there.
func (c *comparison) compareServices() (named []string) {
	seen := map[string]bool{}
	compare := func(host string) *Service {
		own := c.service(c.r, scopeHost{c.scope, host})
		if theirs := c.rules.service.Of(c.r, scopeHost{c.base, host}); own != nil && (theirs == nil || own.Key != theirs.Key) {
			c.services[host] = true
		}
		return own
	}
	for _, row := range incr.In(c.r, c.tables.services, namespaceBucket(c.client)) {
		if seen[row.Host] {
			continue
		}
		seen[row.Host] = true
		own := compare(row.Host)
		if own != nil && own.Namespace == c.client && strings.HasSuffix(row.Host, "."+c.client+".svc."+c.domain) {
			named = append(named, row.Host)
		}
	}
	byDefault := c.Mesh(c.r).DefaultServiceExportTo
	for _, row := range private(c.r, c.tables.services, byDefault, c.client, func(s *Service) []string { return s.ExportTo }) {
		if !seen[row.Host] {
			seen[row.Host] = true
			compare(row.Host)
		}
	}
	slices.Sort(named)
	return named
}

// compareDests finds hosts with another DestinationRule: one of the client's namespace, or one exported
// to it.
func (c *comparison) compareDests() {
	seen := map[string]bool{}
	compare := func(d *DestinationRule) {
		if seen[d.Host] {
			return
		}
		seen[d.Host] = true
		for _, host := range c.matching(d.Host, false) {
			if c.services[host] {
				continue
			}
			k := scopeHost{c.base, host}
			svc := c.rules.service.Of(c.r, k)
			if svc == nil {
				continue
			}
			if own := c.destFor(c.r, scopeHost{c.scope, host}, svc.Namespace); !sameDest(own, c.rules.dest.Of(c.r, k)) {
				c.services[host] = true
			}
		}
	}
	for _, d := range incr.In(c.r, c.tables.dests, namespaceBucket(c.client)) {
		compare(d)
	}
	byDefault := c.Mesh(c.r).DefaultDestinationRuleExportTo
	for _, d := range private(c.r, c.tables.dests, byDefault, c.client, func(d *DestinationRule) []string { return d.Spec.ExportTo }) {
		compare(d)
	}
}

func sameDest(a, b *DestinationRule) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Row == b.Row && a.Host == b.Host && proto.Equal(a.Spec, b.Spec)
}

// privateVirtuals returns the VirtualServices that the scope sees and its base may not see.
func (c *comparison) privateVirtuals() []*VirtualService {
	byDefault := c.Mesh(c.r).DefaultVirtualServiceExportTo
	rows := private(c.r, c.tables.virtuals, byDefault, c.client, func(v *VirtualService) []string { return v.Spec.ExportTo })
	return slices.DeleteFunc(rows, func(v *VirtualService) bool { return !c.servesMesh(c.r, c.scope, v.reach()) })
}

// compareConnections finds services whose tls or tcp routes differ: those of VirtualServices that the base does not see, or whose
// routes depend on the client or lead to one of the services that differ. Such a service counts as one that differs itself.
func (c *comparison) compareConnections() {
	add := func(v *VirtualService) {
		if !v.routesConnections() {
			return
		}
		for _, pattern := range v.Hosts {
			for _, host := range c.matching(pattern, false) {
				if c.rules.service.Of(c.r, scopeHost{c.base, host}) != nil {
					c.services[host] = true
				}
			}
			for _, ref := range c.rules.visible.Of(c.r, c.base) {
				if strings.HasPrefix(ref.Host, "*") && hostMatches(ref.Host, pattern) {
					c.services[ref.Host] = true
				}
			}
		}
	}
	for _, v := range c.privateVirtuals() {
		add(v)
	}
	buckets := []string{sourceNamespaceBucket(c.client)}
	for _, labels := range strings.Split(c.scope.Value().Selected, ";") {
		buckets = append(buckets, sourceLabelsBucket(labels))
	}
	for _, host := range slices.Sorted(maps.Keys(c.services)) {
		buckets = append(buckets, destinationBucket(host))
	}
	for _, bucket := range buckets {
		for _, v := range incr.In(c.r, c.tables.virtuals, bucket) {
			add(v)
		}
	}
}

// compareVirtuals finds extra hosts, and hosts with other routes.
func (c *comparison) compareVirtuals() {
	rows := c.privateVirtuals()
	known := c.rules.extra.Of(c.r, c.base)
	for _, host := range slices.Sorted(maps.Keys(c.services)) {
		if !c.listensIn(c.r, c.scope, host) && (listed(known, host) || c.routesTo(c.base, host)) {
			c.extra[host] = true // a service that differs does not take the host's routes, or not any more
		}
	}
	for _, v := range rows {
		for _, h := range v.Hosts {
			scope := c.base
			if c.services[h] {
				scope = c.scope
			}
			if h != "*" && (c.services[h] || !listed(known, h)) && !c.listensIn(c.r, scope, h) {
				c.extra[h] = true
			}
		}
	}
	for _, v := range rows {
		c.eachHost(v, func(host string, own *VirtualService) bool {
			theirs := c.rules.virtual.Of(c.r, scopeHost{c.base, host})
			return own != nil && (theirs == nil || own.Row != theirs.Row)
		})
	}
	c.dependent(sourceNamespaceBucket(c.client))
	for _, labels := range strings.Split(c.scope.Value().Selected, ";") {
		c.dependent(sourceLabelsBucket(labels))
	}
	for _, host := range slices.Sorted(maps.Keys(c.services)) {
		c.dependent(destinationBucket(host))
	}
	c.compareMeshRoutes()
}

// routesTo reports whether a scope sees a VirtualService of exactly that host.
func (c *comparison) routesTo(scope mesh.ScopeID, host string) bool {
	v := c.rules.virtual.Of(c.r, scopeHost{scope, host})
	return v != nil && slices.Contains(v.Hosts, host)
}

// compareMeshRoutes adds the hosts with routes of the Gateway API that the client's namespace has for Services of others, and
// those whose routes lead to a service that differs.
func (c *comparison) compareMeshRoutes() {
	add := func(bucket string) {
		for _, k := range incr.In(c.r, c.tables.routes, bucket) {
			for _, host := range k.services {
				c.routes[host] = true
			}
		}
	}
	add(namespaceBucket(c.client))
	for _, host := range slices.Sorted(maps.Keys(c.services)) {
		add(destinationBucket(host))
	}
}

// dependent adds the hosts whose VirtualService is one of a bucket.
func (c *comparison) dependent(bucket string) {
	for _, one := range incr.In(c.r, c.tables.virtuals, bucket) {
		for _, v := range c.roots(c.r, one) {
			c.eachHost(v, func(_ string, own *VirtualService) bool { return own != nil && own.Row == v.Row })
		}
	}
}

// eachHost adds those hosts of a VirtualService to the routes that differ for which differs says so. It
// gets the VirtualService that the host has in the scope.
func (c *comparison) eachHost(v *VirtualService, differs func(host string, own *VirtualService) bool) {
	for _, pattern := range v.Hosts {
		for _, host := range c.matching(pattern, true) {
			if !c.routes[host] && differs(host, c.virtual(c.r, scopeHost{c.scope, host})) {
				c.routes[host] = true
			}
		}
	}
}

// matching returns the host, or for a wildcard the hosts that match it: those of the base's services and
// of services that differ, and with extra set also those of VirtualServices only.
func (c *comparison) matching(pattern string, extra bool) (out []string) {
	if !strings.HasPrefix(pattern, "*") {
		return []string{pattern}
	}
	add := func(host string) {
		if hostMatches(pattern, host) {
			out = append(out, host)
		}
	}
	for _, ref := range c.rules.visible.Of(c.r, c.base) {
		add(ref.Host)
	}
	for host := range c.services {
		add(host)
	}
	if extra {
		for _, host := range c.rules.extra.Of(c.r, c.base) {
			add(host)
		}
		for host := range c.extra {
			add(host)
		}
	}
	slices.Sort(out) // so that what is read is in the same order each time
	return slices.Compact(out)
}
