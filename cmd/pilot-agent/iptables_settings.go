package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// setting is one flag, with or without environment variables, or environment variables alone.
//
// A flag that is given counts, even if its value is empty; else the first of the variables that is set
// and not empty; else the default.
type setting struct {
	// flag and short are the names of the flag; empty where only the environment sets it.
	flag, short string
	// env are the environment variables.
	env []string
	// key is the name in the printed configuration; empty where the setting is not printed.
	key string
	// def is the default, in the notation of the flag; for a switch, empty means false.
	def string
	// unit is what the value is: a port, a list of ports, a duration.
	unit string
	// usage is what the setting does; the flag's argument is between backquotes.
	usage string
	// value is where the value goes: a *string, *bool, *uint16, *uint32 or *time.Duration.
	value any
	// once says that the setting is only for the command itself: --watchCapture has no use for it.
	once bool
	// ignored says that the setting is accepted and has no effect.
	ignored bool
}

// settings is the table of all flags and environment variables of istio-iptables, in the order of
// --help and of the printed configuration. [agent I1–I34]
func (r *captureCommand) settings() []setting {
	o, b := &r.options, &r.backend
	in, out := &o.Inbound, &o.Outbound
	return []setting{
		{flag: "envoy-port", short: "p", env: []string{"ENVOY_PORT"}, key: "PROXY_PORT", def: "15001", unit: "port", value: &o.EnvoyPort,
			usage: "`port` that captured outbound connections go to"},
		{flag: "inbound-capture-port", short: "z", env: []string{"INBOUND_CAPTURE_PORT"}, key: "PROXY_INBOUND_CAPTURE_PORT", def: "15006", unit: "port", value: &o.InboundPort,
			usage: "`port` that captured inbound connections go to"},
		{flag: "inbound-tunnel-port", short: "e", env: []string{"INBOUND_TUNNEL_PORT"}, key: "PROXY_TUNNEL_PORT", def: "15008", unit: "port", value: &o.TunnelPort,
			usage: "`port` whose inbound connections are never captured"},
		{flag: "proxy-uid", short: "u", env: []string{"PROXY_UID"}, key: "PROXY_UID", unit: "list of users", value: &o.ProxyUID,
			usage: "`users` whose connections are not captured: the proxy's own, by number or name (default that of $ENVOY_USER)"},
		{flag: "proxy-gid", short: "g", env: []string{"PROXY_GID"}, key: "PROXY_GID", unit: "list of groups", value: &o.ProxyGID,
			usage: "`groups` whose connections are not captured: the proxy's own, by number or name (default as --proxy-uid)"},
		{flag: "proxy-mark", env: []string{"PROXY_MARK"}, key: "PROXY_MARK", unit: "mark", value: &o.ProxyMark,
			usage: "`mark` of the proxy's sockets, instead of users and groups"},
		{flag: "proxy-cgroup", env: []string{"PROXY_CGROUP"}, key: "PROXY_CGROUP", unit: "path", value: &o.ProxyCgroup,
			usage: "`path` of the proxy's cgroup (version 2), instead of users and groups"},
		{flag: "istio-inbound-interception-mode", short: "m", env: []string{"ISTIO_INBOUND_INTERCEPTION_MODE"}, key: "INBOUND_INTERCEPTION_MODE", unit: "mode", value: &o.Mode,
			usage: "`how` inbound connections are captured: REDIRECT, TPROXY, or NONE for no capture at all"},
		{flag: "istio-inbound-tproxy-mark", short: "t", env: []string{"ISTIO_INBOUND_TPROXY_MARK"}, key: "INBOUND_TPROXY_MARK", def: plan.DefaultTProxyMark, unit: "mark", value: &in.Mark,
			usage: "`mark` of inbound packets that TPROXY captures"},
		{flag: "istio-inbound-tproxy-route-table", short: "r", env: []string{"ISTIO_INBOUND_TPROXY_ROUTE_TABLE"}, key: "INBOUND_TPROXY_ROUTE_TABLE", def: plan.DefaultRouteTable, unit: "routing table", value: &in.RouteTable,
			usage: "routing `table` that delivers marked packets here"},
		{flag: "istio-inbound-ports", short: "b", env: []string{"ISTIO_INBOUND_PORTS"}, key: "INBOUND_PORTS_INCLUDE", unit: "list of ports", value: &in.Ports,
			usage: "inbound `ports` to capture: *, or a list; none if empty"},
		{flag: "istio-local-exclude-ports", short: "d", env: []string{"ISTIO_LOCAL_EXCLUDE_PORTS"}, key: "INBOUND_PORTS_EXCLUDE", unit: "list of ports", value: &in.ExcludePorts,
			usage: "inbound `ports` not to capture, with --istio-inbound-ports=*"},
		{flag: "istio-exclude-interfaces", short: "c", env: []string{"ISTIO_EXCLUDE_INTERFACES"}, key: "EXCLUDE_INTERFACES", unit: "list of interfaces", value: &o.ExcludeInterfaces,
			usage: "network `interfaces` not to capture"},
		{env: []string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"}, key: "HOST_IPV4_LOOPBACK_CIDR", def: "127.0.0.1/32", unit: "CIDR", value: &out.LoopbackCIDR,
			usage: "what counts as loopback among IPv4 destinations"},
		{env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS"}, key: "OUTBOUND_OWNER_GROUPS_INCLUDE", def: "*", unit: "list of groups", value: &out.OwnerGroups,
			usage: "groups whose outbound connections are captured: *, or a list of at most 64"},
		{env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"}, key: "OUTBOUND_OWNER_GROUPS_EXCLUDE", unit: "list of groups", value: &out.OwnerGroupsExclude,
			usage: "groups whose outbound connections are not captured, with ISTIO_OUTBOUND_OWNER_GROUPS=*"},
		{flag: "istio-service-cidr", short: "i", env: []string{"ISTIO_SERVICE_CIDR"}, key: "OUTBOUND_IP_RANGES_INCLUDE", unit: "list of CIDRs", value: &out.CIDRs,
			usage: "`destinations` to capture: *, or a list of CIDRs; none if empty"},
		{flag: "istio-service-exclude-cidr", short: "x", env: []string{"ISTIO_SERVICE_EXCLUDE_CIDR"}, key: "OUTBOUND_IP_RANGES_EXCLUDE", unit: "list of CIDRs", value: &out.ExcludeCIDRs,
			usage: "`destinations` not to capture, a list of CIDRs"},
		{flag: "istio-outbound-ports", short: "q", env: []string{"ISTIO_OUTBOUND_PORTS"}, key: "OUTBOUND_PORTS_INCLUDE", unit: "list of ports", value: &out.Ports,
			usage: "outbound `ports` to capture whatever the destination"},
		{flag: "istio-local-outbound-ports-exclude", short: "o", env: []string{"ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"}, key: "OUTBOUND_PORTS_EXCLUDE", unit: "list of ports", value: &out.ExcludePorts,
			usage: "outbound `ports` not to capture, TCP and UDP"},
		{flag: "kube-virt-interfaces", short: "k", env: []string{"KUBE_VIRT_INTERFACES"}, key: "KUBE_VIRT_INTERFACES", unit: "list of interfaces", value: &o.VirtInterfaces,
			usage: "network `interfaces` of virtual machines, whose connections are captured as outbound"},
		{flag: "dual-stack", env: []string{"ISTIO_DUAL_STACK", "DUAL_STACK"}, key: "DUAL_STACK", unit: "switch", value: &o.DualStack,
			usage: "capture IPv6 as well as IPv4, whatever the first address is"},
		{flag: "redirect-dns", env: []string{"ISTIO_META_DNS_CAPTURE", "REDIRECT_DNS"}, key: "DNS_CAPTURE", unit: "switch", value: &o.DNS.Capture,
			usage: "capture DNS, UDP and TCP, to the resolvers of resolv.conf"},
		{flag: "capture-all-dns", env: []string{"CAPTURE_ALL_DNS"}, key: "CAPTURE_ALL_DNS", unit: "switch", value: &o.DNS.All,
			usage: "with --redirect-dns, capture DNS to any address"},
		{flag: "drop-invalid", env: []string{"INVALID_DROP", "DROP_INVALID"}, key: "DROP_INVALID", unit: "switch", value: &o.DropInvalid,
			usage: "drop arriving packets that belong to no connection"},

		{flag: "dry-run", short: "n", env: []string{"DRY_RUN"}, unit: "switch", value: &r.dryRun, once: true,
			usage: "print the rules and apply nothing; also into the file $DRY_RUN_FILE_PATH"},
		{flag: "skip-rule-apply", env: []string{"SKIP_RULE_APPLY"}, unit: "switch", value: &r.skip, once: true,
			usage: "apply nothing: check the options and, with --run-validation, the rules in force"},
		{flag: "run-validation", env: []string{"RUN_VALIDATION"}, unit: "switch", value: &r.runValidation, once: true,
			usage: "send connections through the rules; if they don't arrive as planned, the exit code is 126"},
		{flag: "cleanup-only", env: []string{"CLEANUP_ONLY"}, key: "CLEANUP_ONLY", unit: "switch", value: &r.clean, once: true,
			usage: "remove all rules of capture, whatever applied them, and apply nothing"},
		{flag: "network-namespace", env: []string{"NETWORK_NAMESPACE"}, key: "NETWORK_NAMESPACE", unit: "path", value: &r.namespace, once: true,
			usage: "act in the network namespace of this `path`"},
		{flag: "cni-mode", env: []string{"CNI_MODE"}, key: "CNI_MODE", unit: "switch", value: &b.PodLock,
			usage: "lock the network namespace instead of /run/xtables.lock, which other namespaces share"},
		{flag: "reconcile", env: []string{"RECONCILE"}, key: "RECONCILE", unit: "switch", value: &b.Reconcile,
			usage: "replace other rules of capture that are in force, instead of failing"},
		{flag: "force-apply", env: []string{"FORCE_APPLY"}, key: "FORCE_APPLY", unit: "switch", value: &b.Reapply,
			usage: "replace the rules even if they are in force already"},
		{flag: "native-nftables", env: []string{"NATIVE_NFTABLES"}, key: "NATIVE_NFTABLES", unit: "switch", value: &b.Native,
			usage: "use nftables, without any program, even where iptables works"},
		{flag: "force-iptables-binary", env: []string{"FORCE_IPTABLES_BINARY"}, key: "FORCE_IPTABLES_BINARY", unit: "variant", value: &b.Force,
			usage: "use this `variant` of iptables: legacy or nft"},
		{flag: "iptables-probe-port", env: []string{"IPTABLES_PROBE_PORT"}, def: "15002", unit: "port", value: &r.probePort, once: true,
			usage: "`port` that validation connects to"},
		{flag: "probe-timeout", env: []string{"PROBE_TIMEOUT"}, def: "5s", unit: "duration", value: &r.probeTimeout, once: true,
			usage: "how long each connection of validation may take"},
		{flag: "iptables-trace-logging", env: []string{"IPTABLES_TRACE_LOGGING"}, unit: "switch", value: new(bool), ignored: true,
			usage: "accepted, without effect"},

		{env: []string{"DRY_RUN_FILE_PATH"}, unit: "path", value: &r.dryRunFile, once: true,
			usage: "file that --dry-run writes the rules to"},
		{env: []string{"ENVOY_USER"}, def: "istio-proxy", unit: "user", value: &r.envoyUser,
			usage: "user that runs the proxy, for --proxy-uid; 1337 if there is no such user"},
		{env: []string{"PATH"}, def: capture.DefaultPath, unit: "list of directories", value: &b.Path,
			usage: "where the programs of iptables are, with colons in between"},
	}
}

