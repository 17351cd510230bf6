package config

import (
	"math"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// meshGateway is the reserved gateway name for all sidecars.
const meshGateway = "mesh"

func (c *check) virtualService(s *networking.VirtualService) {
	isDelegate := len(s.Hosts) == 0
	inMesh := !isDelegate && len(s.Gateways) == 0 || slices.Contains(s.Gateways, meshGateway)
	for i, h := range s.Hosts {
		c.host(item("spec.hosts", i), h)
		if h == "*" && inMesh {
			c.fail(item("spec.hosts", i), "invalid host \"*\": it matches all requests in the mesh; list the hosts, or bind the route to a gateway only")
		}
	}
	c.hostsOnce(s.Hosts)
	c.gatewayNames("spec.gateways", s.Gateways)
	if isDelegate {
		c.delegate(s)
	}
	if len(s.Http)+len(s.Tls)+len(s.Tcp) == 0 {
		c.fail("spec", "has no routes; add http, tls or tcp")
	}
	for i, r := range s.Http {
		c.httpRoute(item("spec.http", i), r, inMesh)
	}
	for i, r := range s.Tls {
		c.tlsRoute(item("spec.tls", i), r)
	}
	for i, r := range s.Tcp {
		c.tcpRoute(item("spec.tcp", i), r)
	}
	c.exportTo("spec.exportTo", s.ExportTo, false)
	c.l4(s)
}

// delegate checks a VirtualService without hosts, whose http routes others use. [control-plane 1.7.26]
func (c *check) delegate(s *networking.VirtualService) {
	if len(s.Gateways) > 0 {
		c.fail("spec.hosts", "is empty; add at least one host, or remove gateways: without hosts the object is a delegate, whose roots say where its routes apply")
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"tls", len(s.Tls) > 0}, {"tcp", len(s.Tcp) > 0}} {
		if f.set {
			c.fail("spec."+f.name, "is set in a delegate; add hosts, or remove it: without hosts the object is a delegate, and delegates have http routes only")
		}
	}
	for i, r := range s.Http {
		if r.GetDelegate() != nil {
			c.fail(item("spec.http", i)+".delegate", "is set in a delegate; add hosts, or remove it: without hosts the object is a delegate, which cannot delegate itself")
		}
	}
}

// gatewayNames checks "mesh", "name" and "namespace/name".
func (c *check) gatewayNames(field string, names []string) {
	for i, g := range names {
		namespace, name, slash := strings.Cut(g, "/")
		if !slash {
			namespace, name = "default", g
		}
		if !isLabel(namespace) || !isDomain(name) {
			c.fail(item(field, i), "invalid gateway %q: want mesh, a name, or namespace/name", g)
		}
	}
}

func (c *check) httpRoute(at string, r *networking.HTTPRoute, inMesh bool) {
	if r == nil {
		c.fail(at, "is empty; add a route, a redirect or a directResponse")
		return
	}
	c.action(at, r)
	for i, m := range r.Match {
		c.httpMatch(item(at+".match", i), m, inMesh && (len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), meshGateway)))
	}
	c.httpDestinations(at+".route", r.Route)
	c.duration(at+".timeout", r.Timeout)
	if r.Retries != nil {
		c.retries(at+".retries", r.Retries)
	}
	if r.Fault != nil {
		c.faults(at+".fault", r.Fault)
	}
	if r.Rewrite != nil {
		c.rewrite(at+".rewrite", r.Rewrite)
	}
	if r.Redirect != nil {
		c.redirect(at+".redirect", r.Redirect)
	}
	if r.DirectResponse != nil {
		c.directResponse(at+".directResponse", r.DirectResponse)
	}
	c.mirrors(at, r)
	if r.CorsPolicy != nil {
		c.cors(at+".corsPolicy", r.CorsPolicy)
	}
	c.headers(at+".headers", r.Headers)
}

// action checks that a route has exactly one action.
func (c *check) action(at string, r *networking.HTTPRoute) {
	var actions []string
	for _, a := range []struct {
		name string
		set  bool
	}{{"route", len(r.Route) > 0}, {"redirect", r.Redirect != nil}, {"directResponse", r.DirectResponse != nil}, {"delegate", r.Delegate != nil}} {
		if a.set {
			actions = append(actions, a.name)
		}
	}
	switch {
	case len(actions) == 0:
		c.fail(at, "has no action; add a route, a redirect or a directResponse")
	case len(actions) > 1:
		c.fail(at+"."+actions[1], "%s is set too; remove one of the two", actions[0])
	case r.Delegate != nil:
		c.delegateName(at+".delegate", r.Delegate)
	case len(r.Route) > 0:
	default:
		if r.Fault != nil {
			c.fail(at+".fault", "conflicts with %s; remove one of the two", actions[0])
		}
		if r.Rewrite != nil {
			c.fail(at+".rewrite", "conflicts with %s; remove one of the two", actions[0])
		}
	}
}

