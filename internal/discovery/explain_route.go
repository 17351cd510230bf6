package discovery

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	clusters "github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/explain"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// sent is what the proxy of a client does with a request for a service.
type sent struct {
	simulate.Route
	listener string
	err      error
}

// routed evaluates the route of a request at the proxy of a client, and adds it and the verdicts of the workloads that it leads to.
func (e *explainer) routed(out *explain.Answer, c asker, i *inventory, port uint32, r *simulate.Request) error {
	s := e.send(c, i, port, r)
	out.Route = &explain.Route{Listener: s.listener, Routes: s.Routes, VirtualHost: s.VirtualHost, Name: s.Name, Notes: s.Faults}
	out.Route.Object, out.Route.Origin = e.objectOf(s.Config)
	for _, m := range s.Mirrors {
		out.Route.Notes = append(out.Route.Notes, "a copy of requests is sent to "+m)
	}
	itself := func(status uint32, reason string, by ...string) {
		w := explain.Workload{Name: c.Name, By: by}
		w.Verdict = explain.Verdict{Decision: explain.Answered, Status: int(status), Reason: reason}
		out.Workloads = append(out.Workloads, w)
	}
	switch {
	case s.err != nil:
		w := explain.Workload{Name: c.Name}
		w.Verdict = explain.Verdict{Decision: explain.Unknown, Reason: s.err.Error()}
		out.Workloads = append(out.Workloads, w)
		return nil
	case len(s.Targets) == 0:
		itself(s.Status, answeredBy(s, r, out.Route))
		return nil
	}
	for _, t := range s.Targets {
		one := explain.RouteCluster{Name: t.Cluster, Weight: t.Weight}
		changed := t.Request != nil && !same(t.Request, r)
		if changed {
			one.Request = &explain.Asked{Method: t.Request.Method, Host: t.Request.Authority, Path: t.Request.Path}
		}
		body, list := clusterOf(c.view, t.Cluster)
		missing := s.Missing
		if r == nil {
			missing = 0
		}
		if body == nil {
			itself(missing, "its route leads to cluster "+t.Cluster+", which it does not have", t.Cluster)
			out.Route.Clusters = append(out.Route.Clusters, one)
			continue
		}
		number, known, err := explain.Endpoints(body, list)
		if err != nil {
			return err
		}
		if known {
			one.Endpoints = &number
		}
		out.Route.Clusters = append(out.Route.Clusters, one)
		k, named := clusters.ParseName(t.Cluster)
		switch {
		case t.Cluster == mesh.BlackHoleCluster, known && number == 0:
			if missing != 0 {
				missing = 503 // whatever the route says of clusters that do not exist
			}
			itself(missing, "cluster "+t.Cluster+" has no endpoint", t.Cluster)
			continue
		case t.Cluster == mesh.PassthroughCluster:
			passed := c
			passed.mutual = false
			list, err := e.ofService(i, port)
			if err != nil {
				return err
			}
			for _, one := range list {
				for _, w := range e.workloads(passed, one, t.Request) {
					w.By, w.Changed = []string{t.Cluster}, changed
					w.Notes = append(w.Notes, "the client's proxy passes the connection on to its address as it is")
					out.Workloads = append(out.Workloads, w)
				}
			}
			continue
		case !named:
			w := explain.Workload{Name: t.Cluster, By: []string{t.Cluster}}
			w.Verdict = explain.Verdict{Decision: explain.Unknown, Reason: "cluster " + t.Cluster + ": who is behind it is not known"}
			out.Workloads = append(out.Workloads, w)
			continue
		}
		if err := e.behind(out, c, k, t, changed); err != nil {
			return err
		}
	}
	return nil
}

// behind adds the verdicts of the workloads of a cluster.
func (e *explainer) behind(out *explain.Answer, c asker, k clusters.Key, t simulate.Target, changed bool) error {
	before := len(out.Workloads)
	if to := e.service(k.Host); to != nil {
		list, err := e.ofService(to, k.Port)
		if err != nil {
			return err
		}
		for _, one := range list {
			one.cluster = t.Cluster
			for _, w := range e.workloads(c, one, t.Request) {
				w.Changed = changed
				out.Workloads = append(out.Workloads, w)
			}
		}
	}
	if len(out.Workloads) == before {
		w := explain.Workload{Name: t.Cluster, By: []string{t.Cluster}}
		w.Verdict = explain.Verdict{Decision: explain.Unknown, Reason: "no endpoint of cluster " + t.Cluster + " is a workload that is known here: gateways of other networks are not evaluated"}
		out.Workloads = append(out.Workloads, w)
	}
	return nil
}

