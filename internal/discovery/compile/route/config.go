package route

import (
	"net/netip"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

const (
	// maxDirectBody is the largest directResponse body, in bytes. [control-plane 1.7.19]
	maxDirectBody = 1 << 20
	// virtualHostsField is RouteConfiguration.virtual_hosts in the wire format.
	virtualHostsField = 2
	statusBadGateway  = 502
	statusMisdirected = 421
)

// Frame returns an outbound RouteConfiguration without virtual hosts. A port in the Host header is
// ignored in matching, so that domains have none. Clusters are not validated, since a route may exist
// before its cluster.
func Frame(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectBody),
		IgnorePortInHostMatching:       true,
	}
}

// Join returns the encoding of frame with the given encoded VirtualHosts, in their order, without
// decoding them. Equal arguments give equal bytes. frame must not have virtual hosts.
func Join(frame *routev3.RouteConfiguration, hosts [][]byte) []byte {
	size := proto.Size(frame)
	for _, h := range hosts {
		size += HostSize(h)
	}
	out := marshal.MustAppend(make([]byte, 0, size), frame)
	for _, h := range hosts {
		out = AppendHost(out, h)
	}
	return out
}

// AppendHost appends an encoded VirtualHost to an encoded RouteConfiguration, or to others of its virtual hosts.
func AppendHost(b, host []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, virtualHostsField, protowire.BytesType), host)
}

// HostSize is the size of what AppendHost appends, in bytes.
func HostSize(host []byte) int {
	return protowire.SizeTag(virtualHostsField) + protowire.SizeBytes(len(host))
}

// HostName returns host:port, the name of a virtual host. [control-plane 1.12.7]
func HostName(host string, port uint32) string {
	return host + ":" + strconv.FormatUint(uint64(port), 10)
}

// VirtualHost returns an outbound virtual host. Requests have a header with the number of the attempt.
func VirtualHost(name string, domains []string, routes []*routev3.Route) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: domains, Routes: routes, IncludeRequestAttemptCount: true}
}

// Names has what determines the names by which a client may call a service.
type Names struct {
	// Host is fully qualified, or a wildcard.
	Host string
	// Namespace is that of the service, ClientNamespace that of the client.
	Namespace, ClientNamespace string
	// Domain is the cluster's DNS suffix ("cluster.local").
	Domain string
	// Headless services have names for their endpoints, too.
	Headless bool
	VIPs     []netip.Addr
}

// Domains returns the names by which a client may call a service: the fully qualified one, with and
// without a final dot, the short forms that the client's resolver completes, and the virtual addresses.
// [control-plane 1.7.1, 1.12.7]
func Domains(n Names) []string {
	out := []string{n.Host, n.Host + "."}
	if n.Host == "*" {
		out = out[:1]
	}
	if short, ok := strings.CutSuffix(n.Host, "."+n.Namespace+".svc."+n.Domain); ok && n.Domain != "" {
		if n.Namespace == n.ClientNamespace {
			out = append(out, short)
		}
		out = append(out, short+"."+n.Namespace+".svc", short+"."+n.Namespace)
	}
	if n.Headless && !strings.HasPrefix(n.Host, "*") {
		for _, d := range out[:len(out):len(out)] {
			out = append(out, "*."+d)
		}
	}
	for _, ip := range n.VIPs {
		if ip.Is6() {
			out = append(out, "["+ip.String()+"]")
		} else {
			out = append(out, ip.String())
		}
	}
	return out
}

// CatchAll returns the virtual host for unknown names, whose requests go to a cluster: that of their original destination, of their names, or
// of an egress proxy. Without one (outboundTrafficPolicy REGISTRY_ONLY) they get 502.
func CatchAll(to Destination, caps mesh.Capability) *routev3.VirtualHost {
	if to.Cluster == "" {
		return catchAllHost("block_all", &routev3.Route{Action: &routev3.Route_DirectResponse{
			DirectResponse: &routev3.DirectResponseAction{Status: statusBadGateway},
		}})
	}
	return catchAllHost("allow_any", &routev3.Route{TypedPerFilterConfig: to.filterState(caps, ""), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: to.Cluster},
		Timeout:          &durationpb.Duration{},
		MaxGrpcTimeout:   &durationpb.Duration{}, //nolint:staticcheck // as Istio sends it
	}}})
}

func catchAllHost(name string, r *routev3.Route) *routev3.VirtualHost {
	r.Name, r.Match = name, anyPath()
	return VirtualHost(name, []string{"*"}, []*routev3.Route{r})
}

// Inbound returns the inline route configuration of an inbound HTTP chain, which forwards all requests
// to the cluster. servicePort, 0 for passthrough, is part of the virtual host's name, and with host of the names of spans.
func Inbound(clusterName, host string, servicePort uint32) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:             clusterName,
		ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    "inbound|http|" + strconv.FormatUint(uint64(servicePort), 10),
			Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     anyPath(),
				Decorator: &routev3.Decorator{Operation: HostName(host, servicePort) + "/*"},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: clusterName},
					Timeout:          &durationpb.Duration{},
					RetryPolicy:      inboundRetry(),
					MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{
						MaxStreamDuration: &durationpb.Duration{}, GrpcTimeoutHeaderMax: &durationpb.Duration{},
					},
				}},
			}},
		}},
	}
}
