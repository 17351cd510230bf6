package simulate

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// passiveNetwork are the network filters that let every connection through.
var passiveNetwork = map[protoreflect.FullName]bool{
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":      true,
	"envoy.extensions.filters.network.echo.v3.Echo":               true,
	"envoy.extensions.filters.network.set_filter_state.v3.Config": true,
	"envoy.extensions.filters.network.sni_cluster.v3.SniCluster":  true,
	"envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy":  true,
	"envoy.extensions.filters.network.mysql_proxy.v3.MySQLProxy":  true,
	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy":  true,
	"envoy.tcp.metadataexchange.config.MetadataExchange":          true,
}

// terminal are those of them that are the last of a chain.
var terminal = map[protoreflect.FullName]bool{
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy": true,
	"envoy.extensions.filters.network.echo.v3.Echo":          true,

	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy": true,
}

// seen is what the listener filters have found of a connection.
type seen struct {
	transport  string
	serverName string
	protocols  []string
}

// inspect runs the listener filters.
func inspect(l *listenerv3.Listener, c Connection) (seen, error) {
	s := seen{transport: "raw_buffer"}
	for _, f := range l.GetListenerFilters() {
		off, err := disabled(f.GetFilterDisabled(), c)
		if err != nil {
			return s, err
		}
		if off {
			continue
		}
		m, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			return s, unknown("listener filter " + f.GetName())
		}
		switch m.(type) {
		case *originaldstv3.OriginalDst: // Destination is before redirection
		case *originalsrcv3.OriginalSrc: // for the connection to the application
		case *tlsinspectorv3.TlsInspector:
			if c.TLS != nil {
				s = seen{"tls", c.TLS.ServerName, c.TLS.ALPN}
			}
		case *httpinspectorv3.HttpInspector:
			if c.TLS == nil && c.Protocol != "" {
				s.protocols = []string{c.Protocol}
			}
		default:
			return s, unknown("listener filter " + f.GetName())
		}
	}
	return s, nil
}

// disabled reports whether a listener filter is not run for a connection.
func disabled(p *listenerv3.ListenerFilterChainMatchPredicate, c Connection) (bool, error) {
	switch r := p.GetRule().(type) {
	case nil:
		return false, nil
	case *listenerv3.ListenerFilterChainMatchPredicate_AnyMatch:
		return r.AnyMatch, nil
	case *listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange:
		port := int32(c.Destination.Port())
		return r.DestinationPortRange.GetStart() <= port && port < r.DestinationPortRange.GetEnd(), nil
	case *listenerv3.ListenerFilterChainMatchPredicate_OrMatch:
		for _, one := range r.OrMatch.GetRules() {
			if ok, err := disabled(one, c); ok || err != nil {
				return ok, err
			}
		}
		return false, nil
	case *listenerv3.ListenerFilterChainMatchPredicate_NotMatch:
		ok, err := disabled(r.NotMatch, c)
		return !ok, err
	}
	return false, unknown("a condition of a listener filter")
}