// settings is the table of the flags of explain beside those of istio-iptables.
func (e *explanation) settings() []setting {
	return []setting{
		{flag: "from", unit: "address", value: &e.from, usage: "source `address`, with or without a port"},
		{flag: "to", unit: "address", value: &e.to, usage: "destination `address` and port"},
		{flag: "proto", def: "tcp", unit: "protocol", value: &e.packet.Protocol, usage: "`protocol`: tcp or udp"},
		{flag: "uid", def: "0", unit: "user", value: &e.packet.UID, usage: "`user` that sends, by number"},
		{flag: "gid", def: "0", unit: "group", value: &e.packet.GID, usage: "`group` that sends, by number"},
		{flag: "cgroup", unit: "path", value: &e.packet.Cgroup, usage: "`path` of the cgroup that sends"},
		{flag: "mark", def: "0", unit: "mark", value: &e.packet.Mark, usage: "`mark` of the packet"},
		{flag: "connection-mark", def: "0", unit: "mark", value: &e.packet.ConnMark, usage: "`mark` of the connection"},
		{flag: "state", def: "new", unit: "state", value: &e.packet.State, usage: "`state` of the connection: new, established, related or invalid"},
		{flag: "in-interface", unit: "interface", value: &e.in, usage: "network `interface` where it arrives"},
		{flag: "out-interface", unit: "interface", value: &e.out, usage: "network `interface` where it would leave (default lo if the destination is here, else the first other)"},
		{flag: "direction", unit: "direction", value: &e.direction, usage: "`direction`: inbound or outbound"},
		{flag: "inbound", unit: "switch", value: &e.inbound, usage: "as --direction=inbound"},
		{flag: "outbound", unit: "switch", value: &e.outbound, usage: "as --direction=outbound"},
		{flag: "output", def: "text", unit: "form", value: &e.output, usage: "`form` of the answer: text or json"},
	}
}

