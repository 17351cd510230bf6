package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Server is one server of a Gateway, at a port at which a router listens.
type Server struct {
	// Gateway is that of the server, and Index the server's in it.
	Gateway Row
	Index   int
	// Port is the number in the Gateway, which clients use and routes match; Listen is the target of that port in the
	// router's Service, or the number if no Service has the port. [control-plane 1.9.2]
	Port, Listen uint32
	// Bind is the address of the listener, empty for all addresses.
	Bind string
	Kind mesh.ServerKind
	Spec *networking.Server
	// hosts are those of the server.
	hosts []egressHost
	// listener is set for one of a Gateway of the Gateway API.
	listener *gatewayListener
	// ingress is set for one of an Ingress.
	ingress *IngressRow
	// ClientCA are the certificates, in PEM, that those of clients are verified with in modes MUTUAL and OPTIONAL_MUTUAL; empty for those that Spec
	// names.
	ClientCA string
}

// Key returns "namespace/name" of the server's Gateway.
func (s Server) Key() string { return s.Gateway.Key() }

// Hosts returns the hosts of a VirtualService in a namespace that clients reach through the server, without repetition: of
// each pair of a server's and a VirtualService's host that have names in common, the more specific one.
// [control-plane 1.9.3]
func (s Server) Hosts(namespace string, hosts []string) (out []string) {
	for _, mine := range s.hosts {
		if mine.namespace != "*" && mine.namespace != namespace {
			continue
		}
		for _, h := range hosts {
			switch {
			case hostMatches(mine.host, h):
			case hostMatches(h, mine.host):
				h = mine.host
			default:
				continue
			}
			if !contains(out, h) {
				out = append(out, h)
			}
		}
	}
	return out
}

// EndsHTTPS reports whether the router ends the server's TLS and routes the HTTP inside.
func (s Server) EndsHTTPS() bool {
	return mesh.ParseProtocol(s.Spec.GetPort().GetProtocol()) == mesh.HTTPS && s.Spec.GetTls().GetMode() != networking.ServerTLSSettings_PASSTHROUGH
}

// Names returns the server's hosts without their namespaces.
func (s Server) Names() []string {
	var out []string
	for _, h := range s.hosts {
		if !contains(out, h.host) {
			out = append(out, h.host)
		}
	}
	return out
}

// RouterPort is one listener of a router, made of the servers of all Gateways that select it; of two kinds that share a listener it is the servers
// of one.
type RouterPort struct {
	Listen uint32
	Bind   string
	Kind   mesh.ServerKind
	// Servers are those of the Gateways by age, in the order of the servers in each.
	Servers []Server
}

// Router is what the Gateways of a router say together.
type Router struct {
	// Ports are sorted by port, address and kind.
	Ports []RouterPort
}

// Router returns the listeners of a scope's routers. [control-plane 1.9.10]
func (m *Model) Router(r *incr.Reader, s mesh.ScopeID) Router {
	if s.Value().Gateways == "" {
		return Router{}
	}
	return m.rules.router.Of(r, s)
}

// udpField precedes the number of a port of UDP in a scope's Gateways.
const udpField = "udp:"

// gatewaysFor returns the keys of the Gateways that select a router, sorted by key, and the ports of its Services that
// have another number in the Pod, "80>8080" or "udp:53>5353", all separated by spaces. [control-plane 1.9.1]
func (m *Model) gatewaysFor(r *incr.Reader, k ProxyKey, labels map[string]string, services string) string {
	if k.Role != mesh.Router {
		return ""
	}
	var out []string
	for key, g := range incr.In(r, m.tables.routers, all) {
		if subset(g.Spec.Selector, labels) {
			out = append(out, key)
		}
	}
	out = append(out, m.kubernetesGatewaysFor(r, k, labels, services)...)
	if m.servesIngresses(r, labels) {
		out = append(out, ingressField)
	}
	if len(out) == 0 {
		return ""
	}
	slices.Sort(out)
	var ports []string
	for _, p := range InboundPorts(mesh.Workload{Services: services}) {
		ports = append(ports, fmt.Sprintf("%d>%d", p.Port, p.Target))
	}
	ports = append(ports, m.udpTargets(r, services)...)
	slices.Sort(ports)
	return strings.Join(append(out, slices.Compact(ports)...), " ")
}

