package compile

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/proxyless"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// assignmentKey has everything that determines a load assignment, so that scopes for which it is the
// same share its bytes.
type assignmentKey struct {
	name, service string
	port          uint32 // the key
	labels        string // canonical "a=b,c=d"
	locality      string // see localityText
	location      mesh.Location
	// network is the client's; empty if it makes no difference. Without mutual TLS nothing is sent through gateways.
	network string
	mutual  bool
	// passthrough is set for clusters of routers that forward mutual TLS; network is then the router's.
	passthrough bool
	// families are those of the client's addresses.
	families mesh.Capability
	// proxyless is set for gRPC clients.
	proxyless bool
	// unready is set if endpoints that are not ready are sent.
	unready bool
}

// endpoints returns the load assignment of a cluster for a scope and a location.
func (c *Compiler) endpoints(r *incr.Reader, k Key) []byte {
	n, passthrough := clusterOf(k.Name)
	s := c.model.Service(r, k.Scope, n.Host)
	if s == nil {
		return nil
	}
	d := c.model.DestinationRule(r, k.Scope, n.Host)
	key := assignmentKey{name: k.Name, service: s.Key, port: n.Port, labels: pairs(subsetLabels(d, n.Subset)), families: k.Scope.Value().Caps & mesh.Families}
	if n.Direction == cluster.OutboundUDP {
		key.port = model.UDPKey(n.Port)
	}
	p := c.policyOf(r, d, n.Subset, n.Port)
	if passthrough {
		key.passthrough, key.network = true, k.Location.Value().Network
		return c.inner.assignment.Of(r, key)
	}
	key.proxyless = k.Scope.Value().Caps.Has(mesh.Proxyless)
	key.unready = !key.proxyless && c.sendsUnready(p)
	key.locality = localityText(s, p, c.model.Mesh(r))
	key.location = ranking(key.locality, k.Location.Value())
	if s.NodeLocal {
		key.location.Node = k.Location.Value().Node
	}
	if len(c.model.NetworkGateways(r)) > 0 && !s.External {
		// A gateway to another network forwards by a server name, which gRPC does not send.
		key.network, key.mutual = k.Location.Value().Network, !key.proxyless && !model.IsUDPKey(key.port) && originatesMutual(p, c.model.Mesh(r))
	}
	return c.inner.assignment.Of(r, key)
}

func (c *Compiler) assignment(r *incr.Reader, k assignmentKey) []byte {
	s, ok := c.model.JoinedRow(r, k.service)
	if !ok {
		return nil
	}
	worst := model.Draining
	switch {
	case k.proxyless || k.passthrough: // the connections of clients that are to be forwarded are new ones
		worst = model.Healthy
	case k.unready:
		worst = model.Unready
	}
	list := c.endpointsOf(r, endpointsInput{worst: worst, service: s, port: k.port, labels: unpairs(k.labels), location: k.location, locality: k.locality, network: k.network, mutual: k.mutual, passthrough: k.passthrough, families: k.families})
	if k.proxyless {
		list = proxyless.Endpoints(list)
	}
	return marshal.MustEncodedAny(cluster.Assignment(k.name, list))
}

type endpointsInput struct {
	service  *model.Service
	port     uint32 // the key
	labels   map[string]string
	location mesh.Location
	locality string
	network  string
	mutual   bool
	// passthrough is that of assignmentKey.
	passthrough bool
	// families are those of the client's addresses; 0 is any.
	families mesh.Capability
	// worst is the health that endpoints have at least. Only EDS tells which it is.
	worst model.Health
}

// sendsUnready reports whether endpoints that are not ready are sent for clusters with a policy: always, or where no share of healthy
// endpoints is so low that Envoy uses the others. [control-plane 1.2.26]
func (c *Compiler) sendsUnready(p *networking.TrafficPolicy) bool {
	return c.opts.Unready == UnreadyAlways || c.opts.Unready == UnreadyUnused && p.GetOutlierDetection().GetMinHealthPercent() <= 0
}

// healths are the states of health as Envoy has them.
var healths = map[model.Health]corev3.HealthStatus{
	model.Healthy: corev3.HealthStatus_UNKNOWN, model.Draining: corev3.HealthStatus_DRAINING, model.Unready: corev3.HealthStatus_UNHEALTHY,
}

