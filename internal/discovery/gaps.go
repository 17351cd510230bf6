package discovery

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	networking "istio.io/api/networking/v1alpha3"
)

// The metrics that count what the configuration in force lacks. Each has Istio's name, and its values are
// listed by /debug/push_status. [control-plane 1.13]
const (
	gapNoInstances = "pilot_eds_no_instances"
	gapNotReady    = "pilot_endpoint_not_ready"
	gapNoPod       = "endpoint_no_pod"
	gapNoIP        = "pilot_no_ip"
	gapSubsets     = "pilot_destrule_subsets"
	gapDomains     = "pilot_vservice_dup_domain"
	gapInbound     = "pilot_conflict_inbound_listener"
	gapOutbound    = "pilot_conflict_outbound_listener_tcp_over_current_tcp"
)

var gapHelp = map[string]string{
	gapNoInstances: "Clusters of connected proxies without endpoints.",
	gapNotReady:    "Endpoints of EndpointSlices that are not ready or are terminating.",
	gapNoPod:       "Endpoints of EndpointSlices that name a Pod which does not exist.",
	gapNoIP:        "Pods without an address that have not ended.",
	gapSubsets:     "Subsets that several DestinationRules for a host define; the first rule's is used.",
	gapDomains:     "Hosts for which sidecars of a namespace see several VirtualServices with HTTP routes; the oldest is used.",
	gapInbound:     "Ports of connected proxies' workloads that several services lead to; the oldest says which protocol the port has.",
	gapOutbound:    "TCP ports of services, by listener of connected sidecars, that are not connected to, since an older service has the same address and port.",
}

// gaps are names by metric, sorted and without duplicates. They are shared and must not be changed.
type gaps map[string][]string

// gaps returns what the configuration in force lacks; false if the loop does not answer. It is computed
// anew only after something has changed.
func (l *loop) gaps() (out gaps, ok bool) {
	ok = l.ask(func() {
		views := l.views.snapshot()
		if l.lacks == nil || l.lacksAt != l.counts.commits || l.lacksOf != l.views.current {
			l.lacks, l.lacksAt, l.lacksOf = findGaps(l.store.Good(), views, l.model.Domain(), l.store.CurrentMesh().DefaultVirtualServiceExportTo), l.counts.commits, l.views.current
			l.lacks[gapOutbound] = l.views.layers.conflicts()
		}
		out = l.lacks
	})
	return out, ok
}

// findGaps looks for gaps in the valid objects and in what proxies are sent. exportTo is the default of VirtualServices.
func findGaps(objects []*object.Object, views *viewsSnapshot, domain string, exportTo []string) gaps {
	found := map[string]map[string]bool{}
	for metric := range gapHelp {
		found[metric] = map[string]bool{}
	}
	pods := map[object.Key]bool{}
	for _, o := range objects {
		if p, ok := o.Spec.(*object.PodSpec); ok {
			pods[o.Key] = true
			if len(p.IPs) == 0 && !p.Done {
				found[gapNoIP][o.Namespace+"/"+o.Name] = true
			}
		}
	}
	for _, o := range objects {
		s, ok := o.Spec.(*object.EndpointSliceSpec)
		if !ok {
			continue
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			name := o.Namespace + "/" + s.Service + " " + e.Addresses[0].String()
			if !e.Ready || e.Terminating {
				found[gapNotReady][name] = true
			}
			if e.Pod != "" && !pods[object.Key{Kind: object.Pod, Namespace: o.Namespace, Name: e.Pod, Cluster: o.Cluster}] {
				found[gapNoPod][name] = true
			}
		}
	}
	duplicateSubsets(objects, domain, found[gapSubsets])
	duplicateDomains(objects, domain, exportTo, found[gapDomains])
	clustersWithoutEndpoints(views, found[gapNoInstances])
	for class := range views.classes {
		sharedPorts(class.Workload, found[gapInbound])
	}
	out := gaps{}
	for metric, names := range found {
		out[metric] = slices.Sorted(maps.Keys(names))
	}
	return out
}

// duplicateSubsets finds subsets that several rules for a host define. Rules that select clients are
// not merged with others.
func duplicateSubsets(objects []*object.Object, domain string, found map[string]bool) {
	first := map[string]*object.Object{}
	for _, o := range objects {
		d, ok := o.Spec.(*networking.DestinationRule)
		if !ok || d.WorkloadSelector != nil {
			continue
		}
		host := mesh.FullHost(d.Host, o.Namespace, domain)
		for _, s := range d.Subsets {
			name := strings.Join([]string{o.Namespace, host, s.Name}, "/")
			if other := first[name]; other != nil && other != o {
				found[host+" "+s.Name] = true
			}
			first[name] = o
		}
	}
}

