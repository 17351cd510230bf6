package compile

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// separate reports whether the virtual hosts of a route configuration are resources of their own. That of a
// listener of one service has one virtual host and is always whole: nothing would be saved. So is that of a
// Sidecar's listener with an address, "ADDRESS_PORT" or "unix://PATH": a Sidecar has few of them, and names of virtual hosts begin with
// that of the configuration, up to a slash.
func (c *Compiler) separate(s mesh.ScopeID, t routeHosts) bool {
	return !t.Own && !strings.ContainsAny(t.Name, "_/") && !c.opts.WholeRoutes && s.Value().Caps.Has(mesh.VirtualHosts)
}

func virtualHostKey(s mesh.ScopeID, t routeHosts, host string) Key {
	return Key{Kind: VirtualHost, Scope: s, Name: route.ResourceName(t.Name, route.HostName(host, t.Port))}
}

// appendRoute adds a route configuration of a scope without base, and its virtual hosts if they are resources of
// their own.
func (c *Compiler) appendRoute(to []Key, s mesh.ScopeID, t routeHosts) []Key {
	k := Key{Kind: Route, Scope: s, Name: t.Name, SeparateHosts: c.separate(s, t)}
	to = append(to, k)
	if k.SeparateHosts {
		for _, h := range t.Hosts {
			to = append(to, virtualHostKey(s, t, h))
		}
	}
	return to
}

// deriveSeparate adds what a derived scope has of its own, and lacks, of a route configuration whose virtual hosts
// are resources of their own: without them it is that of the base.
func (c *Compiler) deriveSeparate(r *incr.Reader, s mesh.ScopeID, t routeChange, out *derivation) {
	base, _ := c.model.Base(s)
	if t.Missing {
		theirs, _ := c.routesNamed(r, scopeName{base, t.Name})
		out.hidden = c.appendRoute(out.hidden, base, theirs)
		return
	}
	if t.New {
		out.own = append(out.own, Key{Kind: Route, Scope: s, Name: t.Name, SeparateHosts: true})
	}
	for _, d := range c.inner.ownDomains.Of(r, scopeName{s, t.Name}) {
		out.own = append(out.own, virtualHostKey(s, t.routeHosts, d.host))
	}
	for _, h := range t.Without {
		out.hidden = append(out.hidden, virtualHostKey(base, t.routeHosts, h))
	}
}

// virtualHostResource returns a virtual host as a resource of its own, nil if there is none for this client and
// port. It differs from the one in a whole route configuration in its name only.
func (c *Compiler) virtualHostResource(r *incr.Reader, k Key) []byte {
	routes, hostName, _ := strings.Cut(k.Name, "/")
	host := hostName[:strings.LastIndexByte(hostName, ':')]
	b := c.inner.host.Of(r, scopeNameHost{k.Scope, routes, host})
	if b == nil {
		return nil
	}
	return marshal.EncodedAny((*routev3.VirtualHost)(nil), route.Rename(b, k.Name))
}
