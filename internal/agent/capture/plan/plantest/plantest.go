// Package plantest gives tests the golden plans and random options: for package plan and for those that render or apply plans.
//
// A golden file is a txtar archive with the sections options (NAME=value, where NAME is the flag or
// variable of istio-iptables; the others have their defaults), addresses, facts and plan.
package plantest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Defaults returns the options of a command line without any flag. They capture nothing.
func Defaults() plan.Options {
	return plan.Options{
		EnvoyPort: "15001", InboundPort: "15006", TunnelPort: "15008", ProxyUID: "1337",
		Outbound: plan.Outbound{LoopbackCIDR: "127.0.0.1/32", OwnerGroups: "*"},
	}
}

// Fields maps the names that golden files use to the fields of o.
func Fields(o *plan.Options) map[string]any {
	in, out := &o.Inbound, &o.Outbound
	return map[string]any{
		"envoy-port": &o.EnvoyPort, "inbound-capture-port": &o.InboundPort, "inbound-tunnel-port": &o.TunnelPort,
		"proxy-uid": &o.ProxyUID, "proxy-gid": &o.ProxyGID, "proxy-mark": &o.ProxyMark, "proxy-cgroup": &o.ProxyCgroup,
		"istio-inbound-interception-mode": &o.Mode, "istio-inbound-tproxy-mark": &in.Mark, "istio-inbound-tproxy-route-table": &in.RouteTable,
		"istio-inbound-ports": &in.Ports, "istio-local-exclude-ports": &in.ExcludePorts,
		"istio-exclude-interfaces": &o.ExcludeInterfaces, "kube-virt-interfaces": &o.VirtInterfaces,
		"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": &out.LoopbackCIDR,
		"ISTIO_OUTBOUND_OWNER_GROUPS":       &out.OwnerGroups, "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": &out.OwnerGroupsExclude,
		"istio-service-cidr": &out.CIDRs, "istio-service-exclude-cidr": &out.ExcludeCIDRs,
		"istio-outbound-ports": &out.Ports, "istio-local-outbound-ports-exclude": &out.ExcludePorts,
		"dual-stack": &o.DualStack, "redirect-dns": &o.DNS.Capture, "capture-all-dns": &o.DNS.All, "drop-invalid": &o.DropInvalid,
	}
}

// Set sets the option of that name.
func Set(o *plan.Options, name, value string) error {
	switch field := Fields(o)[name].(type) {
	case *string:
		*field = value
	case *bool:
		*field = value == "true"
	default:
		return fmt.Errorf("invalid option %q", name)
	}
	return nil
}

// Golden is the input of a golden plan.
type Golden struct {
	// Name is that of its file, without the extension.
	Name string
	// Path is that of its file; Archive is its content.
	Path    string
	Archive *txtar.Archive
	Options plan.Options
	Facts   plan.Facts
}

// Goldens reads all golden plans of a directory.
func Goldens(t testing.TB, dir string) []Golden {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d golden files in %s: %v", len(files), dir, err)
	}
	var all []Golden
	for _, file := range files {
		g, err := read(file)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, g)
	}
	return all
}

func read(file string) (Golden, error) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		return Golden{}, err
	}
	g := Golden{Name: strings.TrimSuffix(filepath.Base(file), ".txtar"), Path: file, Archive: archive, Options: Defaults()}
	for line := range strings.Lines(g.Section("options")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if err := Set(&g.Options, name, value); err != nil {
			return Golden{}, err
		}
	}
	for line := range strings.Lines(g.Section("addresses")) {
		g.Facts.Addrs = append(g.Facts.Addrs, netip.MustParseAddr(strings.TrimSpace(line)))
	}
	for line := range strings.Lines(g.Section("facts")) {
		if err := setFact(&g.Facts, strings.TrimSpace(line)); err != nil {
			return Golden{}, err
		}
	}
	return g, nil
}

// Section returns the text of a section, or empty.
func (g Golden) Section(name string) string {
	for _, f := range g.Archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// setFact parses a line such as "resolver 10.96.0.10", "group java 202", "no-ipv6".
func setFact(f *plan.Facts, line string) error {
	fields := append(strings.Fields(line), "", "", "")
	switch kind, name := fields[0], fields[1]; kind {
	case "resolver":
		f.Resolvers = append(f.Resolvers, netip.MustParseAddr(name))
	case "interface":
		f.Interfaces = append(f.Interfaces, name)
	case "no-migration":
		f.NoMigration = strings.TrimPrefix(line, "no-migration ")
	case "no-ipv6":
		f.NoIPv6 = true
	case "user", "group":
		n, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return fmt.Errorf("fact %q: %w", line, err)
		}
		if ids := map[string]uint32{name: uint32(n)}; kind == "user" {
			f.Users = ids
		} else {
			f.Groups = ids
		}
	default:
		return fmt.Errorf("invalid fact %q", line)
	}
	return nil
}

// Random returns valid options.
func Random(r *rand.Rand) plan.Options {
	o := Defaults()
	o.ProxyUID = Pick(r, "1337", "1337,1338", "0")
	o.ProxyGID = Pick(r, "", "1337", "7,8")
	o.ProxyMark = Pick(r, "", "", "42")
	o.Mode = Pick(r, "", "REDIRECT", "TPROXY")
	o.VirtInterfaces = Pick(r, "", "tap0", "tap0,tap1")
	o.DNS = plan.DNS{Capture: Pick(r, true, false), All: Pick(r, true, false)}
	o.DropInvalid = Pick(r, true, false)
	o.Inbound.Ports = Pick(r, "", "*", "80", "80,8000-8010")
	o.Inbound.ExcludePorts = Pick(r, "", "15090,15021,15020", "22", "9000:9010")
	o.ExcludeInterfaces = Pick(r, "", "eth1", "eth1,tun0")
	o.Outbound.CIDRs = Pick(r, "", "*", "10.0.0.0/8", "10.96.0.0/12, fd00::/8")
	o.Outbound.ExcludeCIDRs = Pick(r, "", "10.1.0.0/16", "169.254.169.254,fd00:1::/32")
	o.Outbound.Ports = Pick(r, "", "443", "443,6000-7000")
	o.Outbound.ExcludePorts = Pick(r, "", "53", "9000-9010,22")
	o.Outbound.OwnerGroups = Pick(r, "*", "100,101", "")
	o.Outbound.OwnerGroupsExclude = Pick(r, "", "202")
	o.DualStack = Pick(r, true, false)
	return o
}

// Pick returns one of the values.
func Pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }
