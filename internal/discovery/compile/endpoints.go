package compile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
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
	locality      string // a localityText
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
	key := assignmentKey{name: k.Name, service: s.Key, port: n.Port, labels: pairs(subsetLabels(d, n.Subset))}
	key.locality = localityText(c.policyOf(r, d, n.Subset, n.Port), c.model.Mesh(r))
	if key.locality != "" {
		key.location = k.Location.Value()
	}
	return c.inner.assignment.Of(r, key)
}

func (c *Compiler) assignment(r *incr.Reader, k assignmentKey) []byte {
	s, ok := c.model.ServiceRow(r, k.service)
	if !ok {
		return nil
	}
	list := c.places(r, placesInput{service: s, port: k.port, labels: unpairs(k.labels), location: k.location, locality: k.locality})
	return marshal.Must(cluster.Assignment(k.name, list))
}

type placesInput struct {
	service  *model.Service
	port     uint32
	labels   map[string]string
	location mesh.Location
	locality string
}

// places lists the endpoints of a service's port, with the priorities or weights that the
// client's locality gives them.
func (c *Compiler) places(r *incr.Reader, in placesInput) []cluster.Endpoint {
	var out []cluster.Endpoint
	for _, i := range c.model.Instances(r, in.service.Key) {
		port, ok := i.Ports[in.port]
		if !ok || !i.Subset(in.labels) {
			continue
		}
		e := cluster.Endpoint{
			Address: i.Address, Port: port, Locality: i.Locality, Weight: i.Weight,
			TLS: i.TLS && !in.service.External && c.model.ModesFor(r, i.Namespace, i.Labels).Of(port) != mesh.Disable,
		}
		name, revision := canonicalService(i)
		e.Workload = strings.Join([]string{i.Workload, i.Namespace, name, revision, i.ClusterID}, ";")
		out = append(out, e)
	}
	switch l := localityOf(in.locality); {
	case len(l.GetDistribute()) > 0:
		out = distribute(out, in.location.Locality, l.Distribute)
	case l != nil:
		for i := range out {
			out[i].Priority = priority(in.location.Locality, out[i].Locality, l)
		}
	}
	return compact(out)
}

// localityText is the locality setting of a policy as a text, so that it can be part of a
// key; empty where localities make no difference.
func localityText(p *networking.TrafficPolicy, m *meshv1.MeshConfig) string {
	l := cluster.Locality(p, m)
	if len(l.GetDistribute()) == 0 && !cluster.Failover(p, m) {
		return ""
	}
	return "on " + string(marshal.Must(&networking.LocalityLoadBalancerSetting{Distribute: l.GetDistribute(), Failover: l.GetFailover()}))
}

// localityOf reads a localityText, nil for an empty one.
func localityOf(text string) *networking.LocalityLoadBalancerSetting {
	setting, on := strings.CutPrefix(text, "on ")
	if !on {
		return nil
	}
	l := &networking.LocalityLoadBalancerSetting{}
	if err := proto.Unmarshal([]byte(setting), l); err != nil {
		panic("decode locality setting: " + err.Error()) // encode wrote it
	}
	return l
}

// priority compares localities: 0 the same subzone, 1 the same zone, 2 the same region,
// 3 another region, 4 another region than the one that a failover rule names. [control-plane C3]
func priority(client, endpoint mesh.Locality, l *networking.LocalityLoadBalancerSetting) uint32 {
	switch {
	case client == endpoint:
		return 0
	case client.Region == endpoint.Region && client.Zone == endpoint.Zone:
		return 1
	case client.Region == endpoint.Region:
		return 2
	}
	for _, f := range l.GetFailover() {
		if f.From == client.Region && f.To != endpoint.Region {
			return 4
		}
	}
	return 3
}

// distribute gives localities the shares that the first rule for the client's locality
// names. Localities that match one pattern divide its share by their endpoints' weights;
// a locality under several counts for the one that names it most closely, and endpoints
// under none get no requests. Nothing changes without a rule for the client, and for a
// service of whose endpoints no locality is known, as of hosts outside: a rule of the whole
// mesh would leave it without any. [control-plane 1.8.5]
func distribute(list []cluster.Endpoint, client mesh.Locality, rules []*networking.LocalityLoadBalancerSetting_Distribute) []cluster.Endpoint {
	i := slices.IndexFunc(rules, func(d *networking.LocalityLoadBalancerSetting_Distribute) bool { return under(client, d.From) })
	located := func(e cluster.Endpoint) bool { return e.Locality != mesh.Locality{} }
	if i < 0 || !slices.ContainsFunc(list, located) {
		return list
	}
	patterns := slices.SortedFunc(maps.Keys(rules[i].To), func(a, b string) int {
		return cmp.Or(cmp.Compare(closeness(b), closeness(a)), strings.Compare(a, b))
	})
	pattern := func(l mesh.Locality) int {
		return slices.IndexFunc(patterns, func(p string) bool { return under(l, p) })
	}
	total, own := map[int]uint64{}, map[mesh.Locality]uint64{}
	for _, e := range list {
		total[pattern(e.Locality)] += uint64(e.Weight)
		own[e.Locality] += uint64(e.Weight)
	}
	var out []cluster.Endpoint
	for _, e := range list {
		p := pattern(e.Locality)
		if p < 0 {
			continue
		}
		share := uint64(rules[i].To[patterns[p]]) * own[e.Locality]
		e.LocalityWeight = uint32((share + total[p] - 1) / total[p]) // rounded up: no share becomes 0
		out = append(out, e)
	}
	return out
}

// under says whether a locality falls under region/zone/subzone, in which "*" and parts
// that are left out match anything.
func under(l mesh.Locality, pattern string) bool {
	parts := []string{l.Region, l.Zone, l.Subzone}
	for i, p := range strings.Split(pattern, "/") {
		if i >= len(parts) || p != "*" && p != parts[i] {
			return false
		}
	}
	return true
}

// closeness counts the parts that a pattern names.
func closeness(pattern string) int {
	return strings.Count("/"+pattern, "/") - strings.Count(pattern, "*")
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