// originatesMutual reports whether a client with a policy uses the mesh's mutual TLS with endpoints that accept it.
func originatesMutual(p *networking.TrafficPolicy, m *meshv1.MeshConfig) bool {
	if t := p.GetTls(); t != nil {
		return t.Mode == networking.ClientTLSSettings_ISTIO_MUTUAL
	}
	return m.GetEnableAutoMtls().GetValue()
}

// endpointsOf returns the endpoints of a service's port, with priorities or weights for the client's
// locality. Those of other networks are replaced by the gateways of these. [control-plane 1.12.19]
func (c *Compiler) endpointsOf(r *incr.Reader, in endpointsInput) []cluster.Endpoint {
	var out []cluster.Endpoint
	var split horizon
	if in.network != "" && !in.passthrough {
		split.gateways = c.model.NetworkGateways(r)
	}
	instances := c.model.Instances(r, in.service.Key)
	if in.worst > model.Healthy {
		instances = c.model.AllInstances(r, in.service.Key)
	}
	balance := balanceOf(in.locality)
	ranked := rankingLabels(balance) // not with distribute, which config refuses
	families := in.families
	if !slices.ContainsFunc(instances, func(i *model.Instance) bool { return len(addressesOf(i, families)) > 0 }) {
		families = 0 // nothing can be reached: the error of the connection says more than none
	}
	for _, i := range instances {
		addresses := addressesOf(i, families)
		port, ok := i.Ports[in.port]
		if !ok || i.Health > in.worst || !i.Subset(in.labels) || in.service.NodeLocal && !in.passthrough && i.Node != in.location.Node {
			continue
		}
		e := cluster.Endpoint{
			Port: port, Locality: i.Locality, Weight: i.Weight, Node: i.Node, Network: i.Network, Health: healths[i.Health],
			TLS: i.TLS && !in.service.External && !model.IsUDPKey(in.port) && !c.model.Disabled(r, i.Namespace, i.Labels, port),
		}
		name, revision := canonicalService(i)
		e.Workload = strings.Join([]string{i.Workload, i.Namespace, name, revision, i.ClusterID}, ";")
		if len(ranked) > 0 {
			e.Priority = labelPriority(in.location, i, ranked)
		}
		if in.passthrough && (!e.TLS || in.network != "" && i.Network != "" && i.Network != in.network) {
			continue // what arrives is for this network, and is mutual TLS
		}
		if far := split.between(in.network, i); len(far) > 0 {
			if e.TLS && in.mutual && i.Health == model.Healthy {
				split.add(e, gatewaysFor(far, in.families))
			}
			continue
		}
		if len(addresses) == 0 {
			continue
		}
		e.Address, e.Others = addresses[0], addresses[1:]
		out = append(out, e)
	}
	out = split.join(out)
	switch l := balance.Locality; {
	case len(l.GetDistribute()) > 0:
		out = distribute(out, in.location.Locality, l.Distribute)
	case in.locality == near || in.locality == nearNode:
		for i := range out {
			out[i].Priority = nearness(in.location, out[i], in.locality == nearNode)
		}
	case balance.Zones != nil:
		for i := range out { // after the labels, if there are any
			out[i].Priority = out[i].Priority*regions + regionPriority(in.location.Locality, out[i].Locality, balance.Zones)
		}
	case len(ranked) > 0: // done
	case l != nil:
		for i := range out {
			out[i].Priority = priority(in.location.Locality, out[i].Locality, l)
		}
	}
	if len(split.far) > 0 && len(balance.Locality.GetDistribute()) == 0 {
		out = mergeGateways(out)
	}
	return renumberPriorities(out)
}

// addressesOf returns the addresses of an instance in families, 0 for any. What is not an IP address is in all.
func addressesOf(i *model.Instance, families mesh.Capability) []string {
	all := append([]string{i.Address}, i.Others...)
	if families == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(a string) bool { return !reaches(families, a) })
}

// reaches reports whether a client with addresses in families reaches an address, if only the family counts.
func reaches(families mesh.Capability, address string) bool {
	ip, err := netip.ParseAddr(address)
	return err != nil || families.Has(mesh.FamilyOf(ip))
}

