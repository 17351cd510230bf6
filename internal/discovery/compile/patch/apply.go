package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// errGone is what a step returns whose patch removes the message.
var errGone = errors.New("removed")

// run applies patches, each to a copy of the message that the ones before have left. A step says whether it matched. A patch
// whose step fails, or after which the message is invalid, is left out.
func run[M proto.Message](m M, patches []*Patch, results []Result, applies func(*Patch) bool, step func(M, *Patch) (bool, error)) (out M, gone bool) {
	for i, p := range patches {
		if !applies(p) {
			continue
		}
		next := proto.Clone(m).(M)
		matched, err := step(next, p)
		if errors.Is(err, errGone) {
			results[i].Applied = true
			return m, true
		}
		if err == nil && matched {
			err = validate(next)
		}
		switch {
		case err != nil:
			results[i].Refused = err.Error()
		case matched:
			results[i].Applied = true
			m = next
		}
	}
	return m, false
}

// Cluster returns a cluster with patches, nil if one removes it. Of a cluster that does not exist, nil, the one that a patch
// adds with the given name is returned. There is a Result for each patch.
func Cluster(c *clusterv3.Cluster, name string, in Context, patches []*Patch) (*clusterv3.Cluster, []Result) {
	results := make([]Result, len(patches))
	for i, p := range patches {
		if p.ApplyTo != networking.EnvoyFilter_CLUSTER || p.Operation != add || !p.TouchesCluster(name, in) {
			continue
		}
		if c != nil {
			results[i].Refused = fmt.Sprintf("there is a cluster %q; use MERGE, or another name", name)
			continue
		}
		c, results[i].Applied = proto.CloneOf(p.Value.(*clusterv3.Cluster)), true
	}
	if c == nil {
		return nil, results
	}
	c, gone := run(c, patches, results, func(p *Patch) bool { return p.Operation != add && p.TouchesCluster(name, in) }, func(c *clusterv3.Cluster, p *Patch) (bool, error) {
		if p.Operation == remove {
			return true, errGone
		}
		return true, p.mergeCluster(c, p.Value.(*clusterv3.Cluster))
	})
	if gone {
		return nil, results
	}
	return c, results
}

// Listener returns a listener with patches, nil if one removes it. Of a listener that does not exist, nil, the one that a
// patch adds with the given name is returned. First come filters of extensions, then patches of the listener itself, then those of its listener filters, of
// its filter chains, their filters, the HTTP filters in these, and the routes in it. There is a Result for each patch.
func Listener(l *listenerv3.Listener, name string, in Context, patches []*Patch) (*listenerv3.Listener, []Result) {
	results := make([]Result, len(patches))
	added := l == nil
	for i, p := range patches {
		if p.ApplyTo != networking.EnvoyFilter_LISTENER || p.Operation != add || !p.TouchesListener(name, in) {
			continue
		}
		if l != nil {
			results[i].Refused = fmt.Sprintf("there is a listener %q; use MERGE, or another name", name)
			continue
		}
		l, results[i].Applied = proto.CloneOf(p.Value.(*listenerv3.Listener)), true
	}
	if l == nil {
		return nil, results
	}
	ranks := ranksOf(patches)
	l, _ = run(l, patches, results, func(p *Patch) bool { return p.Place != nil && !added && p.TouchesListener(name, in) }, ranks.placed(in))
	matches := func(p *Patch) bool { return p.Place == nil && p.In(in) && p.matchesListener(l.Name, listenerPort(l)) }
	gone := false
	l, gone = run(l, patches, results, func(p *Patch) bool {
		return p.ApplyTo == networking.EnvoyFilter_LISTENER && p.Operation != add && matches(p)
	}, func(l *listenerv3.Listener, p *Patch) (bool, error) {
		if p.Operation == remove {
			return true, errGone
		}
		src := proto.CloneOf(p.Value.(*listenerv3.Listener))
		clearName(src)
		p.mergeInto(l, src)
		return true, nil
	})
	if gone {
		return nil, results
	}
	for _, s := range []struct {
		to   networking.EnvoyFilter_ApplyTo
		step func(*listenerv3.Listener, *Patch) (bool, error)
	}{
		{networking.EnvoyFilter_LISTENER_FILTER, listenerFilters},
		{networking.EnvoyFilter_FILTER_CHAIN, filterChains},
		{networking.EnvoyFilter_NETWORK_FILTER, ranks.networkFilters},
		{networking.EnvoyFilter_HTTP_FILTER, ranks.httpFilters},
	} {
		l, _ = run(l, patches, results, func(p *Patch) bool { return p.ApplyTo == s.to && matches(p) }, s.step)
	}
	if in == Inbound {
		l, _ = run(l, patches, results, func(p *Patch) bool { return p.ofRoutes() && p.In(in) }, inlineRoutes)
	}
	return l, results
}

