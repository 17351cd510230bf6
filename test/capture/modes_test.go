package capture_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// transparent lets a socket accept and use addresses that are not this host's.
func transparent(family string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) {
		if strings.HasSuffix(family, "6") {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		}
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// answerTransparent is answer for a transparent listener: the local address of a connection is its
// original destination.
func answerTransparent(t *testing.T, p *netmesh.Pod, addr string, line func(*net.TCPConn) string) {
	t.Helper()
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error { return transparent(network, c) }}
	lc.SetMultipathTCP(false)
	var l net.Listener
	if err := p.Do(func() (err error) {
		l, err = lc.Listen(context.Background(), "tcp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, line(c.(*net.TCPConn)))
			c.Close()
		}
	}()
}

func tproxy() plan.Options {
	o := injector()
	o.Mode = "TPROXY"
	return o
}

// listenTransparent is listen for the mode TPROXY: the inbound listener answers with the source and the
// destination.
func (w world) listenTransparent(t *testing.T, appPorts ...int) {
	t.Helper()
	answerTransparent(t, w.pod, ":15006", func(c *net.TCPConn) string {
		if c.LocalAddr().(*net.TCPAddr).Port == 15006 {
			return "inbound redirected for " + originalDestination(c)
		}
		from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		return fmt.Sprintf("inbound from %s for %s", from, c.LocalAddr())
	})
	answer(t, w.pod, ":15001", func(c *net.TCPConn) string { return "outbound for " + originalDestination(c) })
	for _, p := range []*netmesh.Pod{w.pod, w.other} {
		for _, port := range appPorts {
			answer(t, p, fmt.Sprintf(":%d", port), func(c *net.TCPConn) string { return p.Name() })
		}
	}
}

func TestTPROXYKeepsAddresses(t *testing.T) {
	both(t, func(t *testing.T, pod, other, vip, loopback, passthrough string) {
		w := newWorld(t)
		w.listenTransparent(t, 80, 15020)
		w.apply(t, tproxy())
		caller, own := strings.Trim(other, "[]"), strings.Trim(passthrough, "[]")
		legs := []leg{
			{w.other, app, "", pod + ":80", "inbound from " + caller + " for " + pod + ":80"},
			{w.other, proxy, "", pod + ":7", "inbound from " + caller + " for " + pod + ":7"},
			{w.other, app, "", pod + ":15020", "pod"},
			{w.pod, app, "", other + ":80", "outbound for " + other + ":80"},
			{w.pod, app, "", vip + ":80", "outbound for " + vip + ":80"},
			{w.pod, app, "", loopback + ":80", "pod"},
			{w.pod, app, "", pod + ":80", "pod"},
			{w.pod, proxy, "", other + ":80", "other"},
			{w.pod, proxy, "", loopback + ":80", "pod"},
			{w.pod, proxy, "", pod + ":80", "inbound redirected for " + pod + ":80"},
			{w.pod, proxy, own, pod + ":80", "pod"},
		}
		w.check(t, legs)
	})
}

// The proxy calls the application from its client's address; the answers must come back to the proxy.
func TestTPROXYAnswersFindTheProxy(t *testing.T) {
	both(t, func(t *testing.T, pod, other, _, _, _ string) {
		w := newWorld(t)
		caller := strings.Trim(other, "[]")
		answer(t, w.pod, ":80", func(c *net.TCPConn) string {
			from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			return "application, called by " + from
		})
		answerTransparent(t, w.pod, ":15006", func(c *net.TCPConn) string {
			from := c.RemoteAddr().(*net.TCPAddr)
			d := net.Dialer{Timeout: wait.Bound, LocalAddr: &net.TCPAddr{IP: from.IP}, Control: func(network, _ string, raw syscall.RawConn) error {
				var err error
				raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 1337) })
				if err != nil {
					return err
				}
				return transparent(network, raw)
			}}
			var up net.Conn
			if err := w.pod.Do(func() (err error) {
				up, err = d.Dial("tcp", c.LocalAddr().String())
				return err
			}); err != nil {
				return err.Error()
			}
			defer up.Close()
			up.SetDeadline(time.Now().Add(wait.Bound))
			told, err := io.ReadAll(up)
			if err != nil {
				return err.Error()
			}
			return "inbound > " + string(told)
		})
		w.apply(t, tproxy())
		if got, want := ask(w.other, app, "", pod+":80"), "inbound > application, called by "+caller; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// While no proxy listens yet, connections must not bypass it.
func TestTPROXYDropsWithoutListener(t *testing.T) {
	w := newWorld(t)
	answer(t, w.pod, ":80", func(*net.TCPConn) string { return "pod" })
	w.apply(t, tproxy())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := w.other.Dial(ctx, "tcp", "10.99.0.2:80"); err == nil {
		c.Close()
		t.Error("the application was reached without the proxy")
	}
}

// everything lists plans that use every flag, alone and together.
func everything() map[string]plan.Options {
	plans := map[string]plan.Options{}
	add := func(name string, change func(*plan.Options)) {
		o := injector()
		change(&o)
		plans[name] = o
	}
	add("injector", func(o *plan.Options) {})
	add("ports", func(o *plan.Options) { o.EnvoyPort, o.InboundPort, o.TunnelPort = "1", "2", "3" })
	add("owners", func(o *plan.Options) { o.ProxyUID, o.ProxyGID = "3,4,root", "5,6" })
	add("mark", func(o *plan.Options) { o.ProxyMark = "42" })
	add("tproxy", func(o *plan.Options) { o.Mode = "TPROXY" })
	add("tproxy numbers", func(o *plan.Options) { o.Mode, o.Inbound.Mark, o.Inbound.RouteTable = "TPROXY", "77", "300" })
	add("none", func(o *plan.Options) { o.Mode = "NONE" })
	add("inbound list", func(o *plan.Options) { o.Inbound.Ports = "80,8000-8010" })
	add("outbound lists", func(o *plan.Options) {
		o.Outbound.CIDRs, o.Outbound.ExcludeCIDRs = "10.0.0.0/8,fd00::/8", "10.1.0.0/16,fd01::/16"
		o.Outbound.Ports, o.Outbound.ExcludePorts = "443,6000-7000", "22,53-54"
	})
	add("interfaces", func(o *plan.Options) { o.ExcludeInterfaces, o.VirtInterfaces = "eth1,tun0", "tap0,tap1" })
	add("loopback", func(o *plan.Options) { o.Outbound.LoopbackCIDR = "127.0.0.0/8" })
	add("groups", func(o *plan.Options) { o.Outbound.OwnerGroups = "7,root" })
	add("other groups", func(o *plan.Options) { o.Outbound.OwnerGroupsExclude = "7,root" })
	add("one family", func(o *plan.Options) { o.DualStack = false })
	add("drop", func(o *plan.Options) { o.DropInvalid = true })
	add("dns", func(o *plan.Options) { o.DNS.Capture = true })
	add("all dns", func(o *plan.Options) { o.DNS = plan.DNS{Capture: true, All: true} })
	return plans
}

func randomPlan(r *rand.Rand) plan.Options {
	all := everything()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	pick := func() plan.Options { return all[names[r.IntN(len(names))]] }
	o := injector()
	o.Mode, o.Inbound, o.Outbound = pick().Mode, pick().Inbound, pick().Outbound
	proxy := pick()
	o.ProxyUID, o.ProxyGID, o.ProxyMark, o.ProxyCgroup = proxy.ProxyUID, proxy.ProxyGID, proxy.ProxyMark, proxy.ProxyCgroup
	o.ExcludeInterfaces, o.VirtInterfaces = pick().ExcludeInterfaces, pick().VirtInterfaces
	o.DNS, o.DropInvalid, o.DualStack = pick().DNS, pick().DropInvalid, pick().DualStack
	return o
}

// The kernel has the planned rules, a second application changes nothing, each plan can replace any
// other, and nothing is left after cleaning.
func TestKernelHoldsThePlan(t *testing.T) {
	w := newWorld(t)
	before := traces(t, w.pod)
	r := rand.New(rand.NewPCG(3, 4))
	check := func(name string, o plan.Options) {
		t.Helper()
		rules, _ := w.plan(t, o)
		w.apply(t, o)
		if drift := w.drift(t, rules); len(drift) > 0 {
			t.Fatalf("%s: %v", name, drift)
		}
		first := handles(t, w.pod)
		if again := w.apply(t, o); again.Changed || handles(t, w.pod) != first {
			t.Fatalf("%s: a second application changed the kernel", name)
		}
		if r.IntN(2) == 0 {
			if err := w.pod.Do(capture.Nftables{}.Clean); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if after := traces(t, w.pod); after != before {
				t.Fatalf("%s: after cleaning there is %s, there was %s", name, after, before)
			}
		}
	}
	for name, o := range everything() {
		check(name, o)
	}
	for i := range 60 {
		check(fmt.Sprint("random ", i), randomPlan(r))
	}
}

// Any change by another program is found.
func TestDriftIsSeen(t *testing.T) {
	w := newWorld(t)
	rules, _ := w.plan(t, tproxy())
	for name, harm := range map[string]func(c *nftables.Conn) error{
		"table nat removed": func(c *nftables.Conn) error {
			c.DelTable(&nftables.Table{Name: "istio-proxy-nat", Family: nftables.TableFamilyINet})
			return c.Flush()
		},
		"all flushed": func(c *nftables.Conn) error { c.FlushRuleset(); return c.Flush() },
		"rule removed": func(c *nftables.Conn) error {
			nat := &nftables.Table{Name: "istio-proxy-nat", Family: nftables.TableFamilyINet}
			rules, err := c.GetRules(nat, &nftables.Chain{Name: "istio-output", Table: nat})
			if err != nil {
				return err
			}
			if err := c.DelRule(rules[3]); err != nil {
				return err
			}
			return c.Flush()
		},
		"rule added": func(c *nftables.Conn) error {
			nat := &nftables.Table{Name: "istio-proxy-nat", Family: nftables.TableFamilyINet}
			c.AddRule(&nftables.Rule{Table: nat, Chain: &nftables.Chain{Name: "output", Table: nat}})
			return c.Flush()
		},
		"rule of routing removed": func(*nftables.Conn) error {
			rules, err := netlink.RuleList(netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			for _, r := range rules {
				if r.Mark == 1337 {
					return netlink.RuleDel(&r)
				}
			}
			return os.ErrNotExist
		},
	} {
		w.apply(t, tproxy())
		if err := w.pod.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			return harm(c)
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if drift := w.drift(t, rules); len(drift) == 0 {
			t.Errorf("%s: not seen", name)
		}
		w.apply(t, tproxy())
		if drift := w.drift(t, rules); len(drift) > 0 {
			t.Errorf("%s: not mended: %v", name, drift)
		}
	}
}

func (w world) plan(t *testing.T, o plan.Options) (rules plan.Ruleset, f plan.Facts) {
	t.Helper()
	if err := w.pod.Do(func() (err error) {
		if f, err = netns.ReadFacts("/"); err != nil {
			return err
		}
		rules, err = plan.Build(o, f)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return rules, f
}

func (w world) drift(t *testing.T, rules plan.Ruleset) (drift []string) {
	t.Helper()
	if err := w.pod.Do(func() (err error) {
		drift, err = capture.Nftables{}.Drift(rules)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return drift
}

// handles are the kernel's numbers of our rules: replaced rules have new ones.
func handles(t *testing.T, p *netmesh.Pod) (all string) {
	t.Helper()
	if err := p.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := c.ListChains()
		if err != nil {
			return err
		}
		for _, chain := range chains {
			rules, err := c.GetRules(chain.Table, chain)
			if err != nil {
				return err
			}
			for _, r := range rules {
				all += fmt.Sprint(chain.Table.Name, r.Handle, " ")
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// traces are all that capture may leave in a namespace.
func traces(t *testing.T, p *netmesh.Pod) string {
	t.Helper()
	chains, rules := kernelRules(t, p)
	text := fmt.Sprintf("%d chains, %d rules, addresses %s", chains, rules, loopbackAddrs(t, p))
	if err := p.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.RuleList(family)
			if err != nil {
				return err
			}
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			local := 0
			for _, r := range routes {
				if r.Table != unix.RT_TABLE_LOCAL {
					local++
				}
			}
			text += fmt.Sprintf(", %d rules and %d routes of routing", len(list), local)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return text
}
