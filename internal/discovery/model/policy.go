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

// policies returns a namespace's PeerAuthentications, the oldest first. It is an index: who finds one in it that it is made from says so
// with madeFrom.
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
	return m.modes(r, m.policiesOf(r, ns, selectsLabels(labels)))
}

// ModesOf returns the modes of a workload that the policies with the given keys select, as in
// mesh.Workload.
func (m *Model) ModesOf(r *incr.Reader, ns string, keys []string) Modes {
	return m.modes(r, m.policiesOf(r, ns, selectsKeys(keys)))
}

// closed reports whether a workload that the policies with the given keys select accepts no connection at all.
func (m *Model) closed(r *incr.Reader, ns string, keys []string) bool {
	return m.policiesOf(r, ns, selectsKeys(keys)).denied == denyEverything
}

func selectsKeys(keys []string) func(*PeerAuthentication) bool {
	return func(p *PeerAuthentication) bool { return contains(keys, p.Key()) }
}

// Disabled reports whether a port of a workload of the namespace with these labels accepts plaintext only, as ModesFor has it. Clients
// of the workload depend on this alone: what they have is made from the policies that disable mutual TLS, or that enable it again,
// and not from others that are in force for the workload.
func (m *Model) Disabled(r *incr.Reader, ns string, labels map[string]string, port uint32) bool {
	in := m.policiesOf(r, ns, selectsLabels(labels))
	if in.denied != denyNothing {
		return false
	}
	mode := mesh.Permissive
	next := func(p *PeerAuthentication, to mesh.MTLSMode) {
		if (to == mesh.Disable) != (mode == mesh.Disable) {
			m.madeFrom(r, p)
		}
		mode = to
	}
	for _, p := range in.levels {
		if p != nil {
			next(p, inherit(p.Spec.GetMtls(), mode))
		}
	}
	if p := in.levels[levelSelected]; p != nil {
		if tls, ok := p.Spec.GetPortLevelMtls()[port]; ok {
			next(p, inherit(tls, mode))
		}
	}
	return mode == mesh.Disable
}

func selectsLabels(labels map[string]string) func(*PeerAuthentication) bool {
	return func(p *PeerAuthentication) bool {
		l := p.Spec.GetSelector().GetMatchLabels()
		return len(l) > 0 && subset(l, labels)
	}
}

// levelSelected is the last of the levels of workloadPolicies, the policy that selects the workload by label.
const levelSelected = 2

// workloadPolicies are the policies in force for a workload.
type workloadPolicies struct {
	denied deny
	// levels are those of the root namespace, of the workload's namespace, and of the workload; nil for none. Each overrides the ones before.
	levels [levelSelected + 1]*PeerAuthentication
}

// policiesOf returns the policies for a workload of the namespace; selects reports whether a policy selects it by label. A denial
// overrides all policies.
func (m *Model) policiesOf(r *incr.Reader, ns string, selects func(*PeerAuthentication) bool) (out workloadPolicies) {
	root := m.Mesh(r).RootNamespace
	out.denied = max(m.denied(r, everywhere), m.denied(r, root), m.denied(r, ns))
	if ns != root { // with a selector, too, it is for the whole mesh
		for _, p := range m.rules.policies.Of(r, root) {
			if p.deny == denyEverything && selects(p) {
				out.denied = denyEverything
			}
		}
	}
	for _, p := range m.rules.policies.Of(r, ns) {
		switch {
		case !selects(p):
		case p.deny != denyNothing:
			out.denied = max(out.denied, p.deny)
		case out.levels[levelSelected] == nil:
			out.levels[levelSelected] = p
		}
	}
	out.levels[0] = m.namespacePolicy(r, root)
	if ns != root {
		out.levels[1] = m.namespacePolicy(r, ns)
	}
	return out
}

// modes returns the modes of a workload.
func (m *Model) modes(r *incr.Reader, in workloadPolicies) Modes {
	if in.denied != denyNothing {
		return Modes{Default: mesh.Strict, Closed: in.denied == denyEverything}
	}
	out := Modes{}
	for _, p := range in.levels {
		if p != nil {
			m.madeFrom(r, p)
			out.Default = inherit(p.Spec.GetMtls(), out.Default)
		}
	}
	if p := in.levels[levelSelected]; p != nil && len(p.Spec.PortLevelMtls) > 0 {
		out.Ports = map[uint32]mesh.MTLSMode{}
		for port, tls := range p.Spec.PortLevelMtls {
			out.Ports[port] = inherit(tls, out.Default)
		}
	}
	return out
}

// madeFrom records that something is made from a policy, which was found through an index.
func (m *Model) madeFrom(r *incr.Reader, p *PeerAuthentication) {
	if p.deny == denyNothing { // a denial is no object
		incr.Get(r, m.tables.peers, p.Key())
	}
}

// namespacePolicy returns the oldest policy of a namespace without a selector, nil if there is none.
func (m *Model) namespacePolicy(r *incr.Reader, ns string) *PeerAuthentication {
	for _, p := range m.rules.policies.Of(r, ns) {
		if p.deny == denyNothing && len(p.Spec.GetSelector().GetMatchLabels()) == 0 {
			return p
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
