package capture_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan/plantest"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// variants are the variants of iptables on this machine. If there is none, only nftables is tested.
func variants() (found []string) {
	for _, v := range []string{"nft", "legacy"} {
		if findProgram("iptables-"+v+"-restore") != "" && findProgram("ip6tables-"+v+"-restore") != "" {
			found = append(found, v)
		}
	}
	return found
}

func findProgram(name string) string {
	for dir := range strings.SplitSeq(capture.DefaultPath, ":") {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

// on is the backend of a variant, with options.
func on(variant string, change ...func(*capture.BackendOptions)) capture.BackendOptions {
	o := capture.BackendOptions{Force: variant, Path: capture.DefaultPath}
	for _, c := range change {
		c(&o)
	}
	return o
}

func reconcile(o *capture.BackendOptions) { o.Reconcile = true }

func reapply(o *capture.BackendOptions) { o.Reapply = true }

// use runs one method of a backend in a Pod.
func use(p *netmesh.Pod, o capture.BackendOptions, r plan.Ruleset, method func(capture.Choice) error) error {
	return p.Do(func() error {
		c, err := capture.Choose(o, r)
		if err != nil {
			return err
		}
		return method(c)
	})
}

func applyOn(p *netmesh.Pod, o capture.BackendOptions, r plan.Ruleset) error {
	return use(p, o, r, func(c capture.Choice) error { _, err := c.Apply(r); return err })
}

// drift is how a Pod's rules differ from r.
func drift(t *testing.T, p *netmesh.Pod, o capture.BackendOptions, r plan.Ruleset) (differences []string) {
	t.Helper()
	if err := use(p, o, r, func(c capture.Choice) (err error) { differences, err = c.Drift(r); return err }); err != nil {
		t.Fatal(err)
	}
	return differences
}

// shell runs a program in a Pod with an input and returns its output.
func shell(t *testing.T, p *netmesh.Pod, input, program string, args ...string) string {
	t.Helper()
	var out []byte
	if err := p.Do(func() (err error) {
		cmd := exec.Command(findProgram(program), args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %v: %w: %s", program, args, err, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// state is the rules of both families' iptables in a Pod, of the given variants or of all. The kernel's
// own chains are left out: reading a legacy table creates them.
func state(t *testing.T, p *netmesh.Pod, of ...string) string {
	t.Helper()
	if of == nil {
		of = variants()
	}
	var b strings.Builder
	for _, v := range of {
		for _, family := range []string{"iptables", "ip6tables"} {
			var tables []string
			for table := range strings.SplitSeq(shell(t, p, "", family+"-"+v+"-save"), "\n*") {
				var lines []string
				for line := range strings.Lines(table) {
					if line[0] == '-' || line[0] == ':' && strings.Contains(line, " - ") {
						lines = append(lines, line)
					}
				}
				if name, _, _ := strings.Cut(table, "\n"); len(lines) > 0 {
					tables = append(tables, "*"+name+"\n"+strings.Join(lines, ""))
				}
			}
			slices.Sort(tables) // their order is that of their first use
			fmt.Fprintf(&b, "%s-%s\n%s", family, v, strings.Join(tables, ""))
		}
	}
	return b.String()
}

// theirs are rules of others, some of which are similar to ours.
const theirs = `* nat
:KUBE-THEIRS - [0:0]
-A PREROUTING -p tcp --dport 99 -m comment --comment "theirs \"-j ISTIO_INBOUND\"" -j ACCEPT
-A PREROUTING -i eth7 -p tcp -j RETURN
-A OUTPUT -m owner --uid-owner 1337 -j KUBE-THEIRS
-A KUBE-THEIRS -p tcp -j REDIRECT --to-ports 15001
COMMIT
* mangle
-A PREROUTING -m conntrack --ctstate INVALID -j DROP
-A OUTPUT -o eth8 -j RETURN
-A OUTPUT -p tcp -m mark --mark 7 -j CONNMARK --save-mark
COMMIT
* filter
-P INPUT ACCEPT
-A INPUT -p tcp --dport 5432 -j DROP
COMMIT
`

// aloneOptions is every option alone, with a value that makes rules.
func aloneOptions() map[string]plan.Options {
	all := map[string]plan.Options{"none": plantest.Defaults()}
	values := map[string]string{
		"envoy-port": "1501", "inbound-capture-port": "1506", "inbound-tunnel-port": "1508", "proxy-uid": "7,8", "proxy-gid": "9",
		"istio-inbound-interception-mode": "REDIRECT", "istio-inbound-ports": "*", "istio-local-exclude-ports": "22,1000:2000",
		"istio-exclude-interfaces": "eth1,eth2", "istio-service-cidr": "*", "istio-service-exclude-cidr": "10.9.0.0/16,fd09::/16",
		"istio-outbound-ports": "443,6000-7000", "istio-local-outbound-ports-exclude": "22,1000-2000", "kube-virt-interfaces": "tap0,tap1",
		"istio-inbound-tproxy-mark": "55", "istio-inbound-tproxy-route-table": "166", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": "127.0.0.0/8",
		"ISTIO_OUTBOUND_OWNER_GROUPS": "5,6", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": "7",
	}
	base := plantest.Defaults()
	for name, field := range plantest.Fields(&base) {
		value := values[name]
		if _, isSwitch := field.(*bool); isSwitch {
			value = "true"
		}
		if value == "" {
			continue
		}
		o := plantest.Defaults()
		if err := plantest.Set(&o, name, value); err != nil {
			panic(err)
		}
		all[name] = o
		// Many options have an effect only where all is captured.
		o.Inbound.Ports, o.Outbound.CIDRs = "*", "*"
		all[name+" with all"] = o
	}
	return all
}

// randomOptions are some of all options.
func randomOptions(r *rand.Rand) plan.Options {
	o := plantest.Defaults()
	alone := aloneOptions()
	names := slices.Sorted(maps.Keys(alone))
	for range 1 + r.IntN(10) {
		from := alone[names[r.IntN(len(names))]]
		base := plantest.Defaults()
		to, defaults := plantest.Fields(&o), plantest.Fields(&base)
		for name, field := range plantest.Fields(&from) {
			switch f := field.(type) {
			case *bool:
				*to[name].(*bool) = *to[name].(*bool) || *f
			case *string:
				if *f != *defaults[name].(*string) {
					*to[name].(*string) = *f
				}
			}
		}
	}
	if r.IntN(3) == 0 {
		o.Mode, o.Inbound.Ports = "TPROXY", []string{"*", "80,443"}[r.IntN(2)]
	}
	return o
}

func planIn(t *testing.T, p *netmesh.Pod, o plan.Options) (r plan.Ruleset) {
	t.Helper()
	if err := p.Do(func() error {
		f, err := netns.ReadFacts("/")
		if err == nil {
			r, err = plan.Build(o, f)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestIptablesHasWhatWasPlanned applies a rule set, applies it again, damages, reconciles, forces and
// cleans it, for each option alone and for random combinations.
func TestIptablesHasWhatWasPlanned(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			shell(t, w.pod, theirs, "iptables-"+v+"-restore", "--noflush")
			shell(t, w.pod, theirs, "ip6tables-"+v+"-restore", "--noflush")
			r := rand.New(rand.NewPCG(5, 7))
			all := aloneOptions()
			for i := range 15 {
				all[fmt.Sprint("random ", i)] = randomOptions(r)
			}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if !t.Run(name, func(t *testing.T) { live(t, w.pod, v, planIn(t, w.pod, all[name]), r) }) {
					return // its rules may still be there
				}
			}
		})
	}
}

func live(t *testing.T, p *netmesh.Pod, v string, r plan.Ruleset, random *rand.Rand) {
	t.Helper()
	before := state(t, p, v)
	must := func(doing string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", doing, err)
		}
	}
	must("apply", applyOn(p, on(v), r))
	if d := drift(t, p, on(v), r); d != nil {
		t.Fatalf("once applied, the kernel differs: %q", d)
	}
	applied := state(t, p, v)
	if applied == before && len(r.Tables) > 0 {
		t.Fatal("nothing was applied")
	}
	same := func(doing, want string) {
		t.Helper()
		if got := state(t, p, v); got != want {
			t.Fatalf("%s: the kernel has\n%s\nwant\n%s", doing, got, want)
		}
	}
	must("apply again", applyOn(p, on(v), r))
	same("apply again", applied)
	must("force", applyOn(p, on(v, reapply), r))
	same("force", applied)
	what := damage(t, p, v, random)
	if d := drift(t, p, on(v), r); d == nil {
		t.Errorf("%s: no difference is seen", what)
	}
	if err := applyOn(p, on(v), r); err == nil || !strings.Contains(err.Error(), "--reconcile") {
		t.Errorf("%s: applied over it: %v", what, err)
	}
	must("reconcile", applyOn(p, on(v, reconcile), r))
	same("reconcile after "+what, applied)
	must("clean", use(p, on(v), r, func(c capture.Choice) error { return c.Clean() }))
	same("clean", before)
}

// damage changes our rules in a random way and describes it.
func damage(t *testing.T, p *netmesh.Pod, v string, random *rand.Rand) string {
	t.Helper()
	family := []string{"iptables-", "ip6tables-"}[random.IntN(2)] + v
	if !strings.Contains(shell(t, p, "", family+"-save"), ":ISTIO_") {
		family = "iptables-" + v
	}
	change := [][]string{
		{"-F", "ISTIO_OUTPUT"}, {"-D", "ISTIO_OUTPUT", "1"}, {"-I", "ISTIO_OUTPUT", "1", "-j", "RETURN"},
		{"-A", "ISTIO_REDIRECT", "-p", "udp", "-j", "RETURN"}, {"-D", "OUTPUT", "-j", "ISTIO_OUTPUT"},
		{"-A", "OUTPUT", "-j", "ISTIO_OUTPUT"}, {"-N", "ISTIO_TPROXY"}, {"-R", "ISTIO_IN_REDIRECT", "1", "-p", "tcp", "-j", "REDIRECT", "--to-ports", "1"},
	}[random.IntN(8)]
	shell(t, p, "", family, append([]string{"-t", "nat"}, change...)...)
	return family + " " + strings.Join(change, " ")
}