// Extension returns the extension configuration that patches add with the given name, nil if none does: that of the first patch
// whose context is one of the proxy's, else of the first one, as listeners of any context may name it. There is a Result for each patch.
func Extension(name string, in Context, patches []*Patch) (e *corev3.TypedExtensionConfig, results []Result) {
	results = make([]Result, len(patches))
	fits := func(p *Patch) bool {
		return (p.Match.GetContext() == Gateway) == (in == Gateway) || p.Match.GetContext() == networking.EnvoyFilter_ANY
	}
	for _, fitting := range []bool{true, false} {
		for i, p := range patches {
			switch {
			case !p.TouchesExtension(name, in) || fits(p) != fitting:
			case e == nil:
				e, results[i].Applied = proto.CloneOf(p.Value.(*corev3.TypedExtensionConfig)), true
			case fitting:
				results[i].Refused = fmt.Sprintf("another patch adds an extension configuration %q; use another name", name)
			}
		}
	}
	return e, results
}

// edit applies an operation to a list: to its elements for which selected is true. Without a selector, a patch inserts at the
// ends of the list. ADD inserts at an index of its own.
func edit[T any](list []T, p *Patch, selector bool, selected func(T) bool, value func() T, addAt int, mergeIn func(T) error) (out []T, matched bool, err error) {
	at := slices.IndexFunc(list, selected)
	switch p.Operation {
	case add:
		return slices.Insert(list, addAt, value()), true, nil
	case insertFirst:
		if selector && at < 0 {
			return list, false, nil
		}
		return slices.Insert(list, 0, value()), true, nil
	case insertBefore, insertAfter:
		switch {
		case !selector && p.Operation == insertBefore:
			at = 0
		case !selector:
			at = len(list)
		case at < 0:
			return list, false, nil
		case p.Operation == insertAfter:
			at++
		}
		return slices.Insert(list, at, value()), true, nil
	case replace:
		if at < 0 {
			return list, false, nil
		}
		list[at] = value()
		return list, true, nil
	case remove:
		n := len(list)
		list = slices.DeleteFunc(list, selected)
		return list, len(list) < n, nil
	case merge, mergeReplace:
		for _, e := range list {
			if selected(e) {
				if err := mergeIn(e); err != nil {
					return list, false, err
				}
				matched = true
			}
		}
		return list, matched, nil
	}
	panic(fmt.Sprintf("patch: operation %s", p.Operation)) // Parse refuses it
}

func listenerFilters(l *listenerv3.Listener, p *Patch) (matched bool, err error) {
	selector := p.Match.GetListener().GetListenerFilter()
	name := first(selector, p.name())
	l.ListenerFilters, matched, err = edit(l.ListenerFilters, p, selector != "", func(f *listenerv3.ListenerFilter) bool { return f.Name == name },
		func() *listenerv3.ListenerFilter { return proto.CloneOf(p.Value.(*listenerv3.ListenerFilter)) }, len(l.ListenerFilters), nil)
	return matched, err
}

func filterChains(l *listenerv3.Listener, p *Patch) (matched bool, err error) {
	if p.Operation == add {
		if port := p.Match.GetListener().GetPortNumber(); port != 0 && virtual(l.Name) && p.Value.(*listenerv3.FilterChain).GetFilterChainMatch().GetDestinationPort().GetValue() != port {
			return false, nil
		}
		l.FilterChains = append(l.FilterChains, proto.CloneOf(p.Value.(*listenerv3.FilterChain)))
		return true, nil
	}
	if p.Operation == remove {
		n := len(l.FilterChains)
		l.FilterChains = slices.DeleteFunc(l.FilterChains, func(fc *listenerv3.FilterChain) bool { return p.matchesChain(l, fc) })
		matched = len(l.FilterChains) < n
		if fc := l.DefaultFilterChain; fc != nil && p.matchesChain(l, fc) {
			l.DefaultFilterChain, matched = nil, true
		}
		if matched && len(l.FilterChains) == 0 && l.DefaultFilterChain == nil {
			return true, errors.New("the listener would have no filter chain; use REMOVE with applyTo LISTENER")
		}
		return matched, nil
	}
	return eachChain(l, p, func(fc *listenerv3.FilterChain) (bool, error) {
		return true, p.mergeChain(fc, p.Value.(*listenerv3.FilterChain))
	})
}

