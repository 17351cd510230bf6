package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// State is what the network knows of Services, for the output of tests: up to which version its informers have read, the
// EndpointSlices, the rules, and the Pods that do not have these.
func (n *Network) State() string {
	var b strings.Builder
	services, endpoints := n.factory.Core().V1().Services(), n.factory.Discovery().V1().EndpointSlices()
	fmt.Fprintf(&b, "Services up to version %s, EndpointSlices up to version %s\n",
		services.Informer().LastSyncResourceVersion(), endpoints.Informer().LastSyncResourceVersion())
	tables := n.tables()
	b.WriteString(Describe(tables.Slices))
	n.mu.Lock()
	defer n.mu.Unlock()
	current := slices.EqualFunc(tables.Rules(), n.rules, equalRules)
	fmt.Fprintf(&b, "%d rules, those of the above: %v\n", len(n.rules), current)
	for _, r := range n.rules {
		fmt.Fprintf(&b, "  %s %s to %v\n", r.Protocol, r.From, r.To)
	}
	for p, written := range n.pods {
		if !written {
			fmt.Fprintf(&b, "not written to Pod %s (%s)\n", p.Name(), p.IP())
		}
	}
	return b.String()
}

// Describe has a line for each EndpointSlice: its version, who wrote it last and when, and its endpoints.
func Describe(all []*discoveryv1.EndpointSlice) string {
	var b strings.Builder
	for _, s := range all {
		fmt.Fprintf(&b, "  %s/%s of %s, version %s, generation %d", s.Namespace, s.Name, s.Labels[discoveryv1.LabelServiceName], s.ResourceVersion, s.Generation)
		writer, last := "", time.Time{}
		for _, f := range s.ManagedFields {
			if f.Time != nil && !f.Time.Time.Before(last) {
				writer, last = f.Manager, f.Time.Time
			}
		}
		if writer != "" {
			fmt.Fprintf(&b, ", written by %s at %s", writer, last.UTC().Format(time.TimeOnly))
		}
		b.WriteByte(':')
		for _, e := range s.Endpoints {
			c := e.Conditions
			fmt.Fprintf(&b, " %s ready=%v serving=%v terminating=%v", strings.Join(e.Addresses, ","), value(c.Ready), value(c.Serving), value(c.Terminating))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// value shows a condition that may be missing.
func value(p *bool) any {
	if p == nil {
		return "?"
	}
	return *p
}
