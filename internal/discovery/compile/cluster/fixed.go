package cluster

import (
	"math"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// passthroughIdle is the idle timeout of connections to destinations without a service.
const passthroughIdle = 300 * time.Second

// BlackHole returns the cluster without endpoints, for connections that are to be closed.
func BlackHole(m *meshv1.MeshConfig) *clusterv3.Cluster {
	c := &clusterv3.Cluster{Name: mesh.BlackHoleCluster, AltStatName: statName(mesh.BlackHoleCluster), ConnectTimeout: connectTimeout(m)}
	setType(c, clusterv3.Cluster_STATIC)
	return c
}

// Passthrough returns the cluster that sends outbound connections to their original destination.
func Passthrough(m *meshv1.MeshConfig) *clusterv3.Cluster {
	c := originalDst(mesh.PassthroughCluster, m)
	idle(durationpb.New(passthroughIdle)).attach(c)
	return c
}

// InboundPassthrough returns the cluster for inbound connections to ports of no service. It connects to
// the application from an address that is excluded from capture. Its metrics have Passthrough's name,
// as dashboards expect.
func InboundPassthrough(m *meshv1.MeshConfig, caps mesh.Capability) *clusterv3.Cluster {
	c := Passthrough(m)
	c.Name = mesh.InboundPassthroughCluster
	c.UpstreamBindConfig = bind(caps)
	return c
}

func originalDst(name string, m *meshv1.MeshConfig) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name: name, AltStatName: statName(name),
		ConnectTimeout:  connectTimeout(m),
		LbPolicy:        clusterv3.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers: breakers(0, 0, 0, 0),
	}
	setType(c, clusterv3.Cluster_ORIGINAL_DST)
	return c
}

// bind returns source addresses for connections to the application, one of each family of the proxy,
// that are excluded from capture.
func bind(caps mesh.Capability) *corev3.BindConfig {
	v4, v6 := sourceAddress(mesh.PassthroughSource), sourceAddress(mesh.PassthroughSourceV6)
	switch {
	case caps.Has(mesh.IPv4 | mesh.IPv6):
		return &corev3.BindConfig{SourceAddress: v4, ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: v6}}}
	case caps.Has(mesh.IPv6):
		return &corev3.BindConfig{SourceAddress: v6}
	}
	return &corev3.BindConfig{SourceAddress: v4}
}

func sourceAddress(ip string) *corev3.SocketAddress {
	return &corev3.SocketAddress{Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}
}

// InboundInput has everything that determines one inbound cluster.
type InboundInput struct {
	// Port is the port that the application listens on.
	Port     uint32
	Protocol mesh.Protocol
	// Services are those whose target is this port of the workload, in any order.
	Services []Service
	// Pool has the limits of the DestinationRule for the first of the services; nil for none. ConfigPath is the rule's path.
	Pool *networking.ConnectionPoolSettings
	// Address is the address or Unix socket ("unix://PATH") of the application, and To its port, where a Sidecar says so; empty and 0 for
	// the client's destination. Own is set if it is the workload's own address: if Address is empty, the one that the client used.
	Address    string
	Own        bool
	To         uint32
	ConfigPath string
	Mesh       *meshv1.MeshConfig
	Caps       mesh.Capability
}

// BuildInbound returns the cluster for a port of the application: at the client's destination address,
// or on loopback if inboundTrafficPolicy is LOCALHOST, or where a Sidecar says. Limits of a DestinationRule hold at the server, too, which many clients
// could overload that each stay below them; its other settings are for clients. [control-plane 1.4.7, 1.8.8]
func BuildInbound(in InboundInput) *clusterv3.Cluster {
	name := Name(Inbound, in.Port, "", "")
	c := originalDst(name, in.Mesh)
	switch local := in.Mesh.GetInboundTrafficPolicy().GetMode() == meshv1.MeshConfig_InboundTrafficPolicy_LOCALHOST; {
	case in.Address != "":
		static(c, Endpoint{Address: in.Address, Port: in.To})
		if in.Own {
			c.UpstreamBindConfig = bind(in.Caps) // else the connection would be captured
		}
	case local && !in.Own:
		static(c, Endpoint{Address: loopback(in.Caps), Port: in.Port})
	default:
		if in.To != 0 && in.To != in.Port {
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{UpstreamPortOverride: wrapperspb.UInt32(in.To)}}
		}
		c.UpstreamBindConfig = bind(in.Caps)
		// Never clean up the only destination: the longest interval that Envoy can represent in nanoseconds.
		c.CleanupInterval = &durationpb.Duration{Seconds: math.MaxInt64/int64(time.Second) - 1}
	}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{}
	sorted := slices.Clone(in.Services)
	slices.SortFunc(sorted, func(a, b Service) int { return strings.Compare(a.Host, b.Host) })
	if len(sorted) > 0 {
		c.Metadata = istioMetadata(map[string]*structpb.Value{"services": services(sorted)})
	}
	if in.Pool != nil {
		setPool(c, Input{Policy: &networking.TrafficPolicy{ConnectionPool: in.Pool}, Mesh: in.Mesh})
	}
	if in.ConfigPath != "" && c.Metadata != nil {
		c.Metadata.FilterMetadata[metadataKey].Fields["config"] = structpb.NewStringValue(in.ConfigPath)
	}
	pooled(version(in.Protocol, nil, nil, false), in.Pool).attach(c)
	return c
}

// static makes a cluster one of an endpoint.
func static(c *clusterv3.Cluster, to Endpoint) {
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	setType(c, clusterv3.Cluster_STATIC)
	c.LoadAssignment = Assignment(c.Name, []Endpoint{to})
}

func loopback(caps mesh.Capability) string {
	if caps.Has(mesh.IPv6) && !caps.Has(mesh.IPv4) {
		return "::1"
	}
	return "127.0.0.1"
}
