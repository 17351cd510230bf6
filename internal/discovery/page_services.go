package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// shownServices is the rule that lists what pages show of services; it has a value only while it is asked for.
func shownServices(g *incr.Graph, m *model.Model) *incr.Rule[struct{}, []ui.Service] {
	return incr.Derive(g, model.LevelCompile, "services on pages", func(r *incr.Reader, _ struct{}) []ui.Service {
		var out []ui.Service
		for _, s := range m.ServiceRows(r) {
			out = append(out, shownService(r, m, s))
		}
		return out
	})
}

// pageServices returns what pages show of services. It is computed anew only after a commit. The result is shared.
func (l *loop) pageServices() (out []ui.Service) {
	l.ask(func() {
		if l.lastPage == nil || l.shownAt != l.counts.commits {
			l.lastPage, l.shownAt = l.shown.Want(struct{}{}), l.counts.commits
			l.shown.Unwant(struct{}{})
			l.graph.Run() // drop it
		}
		out = l.lastPage
	})
	return out
}

// shownService is what pages show of a service.
func shownService(r *incr.Reader, m *model.Model, s *model.Service) ui.Service {
	out := ui.Service{Key: s.Key, Host: s.Host, Namespace: s.Namespace, External: s.External}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, strings.TrimSpace(fmt.Sprintf("%d %s", p.Number, p.Protocol)))
	}
	versions, modes := map[string]int{}, map[string]bool{}
	groups, callers := map[string]ui.Group{}, map[ui.Caller]bool{}
	trust := m.Mesh(r).GetTrustDomain()
	workloads := map[ui.Workload]bool{}
	for _, in := range m.Instances(r, s.Key) {
		out.Endpoints++
		if v := in.Labels["version"]; v != "" {
			versions[v]++
		}
		if s.External {
			continue
		}
		workloads[ui.Workload{Namespace: in.Namespace, Name: in.Workload}] = true
		router := !in.TLS && m.HasGateways(r, s, in)
		c := ui.Caller{Proxy: in.TLS || router}
		if c.Proxy {
			c.Identity = identityOf(in.Identity, trust)
		}
		callers[c] = true
		if router {
			modes["gateway"] = true
			g, key := groupOf(r, m, s, in, map[string]bool{})
			g.Gateway, g.Strict = true, false
			groups["gateway "+key] = g
			continue
		}
		if !in.TLS {
			modes["no proxy"] = true
			groups["no proxy"] = ui.Group{} // nobody enforces policies
			continue
		}
		g, key := groupOf(r, m, s, in, modes)
		groups[key] = g
	}
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		out.Versions = append(out.Versions, ui.Version{Name: v, Endpoints: versions[v]})
	}
	out.Workloads = slices.SortedFunc(maps.Keys(workloads), func(a, b ui.Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out.MutualTLS = slices.Sorted(maps.Keys(modes))
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		out.Groups = append(out.Groups, groups[key])
	}
	out.Callers = slices.SortedFunc(maps.Keys(callers), func(a, b ui.Caller) int { return cmp.Compare(a.Identity.SPIFFE(), b.Identity.SPIFFE()) })
	scope := mesh.Scope{Role: mesh.Sidecar, Namespace: s.Namespace}.ID()
	if v := m.VirtualService(r, scope, s.Host); v != nil {
		out.Routes = routesOf(m.Routes(r, v))
	}
	if len(out.Routes) == 0 { // as for proxies, these count only without others
		out.Routes = kubernetesRoutesOf(r, m, scope, s)
	}
	return out
}

// kubernetesRoutesOf are the rules of the Gateway API's routes whose parent is a service.
func kubernetesRoutesOf(r *incr.Reader, m *model.Model, scope mesh.ScopeID, s *model.Service) (out []ui.Route) {
	seen := map[string]bool{}
	for _, port := range s.Ports {
		for _, key := range m.MeshRoutes(r, scope, s.Host, port.Number) {
			k := m.KubernetesRoute(r, key)
			if seen[key] || k == nil {
				continue
			}
			seen[key] = true
			name := fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name)
			add := func(conditional bool, weights []weight) {
				out = append(out, ui.Route{Name: name, Conditional: conditional, To: destinationsOf(weights)})
			}
			if k.HTTP != nil {
				for _, rule := range k.HTTP.Rules {
					var weights []weight
					for _, b := range rule.BackendRefs {
						weights = append(weights, backend(string(b.Name), b.Weight))
					}
					add(len(rule.Matches) > 0, weights)
				}
			}
			if k.GRPC != nil {
				for _, rule := range k.GRPC.Rules {
					var weights []weight
					for _, b := range rule.BackendRefs {
						weights = append(weights, backend(string(b.Name), b.Weight))
					}
					add(len(rule.Matches) > 0, weights)
				}
			}
		}
	}
	return out
}

