package capture

import (
	"fmt"
	"strings"
)

// Options are the values of the command line, as the user wrote them. Lists are separated by
// commas; an empty string is an empty list. Ports may be ranges, such as 8000-8010.
type Options struct {
	// EnvoyPort takes the captured outbound connections, InboundPort the inbound ones, and
	// TunnelPort is never captured. [agent I1–I3]
	EnvoyPort, InboundPort, TunnelPort string
	Owner
	// Mode is "" or REDIRECT, TPROXY, or NONE: no rules at all. [I6]
	Mode     string
	Inbound  Inbound
	Outbound Outbound
	// ExcludeInterfaces are left alone in both directions. What arrives from VirtInterfaces, behind
	// which virtual machines are, is captured as outbound. [I9, I14]
	ExcludeInterfaces, VirtInterfaces string
	// DualStack captures IPv6 whatever the Pod's first address is. [I25]
	DualStack bool
	// DropInvalid drops arriving packets that conntrack finds invalid. [I24]
	DropInvalid bool
	DNS         DNS
}

// Owner says how the kernel tells the proxy's own connections, which pass, from the applications'.
type Owner struct {
	// ProxyUID and ProxyGID list the numbers or names of the users and groups whose connections
	// pass. An empty ProxyGID is as ProxyUID. [I4, I5]
	ProxyUID, ProxyGID string
	// ProxyMark is the mark that the proxy sets on its sockets, ProxyCgroup the path of its cgroup
	// below the root of the unified hierarchy. If one is set, users and groups don't count, so
	// that an application of the proxy's user is captured.
	ProxyMark, ProxyCgroup string
}

// DNS says which questions the agent answers in place of the resolvers.
type DNS struct {
	// Capture takes what goes to port 53, UDP and TCP, of the namespace's resolvers; with All, of
	// any address. [I22, I23]
	Capture, All bool
}

// Inbound says which arriving connections are captured.
type Inbound struct {
	// Ports is "*", a list, or empty for none. [I7]
	Ports string
	// ExcludePorts are left alone; only looked at where Ports is "*". [I8]
	ExcludePorts string
	// Mark and RouteTable, of TPROXY, are the mark by which the kernel delivers captured packets
	// here and the routing table that does it; empty is as the default. [I15, I16]
	Mark, RouteTable string
}

// Outbound says which of the applications' own connections are captured.
type Outbound struct {
	// CIDRs is "*", a list, or empty for none; ExcludeCIDRs goes first. [I10, I11]
	CIDRs, ExcludeCIDRs string
	// Ports are captured whatever their address, ExcludePorts never. [I12, I13]
	Ports, ExcludePorts string
	// LoopbackCIDR is what counts as loopback among IPv4 destinations. OwnerGroups is "*" or
	// the numbers or names of at most 64 groups, the only ones that are captured; OwnerGroupsExclude
	// are not, and is only looked at where OwnerGroups is "*". [I33]
	LoopbackCIDR, OwnerGroups, OwnerGroupsExclude string
}

const defaultMark, defaultRouteTable = "1337", "133"

// DefaultOptions are the values of flags that were not given. They capture nothing: what is
// captured must be said.
func DefaultOptions() Options {
	return Options{
		EnvoyPort: "15001", InboundPort: "15006", TunnelPort: "15008", Owner: Owner{ProxyUID: "1337"},
		Inbound:  Inbound{Mark: defaultMark, RouteTable: defaultRouteTable},
		Outbound: Outbound{LoopbackCIDR: "127.0.0.1/32", OwnerGroups: "*"},
	}
}

// Flag is one option as the command line has it. Exactly one of Text and Bool is set.
type Flag struct {
	// Name and Short are the flag's; an option without them is read from the environment only.
	Name, Short string
	// Env is the environment's name for it, Key that of Dump.
	Env, Key string
	Usage    string
	Text     *string
	Bool     *bool
}

