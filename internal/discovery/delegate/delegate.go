// Package delegate puts the routes of delegates in place of the routes of VirtualServices that name them.
//
// A VirtualService without hosts is a delegate: only others, its roots, use it. [Merge] is a pure function, which the compiler calls for the
// routes and package analyze for what is left out. A merged route matches no request that the root's route does not match, whatever the
// delegate says: a team that owns a part of a host's paths gets these and no others. [control-plane 1.7.26]
package delegate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxPairs bounds the pairs of matches that are compared for one root: merging multiplies their numbers, and those of one object are
// bounded by its size only.
const maxPairs = 1 << 16

// Mesh is what merging needs to know.
type Mesh struct {
	// Domain is the cluster's DNS suffix.
	Domain string
	// ExportTo is the mesh's default of exportTo of VirtualServices.
	ExportTo []string
	// Find returns the VirtualService with that namespace and name, nil if there is none.
	Find func(namespace, name string) *networking.VirtualService
}

// Problem says what of a delegate is left out.
type Problem struct {
	// Route is the index of the root's route.
	Route int
	Text  string
}

// Any reports whether a VirtualService delegates.
func Any(spec *networking.VirtualService) bool {
	return slices.ContainsFunc(spec.GetHttp(), func(h *networking.HTTPRoute) bool { return h.GetDelegate() != nil })
}

// Named returns the namespace and name of a delegate that a VirtualService in a namespace names.
func Named(d *networking.Delegate, namespace string) (delegateNamespace, name string) {
	if d.GetNamespace() != "" {
		namespace = d.GetNamespace()
	}
	return namespace, d.GetName()
}

// Merge returns the http routes of a VirtualService in a namespace, with the routes of delegates in place of the routes that name
// them, and what is left out, in order. Hosts and Gateways that a delegate names by a short name are those of the delegate's namespace.
// What it is given is not modified, and the result shares messages with it.
func Merge(namespace string, spec *networking.VirtualService, m Mesh) (routes []*networking.HTTPRoute, problems []Problem) {
	pairs := 0
	for i, root := range spec.GetHttp() {
		if root.GetDelegate() == nil || len(spec.Hosts) == 0 {
			routes = append(routes, root)
			continue
		}
		left := func(format string, args ...any) {
			problems = append(problems, Problem{i, fmt.Sprintf(format, args...)})
		}
		ns, name := Named(root.Delegate, namespace)
		d := m.Find(ns, name)
		switch {
		case d == nil:
			left("there is no VirtualService %s/%s", ns, name)
			continue
		case len(d.Hosts) > 0:
			left("VirtualService %s/%s has hosts: only one without hosts is a delegate", ns, name)
			continue
		case !mesh.Exported(d.ExportTo, m.ExportTo, ns, namespace):
			left("VirtualService %s/%s is not exported to namespace %s", ns, name, namespace)
			continue
		}
		for j, sub := range d.Http {
			if sub.GetDelegate() != nil {
				left("VirtualService %s/%s: http[%d] delegates itself, which delegates cannot", ns, name, j)
				continue
			}
			if pairs += len(root.Match) * len(sub.GetMatch()); pairs > maxPairs {
				left("VirtualService %s/%s: http[%d] has too many matches: root and delegates have more than %d pairs of them", ns, name, j, maxPairs)
				continue
			}
			matches, outside := merger{namespace, ns}.matches(root.Match, sub.GetMatch())
			if outside >= 0 {
				left("VirtualService %s/%s: http[%d].match[%d] is not within a match of the root", ns, name, j, outside)
				continue
			}
			routes = append(routes, merged(root, sub, matches, ns, m.Domain))
		}
	}
	return routes, problems
}

// merged returns a delegate's route with the root's values for what it does not set. Its destinations are full names.
func merged(root, sub *networking.HTTPRoute, matches []*networking.HTTPMatchRequest, namespace, domain string) *networking.HTTPRoute {
	out := proto.Clone(sub).(*networking.HTTPRoute)
	out.Match, out.Name = matches, joined(root.Name, sub.Name)
	to := func(d *networking.Destination) {
		if d != nil {
			d.Host = mesh.FullHost(d.Host, namespace, domain)
		}
	}
	for _, d := range out.Route {
		to(d.Destination)
	}
	to(out.Mirror)
	for _, d := range out.Mirrors {
		to(d.Destination)
	}
	if out.Rewrite == nil && out.Redirect == nil && out.DirectResponse == nil {
		out.Rewrite = root.Rewrite
	}
	out.Timeout, out.Retries = cmp.Or(out.Timeout, root.Timeout), cmp.Or(out.Retries, root.Retries)
	if out.Fault == nil && out.Redirect == nil && out.DirectResponse == nil {
		out.Fault = root.Fault
	}
	out.Mirror, out.MirrorPercentage = cmp.Or(out.Mirror, root.Mirror), cmp.Or(out.MirrorPercentage, root.MirrorPercentage)
	out.MirrorPercent = cmp.Or(out.MirrorPercent, root.MirrorPercent) //nolint:staticcheck // both fields are read
	if out.Mirrors == nil {
		out.Mirrors = root.Mirrors
	}
	out.CorsPolicy, out.Headers = cmp.Or(out.CorsPolicy, root.CorsPolicy), cmp.Or(out.Headers, root.Headers)
	return out
}

