package capture_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// An application calls a service that selects the application itself: the proxy's outbound listener
// connects to the Pod's own address, and must reach the inbound listener, which calls the application.
func TestSelfCallThroughAService(t *testing.T) {
	w := newWorld(t)
	w.apply(t, injector())
	answer(t, w.pod, ":80", func(c *net.TCPConn) string {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		return "application, called by " + host
	})
	answer(t, w.pod, ":15006", func(c *net.TCPConn) string {
		return "inbound > " + ask(w.pod, proxy, "127.0.0.6", originalDestination(c))
	})
	answer(t, w.pod, ":15001", func(c *net.TCPConn) string {
		if dst := originalDestination(c); dst != "10.96.0.10:80" {
			return "outbound for " + dst
		}
		return "outbound > " + ask(w.pod, proxy, "", "10.99.0.2:80")
	})
	want := "outbound > inbound > application, called by 127.0.0.6"
	if got := ask(w.pod, app, "", "10.96.0.10:80"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestApplyTwiceIsAsOnce(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	first := w.apply(t, injector())
	chains, rules := kernelRules(t, w.pod)
	w.check(t, []leg{{w.pod, app, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"}})
	second := w.apply(t, injector())
	chainsAgain, rulesAgain := kernelRules(t, w.pod)
	if chains != 6 || rules != first.Rules || chainsAgain != chains || rulesAgain != rules || second.Rules != first.Rules {
		t.Errorf("%d chains with %d rules, then %d with %d; reported %d and %d",
			chains, rules, chainsAgain, rulesAgain, first.Rules, second.Rules)
	}
	w.check(t, []leg{{w.pod, app, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"}})
}

// While the rules are replaced repeatedly, no connection bypasses them.
func TestReplacingLeavesNoGap(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	w.apply(t, injector())
	rules, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error)
	go func() {
		defer cancel()
		for range 50 {
			if err := w.pod.Do(func() error { _, err := capture.Nftables{}.Apply(rules); return err }); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	dials := 0
	for ; ctx.Err() == nil; dials++ {
		c, err := w.other.Dial(t.Context(), "tcp", "10.99.0.2:80")
		if err != nil {
			t.Error(err)
			break
		}
		told, err := io.ReadAll(c)
		c.Close()
		if string(told) != "inbound for 10.99.0.2:80" {
			t.Errorf("arrived at %q, %v", told, err)
			break
		}
		select {
		case err := <-ended:
			if err != nil || dials < 50 {
				t.Errorf("%d connections: %v", dials, err)
			}
			return
		default:
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEstablishedConnectionSurvivesReplacement(t *testing.T) {
	w := newWorld(t)
	w.apply(t, injector())
	l, err := w.pod.Listen("tcp", ":15006")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := w.other.Dial(t.Context(), "tcp", "10.99.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	for range 3 {
		fmt.Fprint(c, "x")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		w.apply(t, injector())
	}
}

func kernelRules(t *testing.T, p *netmesh.Pod) (chains, rules int) {
	t.Helper()
	if err := p.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListChains()
		if err != nil {
			return err
		}
		for _, chain := range all {
			in, err := c.GetRules(chain.Table, chain)
			if err != nil {
				return err
			}
			chains++
			rules += len(in)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return chains, rules
}

func loopbackAddrs(t *testing.T, p *netmesh.Pod) string {
	t.Helper()
	var names []string
	if err := p.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
		for _, a := range addrs {
			names = append(names, a.IPNet.String())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestCleanLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	clean := func() {
		t.Helper()
		if err := w.pod.Do(capture.Nftables{}.Clean); err != nil {
			t.Fatal(err)
		}
	}
	clean() // of nothing
	before := loopbackAddrs(t, w.pod)
	w.apply(t, injector())
	if now := loopbackAddrs(t, w.pod); now != before+" ::6/128" || strings.Contains(before, "::6") {
		t.Errorf("loopback has %q", now)
	}
	clean()
	if chains, rules := kernelRules(t, w.pod); chains != 0 || rules != 0 {
		t.Errorf("%d chains with %d rules are left", chains, rules)
	}
	if now := loopbackAddrs(t, w.pod); now != before {
		t.Errorf("loopback has %q, had %q", now, before)
	}
	w.check(t, []leg{
		{w.pod, app, "", "10.99.0.3:80", "other"},
		{w.other, app, "", "10.99.0.2:80", "pod"},
	})
}

// The command can act on the Pod from outside.
func TestActsInANamedNamespace(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	rules, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	sleeper, err := w.pod.Start(netmesh.Command{Path: "sleep", Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Run(fmt.Sprintf("/proc/%d/ns/net", sleeper.PID()), func() error {
		facts, err := netns.ReadFacts("/")
		if err == nil && !slices.Contains(facts.Addrs, w.pod.IP()) {
			err = fmt.Errorf("the facts are of another namespace: %v", facts)
		}
		if err == nil {
			_, err = capture.Nftables{}.Apply(rules)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"}})
}

// Rules of others in the same namespace are not changed.
func TestTablesOfOthersStay(t *testing.T) {
	w := newWorld(t)
	if err := w.pod.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.AddChain(&nftables.Chain{Name: "theirs", Table: c.AddTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet})})
		return c.Flush()
	}); err != nil {
		t.Fatal(err)
	}
	w.apply(t, injector())
	if err := w.pod.Do(capture.Nftables{}.Clean); err != nil {
		t.Fatal(err)
	}
	if chains, _ := kernelRules(t, w.pod); chains != 1 {
		t.Errorf("%d chains, want the one of others", chains)
	}
}

func TestListenersHandOverTheirQueues(t *testing.T) {
	w := newWorld(t)
	report := w.apply(t, injector())
	if len(report.Refused) > 0 {
		t.Errorf("refused: %v", report.Refused)
	}
	var value []byte
	if err := w.pod.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/net/ipv4/tcp_migrate_req")
		return err
	}); err != nil || strings.TrimSpace(string(value)) != "1" {
		t.Errorf("net.ipv4.tcp_migrate_req is %q, %v", value, err)
	}
}

// A setting that the kernel refuses is reported and is not an error.
func TestRefusedSettingIsReported(t *testing.T) {
	w := newWorld(t)
	rules, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	rules.Sysctls = append(rules.Sysctls, plan.Sysctl{Key: "net.ipv4.no_such_setting", Value: "1"})
	if err := w.pod.Do(func() error {
		report, err := capture.Nftables{}.Apply(rules)
		if len(report.Refused) != 1 || !strings.Contains(report.Refused[0].Error(), "no_such_setting") {
			return fmt.Errorf("refused: %v", report.Refused)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// A transaction may have thousands of rules; with one invalid rule, nothing changes.
func TestBigPlanAndAtomicFailure(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	o := injector()
	var ports []string
	for p := 20000; p < 24000; p++ {
		ports = append(ports, fmt.Sprint(p))
	}
	o.Inbound.ExcludePorts = strings.Join(ports, ",")
	if report := w.apply(t, o); report.Rules < 4000 {
		t.Errorf("%d rules", report.Rules)
	}
	w.apply(t, injector())
	bad, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	last := &bad.Tables[0].Chains[len(bad.Tables[0].Chains)-1]
	last.Rules = append(last.Rules, plan.Rule{Action: plan.Action{Verb: plan.Jump, Chain: "nowhere"}})
	if err := w.pod.Do(func() error { _, err := capture.Nftables{}.Apply(bad); return err }); err == nil {
		t.Error("a jump to nowhere was accepted")
	}
	w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"}})
}

// BenchmarkApply applies to a Pod without rules, as every Pod's start does, and to one with them.
func BenchmarkApply(b *testing.B) {
	rules, err := plan.Build(injector(), plan.Facts{})
	if err != nil {
		b.Fatal(err)
	}
	m, err := netmesh.New(netmesh.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	apply := func(b *testing.B, p *netmesh.Pod) (took time.Duration) {
		if err := p.Do(func() error {
			report, err := capture.Nftables{}.Apply(rules)
			took = report.Took
			return err
		}); err != nil {
			b.Fatal(err)
		}
		return took
	}
	newPod := func(b *testing.B) *netmesh.Pod {
		p, err := m.AddPod(netmesh.PodOptions{Name: "pod"})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	b.Run("first", func(b *testing.B) {
		var sum time.Duration
		for range b.N {
			p := newPod(b)
			sum += apply(b, p)
			if err := p.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "apply-µs")
	})
	b.Run("again", func(b *testing.B) {
		p := newPod(b)
		defer p.Close()
		for b.Loop() {
			apply(b, p)
		}
	})
}