// backend is a backend of the Gateway API; its weight is 1 if it has none.
func backend(name string, w *int32) weight {
	out := weight{&networking.Destination{Host: name}, 1}
	if w != nil {
		out.weight = *w
	}
	return out
}

// groupOf returns the policies for a workload of a service, and what identifies them; it adds the modes of its ports.
func groupOf(r *incr.Reader, m *model.Model, s *model.Service, in *model.Instance, modes map[string]bool) (ui.Group, string) {
	of := m.ModesFor(r, in.Namespace, in.Labels)
	c := m.Mesh(r)
	g := ui.Group{Closed: of.Closed, Strict: true, TrustDomains: append([]string{c.GetTrustDomain()}, c.GetTrustDomainAliases()...)}
	key := fmt.Sprint(of.Closed)
	for _, p := range s.Ports {
		mode := of.Of(in.Ports[p.Key()])
		if of.Closed {
			modes["CLOSED"] = true
		} else {
			modes[mode.String()] = true
		}
		g.Strict = g.Strict && mode == mesh.Strict
	}
	key += fmt.Sprint(g.Strict)
	for _, p := range m.AuthorizationFor(r, in.Namespace, in.Labels) {
		if !p.DryRun {
			g.Policies, key = append(g.Policies, ui.Policy{Namespace: p.Namespace, Name: p.Name, Spec: p.Spec}), key+" "+p.Key()
		}
	}
	return g, key
}

// identityOf parses a SPIFFE identity; one that is none has the mesh's trust domain alone.
func identityOf(spiffe, trust string) mesh.Identity {
	id, err := mesh.ParseSPIFFE(spiffe)
	if err != nil {
		return mesh.Identity{TrustDomain: trust}
	}
	return id
}

// routesOf are the routes of a VirtualService: those for HTTP, else those for connections.
func routesOf(v *networking.VirtualService) (out []ui.Route) {
	for _, h := range v.GetHttp() {
		route := ui.Route{Name: h.GetName(), Conditional: len(h.GetMatch()) > 0}
		switch {
		case h.GetRedirect() != nil:
			route.To = []ui.Destination{{Name: "a redirect", Percent: 100}}
		case h.GetDirectResponse() != nil:
			route.To = []ui.Destination{{Name: "a direct response", Percent: 100}}
		}
		var weights []weight
		for _, d := range h.GetRoute() {
			weights = append(weights, weight{d.GetDestination(), d.GetWeight()})
		}
		route.To = append(route.To, destinationsOf(weights)...)
		out = append(out, route)
	}
	for _, h := range v.GetTcp() {
		var weights []weight
		for _, d := range h.GetRoute() {
			weights = append(weights, weight{d.GetDestination(), d.GetWeight()})
		}
		out = append(out, ui.Route{Conditional: len(h.GetMatch()) > 0, To: destinationsOf(weights)})
	}
	return out
}

type weight struct {
	to     *networking.Destination
	weight int32
}

// destinationsOf are destinations with their parts. One alone has everything.
func destinationsOf(list []weight) (out []ui.Destination) {
	total := int32(0)
	for _, w := range list {
		total += w.weight
	}
	for _, w := range list {
		d := ui.Destination{Name: w.to.GetHost(), Percent: 100}
		if s := w.to.GetSubset(); s != "" {
			d.Name += " " + s
		}
		if len(list) > 1 {
			d.Percent = 0
			if total > 0 {
				d.Percent = 100 * float64(w.weight) / float64(total)
			}
		}
		out = append(out, d)
	}
	return out
}