// eachChain calls a function with the filter chains that a patch matches, and reports whether one of the calls did.
func eachChain(l *listenerv3.Listener, p *Patch, do func(*listenerv3.FilterChain) (bool, error)) (matched bool, err error) {
	all := l.FilterChains
	if l.DefaultFilterChain != nil {
		all = append(slices.Clone(all), l.DefaultFilterChain)
	}
	for _, fc := range all {
		if !p.matchesChain(l, fc) {
			continue
		}
		one, err := do(fc)
		if err != nil {
			return true, err
		}
		matched = matched || one
	}
	return matched, nil
}

func (ranks ranks) networkFilters(l *listenerv3.Listener, p *Patch) (bool, error) {
	selector := canonical(p.filter().GetName())
	name := first(selector, canonical(p.name()))
	return eachChain(l, p, func(fc *listenerv3.FilterChain) (matched bool, err error) {
		var last string
		if n := len(fc.Filters); n > 0 {
			last = fc.Filters[n-1].Name
		}
		fc.Filters, matched, err = edit(fc.Filters, p, selector != "", func(f *listenerv3.Filter) bool { return canonical(f.Name) == name },
			func() *listenerv3.Filter { return proto.CloneOf(p.Value.(*listenerv3.Filter)) }, ranks.place(p, filterNames(fc.Filters)),
			func(f *listenerv3.Filter) error { return p.mergeConfigured(f, p.Value.(*listenerv3.Filter)) })
		if err != nil || !matched {
			return matched, err
		}
		for _, f := range fc.Filters {
			if err := validate(f); err != nil {
				return true, err
			}
		}
		return true, ends(filterNames(fc.Filters), last)
	})
}

// ends checks that the last filter of a chain, which answers, is still the last one.
func ends(names []string, last string) error {
	if i := slices.Index(names, last); last != "" && i >= 0 && i != len(names)-1 {
		return fmt.Errorf("%q would come after %q, which is the last filter; use INSERT_BEFORE", names[len(names)-1], last)
	}
	return nil
}

func filterNames[F interface{ GetName() string }](list []F) []string {
	var out []string
	for _, f := range list {
		out = append(out, f.GetName())
	}
	return out
}

// eachManager calls a function with the HTTP connection managers of the filter chains that a patch matches, and puts those back
// for which it returns true.
func eachManager(l *listenerv3.Listener, p *Patch, do func(*hcmv3.HttpConnectionManager) (bool, error)) (bool, error) {
	return eachChain(l, p, func(fc *listenerv3.FilterChain) (matched bool, err error) {
		for _, f := range fc.Filters {
			h := &hcmv3.HttpConnectionManager{}
			if !f.GetTypedConfig().MessageIs(h) {
				continue
			}
			if name := canonical(p.filter().GetName()); name != "" && name != canonical(f.Name) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
				return true, err
			}
			one, err := do(h)
			if err != nil {
				return true, err
			}
			if !one {
				continue
			}
			matched = true
			setConfig(f, pack(h))
			if err := validate(f); err != nil {
				return true, err
			}
		}
		return matched, nil
	})
}

func (ranks ranks) httpFilters(l *listenerv3.Listener, p *Patch) (bool, error) {
	selector := canonical(p.filter().GetSubFilter().GetName())
	name := first(selector, canonical(p.name()))
	return eachManager(l, p, func(h *hcmv3.HttpConnectionManager) (matched bool, err error) {
		var last string
		if n := len(h.HttpFilters); n > 0 {
			last = h.HttpFilters[n-1].Name
		}
		h.HttpFilters, matched, err = edit(h.HttpFilters, p, selector != "", func(f *hcmv3.HttpFilter) bool { return canonical(f.Name) == name },
			func() *hcmv3.HttpFilter { return proto.CloneOf(p.Value.(*hcmv3.HttpFilter)) }, ranks.place(p, filterNames(h.HttpFilters)),
			func(f *hcmv3.HttpFilter) error { return p.mergeConfigured(f, p.Value.(*hcmv3.HttpFilter)) })
		if err != nil || !matched {
			return matched, err
		}
		for _, f := range h.HttpFilters {
			if err := validate(f); err != nil {
				return true, err
			}
		}
		if err := ends(filterNames(h.HttpFilters), last); err != nil {
			return true, err
		}
		if !slices.Contains(filterNames(h.HttpFilters), last) && p.Operation == remove {
			return true, fmt.Errorf("the last filter, %q, would be missing", last)
		}
		return true, nil
	})
}

// inlineRoutes applies a patch to the route configurations in a listener.
func inlineRoutes(l *listenerv3.Listener, p *Patch) (bool, error) {
	any := &Patch{ApplyTo: p.ApplyTo} // every filter chain
	return eachManager(l, any, func(h *hcmv3.HttpConnectionManager) (bool, error) {
		rc := h.GetRouteConfig()
		if rc == nil || !p.TouchesRoutes(rc.Name, Inbound) {
			return false, nil
		}
		return routes(rc, p)
	})
}