// gatewaysFor returns the gateways that a client with addresses in families reaches; all, if it reaches none.
func gatewaysFor(list []model.NetworkGateway, families mesh.Capability) []model.NetworkGateway {
	out := slices.DeleteFunc(slices.Clone(list), func(g model.NetworkGateway) bool { return families != 0 && !reaches(families, g.Address) })
	if len(out) == 0 {
		return list
	}
	return out
}

// The locality texts of a service that prefers endpoints near the client, and of one that prefers those on its Node.
const (
	near     = "near"
	nearNode = "near, on the node first"
)

// nearness returns the priority of an endpoint of a service that prefers near ones: one more for each part of its place
// that is not the client's, of network, region, zone, subzone and, if it counts, Node.
func nearness(client mesh.Location, e cluster.Endpoint, node bool) uint32 {
	same := []bool{client.Network == e.Network, client.Locality.Region == e.Locality.Region, client.Locality.Zone == e.Locality.Zone, client.Locality.Subzone == e.Locality.Subzone}
	if node {
		same = append(same, client.Node == e.Node && e.Node != "")
	}
	if i := slices.Index(same, false); i >= 0 {
		return uint32(len(same) - i)
	}
	return 0
}

// ranking returns what ranks depend on with a locality text.
func ranking(locality string, l mesh.Location) mesh.Location {
	switch locality {
	case "":
		return mesh.Location{}
	case nearNode:
		return mesh.Location{Network: l.Network, Locality: l.Locality, Node: l.Node}
	case near:
		return mesh.Location{Network: l.Network, Locality: l.Locality}
	}
	b := balanceOf(locality)
	names := rankingLabels(b)
	switch {
	case len(names) > 0:
	case b.Zones != nil:
		return mesh.Location{Locality: mesh.Locality{Region: l.Locality.Region}}
	default:
		return mesh.Location{Locality: l.Locality}
	}
	used := unpairs(l.Labels)
	maps.DeleteFunc(used, func(name, _ string) bool { return !slices.Contains(names, name) })
	l.Labels, l.Node = pairs(used), ""
	return l
}

// labelPriority returns the priority of an endpoint by a failoverPriority: one more for each of the labels that is left from
// the first on in which the endpoint and the client, or the value that the list gives, differ. [control-plane 1.8.5]
func labelPriority(client mesh.Location, i *model.Instance, names []string) uint32 {
	own := unpairs(client.Labels)
	for at, name := range names {
		name, want, given := strings.Cut(name, "=")
		var have string
		mine := own[name]
		switch name {
		case model.LabelRegion:
			have, mine = i.Locality.Region, client.Locality.Region
		case model.LabelZone:
			have, mine = i.Locality.Zone, client.Locality.Zone
		case model.LabelSubzone:
			have, mine = i.Locality.Subzone, client.Locality.Subzone
		case model.LabelNetwork:
			have, mine = i.Network, client.Network
		case model.LabelCluster:
			have, mine = i.ClusterID, client.Cluster
		case model.LabelHostname:
			have = i.Node
		default:
			have = i.Labels[name]
		}
		if !given {
			want = mine
		}
		if have != want {
			return uint32(len(names) - at)
		}
	}
	return 0
}

// prefersNear reports whether a service's own preference is in force: a DestinationRule's setting takes precedence, and
// the mesh's does not. [control-plane 1.8.5]
func prefersNear(s *model.Service, p *networking.TrafficPolicy) bool {
	lb := p.GetLoadBalancer()
	return s.Prefer != mesh.PreferNone && lb.GetLocalityLbSetting() == nil && lb.GetZoneAwareLbSetting() == nil
}

// The beginnings of the locality texts of the two settings.
const (
	byLocality = "locality "
	byZone     = "zone "
)

// localityText returns the locality setting of a service's policy as a text, so that it can be part of a key; ""
// if localities have no effect on endpoints.
func localityText(s *model.Service, p *networking.TrafficPolicy, m *meshv1.MeshConfig) string {
	if prefersNear(s, p) {
		if s.Prefer == mesh.PreferNode {
			return nearNode
		}
		return near
	}
	b, _ := cluster.BalanceOf(p, m)
	l, z := b.Locality, b.Zones
	switch {
	case len(l.GetDistribute()) == 0 && !cluster.Failover(p, m):
		return ""
	case z != nil:
		return byZone + string(marshal.Must(&networking.ZoneAwareLoadBalancerSetting{Failover: z.GetFailover(), FailoverPriority: z.GetFailoverPriority()}))
	}
	return byLocality + string(marshal.Must(&networking.LocalityLoadBalancerSetting{Distribute: l.GetDistribute(), Failover: l.GetFailover(), FailoverPriority: l.GetFailoverPriority()}))
}