// register adds the flags of settings and gives all of them their defaults.
func register(f *pflag.FlagSet, settings []setting) {
	f.SortFlags = false
	for _, s := range settings {
		if s.def != "" {
			if err := s.set(s.def); err != nil {
				panic(fmt.Sprintf("default of %s: %v", s.name(), err))
			}
		}
		if s.flag == "" {
			continue
		}
		usage := s.usage
		if len(s.env) > 0 {
			usage += " [$" + strings.Join(s.env, ", $") + "]"
		}
		switch v := s.value.(type) {
		case *string:
			f.StringVarP(v, s.flag, s.short, *v, usage)
		case *bool:
			f.BoolVarP(v, s.flag, s.short, *v, usage)
		case *uint16:
			f.Uint16VarP(v, s.flag, s.short, *v, usage)
		case *uint32:
			f.Uint32VarP(v, s.flag, s.short, *v, usage)
		case *time.Duration:
			f.DurationVarP(v, s.flag, s.short, *v, usage)
		}
		if s.ignored {
			_ = f.MarkHidden(s.flag)
		}
	}
}

// variablesHelp describes the settings that only the environment sets.
func variablesHelp(settings []setting) string {
	var b strings.Builder
	b.WriteString("Variables without a flag:")
	for _, s := range settings {
		if s.flag == "" {
			fmt.Fprintf(&b, "\n  %s: %s", strings.Join(s.env, ", "), s.usage)
			if s.def != "" {
				fmt.Fprintf(&b, " (default %s)", s.def)
			}
		}
	}
	return b.String()
}

