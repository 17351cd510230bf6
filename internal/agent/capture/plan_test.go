package capture

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files anew")

// set gives an option its value by its flag's or variable's name.
func set(t *testing.T, o *Options, name, value string) {
	t.Helper()
	for _, f := range o.Flags() {
		if f.Name != name && (f.Name != "" || f.Env != name) {
			continue
		}
		if f.Bool != nil {
			*f.Bool = value == "true"
		} else {
			*f.Text = value
		}
		return
	}
	t.Fatalf("there is no option %q", name)
}

// TestGoldenPlans plans each testdata/*.txtar: its options (name=value, the rest default) and its
// addresses give its plan, or its error.
func TestGoldenPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d golden files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o, f := DefaultOptions(), Facts{}
			for line := range strings.Lines(section(archive, "options")) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				set(t, &o, name, value)
			}
			for line := range strings.Lines(section(archive, "addresses")) {
				f.Addrs = append(f.Addrs, netip.MustParseAddr(strings.TrimSpace(line)))
			}
			for line := range strings.Lines(section(archive, "facts")) {
				setFact(t, &f, strings.TrimSpace(line))
			}
			r, err := Plan(o, f)
			got := r.String()
			if err != nil {
				got = err.Error() + "\n"
			}
			if *update {
				archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == "plan" })
				archive.Files = append(archive.Files, txtar.File{Name: "plan", Data: []byte(got)})
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(section(archive, "plan"), got); diff != "" {
				t.Errorf("the plan differs (-want +got); -update takes it:\n%s", diff)
			}
		})
	}
}

// setFact reads a line such as "resolver 10.96.0.10", "group java 202", "no-ipv6".
func setFact(t *testing.T, f *Facts, line string) {
	t.Helper()
	words := append(strings.Fields(line), "", "", "")
	id := func() uint32 {
		n, err := strconv.ParseUint(words[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(n)
	}
	switch words[0] {
	case "resolver":
		f.Resolvers = append(f.Resolvers, netip.MustParseAddr(words[1]))
	case "interface":
		f.Interfaces = append(f.Interfaces, words[1])
	case "no-migration":
		f.NoMigration = strings.TrimPrefix(line, "no-migration ")
	case "no-ipv6":
		f.NoIPv6 = true
	case "user":
		f.Users = map[string]uint32{words[1]: id()}
	case "group":
		f.Groups = map[string]uint32{words[1]: id()}
	default:
		t.Fatalf("what is the fact %q?", line)
	}
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomOptions(r *rand.Rand) Options {
	o := DefaultOptions()
	o.ProxyUID = pick(r, "1337", "1337,1338", "0")
	o.ProxyGID = pick(r, "", "1337", "7,8")
	o.ProxyMark = pick(r, "", "", "42")
	o.Mode = pick(r, "", "REDIRECT", "TPROXY")
	o.VirtInterfaces = pick(r, "", "tap0", "tap0,tap1")
	o.DNS = DNS{Capture: pick(r, true, false), All: pick(r, true, false)}
	o.DropInvalid = pick(r, true, false)
	o.Inbound.Ports = pick(r, "", "*", "80", "80,8000-8010")
	o.Inbound.ExcludePorts = pick(r, "", "15090,15021,15020", "22", "9000:9010")
	o.ExcludeInterfaces = pick(r, "", "eth1", "eth1,tun0")
	o.Outbound.CIDRs = pick(r, "", "*", "10.0.0.0/8", "10.96.0.0/12, fd00::/8")
	o.Outbound.ExcludeCIDRs = pick(r, "", "10.1.0.0/16", "169.254.169.254,fd00:1::/32")
	o.Outbound.Ports = pick(r, "", "443", "443,6000-7000")
	o.Outbound.ExcludePorts = pick(r, "", "53", "9000-9010,22")
	o.Outbound.OwnerGroups = pick(r, "*", "100,101", "")
	o.Outbound.OwnerGroupsExclude = pick(r, "", "202")
	o.DualStack = pick(r, true, false)
	return o
}

// Promises that hold for every plan, whatever the options.
func TestEveryPlanIsDeterministicAndWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		o := randomOptions(r)
		f := Facts{
			Addrs:     []netip.Addr{netip.MustParseAddr(pick(r, "10.0.0.1", "fd00::1", "127.0.0.1"))},
			Resolvers: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}[:r.IntN(3)],
		}
		plan, err := Plan(o, f)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		again, _ := Plan(o, f)
		if !reflect.DeepEqual(plan, again) || plan.String() != again.String() {
			t.Fatalf("%+v: two plans differ", o)
		}
		ipv6 := o.DualStack || f.Addrs[0].Is6()
		if ipv6 != (len(plan.Loopback) == 1) || ipv6 != strings.Contains(plan.String(), "ip6 ") {
			t.Fatalf("%+v %v: IPv6 rules in a plan without IPv6, or the reverse:\n%s", o, f, plan)
		}
		checkWhole(t, plan)
	}
}

