package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// How a client connects.
const (
	MutualTLS = "mutual TLS"
	Plaintext = "plaintext"
	// OtherTLS is that of a DestinationRule with the mode SIMPLE or MUTUAL: it proves no identity of the mesh.
	OtherTLS = "TLS without an identity of the mesh"
)

// meshALPN is what sidecars offer for HTTP, by their filter (package compile/listener), and meshTCP for all else.
var (
	meshALPN = []string{"istio-http/1.1", "istio-h2", "istio"}
	meshTCP  = []string{"istio"}
)

// Mesh is what a sidecar with an identity says when it connects by mutual TLS.
func Mesh(identity string, http bool) *simulate.TLS {
	t := &simulate.TLS{ALPN: meshTCP, Identities: []string{identity}}
	if http {
		t.ALPN = meshALPN
	}
	return t
}

// matchKey is the metadata by which a cluster chooses the transport socket of an endpoint.
const matchKey = "envoy.transport_socket_match"

// Connects returns how a client with an identity connects to an endpoint of one of its clusters; tls is nil for plaintext. The
// cluster and its endpoints are encoded as a proxy is sent them; endpoints are nil for a cluster that has its own. found is false if
// the endpoint is not one of the cluster's.
func Connects(cluster, endpoints []byte, at netip.AddrPort, identity string, http bool) (how string, tls *simulate.TLS, found bool, err error) {
	c, list := &clusterv3.Cluster{}, &endpointv3.ClusterLoadAssignment{}
	if err := decode(cluster, c); err != nil {
		return "", nil, false, err
	}
	if endpoints == nil {
		list = c.GetLoadAssignment()
	} else if err := decode(endpoints, list); err != nil {
		return "", nil, false, err
	}
	for _, l := range list.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			if is(e.GetEndpoint(), at) {
				how, tls, err = socketOf(socketFor(c, e), identity, http)
				return how, tls, true, err
			}
		}
	}
	return "", nil, false, nil
}

// Outbound returns where a listener of a client's proxy sends a connection, or a request on it, which is nil for one that is not HTTP.
// The listener is encoded as a proxy is sent it, and so are the route configuration of a name and the virtual hosts that it has besides,
// which routes returns; nil if there is no such configuration.
func Outbound(listener []byte, c simulate.Connection, r *simulate.Request, routes func(name string) (config []byte, hosts [][]byte)) (simulate.Route, error) {
	l := &listenerv3.Listener{}
	if err := decode(listener, l); err != nil {
		return simulate.Route{}, err
	}
	return simulate.Outbound(l, c, r, func(name string) (*routev3.RouteConfiguration, error) {
		body, hosts := routes(name)
		if body == nil {
			return nil, fmt.Errorf("route configuration %q: the proxy was sent none", name)
		}
		config := &routev3.RouteConfiguration{}
		if err := decode(body, config); err != nil {
			return nil, err
		}
		for _, body := range hosts {
			host := &routev3.VirtualHost{}
			if err := decode(body, host); err != nil {
				return nil, err
			}
			config.VirtualHosts = append(config.VirtualHosts, host)
		}
		return config, nil
	})
}

// Endpoints returns how many endpoints a cluster of a client has that can be used; known is false for those whose endpoints the proxy
// finds out itself, by DNS or from the connection. Both are encoded as in Connects.
func Endpoints(cluster, endpoints []byte) (number int, known bool, err error) {
	c, list := &clusterv3.Cluster{}, &endpointv3.ClusterLoadAssignment{}
	if err := decode(cluster, c); err != nil {
		return 0, false, err
	}
	switch c.GetType() {
	case clusterv3.Cluster_EDS:
		if endpoints != nil {
			if err := decode(endpoints, list); err != nil {
				return 0, false, err
			}
		}
	case clusterv3.Cluster_STATIC:
		list = c.GetLoadAssignment()
	case clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS, clusterv3.Cluster_ORIGINAL_DST:
		return 0, false, nil
	}
	for _, l := range list.GetEndpoints() {
		number += len(l.GetLbEndpoints())
	}
	return number, c.GetClusterType() == nil, nil
}

// Listener is one of a workload's proxy, with the objects that it is made from.
type Listener struct {
	message *listenerv3.Listener
	Objects []*object.Object
}

// NewListener decodes a listener as a proxy is sent it.
func NewListener(body []byte) (*Listener, error) {
	l := &listenerv3.Listener{}
	return &Listener{message: l}, decode(body, l)
}

// Port returns the port that it listens at, 0 for one without.
func (l *Listener) Port() uint32 { return l.message.GetAddress().GetSocketAddress().GetPortValue() }

// Inbound reports whether it is for requests to the workload.
func (l *Listener) Inbound() bool {
	return l.message.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
}

// Decide returns what becomes of a connection, and of a request on it, which is nil for one that is not HTTP.
func (l *Listener) Decide(c simulate.Connection, r *simulate.Request, now time.Time) Verdict {
	return Decide(l.message, c, r, l.Objects, now)
}

func decode(body []byte, to proto.Message) error {
	a := &anypb.Any{}
	err := proto.Unmarshal(body, a)
	if err == nil {
		err = a.UnmarshalTo(to)
	}
	if err != nil {
		return fmt.Errorf("decode a resource of a proxy: %w", err)
	}
	return nil
}

func is(e *endpointv3.Endpoint, at netip.AddrPort) bool {
	all := []*corev3.Address{e.GetAddress()}
	for _, other := range e.GetAdditionalAddresses() {
		all = append(all, other.GetAddress())
	}
	return slices.ContainsFunc(all, func(a *corev3.Address) bool {
		s := a.GetSocketAddress()
		return s.GetAddress() == at.Addr().String() && s.GetPortValue() == uint32(at.Port())
	})
}

// socketFor returns the transport socket that a cluster has for an endpoint.
func socketFor(c *clusterv3.Cluster, e *endpointv3.LbEndpoint) *corev3.TransportSocket {
	have := e.GetMetadata().GetFilterMetadata()[matchKey]
	for _, m := range c.GetTransportSocketMatches() {
		fits := true
		for name, value := range m.GetMatch().GetFields() {
			fits = fits && proto.Equal(value, have.GetFields()[name])
		}
		if fits {
			return m.GetTransportSocket()
		}
	}
	return c.GetTransportSocket()
}

func socketOf(s *corev3.TransportSocket, identity string, http bool) (how string, tls *simulate.TLS, err error) {
	context := &tlsv3.UpstreamTlsContext{}
	switch a := s.GetTypedConfig(); {
	case s == nil, a.MessageIs(&rawv3.RawBuffer{}):
		return Plaintext, nil, nil
	case a.UnmarshalTo(context) != nil:
		return "", nil, fmt.Errorf("transport socket %s of the client: not known to the simulation", s.GetName())
	}
	common := context.GetCommonTlsContext()
	tls = &simulate.TLS{ServerName: context.GetSni(), ALPN: common.GetAlpnProtocols()}
	if !slices.ContainsFunc(common.GetTlsCertificateSdsSecretConfigs(), func(s *tlsv3.SdsSecretConfig) bool { return s.GetName() == mesh.SecretDefault }) {
		return OtherTLS, tls, nil
	}
	tls.Identities = []string{identity}
	if http && !slices.Contains(tls.ALPN, "istio-h2") { // connections that always are HTTP/2 offer their own
		tls.ALPN = meshALPN
	}
	return MutualTLS, tls, nil
}
