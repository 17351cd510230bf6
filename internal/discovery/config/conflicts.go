package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// gatewayPort identifies a listener, as far as Gateways say.
type gatewayPort struct {
	number uint32
	bind   string
}

// servedGateway is a Gateway in the order in which routers use them.
type servedGateway struct {
	object *object.Object
	spec   *networking.Gateway
}

// gatewayConflicts returns the servers that are not served where a router has the Gateways of both, because an older
// server has another protocol on the same port. It compares Gateways of which one selects all routers that the other
// selects. [control-plane 1.9.10]
func gatewayConflicts(good map[object.Key]*object.Object) map[object.Key][]Verdict {
	var list []servedGateway
	for k, o := range good {
		if spec, ok := o.Spec.(*networking.Gateway); ok && k.Kind == object.Gateway {
			list = append(list, servedGateway{o, spec})
		}
	}
	slices.SortFunc(list, func(a, b servedGateway) int {
		return cmp.Or(a.object.Meta.Created.Compare(b.object.Meta.Created), cmp.Compare(a.object.Namespace+"/"+a.object.Name, b.object.Namespace+"/"+b.object.Name))
	})
	out := map[object.Key][]Verdict{}
	used := map[gatewayPort]map[mesh.ServerKind][]servedServer{}
	for _, g := range list {
		for i, s := range g.spec.Servers {
			kind := mesh.ServerKindOf(s)
			if kind == mesh.NotServed {
				continue
			}
			at := gatewayPort{s.GetPort().GetNumber(), s.GetBind()}
			if kind == mesh.ServesPassthrough {
				at.bind = ""
			}
			if used[at] == nil {
				used[at] = map[mesh.ServerKind][]servedServer{}
			}
			one := servedServer{g.object.Key, i, kind, g.spec.Selector, hostNames(s)}
			if other, why := conflict(used[at], one); why != "" {
				k := g.object.Key
				out[k] = append(out[k], Verdict{
					Severity: object.Warning, Origin: g.object.Origin, Key: k, Generation: g.object.Meta.Generation, Field: item("spec.servers", i),
					Text: fmt.Sprintf("not applied: port %d is %s in server %d of Gateway %s/%s, which comes first; %s",
						at.number, other.kind, other.index, other.gateway.Namespace, other.gateway.Name, why),
				})
				continue
			}
			used[at][kind] = append(used[at][kind], one)
		}
	}
	return out
}

type servedServer struct {
	gateway  object.Key
	index    int
	kind     mesh.ServerKind
	selector map[string]string
	hosts    []string
}

// hostNames are the hosts of a server without their namespaces.
func hostNames(s *networking.Server) (out []string) {
	for _, h := range s.Hosts {
		_, host, ok := strings.Cut(h, "/")
		if !ok {
			host = h
		}
		out = append(out, mesh.HostName(host))
	}
	return out
}

// conflict returns a server on the same routers that one cannot share a listener with, and why; "" if there is none.
func conflict(used map[mesh.ServerKind][]servedServer, one servedServer) (servedServer, string) {
	for kind := range mesh.NumServerKinds {
		for _, s := range used[kind] {
			if !within(s.selector, one.selector) && !within(one.selector, s.selector) {
				continue
			}
			switch {
			case mesh.ShareListener(kind, one.kind):
			case kind != one.kind:
				return s, fmt.Sprintf("this one is %s: change the port or the protocol", one.kind)
			case kind == mesh.ServesTCP:
				return s, "connections without TLS cannot be told apart: change the port"
			case kind == mesh.ServesTLS:
				if i := slices.IndexFunc(one.hosts, func(h string) bool { return slices.Contains(s.hosts, h) }); i >= 0 {
					return s, fmt.Sprintf("both have the host %q: remove it from one", one.hosts[i])
				}
			}
		}
	}
	return servedServer{}, ""
}

// within reports whether all labels of a are in b.
func within(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// compareGateways updates the verdicts about Gateways that conflict, which follow those on each of them.
func (s *Store) compareGateways() {
	now := gatewayConflicts(s.good)
	for _, keys := range []map[object.Key][]Verdict{s.conflicts, now} {
		for k := range keys {
			if k.Kind == object.Gateway {
				s.setConflicts(k, now[k])
			}
		}
	}
}

// setConflicts replaces the verdicts on an object that others are the reason for.
func (s *Store) setConflicts(k object.Key, now []Verdict) {
	before := s.conflicts[k]
	if slices.Equal(before, now) {
		return
	}
	own := s.verdicts[k]
	own = own[: len(own)-len(before) : len(own)-len(before)]
	s.setVerdicts(k, append(own, now...))
	if len(now) == 0 {
		delete(s.conflicts, k)
	} else {
		s.conflicts[k] = now
	}
}
