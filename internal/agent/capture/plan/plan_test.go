package plan_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan/plantest"
)

var update = flag.Bool("update", false, "update the golden files")

// TestGoldenPlans plans each testdata/*.txtar: its options (name=value, the rest default) and its
// addresses want its plan, or its error.
func TestGoldenPlans(t *testing.T) {
	for _, g := range plantest.Goldens(t, "testdata") {
		t.Run(g.Name, func(t *testing.T) {
			r, err := plan.Build(g.Options, g.Facts)
			got := r.String()
			if err != nil {
				got = err.Error() + "\n"
			}
			if *update {
				g.Archive.Files = slices.DeleteFunc(g.Archive.Files, func(f txtar.File) bool { return f.Name == "plan" })
				g.Archive.Files = append(g.Archive.Files, txtar.File{Name: "plan", Data: []byte(got)})
				if err := os.WriteFile(g.Path, txtar.Format(g.Archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(g.Section("plan"), got); diff != "" {
				t.Errorf("the plan differs (-want +got); -update takes it:\n%s", diff)
			}
		})
	}
}

func TestEveryOptionHasAGolden(t *testing.T) {
	var all strings.Builder
	for _, g := range plantest.Goldens(t, "testdata") {
		all.WriteString("\n" + g.Section("options"))
	}
	o := plantest.Defaults()
	fields := plantest.Fields(&o)
	for name := range fields {
		if !strings.Contains(all.String(), "\n"+name+"=") {
			t.Errorf("no golden plan has the option %s", name)
		}
	}
	if n := leaves(reflect.TypeFor[plan.Options]()); n != len(fields) {
		t.Errorf("plan.Options has %d options, plantest.Fields names %d", n, len(fields))
	}
}

// leaves counts the fields of a struct and of the structs in it.
func leaves(s reflect.Type) (n int) {
	for i := range s.NumField() {
		if f := s.Field(i).Type; f.Kind() == reflect.Struct {
			n += leaves(f)
		} else {
			n++
		}
	}
	return n
}

func TestEveryPlanIsDeterministicAndComplete(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		o := plantest.Random(r)
		f := plan.Facts{
			Addrs:     []netip.Addr{netip.MustParseAddr(plantest.Pick(r, "10.0.0.1", "fd00::1", "127.0.0.1"))},
			Resolvers: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}[:r.IntN(3)],
		}
		rules, err := plan.Build(o, f)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		again, _ := plan.Build(o, f)
		if !reflect.DeepEqual(rules, again) || rules.String() != again.String() {
			t.Fatalf("%+v: two plans differ", o)
		}
		ipv6 := o.DualStack || f.Addrs[0].Is6()
		if ipv6 != (len(rules.Loopback) == 1) || ipv6 != strings.Contains(rules.String(), "ip6 ") {
			t.Fatalf("%+v %v: IPv6 rules in a plan without IPv6, or the reverse:\n%s", o, f, rules)
		}
		checkJumps(t, rules)
	}
}

// checkJumps checks that every jump has a chain of its own table as its target.
func checkJumps(t *testing.T, rules plan.Ruleset) {
	t.Helper()
	for _, table := range rules.Tables {
		chains := map[string]bool{}
		for _, c := range table.Chains {
			if chains[c.Name] {
				t.Fatalf("chain %s exists twice", c.Name)
			}
			chains[c.Name] = true
		}
		for _, c := range table.Chains {
			for _, r := range c.Rules {
				if r.Action.Verb == plan.Jump && !chains[r.Action.Chain] {
					t.Fatalf("rule %q jumps to a chain that does not exist", r)
				}
			}
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	groups := make([]string, 65)
	for i := range groups {
		groups[i] = fmt.Sprint(i)
	}
	for _, c := range []struct{ name, value, want string }{
		{"envoy-port", "", `--envoy-port="": want one port`},
		{"inbound-capture-port", "65536", `--inbound-capture-port="65536": want one port from 1 to 65535`},
		{"inbound-tunnel-port", "0", "--inbound-tunnel-port"},
		{"proxy-uid", "istio-proxy", `--proxy-uid="istio-proxy": want numeric ids`},
		{"proxy-uid", " , ", "name at least one user"},
		{"proxy-gid", "-1", "--proxy-gid"},
		{"istio-inbound-interception-mode", "DIVERT", "want REDIRECT, TPROXY or NONE"},
		{"istio-inbound-ports", "80,*", `--istio-inbound-ports="*": want ports from 1 to 65535, or ranges such as 8000-8010, separated by commas, or * alone`},
		{"istio-local-exclude-ports", "90-80", `--istio-local-exclude-ports="90-80"`},
		{"istio-exclude-interfaces", "a-name-that-is-too-long", "at most 15 characters"},
		{"istio-service-cidr", "10.0.0.0/33", `--istio-service-cidr="10.0.0.0/33": want CIDRs`},
		{"istio-service-exclude-cidr", "*", `--istio-service-exclude-cidr="*"`},
		{"istio-outbound-ports", "http", "--istio-outbound-ports"},
		{"istio-local-outbound-ports-exclude", "-1", "--istio-local-outbound-ports-exclude"},
		{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/7", "mask from 8 to 32"},
		{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "::1/128", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"},
		{"ISTIO_OUTBOUND_OWNER_GROUPS", strings.Join(groups, ","), "at most 64 groups"},
		{"ISTIO_OUTBOUND_OWNER_GROUPS", "java", "want numeric ids"},
		{"istio-inbound-tproxy-mark", "1338", "1338 marks the proxy's calls to its own Pod"},
		{"istio-inbound-tproxy-mark", "0", "want a number from 1"},
		{"istio-inbound-tproxy-route-table", "254", "253 to 255 are the kernel's own tables"},
		{"istio-inbound-tproxy-route-table", "main", "want the number of an unused routing table"},
		{"proxy-mark", "1337", "this marks inbound packets"},
		{"proxy-cgroup", "/", "want the path of the proxy's own cgroup"},
		{"kube-virt-interfaces", "a/b", "--kube-virt-interfaces"},
	} {
		o := plantest.Defaults()
		if strings.Contains(c.name, "tproxy") || c.name == "proxy-mark" {
			o.Mode = "TPROXY"
		}
		if err := plantest.Set(&o, c.name, c.value); err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Build(o, plan.Facts{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: %v, want %q", c.name, c.value, err, c.want)
		}
	}
	_, err := plan.Build(plan.Options{EnvoyPort: "x", InboundPort: "y"}, plan.Facts{})
	if err == nil || !strings.Contains(err.Error(), "--envoy-port") || !strings.Contains(err.Error(), "--inbound-capture-port") {
		t.Errorf("two bad options: %v, want both named", err)
	}
}

func BenchmarkPlan(b *testing.B) {
	o := plantest.Defaults()
	o.Inbound.Ports, o.Outbound.CIDRs, o.Inbound.ExcludePorts = "*", "*", "15090,15021,15020"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := plan.Build(o, plan.Facts{}); err != nil {
			b.Fatal(err)
		}
	}
}

// An earlier capture of IPv6 leaves its own address on loopback, which must not enable IPv6 again.
func TestPassthroughAddressIsIgnored(t *testing.T) {
	f := plan.Facts{Addrs: []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("::6"), netip.MustParseAddr("10.0.0.7")}}
	r, err := plan.Build(plantest.Defaults(), f)
	if err != nil || r.Captures(true) {
		t.Errorf("IPv6 is captured, %v", err)
	}
}

// Options without effect are accepted, because Istio accepts them, and noted.
func TestOptionsWithoutEffectAreNoted(t *testing.T) {
	for _, c := range []struct {
		set  map[string]string
		want string
	}{
		{map[string]string{"istio-inbound-ports": "80", "istio-local-exclude-ports": "22"}, "--istio-local-exclude-ports has no effect unless --istio-inbound-ports is *"},
		{map[string]string{"istio-inbound-ports": "*", "istio-local-exclude-ports": "22"}, ""},
		{map[string]string{"ISTIO_OUTBOUND_OWNER_GROUPS": "7", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": "8"}, "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE has no effect unless ISTIO_OUTBOUND_OWNER_GROUPS is *"},
		{map[string]string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": "8"}, ""},
		{map[string]string{"istio-inbound-tproxy-mark": "7"}, "--istio-inbound-tproxy-mark has no effect without --istio-inbound-interception-mode=TPROXY"},
		{map[string]string{"istio-inbound-tproxy-mark": plan.DefaultTProxyMark, "istio-inbound-tproxy-route-table": plan.DefaultRouteTable}, ""},
		{map[string]string{"istio-inbound-tproxy-route-table": "7"}, "--istio-inbound-tproxy-route-table has no effect without --istio-inbound-interception-mode=TPROXY"},
		{map[string]string{"istio-inbound-interception-mode": "TPROXY", "istio-inbound-tproxy-mark": "7", "istio-inbound-tproxy-route-table": "7"}, ""},
		{map[string]string{"proxy-mark": "42", "proxy-gid": "7"}, "--proxy-gid has no effect with --proxy-mark or --proxy-cgroup"},
		{map[string]string{"proxy-gid": "7"}, ""},
		{map[string]string{"proxy-mark": "42", "proxy-gid": "1337"}, ""}, // the default, as --proxy-uid
		{map[string]string{"capture-all-dns": "true"}, "--capture-all-dns has no effect without --redirect-dns"},
	} {
		o := plantest.Defaults()
		for name, value := range c.set {
			if err := plantest.Set(&o, name, value); err != nil {
				t.Fatal(err)
			}
		}
		r, err := plan.Build(o, plan.Facts{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.Notes, "\n"); got != c.want {
			t.Errorf("%v: notes %q, want %q", c.set, got, c.want)
		}
	}
}