// Flags lists the options with the places of their values in o, in the order of Dump.
func (o *Options) Flags() []Flag {
	text := func(name, short, key string, to *string, usage string) Flag {
		env := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		return Flag{Name: name, Short: short, Env: env, Key: key, Usage: usage, Text: to}
	}
	env := func(name, key string, to *string) Flag { return Flag{Env: name, Key: key, Text: to} }
	in, out := &o.Inbound, &o.Outbound
	return []Flag{
		text("envoy-port", "p", "PROXY_PORT", &o.EnvoyPort, "`port` that captured outbound connections go to"),
		text("inbound-capture-port", "z", "PROXY_INBOUND_CAPTURE_PORT", &o.InboundPort, "`port` that captured inbound connections go to"),
		text("inbound-tunnel-port", "e", "PROXY_TUNNEL_PORT", &o.TunnelPort, "`port` whose inbound connections are never captured"),
		text("proxy-uid", "u", "PROXY_UID", &o.ProxyUID, "`users` whose own connections pass, by number or name (default that of $ENVOY_USER)"),
		text("proxy-gid", "g", "PROXY_GID", &o.ProxyGID, "`groups` whose own connections pass, by number or name (default as --proxy-uid)"),
		text("proxy-mark", "", "PROXY_MARK", &o.ProxyMark, "`mark` of the sockets whose connections pass, instead of users and groups"),
		text("proxy-cgroup", "", "PROXY_CGROUP", &o.ProxyCgroup, "`path` of the cgroup (version 2) whose connections pass, instead of users and groups"),
		text("istio-inbound-interception-mode", "m", "INBOUND_INTERCEPTION_MODE", &o.Mode, "`how` inbound connections are captured: REDIRECT, TPROXY, or NONE for no capture at all"),
		text("istio-inbound-tproxy-mark", "t", "INBOUND_TPROXY_MARK", &in.Mark, "`mark` of inbound packets that TPROXY captures"),
		text("istio-inbound-tproxy-route-table", "r", "INBOUND_TPROXY_ROUTE_TABLE", &in.RouteTable, "routing `table` that delivers marked packets here"),
		text("istio-inbound-ports", "b", "INBOUND_PORTS_INCLUDE", &in.Ports, "inbound `ports` to capture: *, or a list; none if empty"),
		text("istio-local-exclude-ports", "d", "INBOUND_PORTS_EXCLUDE", &in.ExcludePorts, "inbound `ports` to leave alone, with --istio-inbound-ports=*"),
		text("istio-exclude-interfaces", "c", "EXCLUDE_INTERFACES", &o.ExcludeInterfaces, "network `interfaces` to leave alone"),
		env("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "HOST_IPV4_LOOPBACK_CIDR", &out.LoopbackCIDR),
		env("ISTIO_OUTBOUND_OWNER_GROUPS", "OUTBOUND_OWNER_GROUPS_INCLUDE", &out.OwnerGroups),
		env("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "OUTBOUND_OWNER_GROUPS_EXCLUDE", &out.OwnerGroupsExclude),
		text("istio-service-cidr", "i", "OUTBOUND_IP_RANGES_INCLUDE", &out.CIDRs, "`destinations` to capture: *, or a list of CIDRs; none if empty"),
		text("istio-service-exclude-cidr", "x", "OUTBOUND_IP_RANGES_EXCLUDE", &out.ExcludeCIDRs, "`destinations` to leave alone, a list of CIDRs"),
		text("istio-outbound-ports", "q", "OUTBOUND_PORTS_INCLUDE", &out.Ports, "outbound `ports` to capture whatever the destination"),
		text("istio-local-outbound-ports-exclude", "o", "OUTBOUND_PORTS_EXCLUDE", &out.ExcludePorts, "outbound `ports` to leave alone, TCP and UDP"),
		text("kube-virt-interfaces", "k", "KUBE_VIRT_INTERFACES", &o.VirtInterfaces, "network `interfaces` of virtual machines, whose connections are captured as outbound"),
		{Name: "dual-stack", Env: "ISTIO_DUAL_STACK", Key: "DUAL_STACK", Usage: "capture IPv6 as well as IPv4, whatever the first address is", Bool: &o.DualStack},
		{Name: "redirect-dns", Env: "ISTIO_META_DNS_CAPTURE", Key: "DNS_CAPTURE", Usage: "capture DNS, UDP and TCP, to the resolvers of resolv.conf", Bool: &o.DNS.Capture},
		{Name: "capture-all-dns", Env: "CAPTURE_ALL_DNS", Key: "CAPTURE_ALL_DNS", Usage: "with --redirect-dns, capture DNS to any address", Bool: &o.DNS.All},
		{Name: "drop-invalid", Env: "INVALID_DROP", Key: "DROP_INVALID", Usage: "drop arriving packets that belong to no connection", Bool: &o.DropInvalid},
	}
}

// Dump lists the options as KEY=value.
func (o Options) Dump() []string {
	var lines []string
	for _, f := range o.Flags() {
		if f.Bool != nil {
			lines = append(lines, fmt.Sprintf("%s=%t", f.Key, *f.Bool))
		} else {
			lines = append(lines, f.Key+"="+*f.Text)
		}
	}
	return lines
}
