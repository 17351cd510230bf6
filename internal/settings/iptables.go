package settings

import "github.com/pilothouse/pilothouse/internal/mesh"

// Defaults that the packages of capture need too, where nothing sets an option.
const (
	// DefaultTProxyMark is the mark of packets that TPROXY captures.
	DefaultTProxyMark = "1337"
	// DefaultRouteTable is the routing table that delivers them.
	DefaultRouteTable = "133"
	// DefaultPath is where programs for administration usually are.
	DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// AgentIptables is the table of pilot-agent istio-iptables, in the order of its printed
// configuration. Each flag has a variable of its own name, in upper case; Istio's further names
// precede it. [agent I1–I34]
var AgentIptables = Table{
	{Flag: "envoy-port", Short: "p", Env: []string{"ENVOY_PORT"}, Kind: Port, PrintedAs: "PROXY_PORT", Number: mesh.OutboundPort, Unit: "port", Used: "internal/agent/capture/plan",
		Help: "`port` that captured outbound connections go to"},
	{Flag: "inbound-capture-port", Short: "z", Env: []string{"INBOUND_CAPTURE_PORT"}, Kind: Port, PrintedAs: "PROXY_INBOUND_CAPTURE_PORT", Number: mesh.InboundPort, Unit: "port", Used: "internal/agent/capture/plan",
		Help: "`port` that captured inbound connections go to"},
	{Flag: "inbound-tunnel-port", Short: "e", Env: []string{"INBOUND_TUNNEL_PORT"}, Kind: Port, PrintedAs: "PROXY_TUNNEL_PORT", Default: "15008", Unit: "port", Used: "internal/agent/capture/plan",
		Help: "`port` whose inbound connections are never captured"},
	{Flag: "proxy-uid", Short: "u", Env: []string{"PROXY_UID"}, Kind: Text, PrintedAs: "PROXY_UID", Otherwise: "that of $ENVOY_USER", Unit: "list of users", Used: "internal/agent/capture/plan",
		Help: "`users` whose connections are not captured: the proxy's own, by number or name"},
	{Flag: "proxy-gid", Short: "g", Env: []string{"PROXY_GID"}, Kind: Text, PrintedAs: "PROXY_GID", Otherwise: "as --proxy-uid", Unit: "list of groups", Used: "internal/agent/capture/plan",
		Help: "`groups` whose connections are not captured: the proxy's own, by number or name"},
	{Flag: "proxy-mark", Env: []string{"PROXY_MARK"}, Kind: Text, PrintedAs: "PROXY_MARK", Unit: "mark", Used: "internal/agent/capture/plan",
		Help: "`mark` of the proxy's sockets, instead of users and groups"},
	{Flag: "proxy-cgroup", Env: []string{"PROXY_CGROUP"}, Kind: Text, PrintedAs: "PROXY_CGROUP", Unit: "path", Used: "internal/agent/capture/plan",
		Help: "`path` of the proxy's cgroup (version 2), instead of users and groups"},
	{Flag: "istio-inbound-interception-mode", Short: "m", Env: []string{"ISTIO_INBOUND_INTERCEPTION_MODE"}, Kind: Enum, Values: []string{"", "REDIRECT", "TPROXY", "NONE"}, PrintedAs: "INBOUND_INTERCEPTION_MODE", Unit: "mode", Used: "internal/agent/capture/plan",
		Help: "`mode` of inbound capture, and NONE for no capture at all; empty is REDIRECT"},
	{Flag: "istio-inbound-tproxy-mark", Short: "t", Env: []string{"ISTIO_INBOUND_TPROXY_MARK"}, Kind: Text, PrintedAs: "INBOUND_TPROXY_MARK", Default: DefaultTProxyMark, Unit: "mark", Used: "internal/agent/capture/plan",
		Help: "`mark` of inbound packets that TPROXY captures"},
	{Flag: "istio-inbound-tproxy-route-table", Short: "r", Env: []string{"ISTIO_INBOUND_TPROXY_ROUTE_TABLE"}, Kind: Text, PrintedAs: "INBOUND_TPROXY_ROUTE_TABLE", Default: DefaultRouteTable, Unit: "routing table", Used: "internal/agent/capture/plan",
		Help: "routing `table` that delivers marked packets here"},
	{Flag: "istio-inbound-ports", Short: "b", Env: []string{"ISTIO_INBOUND_PORTS"}, Kind: Text, PrintedAs: "INBOUND_PORTS_INCLUDE", Unit: "list of ports", Used: "internal/agent/capture/plan",
		Help: "inbound `ports` to capture: *, or a list; none if empty"},
	{Flag: "istio-local-exclude-ports", Short: "d", Env: []string{"ISTIO_LOCAL_EXCLUDE_PORTS"}, Kind: Text, PrintedAs: "INBOUND_PORTS_EXCLUDE", Unit: "list of ports", Used: "internal/agent/capture/plan",
		Help: "inbound `ports` not to capture, with --istio-inbound-ports=*"},
	{Flag: "istio-exclude-interfaces", Short: "c", Env: []string{"ISTIO_EXCLUDE_INTERFACES"}, Kind: Text, PrintedAs: "EXCLUDE_INTERFACES", Unit: "list of interfaces", Used: "internal/agent/capture/plan",
		Help: "network `interfaces` not to capture"},
	{Env: []string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"}, Kind: Text, PrintedAs: "HOST_IPV4_LOOPBACK_CIDR", Default: "127.0.0.1/32", Unit: "CIDR", Used: "internal/agent/capture/plan",
		Help: "what counts as loopback among IPv4 destinations"},
	{Env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS"}, Kind: Text, PrintedAs: "OUTBOUND_OWNER_GROUPS_INCLUDE", Default: "*", Unit: "list of groups", Used: "internal/agent/capture/plan",
		Help: "groups whose outbound connections are captured: *, or a list of at most 64"},
	{Env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"}, Kind: Text, PrintedAs: "OUTBOUND_OWNER_GROUPS_EXCLUDE", Unit: "list of groups", Used: "internal/agent/capture/plan",
		Help: "groups whose outbound connections are not captured, with ISTIO_OUTBOUND_OWNER_GROUPS=*"},
	{Flag: "istio-service-cidr", Short: "i", Env: []string{"ISTIO_SERVICE_CIDR"}, Kind: Text, PrintedAs: "OUTBOUND_IP_RANGES_INCLUDE", Unit: "list of CIDRs", Used: "internal/agent/capture/plan",
		Help: "`destinations` to capture: *, or a list of CIDRs; none if empty"},
	{Flag: "istio-service-exclude-cidr", Short: "x", Env: []string{"ISTIO_SERVICE_EXCLUDE_CIDR"}, Kind: Text, PrintedAs: "OUTBOUND_IP_RANGES_EXCLUDE", Unit: "list of CIDRs", Used: "internal/agent/capture/plan",
		Help: "`destinations` not to capture, a list of CIDRs"},
	{Flag: "istio-outbound-ports", Short: "q", Env: []string{"ISTIO_OUTBOUND_PORTS"}, Kind: Text, PrintedAs: "OUTBOUND_PORTS_INCLUDE", Unit: "list of ports", Used: "internal/agent/capture/plan",
		Help: "outbound `ports` to capture whatever the destination"},
	{Flag: "istio-local-outbound-ports-exclude", Short: "o", Env: []string{"ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"}, Kind: Text, PrintedAs: "OUTBOUND_PORTS_EXCLUDE", Unit: "list of ports", Used: "internal/agent/capture/plan",
		Help: "outbound `ports` not to capture, TCP and UDP"},
	{Flag: "kube-virt-interfaces", Short: "k", Env: []string{"KUBE_VIRT_INTERFACES"}, Kind: Text, PrintedAs: "KUBE_VIRT_INTERFACES", Unit: "list of interfaces", Used: "internal/agent/capture/plan",
		Help: "network `interfaces` of virtual machines, whose connections are captured as outbound"},
	{Flag: "dual-stack", Env: []string{"ISTIO_DUAL_STACK", "DUAL_STACK"}, Kind: Bool, PrintedAs: "DUAL_STACK", Unit: "switch", Used: "internal/agent/capture/plan",
		Help: "capture IPv6 as well as IPv4, whatever the first address is"},
	{Flag: "redirect-dns", Env: []string{"ISTIO_META_DNS_CAPTURE", "REDIRECT_DNS"}, Kind: Bool, PrintedAs: "DNS_CAPTURE", Unit: "switch", Used: "internal/agent/capture/plan",
		Help: "capture DNS, UDP and TCP, to the resolvers of resolv.conf"},
	{Flag: "capture-all-dns", Env: []string{"CAPTURE_ALL_DNS"}, Kind: Bool, PrintedAs: "CAPTURE_ALL_DNS", Unit: "switch", Used: "internal/agent/capture/plan",
		Help: "with --redirect-dns, capture DNS to any address"},
	{Flag: "drop-invalid", Env: []string{"INVALID_DROP", "DROP_INVALID"}, Kind: Bool, PrintedAs: "DROP_INVALID", Unit: "switch", Used: "internal/agent/capture/plan",
		Help: "drop arriving packets that belong to no connection"},

	{Flag: "dry-run", Short: "n", Env: []string{"DRY_RUN"}, Kind: Bool, Unit: "switch", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "print the rules and apply nothing; also into the file $DRY_RUN_FILE_PATH"},
	{Flag: "skip-rule-apply", Env: []string{"SKIP_RULE_APPLY"}, Kind: Bool, Unit: "switch", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "apply nothing: check the options and, with --run-validation, the rules in force"},
	{Flag: "run-validation", Env: []string{"RUN_VALIDATION"}, Kind: Bool, Unit: "switch", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "send connections through the rules; if they don't arrive as planned, the exit code is 126"},
	{Flag: "cleanup-only", Env: []string{"CLEANUP_ONLY"}, Kind: Bool, PrintedAs: "CLEANUP_ONLY", Unit: "switch", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "remove all rules of capture, whatever applied them, and apply nothing"},
	{Flag: "network-namespace", Env: []string{"NETWORK_NAMESPACE"}, Kind: Text, PrintedAs: "NETWORK_NAMESPACE", Unit: "path", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "act in the network namespace of this `path`"},
	{Flag: "cni-mode", Env: []string{"CNI_MODE"}, Kind: Bool, PrintedAs: "CNI_MODE", Unit: "switch", Used: "internal/agent/capture",
		Help: "lock the network namespace instead of /run/xtables.lock, which other namespaces share"},
	{Flag: "reconcile", Env: []string{"RECONCILE"}, Kind: Bool, PrintedAs: "RECONCILE", Unit: "switch", Used: "internal/agent/capture",
		Help: "replace other rules of capture that are in force, instead of failing"},
	{Flag: "force-apply", Env: []string{"FORCE_APPLY"}, Kind: Bool, PrintedAs: "FORCE_APPLY", Unit: "switch", Used: "internal/agent/capture",
		Help: "replace the rules even if they are in force already"},
	{Flag: "native-nftables", Env: []string{"NATIVE_NFTABLES"}, Kind: Bool, PrintedAs: "NATIVE_NFTABLES", Unit: "switch", Used: "internal/agent/capture",
		Help: "use nftables, without any program, even where iptables works"},
	{Flag: "force-iptables-binary", Env: []string{"FORCE_IPTABLES_BINARY"}, Kind: Enum, Values: []string{"", "legacy", "nft"}, PrintedAs: "FORCE_IPTABLES_BINARY", Unit: "variant", Used: "internal/agent/capture",
		Help: "use this `variant` of iptables"},
	{Flag: "iptables-probe-port", Env: []string{"IPTABLES_PROBE_PORT"}, Kind: Port, Default: "15002", Unit: "port", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "`port` that validation connects to"},
	{Flag: "probe-timeout", Env: []string{"PROBE_TIMEOUT"}, Kind: Duration, Default: "5s", Positive: true, Unit: "duration", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "how long each connection of validation may take"},
	{Flag: "iptables-trace-logging", Env: []string{"IPTABLES_TRACE_LOGGING"}, Kind: Bool, Unit: "switch", NoEffect: "TRACE rules are not written",
		Help: "trace packets in the kernel's log"},

	{Env: []string{"DRY_RUN_FILE_PATH"}, Kind: Text, Unit: "path", Once: true, Used: "cmd/pilot-agent/iptables.go",
		Help: "file that --dry-run writes the rules to"},
	{Env: []string{"ENVOY_USER"}, Kind: Text, Default: "istio-proxy", Unit: "user", Used: "cmd/pilot-agent/iptables.go",
		Help: "user that runs the proxy, for --proxy-uid; 1337 if there is no such user"},
	{Env: []string{"PATH"}, Kind: Text, Default: DefaultPath, Unit: "list of directories", Used: "internal/agent/capture",
		Help: "where the programs of iptables are, with colons in between"},
}

// AgentCleanIptables is the table of pilot-agent istio-clean-iptables: what of AgentIptables is for the removal of rules.
var AgentCleanIptables = cleaning(map[string]string{
	"dry-run":           "print the commands that remove the rules, and remove nothing; also into the file $DRY_RUN_FILE_PATH",
	"skip-rule-apply":   "remove nothing: check the options",
	"cleanup-only":      "is what this command does in any case",
	"network-namespace": "", "cni-mode": "", "DRY_RUN_FILE_PATH": "file that --dry-run writes the commands to", "PATH": "",
})

// cleaning are settings of AgentIptables, with another help where it is not empty.
func cleaning(help map[string]string) (out Table) {
	for _, s := range AgentIptables {
		text, ok := help[s.Name()]
		if !ok {
			continue
		}
		s.PrintedAs = ""
		if text != "" {
			s.Help = text
		}
		out = append(out, s)
	}
	return out
}

// AgentExplain is the table of the flags of pilot-agent istio-iptables explain besides those of
// istio-iptables.
var AgentExplain = Table{
	{Flag: "from", Kind: Text, Unit: "address", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "source `address`, with or without a port"},
	{Flag: "to", Kind: Text, Required: true, Unit: "address", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "destination `address` and port"},
	{Flag: "proto", Kind: Enum, Default: "tcp", Values: []string{"tcp", "udp"}, Unit: "protocol", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`protocol`"},
	{Flag: "uid", Kind: Int, Max: 4294967295, Unit: "user", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`user` that sends, by number"},
	{Flag: "gid", Kind: Int, Max: 4294967295, Unit: "group", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`group` that sends, by number"},
	{Flag: "cgroup", Kind: Text, Unit: "path", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`path` of the cgroup that sends"},
	{Flag: "mark", Kind: Int, Max: 4294967295, Unit: "mark", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`mark` of the packet"},
	{Flag: "connection-mark", Kind: Int, Max: 4294967295, Unit: "mark", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`mark` of the connection"},
	{Flag: "state", Kind: Enum, Default: "new", Values: []string{"new", "established", "related", "invalid"}, Unit: "state", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`state` of the connection"},
	{Flag: "in-interface", Kind: Text, Unit: "interface", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "network `interface` where it arrives"},
	{Flag: "out-interface", Kind: Text, Otherwise: "lo if the destination is here, else the first other", Unit: "interface", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "network `interface` where it would leave"},
	{Flag: "direction", Kind: Enum, Otherwise: "by the interfaces and addresses", Values: []string{"", "inbound", "outbound"}, Unit: "direction", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`direction`"},
	{Flag: "inbound", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "as --direction=inbound"},
	{Flag: "outbound", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "as --direction=outbound"},
	{Flag: "output", Kind: Enum, Default: "text", Values: []string{"text", "json"}, Unit: "form", Used: "cmd/pilot-agent/iptables_explain.go",
		Help: "`form` of the answer"},
}
