package cluster

import (
	"net/netip"
	"regexp"
	"strings"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dynamicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A dynamic cluster resolves the name that a client requests, in the Host header or as server name of TLS. Whoever may send requests
// through the proxy so chooses to which addresses it connects. Three things bound that (decision 99): the name must be one of the
// service's, the port is the service's, and an address that means the proxy's own host, or what only this host may reach, is not
// used, whether DNS says it or the client.

const (
	dynamicType = "envoy.clusters.dynamic_forward_proxy"
	// maxNames is how many names a cache holds; requests for others get 503 until one has not been used for unusedName.
	maxNames   = 1024
	unusedName = 5 * time.Minute
	// minRefresh is how long an address is used at least, whatever its TTL.
	minRefresh = 5 * time.Second
	// failedFirst is after what time a name is looked up again that was not found, failedLast the most that it becomes.
	failedFirst, failedLast = time.Second, 10 * time.Second
)

// ownPrefixes are the addresses at which a proxy would reach itself or its host: unspecified, loopback and link-local ones, also with
// IPv6 around IPv4, and those of the metadata services of clouds that are not link-local. Multicast and broadcast have no server.
var ownPrefixes = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("64:ff9b::/104"), netip.MustParsePrefix("64:ff9b::7f00:0/104"), netip.MustParsePrefix("64:ff9b::a9fe:0/112"),
	netip.MustParsePrefix("fd00:ec2::254/128"), netip.MustParsePrefix("fd20:ce::254/128"),
}

// dnsCache returns the cache of the names of a host's cluster. Envoy refuses a cache that has the name of another one with other
// settings, so that they depend on nothing that changes while a proxy runs.
func dnsCache(host string, caps mesh.Capability) *cachev3.DnsCacheConfig {
	c := &cachev3.DnsCacheConfig{
		Name:            host + "_dfp_dns_cache",
		DnsLookupFamily: lookupFamily(caps), DnsMinRefreshRate: durationpb.New(minRefresh),
		HostTtl: durationpb.New(unusedName), MaxHosts: wrapperspb.UInt32(maxNames),
		// No request for a name without addresses looks it up again, so that the clock has to, sooner than every minute. The second is for
		// names of which all addresses are left out.
		DnsFailureRefreshRate: &clusterv3.Cluster_RefreshRate{BaseInterval: durationpb.New(failedFirst), MaxInterval: durationpb.New(failedLast)},
		DnsRefreshRate:        durationpb.New(failedLast),
		ResolvedAddressFilter: &matcherv3.AddressMatcher{},
	}
	for _, p := range ownPrefixes {
		c.ResolvedAddressFilter.Ranges = append(c.ResolvedAddressFilter.Ranges, &xdscorev3.CidrRange{
			AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits())),
		})
	}
	if caps.Has(mesh.CaresDNS) {
		c.TypedDnsResolverConfig = &corev3.TypedExtensionConfig{
			Name:        "envoy.network.dns_resolver.cares",
			TypedConfig: marshal.MustAny(&caresv3.CaresDnsResolverConfig{UdpMaxQueries: wrapperspb.UInt32(dnsMaxQueries)}),
		}
	}
	return c
}

// DynamicName has what a listener needs for TLS connections to a dynamic cluster, which have their name before a cluster is chosen.
type DynamicName struct {
	Host string
	Port uint32
}

// Cache returns the cache of names, as the cluster has it.
func (d DynamicName) Cache(caps mesh.Capability) *cachev3.DnsCacheConfig {
	return dnsCache(d.Host, caps)
}

// ServesDynamic reports whether requests or connections of a protocol have a name that can be resolved.
func ServesDynamic(p mesh.Protocol) bool { return p.IsHTTP() || p.IsTLS() || p == mesh.Auto }

// HostPattern returns the regular expression, in RE2's syntax, of the Host headers for the names of a host; its first group is the name. The
// empty host is for all names.
func HostPattern(host string) string {
	name := ".+?"
	switch suffix, wildcard := strings.CutPrefix(host, "*"); {
	case wildcard:
		name = ".+?" + regexp.QuoteMeta(suffix)
	case host != "":
		name = regexp.QuoteMeta(host)
	}
	return "(?i)^(" + name + `)\.?(:[0-9]*)?$`
}

// Covers reports whether all of the names, which may be wildcards, are names of a host.
func Covers(host string, names []string) bool {
	suffix, wildcard := strings.CutPrefix(host, "*")
	for _, n := range names {
		if n != host && !(wildcard && strings.HasSuffix(n, suffix)) {
			return false
		}
	}
	return len(names) > 0
}

func setDynamic(c *clusterv3.Cluster, host string, caps mesh.Capability) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: dynamicType,
		TypedConfig: marshal.MustAny(&dynamicv3.ClusterConfig{
			ClusterImplementationSpecifier: &dynamicv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(host, caps)},
		}),
	}}
}

// finishDynamic adapts a dynamic cluster to its TLS. Envoy verifies the name in the server's certificate unless it is told that the policy
// says otherwise. It returns false if the proxy cannot leave out addresses, or the port is one of its own: then nothing may be resolved.
func finishDynamic(c *clusterv3.Cluster, in Input, o *options) bool {
	if !in.Caps.Has(mesh.DynamicDNS) || mesh.IsProxyPort(in.Target) {
		return false
	}
	if o.auto == nil && c.TransportSocket == nil {
		o.auto = &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: true} // for plaintext they mean nothing
	}
	if !o.auto.GetAutoSni() || !o.auto.GetAutoSanValidation() {
		config := &dynamicv3.ClusterConfig{
			ClusterImplementationSpecifier: &dynamicv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(in.Service.Host, in.Caps)},
			AllowInsecureClusterOptions:    true,
		}
		c.GetClusterType().TypedConfig = marshal.MustAny(config)
	}
	return true
}

// AllowAnyDynamicDNS returns the cluster for HTTP to hosts that the mesh does not know, with the TLS of the mesh's outboundTrafficPolicy. It
// has no endpoints if that TLS, or the proxy, cannot be used. [control-plane 1.4.6]
func AllowAnyDynamicDNS(m *meshv1.MeshConfig, caps mesh.Capability) *clusterv3.Cluster {
	in := Input{
		Service: Service{Host: mesh.AllowAnyDynamicDNSCluster, External: true}, Protocol: mesh.HTTP, Resolution: Dynamic, Mesh: m, Caps: caps,
		Policy: WithDefaults(nil, m),
	}
	if t := m.GetOutboundTrafficPolicy().GetTls(); t != nil {
		in.Policy = &networking.TrafficPolicy{
			Tls: t, ConnectionPool: in.Policy.GetConnectionPool(), OutlierDetection: in.Policy.GetOutlierDetection(),
		}
	}
	c := Build(in)
	c.Name, c.AltStatName = mesh.AllowAnyDynamicDNSCluster, statName(mesh.AllowAnyDynamicDNSCluster)
	c.Metadata = nil
	if c.LoadAssignment != nil {
		c.LoadAssignment.ClusterName = c.Name
	}
	return c
}
