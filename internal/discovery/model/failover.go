package model

import (
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	networking "istio.io/api/networking/v1alpha3"
)

// Labels that stand for places and are not compared as labels. [control-plane 1.8.5]
const (
	LabelRegion   = "topology.kubernetes.io/region"
	LabelZone     = "topology.kubernetes.io/zone"
	LabelSubzone  = "topology.istio.io/subzone"
	LabelNetwork  = networkLabel
	LabelCluster  = "topology.istio.io/cluster"
	LabelHostname = "kubernetes.io/hostname"
)

// failoverPriority is the bucket of the DestinationRules with a failoverPriority.
const failoverPriority = "failoverPriority"

// policiesOf returns all traffic policies of a rule, without those of ports.
func policiesOf(spec *networking.DestinationRule) []*networking.TrafficPolicy {
	out := []*networking.TrafficPolicy{spec.GetTrafficPolicy()}
	for _, s := range spec.GetSubsets() {
		out = append(out, s.GetTrafficPolicy())
	}
	return out
}

// priorityLabels returns the failoverPriority lists of a rule, joined.
func priorityLabels(spec *networking.DestinationRule) (out []string) {
	for _, p := range policiesOf(spec) {
		out = append(out, p.GetLoadBalancer().GetLocalityLbSetting().GetFailoverPriority()...)
		for _, s := range p.GetPortLevelSettings() {
			out = append(out, s.GetLoadBalancer().GetLocalityLbSetting().GetFailoverPriority()...)
		}
	}
	return out
}

func ranksByLabels(spec *networking.DestinationRule) bool { return len(priorityLabels(spec)) > 0 }

// rankingLabels returns the labels of a proxy that some failoverPriority compares with those of endpoints, in canonical form.
// Proxies that differ in others share their classes.
func (m *Model) rankingLabels(r *incr.Reader, labels map[string]string, pod *Pod) string {
	names := slices.Clone(m.Mesh(r).GetLocalityLbSetting().GetFailoverPriority())
	for _, d := range incr.In(r, m.tables.dests, failoverPriority) {
		names = append(names, priorityLabels(d.Spec)...)
	}
	used := map[string]string{}
	for _, n := range names {
		switch v, own := labels[n]; {
		case strings.Contains(n, "="): // the value is given: the proxy's does not count
		case n == LabelRegion, n == LabelZone, n == LabelSubzone, n == LabelNetwork, n == LabelCluster:
		case n == LabelHostname && pod != nil:
			used[n] = pod.Spec.NodeName
		case own:
			used[n] = v
		}
	}
	return canonical(used)
}
