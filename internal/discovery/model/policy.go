package model

import (
	"slices"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	security "istio.io/api/security/v1beta1"
)

// Modes is what one workload accepts: Default, and for some ports something else.
type Modes struct {
	Default mesh.MTLSMode
	Ports   map[uint32]mesh.MTLSMode
	// Closed is set where it accepts no connection at all.
	Closed bool
}

// Of is the mode of a workload port.
func (m Modes) Of(port uint32) mesh.MTLSMode {
	if x, ok := m.Ports[port]; ok {
		return x
	}
	return m.Default
}

// policies lists a namespace's PeerAuthentications, the oldest first.
func (m *Model) policies(r *incr.Reader, ns string) []*PeerAuthentication {
	var out []*PeerAuthentication
	for _, p := range incr.In(r, m.tables.peers, "ns:"+ns) {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *PeerAuthentication) int {
		if a.Older(b.Row) {
			return -1
		}
		return 1
	})
	return out
}

// ModesFor says what a workload of the namespace with these labels accepts: the root
// namespace's policy, under the namespace's, under the oldest that selects the workload;
// UNSET inherits; ports count only where the workload is selected. [control-plane 1.10.1, 1.10.2]
func (m *Model) ModesFor(r *incr.Reader, ns string, labels map[string]string) Modes {
	return m.modes(r, ns, func(p *PeerAuthentication) bool {
		l := p.Spec.GetSelector().GetMatchLabels()
		return len(l) > 0 && subset(l, labels)
	})
}

// ModesOf says the same of a workload whose selecting policies are known by key, as a
// mesh.Workload has them.
func (m *Model) ModesOf(r *incr.Reader, ns string, keys []string) Modes {
	return m.modes(r, ns, func(p *PeerAuthentication) bool { return contains(keys, p.Key()) })
}

// modes is what a workload accepts that the policies with selects(p) select by label. A
// denial counts before all policies.
func (m *Model) modes(r *incr.Reader, ns string, selects func(*PeerAuthentication) bool) Modes {
	out := Modes{}
	root := m.Mesh(r).RootNamespace
	denied := max(m.denied(r, everywhere), m.denied(r, root), m.denied(r, ns))
	var selected *security.PeerAuthentication
	for _, p := range m.rules.policies.Of(r, ns) {
		switch {
		case !selects(p):
		case p.deny != denyNothing:
			denied = max(denied, p.deny)
		case selected == nil:
			selected = p.Spec
		}
	}
	if denied != denyNothing {
		return Modes{Default: mesh.Strict, Closed: denied == denyEverything}
	}
	levels := []*security.PeerAuthentication{m.namespacePolicy(r, root)}
	if ns != root {
		levels = append(levels, m.namespacePolicy(r, ns))
	}
	for _, p := range append(levels, selected) {
		out.Default = inherit(p.GetMtls(), out.Default)
	}
	if selected != nil && len(selected.PortLevelMtls) > 0 {
		out.Ports = map[uint32]mesh.MTLSMode{}
		for port, tls := range selected.PortLevelMtls {
			out.Ports[port] = inherit(tls, out.Default)
		}
	}
	return out
}

// namespacePolicy is the oldest policy of a namespace without a selector.
func (m *Model) namespacePolicy(r *incr.Reader, ns string) *security.PeerAuthentication {
	for _, p := range m.rules.policies.Of(r, ns) {
		if p.deny == denyNothing && len(p.Spec.GetSelector().GetMatchLabels()) == 0 {
			return p.Spec
		}
	}
	return nil
}

func inherit(tls *security.PeerAuthentication_MutualTLS, from mesh.MTLSMode) mesh.MTLSMode {
	switch tls.GetMode() {
	case security.PeerAuthentication_MutualTLS_STRICT:
		return mesh.Strict
	case security.PeerAuthentication_MutualTLS_PERMISSIVE:
		return mesh.Permissive
	case security.PeerAuthentication_MutualTLS_DISABLE:
		return mesh.Disable
	}
	return from
}