// filterChain chooses the chain of a connection, nil if there is none. The most specific match in each of the fields, in
// their order, decides what remains for the next; there is no way back to a chain that an earlier field has excluded
// (https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/listener/v3/listener_components.proto, FilterChainMatch).
func filterChain(l *listenerv3.Listener, c Connection) (*listenerv3.FilterChain, error) {
	if l.GetFilterChainMatcher() != nil {
		return nil, unknown("filter_chain_matcher")
	}
	s, err := inspect(l, c)
	if err != nil {
		return nil, err
	}
	chains := slices.Clone(l.GetFilterChains())
	for _, ch := range chains {
		if m := ch.GetFilterChainMatch(); m.GetAddressSuffix() != "" || len(m.GetDirectSourcePrefixRanges()) > 0 || m.GetSourceType() != 0 {
			return nil, unknown("a match of sources in filter chain " + ch.GetName())
		}
		if m := ch.GetFilterChainMatch(); len(m.GetSourcePrefixRanges()) > 0 && !c.Source.Addr().IsValid() || len(m.GetSourcePorts()) > 0 && c.Source.Port() == 0 {
			return nil, errNoAddress
		}
	}
	// Each field ranks a chain: 0 is no match, 1 is a chain without the field, and more is more specific.
	for _, rank := range []func(m *listenerv3.FilterChainMatch) int{
		func(m *listenerv3.FilterChainMatch) int {
			return either(m.GetDestinationPort() == nil, m.GetDestinationPort().GetValue() == uint32(c.Destination.Port()))
		},
		func(m *listenerv3.FilterChainMatch) int { return longest(m.GetPrefixRanges(), c.Destination.Addr()) },
		func(m *listenerv3.FilterChainMatch) int { return serverNameRank(m.GetServerNames(), s.serverName) },
		func(m *listenerv3.FilterChainMatch) int {
			return either(m.GetTransportProtocol() == "", m.GetTransportProtocol() == s.transport)
		},
		func(m *listenerv3.FilterChainMatch) int {
			if len(m.GetApplicationProtocols()) == 0 {
				return 1
			}
			for i, p := range s.protocols { // the client's first is its most preferred
				if slices.Contains(m.GetApplicationProtocols(), p) {
					return 2 + len(s.protocols) - i
				}
			}
			return 0
		},
		func(m *listenerv3.FilterChainMatch) int {
			return longest(m.GetSourcePrefixRanges(), c.Source.Addr())
		},
		func(m *listenerv3.FilterChainMatch) int {
			return either(len(m.GetSourcePorts()) == 0, slices.Contains(m.GetSourcePorts(), uint32(c.Source.Port())))
		},
	} {
		best := 1
		for _, ch := range chains {
			best = max(best, rank(ch.GetFilterChainMatch()))
		}
		chains = slices.DeleteFunc(chains, func(ch *listenerv3.FilterChain) bool { return rank(ch.GetFilterChainMatch()) != best })
	}
	if len(chains) == 0 {
		return l.GetDefaultFilterChain(), nil
	}
	return chains[0], nil
}

func either(none, equal bool) int {
	switch {
	case none:
		return 1
	case equal:
		return 2
	}
	return 0
}

// longest ranks prefixes by the longest that has the address.
func longest(ranges []*corev3.CidrRange, a netip.Addr) int {
	if len(ranges) == 0 {
		return 1
	}
	best := 0
	for _, r := range ranges {
		if inRange(r, a) {
			best = max(best, 2+int(r.GetPrefixLen().GetValue()))
		}
	}
	return best
}

// serverNameRank ranks server names: an exact one, then the longest wildcard.
func serverNameRank(names []string, name string) int {
	if len(names) == 0 {
		return 1
	}
	best := 0
	for _, n := range names {
		if suffix, wild := strings.CutPrefix(n, "*."); wild {
			if strings.HasSuffix(name, "."+suffix) {
				best = max(best, 2+len(suffix))
			}
		} else if n == name && name != "" {
			best = max(best, 1<<20)
		}
	}
	return best
}

func inRange(r *corev3.CidrRange, a netip.Addr) bool {
	base, err := netip.ParseAddr(r.GetAddressPrefix())
	if err != nil {
		return false
	}
	p, err := base.Prefix(int(r.GetPrefixLen().GetValue()))
	return err == nil && p.Contains(a.Unmap())
}

// handshake ends TLS as a transport socket does: the identities of the client, or why it is refused.
func handshake(s *corev3.TransportSocket, c Connection) (identities []string, refused string, err error) {
	context, err := message(s.GetTypedConfig(), &tlsv3.DownstreamTlsContext{})
	if err != nil {
		return nil, "", err
	}
	if c.TLS == nil {
		return nil, "TLS is required", nil
	}
	if len(c.TLS.Identities) == 0 {
		if context.GetRequireClientCertificate().GetValue() {
			return nil, "a client certificate is required", nil
		}
		return nil, "", nil
	}
	common := context.GetCommonTlsContext()
	validation := common.GetValidationContext()
	if combined := common.GetCombinedValidationContext(); combined != nil {
		validation = combined.GetDefaultValidationContext()
	}
	if len(validation.GetMatchTypedSubjectAltNames()) > 0 {
		return nil, "", unknown("match_typed_subject_alt_names")
	}
	wanted := validation.GetMatchSubjectAltNames() //nolint:staticcheck // what is sent
	for _, id := range c.TLS.Identities {
		for _, m := range wanted {
			ok, err := text(m, id)
			if err != nil {
				return nil, "", err
			}
			if ok {
				return c.TLS.Identities, "", nil
			}
		}
	}
	if len(wanted) > 0 {
		return nil, "the client's identity is of no accepted trust domain", nil
	}
	return c.TLS.Identities, "", nil
}