// name is the flag, or the variable of a setting without one.
func (s setting) name() string {
	if s.flag == "" {
		return s.env[0]
	}
	return "--" + s.flag
}

// set parses a value; the error says what to give instead.
func (s setting) set(text string) (err error) {
	switch v := s.value.(type) {
	case *string:
		*v = text
	case *bool:
		if *v, err = strconv.ParseBool(text); err != nil {
			return errors.New("give true or false")
		}
	case *uint16:
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return errors.New("give a number from 0 to 65535")
		}
		*v = uint16(n)
	case *uint32:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return errors.New("give a number from 0 to 4294967295")
		}
		*v = uint32(n)
	case *time.Duration:
		if *v, err = time.ParseDuration(text); err != nil {
			return errors.New("give a duration, such as 5s")
		}
	}
	return nil
}

// text is the value as it is printed.
func (s setting) text() string {
	switch v := s.value.(type) {
	case *string:
		return *v
	case *bool:
		return strconv.FormatBool(*v)
	}
	return ""
}

// readEnvironment sets what no flag did from the environment. The notes name what was given and has
// no effect.
func readEnvironment(f *pflag.FlagSet, settings []setting, getenv func(string) string) (notes []string, err error) {
	variables := map[string]bool{}
	for _, s := range settings {
		given := ""
		if s.flag != "" && f.Changed(s.flag) {
			given = s.name()
		}
		for _, variable := range s.env {
			variables[variable] = true
			value := getenv(variable)
			if value == "" || given != "" {
				continue
			}
			given = "the variable " + variable
			if err := s.set(value); err != nil {
				return nil, fmt.Errorf("%s=%q: %w", variable, value, err)
			}
		}
		if s.ignored && given != "" {
			notes = append(notes, given+" has no effect")
		}
	}
	// The keys of the printed configuration look like variables.
	for _, s := range settings {
		if s.key != "" && !variables[s.key] && getenv(s.key) != "" {
			notes = append(notes, fmt.Sprintf("the variable %s has no effect: it is only a name in the printed configuration; set %s", s.key, strings.Join(s.env, " or ")))
		}
	}
	return notes, nil
}

// dump lists the settings as KEY=value. [agent I55]
func dump(settings []setting) string {
	var b strings.Builder
	for _, s := range settings {
		if s.key != "" {
			fmt.Fprintf(&b, "%s=%s\n", s.key, s.text())
		}
	}
	return b.String()
}
