package cluster

import (
	"cmp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Endpoint is one endpoint of a cluster.
type Endpoint struct {
	// Address is an IP address, a name to resolve (DNS clusters only), or unix://PATH.
	Address string
	// Others are further addresses of the endpoint, which are tried in turn where the first does not answer; EDS clusters only.
	Others []string
	// Port is ignored for unix addresses.
	Port     uint32
	Locality mesh.Locality
	// Priority 0 is used first. Envoy requires priorities without gaps.
	Priority uint32
	// Weight is relative to the other endpoints of the locality; 0 means 1.
	Weight uint32
	// LocalityWeight is the weight of the locality, that of its first endpoint with one; 0 means the
	// sum of its endpoints' weights.
	LocalityWeight uint32
	// Workload is "name;namespace;canonical name;canonical revision;cluster"; empty for none.
	Workload string
	// TLS is set if the endpoint accepts the mesh's mutual TLS.
	TLS bool
	// Node and Network are where the workload is; each may be empty. Only ranks depend on them.
	Node, Network string
	// Health is what clients are told of the endpoint; 0 is that it is healthy. Only EDS tells it.
	Health corev3.HealthStatus
	// Gateway is set if it is a gateway to endpoints of another network.
	Gateway bool
}

const (
	matchKey  = "envoy.transport_socket_match"
	tlsMode   = "tlsMode"
	modeIstio = "istio"
	unix      = mesh.UnixSocket
)

// Assignment returns the load assignment of an inline or EDS cluster. Endpoints are ordered by priority
// and locality, and otherwise keep their order.
func Assignment(name string, endpoints []Endpoint) *endpointv3.ClusterLoadAssignment {
	sorted := slices.Clone(endpoints)
	slices.SortStableFunc(sorted, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), compareLocality(a.Locality, b.Locality))
	})
	la := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for i, e := range sorted {
		if i == 0 || e.Priority != sorted[i-1].Priority || e.Locality != sorted[i-1].Locality {
			la.Endpoints = append(la.Endpoints, &endpointv3.LocalityLbEndpoints{
				Locality: &corev3.Locality{Region: e.Locality.Region, Zone: e.Locality.Zone, SubZone: e.Locality.Subzone},
				Priority: e.Priority,
			})
		}
		g := la.Endpoints[len(la.Endpoints)-1]
		g.LbEndpoints = append(g.LbEndpoints, lbEndpoint(e))
		if g.LoadBalancingWeight == nil && e.LocalityWeight > 0 {
			g.LoadBalancingWeight = wrapperspb.UInt32(e.LocalityWeight)
		}
	}
	for _, g := range la.Endpoints {
		if g.LoadBalancingWeight == nil {
			g.LoadBalancingWeight = wrapperspb.UInt32(sum(g.LbEndpoints))
		}
	}
	return la
}

func compareLocality(a, b mesh.Locality) int {
	return cmp.Or(strings.Compare(a.Region, b.Region), strings.Compare(a.Zone, b.Zone), strings.Compare(a.Subzone, b.Subzone))
}

func sum(list []*endpointv3.LbEndpoint) uint32 {
	var n uint32
	for _, e := range list {
		n += e.GetLoadBalancingWeight().GetValue()
	}
	return n
}

func lbEndpoint(e Endpoint) *endpointv3.LbEndpoint {
	meta := map[string]*structpb.Struct{}
	if e.Workload != "" {
		meta[metadataKey] = stringStruct("workload", e.Workload)
	}
	if e.TLS {
		meta[matchKey] = stringStruct(tlsMode, modeIstio)
	}
	at := &endpointv3.Endpoint{Address: address(e.Address, e.Port)}
	for _, other := range e.Others {
		at.AdditionalAddresses = append(at.AdditionalAddresses, &endpointv3.Endpoint_AdditionalAddress{Address: address(other, e.Port)})
	}
	out := &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: at},
		LoadBalancingWeight: wrapperspb.UInt32(max(e.Weight, 1)),
	}
	out.HealthStatus = e.Health
	if len(meta) > 0 {
		out.Metadata = &corev3.Metadata{FilterMetadata: meta}
	}
	return out
}

func address(a string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(a, unix); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: a, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func stringStruct(key, value string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
}