// HasGateways reports whether an instance of a service, if it is a router, has Gateways or Ingresses to serve.
func (m *Model) HasGateways(r *incr.Reader, s *Service, in *Instance) bool {
	return m.gatewaysFor(r, ProxyKey{Role: mesh.Router, Namespace: in.Namespace}, in.Labels, s.Key) != ""
}

// udpTargets returns the ports of UDP of a router's services whose targets have numbers.
func (m *Model) udpTargets(r *incr.Reader, services string) (out []string) {
	for _, field := range strings.Fields(services) {
		key, _, _ := strings.Cut(field, "@")
		s, ok := incr.Get(r, m.tables.services, key)
		if !ok {
			continue
		}
		for _, p := range s.Ports {
			if p.Protocol == mesh.UDP && p.TargetName == "" && p.Target != 0 {
				out = append(out, fmt.Sprintf("%s%d>%d", udpField, p.Number, p.Target))
			}
		}
	}
	return out
}

// router merges the servers of a router's Gateways. A server that cannot share its listener with an older one is left
// out; package config warns of it.
func (m *Model) router(r *incr.Reader, s mesh.ScopeID) (out Router) {
	var gateways []routerGateway
	targets, packets := map[uint32][]uint32{}, map[uint32][]uint32{} // of TCP and of UDP
	for _, field := range strings.Fields(s.Value().Gateways) {
		if number, target, ok := strings.Cut(field, ">"); ok {
			number, udp := strings.CutPrefix(number, udpField)
			n, _ := strconv.ParseUint(number, 10, 16)
			t, _ := strconv.ParseUint(target, 10, 16)
			of := targets
			if udp {
				of = packets
			}
			of[uint32(n)] = append(of[uint32(n)], uint32(t))
		} else if field == ingressField {
			gateways = append(gateways, m.ingressGateways(r)...)
		} else if key, ok := strings.CutPrefix(field, kubernetesPrefix); ok {
			if g, ok := incr.Get(r, m.tables.kubernetes, key); ok {
				gateways = append(gateways, routerGateway{g.Row, m.serversOf(r, g)})
			}
		} else if g, ok := incr.Get(r, m.tables.routers, field); ok {
			gateways = append(gateways, routerGateway{g.Row, g.servers()})
		}
	}
	slices.SortStableFunc(gateways, func(a, b routerGateway) int {
		if a.Older(b.Row) {
			return -1
		}
		return 1
	})
	for _, g := range gateways {
		for _, server := range g.servers {
			if server.Kind == mesh.NotServed {
				continue
			}
			if server.Kind == mesh.ServesPassthrough {
				server.Bind = "" // package config warns of it
			}
			listen := targets[server.Port]
			if server.Kind == mesh.ServesUDP {
				listen = packets[server.Port]
			}
			if len(listen) == 0 {
				listen = []uint32{server.Port}
			}
			for _, port := range listen {
				server.Listen = port
				out.add(server)
			}
		}
	}
	out.addQUIC(packets)
	slices.SortStableFunc(out.Ports, func(a, b RouterPort) int {
		return cmp.Or(cmp.Compare(a.Listen, b.Listen), cmp.Compare(a.Bind, b.Bind), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// routerGateway is a Gateway of either API, or an Ingress.
type routerGateway struct {
	Row
	servers []Server
}

func (g *Gateway) servers() (out []Server) {
	for i, spec := range g.Spec.Servers {
		out = append(out, Server{
			Gateway: g.Row, Index: i, Port: spec.GetPort().GetNumber(), Bind: spec.GetBind(), Kind: mesh.ServerKindOf(spec), Spec: spec, hosts: serverHosts(g, spec),
		})
	}
	return out
}

func serverHosts(g *Gateway, s *networking.Server) (out []egressHost) {
	for _, h := range s.Hosts {
		ns, host, ok := strings.Cut(h, "/")
		if !ok {
			ns, host = "*", h
		}
		if ns == "." {
			ns = g.Namespace
		}
		out = append(out, egressHost{ns, mesh.HostName(host)})
	}
	return out
}

// add adds a server to the listener of its port and address.
func (o *Router) add(s Server) {
	udp := s.Kind == mesh.ServesUDP
	i := slices.IndexFunc(o.Ports, func(p RouterPort) bool {
		return p.Listen == s.Listen && p.Bind == s.Bind && (p.Kind == mesh.ServesUDP) == udp && !mesh.ShareListener(p.Kind, s.Kind)
	})
	if i < 0 {
		o.Ports = append(o.Ports, RouterPort{Listen: s.Listen, Bind: s.Bind, Kind: s.Kind, Servers: []Server{s}})
		return
	}
	p := &o.Ports[i]
	if p.Kind != s.Kind || s.Kind == mesh.ServesTCP || udp {
		return
	}
	for _, old := range p.Servers {
		if s.Kind == mesh.ServesTLS && slices.ContainsFunc(s.Names(), func(h string) bool { return contains(old.Names(), h) }) {
			return
		}
	}
	p.Servers = append(p.Servers, s)
}

// addQUIC adds a listener of HTTP/3 for the servers that end the TLS of HTTPS, where a Service has a port of UDP with the same number. Servers that
// verify certificates of clients have none: Envoy does not ask for them there. [control-plane 1.2.34]
func (o *Router) addQUIC(packets map[uint32][]uint32) {
	var quic []RouterPort
	for _, p := range o.Ports {
		for _, s := range p.Servers {
			if p.Kind != mesh.ServesTLS || !s.EndsHTTPS() || s.Spec.GetTls().GetMode() != networking.ServerTLSSettings_SIMPLE || strings.HasPrefix(p.Bind, mesh.UnixSocket) {
				continue
			}
			for _, listen := range packets[s.Port] {
				same := func(q RouterPort) bool { return q.Listen == listen && q.Bind == p.Bind }
				if slices.ContainsFunc(o.Ports, func(q RouterPort) bool { return q.Kind == mesh.ServesUDP && same(q) }) {
					continue
				}
				i := slices.IndexFunc(quic, same)
				if i < 0 {
					i = len(quic)
					quic = append(quic, RouterPort{Listen: listen, Bind: p.Bind, Kind: mesh.ServesQUIC})
				}
				s.Listen = listen
				quic[i].Servers = append(quic[i].Servers, s)
			}
		}
	}
	o.Ports = append(o.Ports, quic...)
}

// ServesQUIC reports whether a server is one of a listener of HTTP/3, too.
func (o Router) ServesQUIC(s Server) bool {
	return slices.ContainsFunc(o.Ports, func(p RouterPort) bool {
		return p.Kind == mesh.ServesQUIC && slices.ContainsFunc(p.Servers, func(q Server) bool { return q.Gateway == s.Gateway && q.Index == s.Index })
	})
}

// gatewayBucket is the bucket of the VirtualServices bound to a Gateway.
func gatewayBucket(key string) string { return "gw:" + key }

// gatewayKey returns "namespace/name" of a Gateway that a VirtualService names.
func gatewayKey(name, namespace string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}

// Bound is a VirtualService at a Gateway.
type Bound struct {
	Row
	// Hosts are fully qualified.
	Hosts []string
}

// Bound returns the VirtualServices bound to a Gateway that are visible to a scope's routers, oldest first.
// [control-plane 1.7.2, 1.7.29]
func (m *Model) Bound(r *incr.Reader, s mesh.ScopeID, gateway string) (out []Bound) {
	byDefault := m.Mesh(r).DefaultVirtualServiceExportTo
	for _, key := range incr.Keys(r, m.tables.virtuals, gatewayBucket(gateway)) {
		v := m.rules.reach.Of(r, key)
		if mesh.Exported(v.exportTo, byDefault, v.namespace, s.Value().Namespace) {
			out = append(out, Bound{v.row, v.hosts})
		}
	}
	slices.SortFunc(out, func(a, b Bound) int {
		if a.Older(b.Row) {
			return -1
		}
		return 1
	})
	return out
}

// GetSpec returns the rule's spec, nil for a nil rule.
func (v *VirtualService) GetSpec() *networking.VirtualService {
	if v == nil {
		return nil
	}
	return v.Spec
}

// VirtualServiceRow returns a VirtualService by its key, nil if there is none.
func (m *Model) VirtualServiceRow(r *incr.Reader, key string) *VirtualService {
	v, _ := incr.Get(r, m.tables.virtuals, key)
	return v
}
