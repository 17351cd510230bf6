package model

import (
	"fmt"
	"slices"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	security "istio.io/api/security/v1beta1"
)

// Modes says what one workload accepts.
type Modes struct {
	Default mesh.MTLSMode
	Ports   map[uint32]mesh.MTLSMode // ports with another mode
	// Closed is set if the workload accepts no connection at all.
	Closed bool
}

// Of returns the mode of a port of the workload.
func (m Modes) Of(port uint32) mesh.MTLSMode {
	if x, ok := m.Ports[port]; ok {
		return x
	}
	return m.Default
}

// policies returns a namespace's PeerAuthentications, the oldest first.
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

// ModesFor returns the modes of a workload of the namespace with these labels. The oldest policy that
// selects the workload overrides the namespace's, which overrides the root namespace's; UNSET inherits.
// Modes of ports are used only of a policy that selects the workload. [control-plane 1.10.1, 1.10.2]
func (m *Model) ModesFor(r *incr.Reader, ns string, labels map[string]string) Modes {
	return m.modes(r, ns, func(p *PeerAuthentication) bool {
		l := p.Spec.GetSelector().GetMatchLabels()
		return len(l) > 0 && subset(l, labels)
	})
}

// ModesOf returns the modes of a workload that the policies with the given keys select, as in
// mesh.Workload.
func (m *Model) ModesOf(r *incr.Reader, ns string, keys []string) Modes {
	return m.modes(r, ns, func(p *PeerAuthentication) bool { return contains(keys, p.Key()) })
}

// modes returns the modes of a workload; selects reports whether a policy selects it by label. A denial
// overrides all policies.
func (m *Model) modes(r *incr.Reader, ns string, selects func(*PeerAuthentication) bool) Modes {
	out := Modes{}
	root := m.Mesh(r).RootNamespace
	denied := max(m.denied(r, everywhere), m.denied(r, root), m.denied(r, ns))
	if ns != root { // with a selector, too, it is for the whole mesh
		for _, p := range m.rules.policies.Of(r, root) {
			if p.deny == denyEverything && selects(p) {
				denied = denyEverything
			}
		}
	}
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

// namespacePolicy returns the oldest policy of a namespace without a selector, nil if there is none.
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
	case security.PeerAuthentication_MutualTLS_UNSET:
		return from
	}
	panic(fmt.Sprintf("model: unknown mTLS mode %d", tls.GetMode())) // package config rejects it
}