// balanceOf parses a localityText; the result is empty for "" and for services that prefer near endpoints.
func balanceOf(text string) (b cluster.Balance) {
	var out proto.Message
	encoded, locality := strings.CutPrefix(text, byLocality)
	if locality {
		b.Locality = &networking.LocalityLoadBalancerSetting{}
		out = b.Locality
	} else {
		var zones bool
		if encoded, zones = strings.CutPrefix(text, byZone); !zones {
			return b
		}
		b.Zones = &networking.ZoneAwareLoadBalancerSetting{}
		out = b.Zones
	}
	if err := proto.Unmarshal([]byte(encoded), out); err != nil {
		panic("compile: decode locality setting: " + err.Error()) // localityText has encoded it
	}
	return b
}

// rankingLabels are the labels by which a setting ranks endpoints first; nil for none.
func rankingLabels(b cluster.Balance) []string {
	return slices.Concat(b.Locality.GetFailoverPriority(), b.Zones.GetFailoverPriority())
}

// regions is how many priorities there are by region.
const regions = 3

// regionPriority returns the priority of an endpoint by its region: 0 for the client's, so that Envoy spreads requests over the
// zones in it, 1 for another one, and 2 for one other than that of the failover rule for the client's. [control-plane 1.8.6]
func regionPriority(client, endpoint mesh.Locality, z *networking.ZoneAwareLoadBalancerSetting) uint32 {
	if client.Region == endpoint.Region {
		return 0
	}
	for _, f := range z.GetFailover() {
		if f.GetFrom() == client.Region && f.GetTo() != endpoint.Region {
			return 2
		}
	}
	return 1
}

// priority returns the priority of an endpoint: 0 for the same subzone, 1 for the same zone, 2 for the
// same region, 3 for another region, and 4 for one other than that of the failover rule for the
// client's region. [control-plane C3]
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

// distribute sets the weights of localities by the first rule for the client's locality. Localities that
// match the same pattern divide its weight in proportion to their endpoints' weights; of several
// patterns the most specific one applies, and endpoints that match none are left out. The list is
// returned unchanged if there is no rule for the client, or if none of the endpoints has a locality, as
// for external hosts: a rule for the whole mesh would remove all of them. [control-plane 1.8.5]
func distribute(list []cluster.Endpoint, client mesh.Locality, rules []*networking.LocalityLoadBalancerSetting_Distribute) []cluster.Endpoint {
	i := slices.IndexFunc(rules, func(d *networking.LocalityLoadBalancerSetting_Distribute) bool {
		return localityMatches(client, d.From)
	})
	located := func(e cluster.Endpoint) bool { return e.Locality != mesh.Locality{} }
	if i < 0 || !slices.ContainsFunc(list, located) {
		return list
	}
	patterns := slices.SortedFunc(maps.Keys(rules[i].To), func(a, b string) int {
		return cmp.Or(cmp.Compare(specificity(b), specificity(a)), strings.Compare(a, b))
	})
	pattern := func(l mesh.Locality) int {
		return slices.IndexFunc(patterns, func(p string) bool { return localityMatches(l, p) })
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
		e.LocalityWeight = uint32((share + total[p] - 1) / total[p]) // rounded up, so that it is not 0
		out = append(out, e)
	}
	return out
}

// localityMatches reports whether a locality matches region/zone/subzone, in which "*" and missing parts
// match anything.
func localityMatches(l mesh.Locality, pattern string) bool {
	parts := []string{l.Region, l.Zone, l.Subzone}
	for i, p := range strings.Split(pattern, "/") {
		if i >= len(parts) || p != "*" && p != parts[i] {
			return false
		}
	}
	return true
}

// specificity returns the number of parts of a pattern that are not "*".
func specificity(pattern string) int {
	return strings.Count("/"+pattern, "/") - strings.Count(pattern, "*")
}

// renumberPriorities renumbers priorities to 0..N without gaps, as Envoy requires.
func renumberPriorities(list []cluster.Endpoint) []cluster.Endpoint {
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
