package compile

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// assignmentKey is all that decides a load assignment, so that scopes that mean the same
// by a cluster's name share its bytes.
type assignmentKey struct {
	name, service string
	port          uint32
	labels        string // canonical "a=b,c=d"
	failover      string // canonical form of the locality setting; empty for none
	location      mesh.Location
}

// endpoints makes the load assignment of a cluster as a scope and a location see it.
func (c *Compiler) endpoints(r *incr.Reader, k Key) []byte {
	n, _ := cluster.ParseName(k.Name)
	s := c.model.Service(r, k.Scope, n.Host)
	if s == nil {
		return nil
	}
	d := c.model.DestinationRule(r, k.Scope, n.Host)
	p := policy(d, n.Subset, n.Port)
	key := assignmentKey{name: k.Name, service: s.Key, port: n.Port, labels: pairs(subsetLabels(d, n.Subset))}
	if m := c.model.Mesh(r); cluster.Failover(p, m) {
		key.location, key.failover = k.Location.Value(), failoverText(cluster.Locality(p, m))
	}
	return c.inner.assignment.Of(r, key)
}

func (c *Compiler) assignment(r *incr.Reader, k assignmentKey) []byte {
	s, ok := c.model.ServiceRow(r, k.service)
	if !ok {
		return nil
	}
	list := c.places(r, placesInput{service: s, port: k.port, labels: unpairs(k.labels), location: k.location, failover: k.failover})
	return marshal.Must(cluster.Assignment(k.name, list))
}

type placesInput struct {
	service  *model.Service
	port     uint32
	labels   map[string]string
	policy   *networking.TrafficPolicy
	location mesh.Location
	failover string
}

// places lists the endpoints of a service's port, with the priorities that the location's
// locality gives them where failover is on.
func (c *Compiler) places(r *incr.Reader, in placesInput) []cluster.Endpoint {
	m := c.model.Mesh(r)
	failover := in.failover
	if in.policy != nil && cluster.Failover(in.policy, m) {
		failover = failoverText(cluster.Locality(in.policy, m))
	}
	var out []cluster.Endpoint
	for _, i := range c.model.Instances(r, in.service.Key) {
		port, ok := i.Ports[in.port]
		if !ok || !i.Subset(in.labels) {
			continue
		}
		e := cluster.Endpoint{
			Address: i.Address, Port: port, Locality: i.Locality, Weight: i.Weight,
			TLS: i.TLS && !in.service.External && c.model.ModesFor(r, i.Namespace, i.Labels).Of(port) != model.Disable,
		}
		name, revision := canonicalService(i)
		e.Workload = strings.Join([]string{i.Workload, i.Namespace, name, revision, i.ClusterID}, ";")
		if failover != "" {
			e.Priority = priority(in.location.Locality, i.Locality, failover)
		}
		out = append(out, e)
	}
	return compact(out)
}

// failoverText is a locality setting as a canonical text that is never empty.
func failoverText(l *networking.LocalityLoadBalancerSetting) string {
	var rules []string
	for _, f := range l.GetFailover() {
		rules = append(rules, f.From+">"+f.To)
	}
	slices.Sort(rules)
	return "on " + strings.Join(rules, " ")
}

// priority compares localities: 0 the same subzone, 1 the same zone, 2 the same region,
// 3 another region, 4 another region than the one that a failover rule names. [control-plane C3]
func priority(client, endpoint mesh.Locality, failover string) uint32 {
	switch {
	case client == endpoint:
		return 0
	case client.Region == endpoint.Region && client.Zone == endpoint.Zone:
		return 1
	case client.Region == endpoint.Region:
		return 2
	}
	for _, rule := range strings.Fields(failover)[1:] {
		if from, to, _ := strings.Cut(rule, ">"); from == client.Region && to != endpoint.Region {
			return 4
		}
	}
	return 3
}

// compact renumbers priorities to 0..N without gaps, which Envoy demands.
func compact(list []cluster.Endpoint) []cluster.Endpoint {
	var used []uint32
	for _, e := range list {
		used = append(used, e.Priority)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	for i := range list {
		list[i].Priority = uint32(slices.Index(used, list[i].Priority))
	}
	slices.SortStableFunc(list, func(a, b cluster.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Address, b.Address))
	})
	return list
}

func pairs(labels map[string]string) string {
	var out []string
	for k, v := range labels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func unpairs(s string) map[string]string {
	if s == "" {
		return nil
	}
	out := map[string]string{}
	for _, p := range strings.Split(s, ",") {
		k, v, _ := strings.Cut(p, "=")
		out[k] = v
	}
	return out
}
