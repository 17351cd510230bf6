package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Labels that stand for places and are not compared as labels. [control-plane 1.8.5]
const (
	LabelRegion   = mesh.LabelRegion
	LabelZone     = mesh.LabelZone
	LabelSubzone  = mesh.LabelSubzone
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
		out = append(out, rankingOf(p.GetLoadBalancer())...)
		for _, s := range p.GetPortLevelSettings() {
			out = append(out, rankingOf(s.GetLoadBalancer())...)
		}
	}
	return out
}

// rankingOf returns the failoverPriority lists of a load balancer, of which only one is in force.
func rankingOf(lb *networking.LoadBalancerSettings) []string {
	return slices.Concat(lb.GetLocalityLbSetting().GetFailoverPriority(), lb.GetZoneAwareLbSetting().GetFailoverPriority())
}

func ranksByLabels(spec *networking.DestinationRule) bool { return len(priorityLabels(spec)) > 0 }

// rankingLabels returns the labels of a proxy that some failoverPriority compares with those of endpoints, in canonical form.
// Proxies that differ in others share their classes.
func (m *Model) rankingLabels(r *incr.Reader, labels map[string]string, pod *Pod) string {
	names := slices.Concat(m.Mesh(r).GetLocalityLbSetting().GetFailoverPriority(), m.Mesh(r).GetZoneAwareLbSetting().GetFailoverPriority())
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
