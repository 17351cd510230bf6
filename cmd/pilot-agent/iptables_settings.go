package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// captureCommand is what the command line and the environment ask of istio-iptables: settings.AgentIptables.
type captureCommand struct {
	env     map[string]string
	values  *settings.Values
	options plan.Options

	dryRun, skip, clean   bool
	dryRunFile, namespace string
	backend               capture.BackendOptions

	runValidation bool
	probePort     uint16
	probeTimeout  time.Duration

	// notes name settings that were given and have no effect.
	notes []string
}

// fill reads the settings from the flags that f parsed, and from the environment.
func (r *captureCommand) fill(f *pflag.FlagSet) error {
	r.values = cli.Read(f, r.env, settings.AgentIptables)
	r.read(r.values)
	if err := r.values.Err(); err != nil {
		return err
	}
	r.notes = append(r.values.WithoutEffect(), printedOnly(r.env)...)
	return nil
}

func (r *captureCommand) read(v *settings.Values) {
	uid := v.TextOr("proxy-uid", "")
	if envoyUser := v.Text("ENVOY_USER"); uid == "" {
		uid = proxyUser(envoyUser)
	}
	gid := v.TextOr("proxy-gid", "")
	if gid == "" {
		gid = uid
	}
	r.options = plan.Options{
		EnvoyPort: v.Port("envoy-port"), InboundPort: v.Port("inbound-capture-port"), TunnelPort: v.Port("inbound-tunnel-port"),
		ProxyUID: uid, ProxyGID: gid, ProxyMark: v.Text("proxy-mark"), ProxyCgroup: v.Text("proxy-cgroup"),
		Mode: v.Enum("istio-inbound-interception-mode"),
		Inbound: plan.Inbound{
			Ports: v.Text("istio-inbound-ports"), ExcludePorts: v.Text("istio-local-exclude-ports"),
			Mark: v.Text("istio-inbound-tproxy-mark"), RouteTable: v.Text("istio-inbound-tproxy-route-table"),
		},
		Outbound: plan.Outbound{
			CIDRs: v.Text("istio-service-cidr"), ExcludeCIDRs: v.Text("istio-service-exclude-cidr"),
			Ports: v.Text("istio-outbound-ports"), ExcludePorts: v.Text("istio-local-outbound-ports-exclude"),
			LoopbackCIDR: v.Text("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"),
			OwnerGroups:  v.Text("ISTIO_OUTBOUND_OWNER_GROUPS"), OwnerGroupsExclude: v.Text("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"),
		},
		ExcludeInterfaces: v.Text("istio-exclude-interfaces"), VirtInterfaces: v.Text("kube-virt-interfaces"),
		DualStack: v.Bool("dual-stack"), DropInvalid: v.Bool("drop-invalid"),
		DNS: plan.DNS{Capture: v.Bool("redirect-dns"), All: v.Bool("capture-all-dns")},
	}
	r.backend = capture.BackendOptions{
		Native: v.Bool("native-nftables"), Force: v.Enum("force-iptables-binary"), Reconcile: v.Bool("reconcile"),
		Reapply: v.Bool("force-apply"), PodLock: v.Bool("cni-mode"), Path: v.Text("PATH"),
	}
	r.dryRun, r.dryRunFile = v.Bool("dry-run"), v.Text("DRY_RUN_FILE_PATH")
	r.skip, r.clean, r.namespace = v.Bool("skip-rule-apply"), v.Bool("cleanup-only"), v.Text("network-namespace")
	r.runValidation, r.probeTimeout = v.Bool("run-validation"), v.Duration("probe-timeout")
	r.probePort = uint16(v.Int("iptables-probe-port"))
}

// readClean reads settings.AgentCleanIptables.
func (r *captureCommand) readClean(v *settings.Values) {
	r.backend = capture.BackendOptions{PodLock: v.Bool("cni-mode"), Path: v.Text("PATH")}
	r.dryRun, r.dryRunFile = v.Bool("dry-run"), v.Text("DRY_RUN_FILE_PATH")
	r.skip, r.namespace = v.Bool("skip-rule-apply"), v.Text("network-namespace")
	_ = v.Bool("cleanup-only") // it is what the command does
	r.clean = true
}

// printedOnly names the variables that look like settings and are only names in the printed
// configuration.
func printedOnly(env map[string]string) []string {
	isVariable := func(name string) bool {
		return slices.ContainsFunc(settings.AgentIptables, func(s settings.Setting) bool { return slices.Contains(s.Env, name) })
	}
	var notes []string
	for _, s := range settings.AgentIptables {
		if s.PrintedAs != "" && env[s.PrintedAs] != "" && !isVariable(s.PrintedAs) {
			notes = append(notes, fmt.Sprintf("environment %s has no effect: it is only a name in the printed configuration; set %s",
				s.PrintedAs, strings.Join(s.Env, " or ")))
		}
	}
	return notes
}

// printed lists the settings as KEY=value. [agent I55]
func (r *captureCommand) printed() string {
	var b strings.Builder
	for i := range settings.AgentIptables {
		s := &settings.AgentIptables[i]
		value := ""
		switch {
		case s.PrintedAs == "":
			continue
		case s.Flag == "proxy-uid":
			value = r.options.ProxyUID
		case s.Flag == "proxy-gid":
			value = r.options.ProxyGID
		default:
			value = r.values.Printed(s.Name())
		}
		fmt.Fprintf(&b, "%s=%s\n", s.PrintedAs, value)
	}
	return b.String()
}

// readExplanation reads settings.AgentExplain.
func readExplanation(v *settings.Values) *explanation {
	return &explanation{
		from: v.Text("from"), to: v.Text("to"), direction: v.Enum("direction"), output: v.Enum("output"),
		in: v.Text("in-interface"), out: v.TextOr("out-interface", ""), inbound: v.Bool("inbound"), outbound: v.Bool("outbound"),
		packet: plan.Packet{
			Protocol: v.Enum("proto"), State: v.Enum("state"), Cgroup: v.Text("cgroup"),
			UID: uint32(v.Int("uid")), GID: uint32(v.Int("gid")), Mark: uint32(v.Int("mark")), ConnMark: uint32(v.Int("connection-mark")),
		},
	}
}