// RouteConfiguration returns a route configuration with patches. There is a Result for each patch.
func RouteConfiguration(rc *routev3.RouteConfiguration, in Context, patches []*Patch) (*routev3.RouteConfiguration, []Result) {
	results := make([]Result, len(patches))
	rc, _ = run(rc, patches, results, func(p *Patch) bool { return p.TouchesRoutes(rc.Name, in) }, routes)
	return rc, results
}

// VirtualHost returns a virtual host, which is a resource of its own, of a route configuration with patches, nil if one
// removes it. Its name is that of the resource, "ROUTES/NAME"; patches know it by NAME. There is a Result for each patch.
func VirtualHost(h *routev3.VirtualHost, routes string, in Context, patches []*Patch) (*routev3.VirtualHost, []Result) {
	results := make([]Result, len(patches))
	whole := h.Name
	h = proto.CloneOf(h)
	h.Name = strings.TrimPrefix(whole, routes+"/")
	h, gone := run(h, patches, results, func(p *Patch) bool { return p.TouchesVirtualHost(routes, h.Name, in) && p.matchesHost(h) },
		func(h *routev3.VirtualHost, p *Patch) (bool, error) {
			if p.ApplyTo == networking.EnvoyFilter_HTTP_ROUTE {
				return hostRoutes(h, p)
			}
			if p.Operation == remove {
				return true, errGone
			}
			changeHost(h, p)
			return true, nil
		})
	if gone {
		return nil, results
	}
	h.Name = whole // Envoy knows a resource by it
	return h, results
}

// changeHost merges a patch into a virtual host, or puts its value in its place.
func changeHost(h *routev3.VirtualHost, p *Patch) {
	src := proto.CloneOf(p.Value.(*routev3.VirtualHost))
	if p.Operation == replace {
		proto.Reset(h)
		proto.Merge(h, src)
		return
	}
	clearName(src)
	p.mergeInto(h, src)
}

// routes applies a patch that matches a route configuration.
func routes(rc *routev3.RouteConfiguration, p *Patch) (matched bool, err error) {
	switch {
	case p.ApplyTo == networking.EnvoyFilter_ROUTE_CONFIGURATION:
		src := proto.CloneOf(p.Value.(*routev3.RouteConfiguration))
		clearName(src)
		p.mergeInto(rc, src)
		matched = true
	case p.ApplyTo == networking.EnvoyFilter_HTTP_ROUTE:
		for _, h := range rc.VirtualHosts {
			if !p.matchesHost(h) {
				continue
			}
			one, err := hostRoutes(h, p)
			if err != nil {
				return true, err
			}
			matched = matched || one
		}
	case p.Operation == add:
		rc.VirtualHosts, matched = append(rc.VirtualHosts, proto.CloneOf(p.Value.(*routev3.VirtualHost))), true
	case p.Operation == remove:
		n := len(rc.VirtualHosts)
		rc.VirtualHosts = slices.DeleteFunc(rc.VirtualHosts, p.matchesHost)
		matched = len(rc.VirtualHosts) < n
	default:
		for _, h := range rc.VirtualHosts {
			if p.matchesHost(h) {
				changeHost(h, p)
				matched = true
			}
		}
	}
	if !matched {
		return false, nil
	}
	return true, distinct(rc)
}

// distinct checks what Envoy requires of the virtual hosts of a route configuration.
func distinct(rc *routev3.RouteConfiguration) error {
	names, domains := map[string]bool{}, map[string]bool{}
	for _, h := range rc.VirtualHosts {
		if names[h.Name] {
			return fmt.Errorf("there would be two virtual hosts %q", h.Name)
		}
		names[h.Name] = true
		for _, d := range h.Domains {
			if domains[d] {
				return fmt.Errorf("the domain %q would be in two virtual hosts, or twice in one", d)
			}
			domains[d] = true
		}
	}
	return nil
}

func hostRoutes(h *routev3.VirtualHost, p *Patch) (matched bool, err error) {
	selector := p.Match.GetRouteConfiguration().GetVhost().GetRoute() != nil
	h.Routes, matched, err = edit(h.Routes, p, selector, p.matchesRoute, func() *routev3.Route { return proto.CloneOf(p.Value.(*routev3.Route)) }, len(h.Routes),
		func(r *routev3.Route) error {
			src := proto.CloneOf(p.Value.(*routev3.Route))
			clearName(src)
			p.mergeInto(r, src)
			return nil
		})
	return matched, err
}
