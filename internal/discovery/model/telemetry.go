package model

import (
	"strings"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Telemetry is the row of an object.
type Telemetry struct {
	Row
	Spec *telemetry.Telemetry
}

// telemetryOf returns the keys of the Telemetries in force for a proxy, separated by spaces: of the root namespace and of the
// proxy's own the oldest without a selector and targets, then the oldest of its namespace that selects it, or has one of these
// Gateways as a target. Of these, what has no effect in the mode is left out, so that proxies with the same effects share a class.
// [control-plane 1.11.4]
func (m *Model) telemetryOf(r *incr.Reader, k ProxyKey, labels map[string]string, gateways []string, mode telemetry.WorkloadMode) string {
	if k.Caps.Has(mesh.Proxyless) {
		return "" // gRPC libraries write no logs of requests and have no such metrics
	}
	root := m.Mesh(r).RootNamespace
	// Of what logs by default nothing is left once an object has entries, whatever their mode.
	byDefault := len(m.Mesh(r).GetDefaultProviders().GetAccessLogging()) > 0
	var out []string
	for _, pass := range []struct {
		ns       string
		selected bool
	}{{root, false}, {k.Namespace, false}, {k.Namespace, true}} {
		if pass.ns == root && !pass.selected && len(out) > 0 {
			continue // a proxy of the root namespace
		}
		var first *Telemetry
		for _, t := range incr.In(r, m.tables.telemetry, "ns:"+pass.ns) {
			l := t.Spec.GetSelector().GetMatchLabels()
			mine := subset(l, labels)
			if targeted(t.Spec) {
				mine = targets(t.Spec, t.Namespace, gateways)
			}
			if mine && (len(l) > 0 || targeted(t.Spec)) == pass.selected && (first == nil || t.Older(first.Row)) {
				first = t
			}
		}
		if first == nil {
			continue
		}
		logs := len(first.Spec.GetAccessLogging()) > 0
		if first.matters(mode) || logs && byDefault {
			out = append(out, first.Key())
			byDefault = byDefault && !logs
		}
	}
	return strings.Join(out, " ")
}

// matters reports whether the object may change what listeners of a mode log, count or trace.
func (t *Telemetry) matters(mode telemetry.WorkloadMode) bool {
	// An entry of tracing for another mode ends tracing by default providers for this one.
	return t.logs(mode) || t.counts(mode) || len(t.Spec.GetTracing()) > 0
}

// counts reports whether the object may change what listeners of a mode count.
func (t *Telemetry) counts(mode telemetry.WorkloadMode) bool {
	for _, m := range t.Spec.GetMetrics() {
		if len(m.GetProviders()) > 0 {
			return true
		}
		for _, o := range m.GetOverrides() {
			if HasMode(o.GetMatch().GetMode(), mode) {
				return true
			}
		}
	}
	return false
}

// namesMetrics is the index of the objects that name providers of metrics.
const namesMetrics = "metrics"

// telemetryIndexes are those of an object.
func telemetryIndexes(namespace string, spec *telemetry.Telemetry) []string {
	out := []string{"ns:" + namespace}
	for _, m := range spec.GetMetrics() {
		if len(m.GetProviders()) > 0 {
			return append(out, namesMetrics)
		}
	}
	return out
}

// CountsAnything reports whether any proxy of the mesh may have metrics: the mesh's default providers or a Telemetry name one.
func (m *Model) CountsAnything(r *incr.Reader) bool { return m.rules.counts.Of(r, "") }

func (m *Model) countsAnything(r *incr.Reader, _ string) bool {
	return len(incr.Keys(r, m.tables.telemetry, namesMetrics)) > 0 || len(m.Mesh(r).GetDefaultProviders().GetMetrics()) > 0
}

// logs reports whether the object may change what listeners of a mode log.
func (t *Telemetry) logs(mode telemetry.WorkloadMode) bool {
	for _, l := range t.Spec.GetAccessLogging() {
		if len(l.GetProviders()) > 0 || HasMode(l.GetMatch().GetMode(), mode) {
			// The providers of an entry are those of later ones without providers, whatever its mode.
			return true
		}
	}
	return false
}

// HasMode reports whether a match with a mode is for listeners of another one, CLIENT or SERVER.
func HasMode(of, mode telemetry.WorkloadMode) bool {
	return of == telemetry.WorkloadMode_CLIENT_AND_SERVER || of == mode
}

// TelemetryIn returns the objects with the keys of a scope's or workload's Telemetry, in this order.
func (m *Model) TelemetryIn(r *incr.Reader, keys string) (out []*Telemetry) {
	for _, key := range strings.Fields(keys) {
		if t, ok := incr.Get(r, m.tables.telemetry, key); ok {
			out = append(out, t)
		}
	}
	return out
}

// ProviderHost returns the host of a provider's service, "host" or "namespace/host"; false if no service that this control plane
// knows has it with this port.
func (m *Model) ProviderHost(r *incr.Reader, service string, port uint32) (string, bool) {
	ns, host := mesh.ProviderService(service)
	for _, s := range incr.In(r, m.tables.services, "host:"+host) {
		if p, ok := s.PortOf(port); ok && p.Protocol != mesh.UDP && (ns == "" || ns == s.Namespace) {
			return host, true
		}
	}
	return "", false
}
