package plan

// Options say what to capture, as the user wrote it on the command line. Lists are separated by
// commas; an empty string is an empty list. Ports may be ranges, such as 8000-8010. The flag or
// variable that sets each option, and its default, are in the table of istio-iptables
// (internal/settings/iptables.go).
type Options struct {
	// EnvoyPort receives the captured outbound connections, InboundPort the inbound ones;
	// TunnelPort is never captured. Each is one port, 1–65535. [agent I1–I3]
	EnvoyPort, InboundPort, TunnelPort string
	// ProxyUID and ProxyGID list, by number or name, the users and groups whose connections are not
	// captured: the proxy's own. An empty ProxyGID means the same as ProxyUID. [agent I4, I5]
	ProxyUID, ProxyGID string
	// ProxyMark is the mark that the proxy sets on its sockets, ProxyCgroup the path of its cgroup
	// below the root of the unified hierarchy. At most one may be set; users and groups are then
	// ignored, so that an application that runs as the proxy's user is captured.
	ProxyMark, ProxyCgroup string
	// Mode is "" or REDIRECT, TPROXY, or NONE: no rules at all. [agent I6]
	Mode     string
	Inbound  Inbound
	Outbound Outbound
	// ExcludeInterfaces are not captured in either direction. What arrives from VirtInterfaces,
	// behind which virtual machines are, is captured as outbound. [agent I9, I14]
	ExcludeInterfaces, VirtInterfaces string
	// DualStack captures IPv6 whatever the Pod's first address is. [agent I25]
	DualStack bool
	// DropInvalid drops arriving packets that conntrack finds invalid. [agent I24]
	DropInvalid bool
	DNS         DNS
}

// DNS selects the DNS queries that are redirected to the agent.
type DNS struct {
	// Capture captures what goes to port 53, UDP and TCP, of the namespace's resolvers; with All,
	// of any address. [agent I22, I23]
	Capture, All bool
}

// Inbound selects the inbound connections that are captured.
type Inbound struct {
	// Ports is "*", a list, or empty for none. [agent I7]
	Ports string
	// ExcludePorts are not captured; they are ignored unless Ports is "*". [agent I8]
	ExcludePorts string
	// Mark and RouteTable, of TPROXY, are the mark by which the kernel delivers captured packets
	// here and the routing table that does it; empty means [DefaultTProxyMark] and
	// [DefaultRouteTable]. [agent I15, I16]
	Mark, RouteTable string
}

// Outbound selects the connections of applications that are captured.
type Outbound struct {
	// CIDRs is "*", a list, or empty for none; ExcludeCIDRs takes precedence. [agent I10, I11]
	CIDRs, ExcludeCIDRs string
	// Ports are captured whatever the address, ExcludePorts never. [agent I12, I13]
	Ports, ExcludePorts string
	// LoopbackCIDR is what counts as loopback among IPv4 destinations. OwnerGroups is "*" or at
	// most 64 groups, by number or name, the only ones that are captured; OwnerGroupsExclude are
	// not captured, and are ignored unless OwnerGroups is "*". [agent I33]
	LoopbackCIDR, OwnerGroups, OwnerGroupsExclude string
}