func (c *check) delegateName(at string, d *networking.Delegate) {
	if !isDomain(d.Name) {
		c.fail(at+".name", "invalid name %q: want that of a VirtualService", d.Name)
	}
	if d.Namespace != "" && !isLabel(d.Namespace) {
		c.fail(at+".namespace", "invalid namespace %q: want a name", d.Namespace)
	}
}

func (c *check) httpMatch(at string, m *networking.HTTPMatchRequest, inMesh bool) {
	if m == nil {
		c.fail(at, "is empty; add a condition or remove it")
		return
	}
	for _, f := range []struct {
		name  string
		match *networking.StringMatch
	}{{"uri", m.Uri}, {"scheme", m.Scheme}, {"method", m.Method}, {"authority", m.Authority}} {
		if f.match != nil {
			c.match(at+"."+f.name, f.match, false)
		}
	}
	for _, h := range sorted(m.Headers) {
		c.headerMatch(entry(at+".headers", h), h, m.Headers[h], inMesh)
	}
	for _, h := range sorted(m.WithoutHeaders) {
		c.headerMatch(entry(at+".withoutHeaders", h), h, m.WithoutHeaders[h], inMesh)
	}
	for _, q := range sorted(m.QueryParams) {
		if q == "" {
			c.fail(at+".queryParams", "the name of a parameter is empty; set it")
		}
		c.match(entry(at+".queryParams", q), m.QueryParams[q], true)
	}
	c.port(at+".port", m.Port, true)
	c.labels(at+".sourceLabels", m.SourceLabels)
	c.gatewayNames(at+".gateways", m.Gateways)
	if m.SourceNamespace != "" && !isLabel(m.SourceNamespace) {
		c.fail(at+".sourceNamespace", "invalid namespace %q: want a name", m.SourceNamespace)
	}
}

// claims begins the names of "headers" that are claims of the request's token.
const claims = "@request.auth.claims"

// claimMatch checks a match of a claim, ".a.b" or "[a][b]" after the prefix. [control-plane 1.7.8]
func (c *check) claimMatch(at, name string, inMesh bool) {
	inner, dots := strings.CutPrefix(strings.TrimPrefix(name, claims), ".")
	names := strings.Split(inner, ".")
	if !dots {
		rest, first := strings.CutPrefix(inner, "[")
		rest, last := strings.CutSuffix(rest, "]")
		if names = strings.Split(rest, "]["); !first || !last {
			names = nil
		}
	}
	if len(names) == 0 || slices.Contains(names, "") {
		c.fail(at, "invalid claim: want %s.NAME, or %s[NAME][NAME] for one within another", claims, claims)
	}
	if inMesh {
		c.warn(at, "claims are matched at gateways only: sidecars are not sent the route; bind it to a gateway alone")
	}
}

func (c *check) headerMatch(at, name string, m *networking.StringMatch, inMesh bool) {
	switch {
	case strings.HasPrefix(name, claims):
		c.claimMatch(at, name, inMesh)
	case !isToken(strings.TrimPrefix(name, ":")):
		c.fail(at, "invalid header name")
	}
	c.match(at, m, true)
}

func (c *check) httpDestinations(at string, list []*networking.HTTPRouteDestination) {
	var weights []int32
	for i, d := range list {
		if c.destination(item(at, i)+".destination", d.GetDestination()); d != nil {
			c.headers(item(at, i)+".headers", d.Headers)
		}
		weights = append(weights, d.GetWeight())
	}
	c.weights(at, weights)
}

// weights checks weights: numbers that are not negative, relative to their sum. A single destination
// gets all requests, whatever its weight.
func (c *check) weights(at string, weights []int32) {
	total := int64(0)
	for i, w := range weights {
		c.notNegative(item(at, i)+".weight", w)
		total += int64(w)
	}
	if total > math.MaxUint32 {
		c.fail(at, "invalid sum of weights %d: want at most 4294967295", total)
	}
	if len(weights) > 1 && total == 0 {
		c.fail(at, "invalid sum of weights 0: want at least one weight of 1 or more")
	}
}