// duplicateDomains finds hosts for which sidecars of some namespace see several VirtualServices.
func duplicateDomains(objects []*object.Object, domain string, byDefault []string, found map[string]bool) {
	const all = "*"
	seen := map[string]map[string]bool{} // for each host, the namespaces that see a VirtualService for it
	for _, o := range objects {
		v, ok := o.Spec.(*networking.VirtualService)
		if !ok || len(v.Http) == 0 || len(v.Gateways) > 0 && !slices.Contains(v.Gateways, "mesh") {
			continue
		}
		hosts, namespaces := map[string]bool{}, exportedTo(v.ExportTo, byDefault, o.Namespace)
		for _, h := range v.Hosts {
			hosts[mesh.FullHost(h, o.Namespace, domain)] = true
		}
		for host := range hosts {
			others := seen[host]
			if others == nil {
				others = map[string]bool{}
				seen[host] = others
			}
			for ns := range namespaces {
				found[host] = found[host] || others[ns] || others[all] || ns == all && len(others) > 0
			}
			maps.Copy(others, namespaces)
		}
	}
	maps.DeleteFunc(found, func(_ string, is bool) bool { return !is })
}

// sharedPorts finds the ports of a workload that several services lead to.
func sharedPorts(w mesh.Workload, found map[string]bool) {
	services := map[uint32][]string{}
	for _, p := range model.InboundPorts(w) {
		if of := services[p.Target]; !slices.Contains(of, p.Service) {
			services[p.Target] = append(of, p.Service)
		}
	}
	for port, of := range services {
		if len(of) > 1 {
			found[fmt.Sprintf("%s %d of %s", w.Namespace, port, strings.Join(slices.Sorted(slices.Values(of)), ", "))] = true
		}
	}
}

// conflicts returns the ports of services that outbound listeners of connected proxies leave out, with the names of the listeners,
// sorted.
func (p *layers) conflicts() []string {
	found := map[string]bool{}
	for _, l := range p.byKey {
		if l.used == 0 {
			continue
		}
		for _, k := range l.keys {
			for _, host := range p.compiler.RefusedOf(k) {
				found[k.Name+" "+host] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// exportedTo returns the namespaces that see an object of namespace owner, as mesh.Exported does; "*" stands for all.
func exportedTo(to, byDefault []string, owner string) map[string]bool {
	if len(to) == 0 {
		to = byDefault
	}
	out := map[string]bool{}
	for _, e := range to {
		if e == "." {
			e = owner
		}
		out[e] = true
	}
	if len(to) == 0 || out["*"] {
		return map[string]bool{"*": true}
	}
	return out
}

// clustersWithoutEndpoints finds the clusters of which the assignment is missing or empty. What layers have that many
// views share is looked at once: each proxy has a view of thousands of clusters.
func clustersWithoutEndpoints(views *viewsSnapshot, found map[string]bool) {
	type pair struct{ clusters, assignments *xds.Layer }
	known := map[pair][]*xds.Resource{}
	seen := map[*xds.View]bool{}
	for _, p := range views.proxies {
		if seen[p.view] {
			continue
		}
		seen[p.view] = true
		layers := p.view.Layers
		slices.SortStableFunc(layers[:], func(a, b *xds.Layer) int { return cmp.Compare(b.Count(xds.EDS), a.Count(xds.EDS)) })
		for _, clusters := range p.view.Layers {
			most := pair{clusters, layers[0]}
			lacking, ok := known[most]
			if !ok {
				lacking = withoutEndpoints(clusters.All(xds.CDS), layers[0])
				known[most] = lacking
			}
			for _, rest := range layers[1:] {
				lacking = withoutEndpoints(slices.Values(lacking), rest)
			}
			for _, r := range lacking {
				found[r.Name] = true
			}
		}
	}
}

// withoutEndpoints are those of the clusters that take endpoints from an assignment, and of which a layer has none.
func withoutEndpoints(clusters iter.Seq[*xds.Resource], assignments *xds.Layer) (out []*xds.Resource) {
	for r := range clusters {
		if r.Needs != "" && !hasEndpoints(assignments.Get(xds.EDS, r.Needs)) {
			out = append(out, r)
		}
	}
	return out
}

// hasEndpoints reports whether an assignment has endpoints.
func hasEndpoints(r *xds.Resource) bool {
	const anyValue, endpoints = 2, 2
	if r == nil {
		return false
	}
	return hasField(r.Body, anyValue, func(message []byte) bool {
		return hasField(message, endpoints, func([]byte) bool { return true })
	})
}

// hasField reports whether an encoded message has a field for whose value is returns true. The message is
// one that the control plane has encoded.
func hasField(message []byte, field protowire.Number, is func([]byte) bool) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return false
		}
		if number == field && kind == protowire.BytesType {
			if value, _ := protowire.ConsumeBytes(message); is(value) {
				return true
			}
		}
		message = message[size:]
	}
	return false
}