// checkWhole wants every jump to lead to a chain, and every rule to be one that the kernel's
// encoding knows.
func checkWhole(t *testing.T, plan Ruleset) {
	t.Helper()
	for _, table := range plan.Tables {
		chains := map[string]bool{}
		for _, c := range table.Chains {
			if chains[c.Name] {
				t.Fatalf("chain %s is there twice", c.Name)
			}
			chains[c.Name] = true
		}
		for _, c := range table.Chains {
			for _, r := range c.Rules {
				if r.Action.Verb == Jump && !chains[r.Action.Chain] {
					t.Fatalf("rule %q leads nowhere", r)
				}
				if _, err := encode(r); err != nil {
					t.Fatalf("rule %q: %v", r, err)
				}
			}
		}
	}
}

func TestOptionsAreRefusedByNameWithARemedy(t *testing.T) {
	groups := make([]string, 65)
	for i := range groups {
		groups[i] = fmt.Sprint(i)
	}
	for _, c := range []struct{ name, value, want string }{
		{"envoy-port", "", `--envoy-port="": give one port`},
		{"inbound-capture-port", "65536", `--inbound-capture-port="65536": give one port from 1 to 65535`},
		{"inbound-tunnel-port", "0", "--inbound-tunnel-port"},
		{"proxy-uid", "istio-proxy", `--proxy-uid="istio-proxy": give numeric ids`},
		{"proxy-uid", " , ", "name at least one user"},
		{"proxy-gid", "-1", "--proxy-gid"},
		{"istio-inbound-interception-mode", "DIVERT", "give REDIRECT, TPROXY or NONE"},
		{"istio-inbound-ports", "80,*", `--istio-inbound-ports="*": give ports from 1 to 65535, or ranges such as 8000-8010, separated by commas, or * alone`},
		{"istio-local-exclude-ports", "90-80", `--istio-local-exclude-ports="90-80"`},
		{"istio-exclude-interfaces", "a-name-that-is-too-long", "at most 15 characters"},
		{"istio-service-cidr", "10.0.0.0/33", `--istio-service-cidr="10.0.0.0/33": give CIDRs`},
		{"istio-service-exclude-cidr", "*", `--istio-service-exclude-cidr="*"`},
		{"istio-outbound-ports", "http", "--istio-outbound-ports"},
		{"istio-local-outbound-ports-exclude", "-1", "--istio-local-outbound-ports-exclude"},
		{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/7", "mask from 8 to 32"},
		{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "::1/128", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"},
		{"ISTIO_OUTBOUND_OWNER_GROUPS", strings.Join(groups, ","), "at most 64 groups"},
		{"ISTIO_OUTBOUND_OWNER_GROUPS", "java", "give numeric ids"},
		{"istio-inbound-tproxy-mark", "1338", "1338 marks the proxy's calls to its own Pod"},
		{"istio-inbound-tproxy-mark", "0", "give a number from 1"},
		{"istio-inbound-tproxy-route-table", "254", "253 to 255 are the kernel's own tables"},
		{"istio-inbound-tproxy-route-table", "main", "give the number of a routing table"},
		{"proxy-mark", "1337", "this marks inbound packets"},
		{"proxy-cgroup", "/", "give the path of the proxy's own cgroup"},
		{"kube-virt-interfaces", "a/b", "--kube-virt-interfaces"},
	} {
		o := DefaultOptions()
		if strings.Contains(c.name, "tproxy") || c.name == "proxy-mark" {
			o.Mode = "TPROXY"
		}
		set(t, &o, c.name, c.value)
		if _, err := Plan(o, Facts{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: %v, want %q", c.name, c.value, err, c.want)
		}
	}
	_, err := Plan(Options{EnvoyPort: "x", InboundPort: "y"}, Facts{})
	if err == nil || !strings.Contains(err.Error(), "--envoy-port") || !strings.Contains(err.Error(), "--inbound-capture-port") {
		t.Errorf("two bad options: %v, want both named", err)
	}
}

func TestDumpNamesEveryOption(t *testing.T) {
	o := DefaultOptions()
	dump := strings.Join(o.Dump(), "\n")
	for _, want := range []string{"PROXY_PORT=15001", "PROXY_UID=1337", "OUTBOUND_OWNER_GROUPS_INCLUDE=*", "DUAL_STACK=false", "INBOUND_PORTS_INCLUDE="} {
		if !strings.Contains(dump+"\n", want+"\n") {
			t.Errorf("no line %q in\n%s", want, dump)
		}
	}
	if len(o.Dump()) != len(o.Flags()) {
		t.Errorf("%d lines for %d options", len(o.Dump()), len(o.Flags()))
	}
}

func BenchmarkPlan(b *testing.B) {
	o := DefaultOptions()
	o.Inbound.Ports, o.Outbound.CIDRs, o.Inbound.ExcludePorts = "*", "*", "15090,15021,15020"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Plan(o, Facts{}); err != nil {
			b.Fatal(err)
		}
	}
}