func (c *check) destination(at string, d *networking.Destination) {
	if d == nil || d.Host == "" {
		c.fail(at+".host", "is missing; set the host of a service")
		return
	}
	if d.Host == "*" || !isHost(d.Host) && !isIP(d.Host) {
		c.fail(at+".host", "invalid host %q: want the host of a service", d.Host)
	}
	if d.Subset != "" && !isDomain(d.Subset) {
		c.fail(at+".subset", "invalid subset name %q: want letters, digits and \"-\"", d.Subset)
	}
	if d.Port != nil {
		c.port(at+".port.number", d.Port.Number, false)
	}
}

func (c *check) tlsRoute(at string, r *networking.TLSRoute) {
	if len(r.GetMatch()) == 0 {
		c.fail(at+".match", "is empty; add sniHosts")
	}
	for i, m := range r.GetMatch() {
		if len(m.GetSniHosts()) == 0 {
			c.fail(item(at+".match", i)+".sniHosts", "is empty; add at least one host")
		}
		for j, h := range m.GetSniHosts() {
			c.host(item(item(at+".match", i)+".sniHosts", j), h)
		}
		c.port(item(at+".match", i)+".port", m.GetPort(), true)
		c.subnets(item(at+".match", i)+".destinationSubnets", m.GetDestinationSubnets())
		c.gatewayNames(item(at+".match", i)+".gateways", m.GetGateways())
	}
	c.l4Destinations(at+".route", r.GetRoute())
}

// maxGatewaySubnets is how many combinations of subnets of destinations and of clients the routes of a VirtualService may have at gateways,
// which have filter chains for each.
const maxGatewaySubnets = 1000

// l4 names what is not applied of tls and tcp routes: the client's subnet at sidecars, whose only client is their own workload.
func (c *check) l4(s *networking.VirtualService) {
	atGateways := slices.ContainsFunc(s.Gateways, func(g string) bool { return g != meshGateway })
	atSidecars := len(s.Gateways) == 0 || slices.Contains(s.Gateways, meshGateway)
	to, from := map[string]bool{}, map[string]bool{}
	for i, r := range s.Tcp {
		for j, m := range r.GetMatch() {
			if m.GetSourceSubnet() != "" {
				from[m.SourceSubnet] = true
				if atSidecars {
					c.warn(item(item("spec.tcp", i)+".match", j)+".sourceSubnet", "not applied at sidecars: a match with this condition is left out")
				}
			}
			for _, subnet := range m.GetDestinationSubnets() {
				to[subnet] = true
			}
		}
	}
	for _, r := range s.Tls {
		for _, m := range r.GetMatch() {
			for _, subnet := range m.GetDestinationSubnets() {
				to[subnet] = true
			}
		}
	}
	if n := (len(to) + 1) * (len(from) + 1); atGateways && n > maxGatewaySubnets {
		c.fail("spec", "has %d combinations of destinationSubnets and sourceSubnets: want at most %d at gateways", n, maxGatewaySubnets)
	}
}

func (c *check) tcpRoute(at string, r *networking.TCPRoute) {
	for i, m := range r.GetMatch() {
		c.port(item(at+".match", i)+".port", m.GetPort(), true)
		c.subnets(item(at+".match", i)+".destinationSubnets", m.GetDestinationSubnets())
		if s := m.GetSourceSubnet(); s != "" && !isIP(s) && !isCIDR(s) {
			c.fail(item(at+".match", i)+".sourceSubnet", "invalid subnet %q: want an IP address or a CIDR", s)
		}
		c.gatewayNames(item(at+".match", i)+".gateways", m.GetGateways())
	}
	c.l4Destinations(at+".route", r.GetRoute())
}

func (c *check) subnets(at string, list []string) {
	for i, s := range list {
		if !isIP(s) && !isCIDR(s) {
			c.fail(item(at, i), "invalid subnet %q: want an IP address or a CIDR", s)
		}
	}
}

func (c *check) l4Destinations(at string, list []*networking.RouteDestination) {
	if len(list) == 0 {
		c.fail(at, "is empty; add a destination")
	}
	var weights []int32
	for i, d := range list {
		c.destination(item(at, i)+".destination", d.GetDestination())
		weights = append(weights, d.GetWeight())
	}
	c.weights(at, weights)
}
