package listener

import (
	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	fractionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/runtime_fraction/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// buildUDP returns a listener of a router that forwards datagrams. Those of one client's address and port go to one endpoint, until there are none
// for a minute. Policies are about connections: with one, nothing is forwarded. [control-plane 1.11.7]
func buildUDP(g Gateway, e Env) *listenerv3.Listener {
	to := g.Chains[0].TCP
	if g.Closed || len(g.Authorization.TCP) > 0 {
		to = TCP{Prefix: mesh.BlackHoleCluster, Cluster: mesh.BlackHoleCluster}
	}
	l := &listenerv3.Listener{
		Name: g.Name, Address: datagrams(address(g.Address, g.Port)), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		ListenerFilters: []*listenerv3.ListenerFilter{listenerFilter("envoy.filters.udp_listener.udp_proxy", &udpproxyv3.UdpProxyConfig{
			StatPrefix: to.Prefix, RouteSpecifier: &udpproxyv3.UdpProxyConfig_Matcher{Matcher: byWeight(to)}, AccessLog: e.accessLog(""),
		})},
	}
	for _, a := range e.additional(g.Address, g.Port) {
		a.Address = datagrams(a.Address)
		l.AdditionalAddresses = append(l.AdditionalAddresses, a)
	}
	return l
}

// datagrams makes an address of TCP one of UDP.
func datagrams(a *corev3.Address) *corev3.Address {
	a.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	return a
}

// byWeight chooses the cluster of a client by a hash of its port: each in its share of the weights of those that are left.
func byWeight(to TCP) *matcherv3.Matcher {
	if len(to.Weighted) == 0 {
		return &matcherv3.Matcher{OnNoMatch: toCluster(to.Cluster)}
	}
	left := uint64(0)
	for _, w := range to.Weighted {
		left += uint64(w.Weight)
	}
	list := &matcherv3.Matcher_MatcherList{}
	last := len(to.Weighted) - 1
	for i, w := range to.Weighted[:last] {
		const million = 1_000_000
		list.Matchers = append(list.Matchers, &matcherv3.Matcher_MatcherList_FieldMatcher{
			Predicate: &matcherv3.Matcher_MatcherList_Predicate{MatchType: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
				SinglePredicate: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
					Input: matching("port", &networkv3.SourcePortInput{}),
					Matcher: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_CustomMatch{CustomMatch: matching("share", &fractionv3.RuntimeFraction{
						RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
							Numerator: uint32((uint64(w.Weight)*million + left/2) / left), Denominator: typev3.FractionalPercent_MILLION,
						}},
						Seed: uint64(i) + 1, // what the hash says of one share is to say nothing of the next
					})},
				},
			}},
			OnMatch: toCluster(w.Cluster),
		})
		left -= uint64(w.Weight)
	}
	return &matcherv3.Matcher{
		MatcherType: &matcherv3.Matcher_MatcherList_{MatcherList: list},
		OnNoMatch:   toCluster(to.Weighted[last].Cluster),
	}
}

func toCluster(name string) *matcherv3.Matcher_OnMatch {
	return &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Action{Action: matching("route", &udpproxyv3.Route{Cluster: name})}}
}

func matching(name string, m proto.Message) *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: marshal.MustAny(m)}
}