// answeredBy says why the client's proxy answers itself.
func answeredBy(s sent, r *simulate.Request, route *explain.Route) string {
	switch {
	case r == nil:
		return "the client's proxy closes the connection: it has no filter chain for it"
	case s.Status == 400:
		return "the client's proxy refuses the path"
	case s.Name == "" && s.Config == "" && s.Status == 404 && s.VirtualHost == "":
		return "the client's proxy has no virtual host for " + r.Authority
	case s.Config == "" && s.Status == 404:
		return "no route of virtual host " + s.VirtualHost + " matches"
	case s.VirtualHost == "block_all":
		return "the client's proxy knows no service " + r.Authority + ", and sends nothing to others (REGISTRY_ONLY, or a Sidecar)"
	}
	out := "the client's proxy answers itself"
	if route.Object != "" {
		out += ", by " + route.Object
		if route.Origin != "" {
			out += " (" + route.Origin + ")"
		}
	}
	return out
}

// same reports whether a request is forwarded as it is.
func same(a, b *simulate.Request) bool {
	return a.Path == b.Path && a.Authority == b.Authority && len(a.Unknown) == 0 && maps.EqualFunc(a.Headers, b.Headers, slices.Equal)
}

// clusterOf returns a cluster of a view, and its endpoints if they are separate; nil for none.
func clusterOf(v *xds.View, name string) (cluster, endpoints []byte) {
	r := v.Of(xds.CDS).Get(name)
	if r == nil {
		return nil, nil
	}
	if l := v.Of(xds.EDS).Get(name); l != nil {
		endpoints = l.Body
	}
	return r.Body, endpoints
}

// send evaluates where the proxy of a client sends what it connects to a service.
func (e *explainer) send(c asker, i *inventory, port uint32, r *simulate.Request) (out sent) {
	to := e.addressOf(c, i, port)
	if !to.IsValid() {
		out.err = fmt.Errorf("service %s has no address that is known for the client: name one of its Pods", i.service.Host)
		return out
	}
	connection := simulate.Connection{Destination: netip.AddrPortFrom(to, uint16(port))} // #nosec G115 -- it is a port
	if c.address.IsValid() {
		connection.Source = netip.AddrPortFrom(c.address, 0)
	}
	if r != nil {
		connection.Protocol = "http/1.1"
	}
	var l *xds.Resource
	for _, name := range append(simulate.Destined(connection.Destination), mesh.VirtualOutbound) {
		if l = c.view.Of(xds.LDS).Get(name); l != nil {
			break
		}
	}
	if l == nil {
		out.err = fmt.Errorf("the proxy %s has no listener for %s", c.Name, connection.Destination)
		return out
	}
	out.listener = l.Name
	var routes simulate.Route
	routes, out.err = explain.Outbound(l.Body, connection, r, func(name string) (config []byte, hosts [][]byte) {
		if r := c.view.Of(xds.RDS).Get(name); r != nil {
			config = r.Encoded()
		}
		for h := range c.view.Of(xds.VHDS).All() {
			if at := strings.LastIndexByte(h.Name, '/'); at >= 0 && h.Name[:at] == name {
				hosts = append(hosts, h.Body)
			}
		}
		return config, hosts
	})
	routes.VirtualHost = strings.TrimPrefix(routes.VirtualHost, routes.Routes+"/") // which those of VHDS have
	out.Route = routes
	return out
}

// addressOf returns an address that the name of a service has for a client: its own, one that the client's agent gives it, or that of
// an instance; the zero value if there is none.
func (e *explainer) addressOf(c asker, i *inventory, port uint32) netip.Addr {
	if len(i.service.Addresses.VIPs) > 0 {
		return i.service.Addresses.VIPs[0]
	}
	if list, err := mesh.ParseNameTable(c.view.Names.Body()); err == nil {
		for _, n := range list {
			if n.Host == i.service.Host && len(n.IPs) > 0 {
				return n.IPs[0]
			}
		}
	}
	for _, in := range i.instances {
		if a, err := netip.ParseAddr(in.Address); err == nil && in.Ports[port] != 0 {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}

// objectOf names the object of a path in metadata, /apis/GROUP/VERSION/namespaces/NAMESPACE/KIND/NAME, and where it is.
func (e *explainer) objectOf(path string) (name, origin string) {
	p := strings.Split(path, "/")
	if len(p) != 8 || p[4] != "namespaces" {
		return path, ""
	}
	kind := strings.ReplaceAll(p[6], "-", "")
	for _, k := range object.Kinds() {
		if lower := strings.ToLower(string(k)); lower != kind && lower != strings.TrimSuffix(kind, "s") {
			continue
		}
		key := object.Key{Kind: k, Namespace: p[5], Name: p[7]}
		e.s.loop.ask(func() {
			if o, ok := e.s.loop.store.Get(key); ok {
				origin = o.Origin.String()
			}
		})
		return key.String(), origin
	}
	return path, ""
}