// joined returns the name of something of a root and a delegate.
func joined(root, sub string) string {
	if root == "" || sub == "" {
		return root + sub
	}
	return root + "-" + sub
}

// merger has the namespaces of a root and its delegate.
type merger struct{ root, sub string }

// matches returns the matches of a merged route: for each of the delegate's, one for each of the root's that it is within. outside is the
// index of one that is within none, -1 if there is none.
func (n merger) matches(root, sub []*networking.HTTPMatchRequest) (out []*networking.HTTPMatchRequest, outside int) {
	if len(sub) == 0 {
		return root, -1
	}
	if len(root) == 0 {
		root = []*networking.HTTPMatchRequest{{}}
	}
	for i, s := range sub {
		within := false
		for _, r := range root {
			if s != nil && r != nil && n.within(r, s) {
				out, within = append(out, n.match(r, s)), true
			}
		}
		if !within {
			return nil, i
		}
	}
	return out, -1
}

// within reports whether each condition of a delegate's match is at least as narrow as the root's for the same thing.
func (n merger) within(root, sub *networking.HTTPMatchRequest) bool {
	for _, pair := range [][2]*networking.StringMatch{{root.Uri, sub.Uri}, {root.Scheme, sub.Scheme}, {root.Method, sub.Method}, {root.Authority, sub.Authority}} {
		if !narrower(pair[0], pair[1]) {
			return false
		}
	}
	for _, pair := range [][2]map[string]*networking.StringMatch{{root.Headers, sub.Headers}, {root.QueryParams, sub.QueryParams}, {sub.WithoutHeaders, root.WithoutHeaders}} {
		for name, value := range pair[1] { // what is to be absent is narrower if it is wider
			if old, both := pair[0][name]; both && !narrower(old, value) {
				return false
			}
		}
	}
	for name, value := range sub.SourceLabels {
		if old, both := root.SourceLabels[name]; both && old != value {
			return false
		}
	}
	if root.Uri != nil && sub.Uri != nil && root.IgnoreUriCase != sub.IgnoreUriCase {
		return false
	}
	if root.Port != 0 && sub.Port != 0 && root.Port != sub.Port || root.SourceNamespace != "" && sub.SourceNamespace != "" && root.SourceNamespace != sub.SourceNamespace {
		return false
	}
	mine := gateways(root.Gateways, n.root)
	return len(mine) == 0 || !slices.ContainsFunc(gateways(sub.Gateways, n.sub), func(g string) bool { return !slices.Contains(mine, g) })
}

// narrower reports whether what sub matches is known to be matched by root. Regular expressions are not compared: where both say
// something, neither may be one.
func narrower(root, sub *networking.StringMatch) bool {
	if root == nil || sub == nil {
		return true
	}
	exact, prefix := root.GetExact(), root.GetPrefix()
	switch {
	case root.MatchType == nil:
		return true // it is there
	case root.GetRegex() != "" || sub.GetRegex() != "":
		return false
	case exact != "":
		return sub.GetPrefix() == "" && sub.GetExact() == exact
	case prefix != "" && sub.GetPrefix() != "":
		return strings.HasPrefix(sub.GetPrefix(), prefix)
	case prefix != "" && sub.GetExact() != "":
		return strings.HasPrefix(sub.GetExact(), prefix)
	}
	return false
}

// match returns a delegate's match with the root's conditions for what it does not say.
func (n merger) match(root, sub *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	out := proto.Clone(sub).(*networking.HTTPMatchRequest)
	out.Name = joined(root.Name, sub.Name)
	if out.Uri == nil {
		out.Uri, out.IgnoreUriCase = root.Uri, root.IgnoreUriCase
	}
	out.Scheme, out.Method, out.Authority = cmp.Or(out.Scheme, root.Scheme), cmp.Or(out.Method, root.Method), cmp.Or(out.Authority, root.Authority)
	out.Headers, out.WithoutHeaders = both(root.Headers, sub.Headers), both(root.WithoutHeaders, sub.WithoutHeaders)
	out.QueryParams, out.SourceLabels = both(root.QueryParams, sub.QueryParams), both(root.SourceLabels, sub.SourceLabels)
	out.Port, out.SourceNamespace, out.StatPrefix = cmp.Or(out.Port, root.Port), cmp.Or(out.SourceNamespace, root.SourceNamespace), cmp.Or(out.StatPrefix, root.StatPrefix)
	if out.Gateways = gateways(sub.Gateways, n.sub); len(out.Gateways) == 0 {
		out.Gateways = root.Gateways
	}
	return out
}

func both[V any](root, sub map[string]V) map[string]V {
	if len(root)+len(sub) == 0 {
		return nil
	}
	out := map[string]V{}
	maps.Copy(out, root)
	maps.Copy(out, sub)
	return out
}

// gateways returns names of Gateways in a namespace as "namespace/name".
func gateways(names []string, namespace string) (out []string) {
	for _, g := range names {
		if g != "mesh" && !strings.Contains(g, "/") {
			g = namespace + "/" + g
		}
		out = append(out, g)
	}
	return out
}
