// Package podnet computes what Pods see of Services: backends of virtual addresses, and answers of the cluster's DNS.
//
// Its functions are pure. Only IPv4 is translated. Of a Service's policies, sessionAffinity and internalTrafficPolicy
// have no effect.
package podnet

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Rule translates the destination of connections to a virtual address.
type Rule struct {
	// Protocol is TCP or UDP.
	Protocol corev1.Protocol
	// From is the virtual address. To are the backends, each equally likely; without any, connections are refused.
	From netip.AddrPort
	To   []netip.AddrPort
}

// Tables are the Services and EndpointSlices of a cluster.
type Tables struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
}

// Rules are the rules for all Services with an address, in a stable order.
func (t Tables) Rules() []Rule {
	var out []Rule
	bySlice := t.slicesByService()
	for _, s := range t.Services {
		for _, ip := range virtualIPs(s) {
			for _, p := range s.Spec.Ports {
				protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
				if protocol != corev1.ProtocolTCP && protocol != corev1.ProtocolUDP {
					continue
				}
				out = append(out, Rule{
					Protocol: protocol, From: netip.AddrPortFrom(ip, uint16(p.Port)),
					To: backends(bySlice[s.Namespace+"/"+s.Name], p.Name),
				})
			}
		}
	}
	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}

func (t Tables) slicesByService() map[string][]*discoveryv1.EndpointSlice {
	out := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range t.Slices {
		key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		out[key] = append(out[key], s)
	}
	return out
}

// virtualIPs are the IPv4 addresses that a Service has in front of its backends.
func virtualIPs(s *corev1.Service) []netip.Addr {
	texts := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, i.IP)
	}
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// backends are the addresses of a port: those that are ready, else those that still serve while they end.
func backends(slicesOf []*discoveryv1.EndpointSlice, port string) []netip.AddrPort {
	var ready, serving []netip.AddrPort
	for _, s := range slicesOf {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" {
				continue
			}
			for _, e := range s.Endpoints {
				for _, a := range addresses(e) {
					to := netip.AddrPortFrom(a, uint16(*p.Port))
					switch {
					case isTrue(e.Conditions.Ready, true):
						ready = append(ready, to)
					case isTrue(e.Conditions.Serving, false):
						serving = append(serving, to)
					}
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}

func addresses(e discoveryv1.Endpoint) []netip.Addr {
	var out []netip.Addr
	for _, text := range e.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
			out = append(out, a)
		}
	}
	return out
}

func isTrue(b *bool, unset bool) bool {
	if b == nil {
		return unset
	}
	return *b
}

// lower is the canonical form of a DNS name: lower case, without the last dot.
func lower(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
