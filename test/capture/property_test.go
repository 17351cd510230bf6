package capture_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/test/wait"
)

// labPlans use every kind of rule. Never are the rules that no packet of this lab can reach, by parts
// of their text, each with a reason.
var labPlans = []struct {
	name   string
	change func(*plan.Options)
	never  []string
}{
	{"all but", func(o *plan.Options) {
		o.Inbound.ExcludePorts = "15020,9000"
		o.Outbound.ExcludePorts, o.Outbound.ExcludeCIDRs = "22,8000-8010", "10.1.0.0/16,fd01::/32"
		o.ExcludeInterfaces, o.VirtInterfaces, o.DNS.Capture = "eth1", "tap0", true
		o.DropInvalid = true
	}, []string{shadowed}},
	{"lists", func(o *plan.Options) {
		o.Inbound.Ports, o.ProxyUID, o.ProxyGID = "80,8000-8010", "1337,7", "1337"
		o.Outbound.CIDRs, o.Outbound.ExcludeCIDRs, o.Outbound.Ports = "10.20.0.0/16,fd20::/32", "10.20.128.0/17", "443"
		o.Outbound.OwnerGroups, o.VirtInterfaces, o.Outbound.LoopbackCIDR = "0,1000", "tap0", "127.0.0.0/8"
	}, append(noDNS, shadowed, "skuid 7 counter jump", "skuid != 7")},
	{"other groups, one family", func(o *plan.Options) {
		o.Outbound.OwnerGroupsExclude, o.DualStack, o.DNS = "1000,1001", false, plan.DNS{Capture: true, All: true}
	}, []string{shadowed}},
	{"TPROXY", func(o *plan.Options) {
		o.Mode, o.Inbound.ExcludePorts, o.DNS, o.ExcludeInterfaces = "TPROXY", "15020,9000", plan.DNS{Capture: true, All: true}, "eth1"
	}, []string{shadowed, unused, nobody}},
	{"TPROXY lists", func(o *plan.Options) {
		o.Mode, o.Inbound.Ports, o.Inbound.Mark, o.Inbound.RouteTable = "TPROXY", "80,8000-8010", "77", "300"
		o.VirtInterfaces, o.DropInvalid = "tap0", true
	}, append(noDNS, shadowed, unused, nobody)},
	{"proxy's mark", func(o *plan.Options) { o.ProxyMark, o.DNS.Capture = "42", true }, nil},
	{"proxy's mark, TPROXY", func(o *plan.Options) { o.ProxyMark, o.Mode = "42", "TPROXY" }, append(noDNS, unused, nobody)},
}

const (
	// shadowed rules of groups are about loopback, which the rules of users decide.
	shadowed = "meta skgid != 1337 counter return"
	// unused is in a chain that TPROXY does not enter.
	unused = "tcp dport 15008 counter return"
	// nobody is for packets that find no listener.
	nobody = "counter drop"
)

// noDNS: all but DNS over loopback is decided before this rule.
var noDNS = []string{"meta skgid 1337 counter jump", "ip daddr 127.0.0.1 counter return", "ip daddr 127.0.0.0/8 counter return", "ip6 daddr ::1 counter return"}

var labResolvers = []netip.Addr{netip.MustParseAddr("10.20.0.53"), netip.MustParseAddr("fd20::53")}

// The first plan has most of the rules.
const packetsOfFirst, packetsOfOthers = 2_998, 1_167

// TestExplainIsWhatTheKernelDoes sends 10,000 random packets through the plans' rules, all kinds of
// them, and checks that each arrives where Explain says.
func TestExplainIsWhatTheKernelDoes(t *testing.T) {
	t.Parallel()
	explainIsTrue(t, capture.BackendOptions{Native: true})
}

func explainIsTrue(t *testing.T, backend capture.BackendOptions) {
	for i, c := range labPlans {
		t.Run(c.name, func(t *testing.T) {
			o := injector()
			o.Inbound.ExcludePorts = "15020"
			c.change(&o)
			l := newLab(t, o.Mode == "TPROXY")
			rules, err := plan.Build(o, plan.Facts{Resolvers: labResolvers})
			if err != nil {
				t.Fatal(err)
			}
			do(t, l.pod, func() error {
				choice, err := capture.Choose(backend, rules)
				if err == nil {
					_, err = choice.Apply(rules)
				}
				return err
			})
			l.checkPackets(t, packetsOf(t, i, o, rules))
			if backend.Native {
				l.checkHits(t, rules, c.never)
			} else {
				l.checkIptablesHits(t, backend.Force, c.never)
			}
		})
	}
}

// labPackets are those of each plan, once they have been drawn: they are the same for all backends.
var labPackets = make([]struct {
	once sync.Once
	list []labPacket
}, len(labPlans))

// packetsOf returns the packets of a plan.
func packetsOf(t *testing.T, i int, o plan.Options, rules plan.Ruleset) []labPacket {
	seed := wait.Seed(t, 9)
	labPackets[i].once.Do(func() {
		d := &draw{r: rand.New(rand.NewPCG(uint64(i), seed)), o: o, explain: plan.NewExplainer(rules), hits: map[string]int{}, packets: packetsOfOthers}
		if i == 0 {
			d.packets = packetsOfFirst
		}
		for d.sent < d.packets {
			labPackets[i].list = append(labPackets[i].list, d.next())
		}
	})
	return labPackets[i].list
}

// labPacket is a packet with its sender and the expected verdict.
type labPacket struct {
	plan.Packet
	by      string
	verdict plan.Verdict
}

// draw draws packets until every rule has matched.
type draw struct {
	r       *rand.Rand
	o       plan.Options
	explain *plan.Explainer
	hits    map[string]int
	// packets is how many there will be, sent how many there were.
	packets, sent int
}

// enough is the number of packets that are drawn for each rule; by the kernel's counter it must be 50.
const enough = 60

// next draws until a packet matches a rule that few have matched.
func (d *draw) next() labPacket {
	d.sent++
	var best labPacket
	least := enough
	for tries := range 400 {
		p := d.random()
		p.verdict = d.explain.Explain(p.Packet)
		met := enough
		for _, s := range p.verdict.Steps {
			if s.Holds {
				met = min(met, d.hits[s.Table+s.Chain+s.Rule])
			}
		}
		if tries == 0 || met < least {
			best, least = p, met
		}
		// To draw on is worth it only while rules have few packets.
		if least < enough/2 || tries > 20 && d.sent > d.packets/2 && least == enough {
			break
		}
	}
	for _, s := range best.verdict.Steps {
		if s.Holds {
			d.hits[s.Table+s.Chain+s.Rule]++
		}
	}
	return best
}

func (d *draw) random() labPacket {
	r := d.r
	p := labPacket{Packet: plan.Packet{Protocol: pickOne(r, "tcp", "tcp", "tcp", "udp"), State: "new"}}
	v6 := d.o.DualStack && r.IntN(2) == 0
	port := uint16(labPorts[r.IntN(len(labPorts))])
	// The source port identifies a TCP connection.
	from := uint16(20000 + d.sent)
	source, target := d.addresses(&p, v6, port, &from)
	if d.o.DropInvalid && p.by == "other" && r.IntN(4) == 0 {
		p.Protocol, p.State, from, port = "icmp", "invalid", 0, 0
	}
	p.From, p.To = netip.AddrPortFrom(source, from), netip.AddrPortFrom(target, port)
	return p
}

// addresses chooses the direction of the packet, and the source port where that matters.
func (d *draw) addresses(p *labPacket, v6 bool, port uint16, from *uint16) (source, target netip.Addr) {
	r := d.r
	one := func(v4, v6text string) netip.Addr {
		if v6 {
			return netip.MustParseAddr(v6text)
		}
		return netip.MustParseAddr(v4)
	}
	remote := func() netip.Addr {
		switch r.IntN(5) {
		case 0:
			return one("10.20.0.53", "fd20::53")
		case 1:
			return farAddress(r, pickFamily(v6, "10.1.0.0/16", "fd01::/32"))
		}
		return farAddress(r, pickFamily(v6, "10.20.0.0/16", "fd20::/32"))
	}
	switch r.IntN(8) {
	case 0: // arrives
		p.by, p.Interface = "other", "eth0"
		source, target = one("10.99.0.3", "fd99:99::b"), one("10.99.0.2", "fd99:99::a")
		if r.IntN(3) == 0 {
			source = one("10.20.0.53", "fd20::53")
			if p.Protocol == "udp" {
				*from = 53
			}
		}
	case 1:
		p.by, p.Interface = "other", "eth1"
		source, target = one("10.98.0.3", "fd98::3"), one("10.98.0.2", "fd98::2")
	case 2:
		p.by, p.Interface = "vm", "tap0"
		source, target = one("10.97.0.3", "fd97::3"), one("10.97.0.2", "fd97::2")
		if d.o.VirtInterfaces != "" && r.IntN(3) > 0 {
			target = remote()
		}
	case 3, 4: // is sent
		d.owner(p)
		p.Interface, source, target = "eth0", one("10.99.0.2", "fd99:99::a"), remote()
		if p.Mark == d.inboundMark() {
			p.Mark = 0 // it would be delivered here
		}
		if p.Protocol == "udp" && port != 53 && r.IntN(3) == 0 {
			*from = 15053
		}
	case 5:
		d.owner(p)
		p.Interface, source, target = "eth1", one("10.98.0.2", "fd98::2"), one("10.98.0.3", "fd98::3")
		if p.Mark == d.inboundMark() {
			p.Mark = 0
		}
	default:
		d.owner(p)
		p.Interface = "lo"
		target = pickOne(r, one("127.0.0.1", "::1"), one("10.99.0.2", "fd99:99::a"), one("10.99.0.2", "fd99:99::a"), one("127.0.0.2", "fd98::2"))
		source = pickOne(r, one("127.0.0.6", "::6"), one("10.99.0.2", "fd99:99::a"), one("10.99.0.2", "fd99:99::a"))
	}
	return source, target
}

// owner makes the packet one that this host sends.
func (d *draw) owner(p *labPacket) {
	p.by, p.Outbound = "pod", true
	p.UID, p.GID = pickOne[uint32](d.r, 0, 1337, 1337, 7, 1000), pickOne[uint32](d.r, 0, 1337, 1000, 1001)
	p.Mark = pickOne(d.r, 0, 0, 42, 1338, d.inboundMark())
	if d.o.Mode != "TPROXY" && p.Mark != 42 {
		p.Mark = 0
	}
}

func (d *draw) inboundMark() uint32 {
	if d.o.Inbound.Mark == "77" {
		return 77
	}
	return 1337
}

func pickOne[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func pickFamily(v6 bool, four, six string) string {
	if v6 {
		return six
	}
	return four
}

func farAddress(r *rand.Rand, prefix string) netip.Addr {
	p := netip.MustParsePrefix(prefix)
	bytes := p.Addr().AsSlice()
	bytes[len(bytes)-1], bytes[len(bytes)-2] = byte(r.IntN(256)), byte(r.IntN(256))
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// want is where Explain says that the packet arrives.
func (p labPacket) want() arrival {
	a := arrival{pod: "pod", port: int(p.verdict.Port)}
	switch p.verdict.Outcome {
	case plan.Passes:
		a.port = int(p.To.Port())
		if to := p.To.Addr(); farOff(to) || p.by == "pod" && p.Interface != "lo" {
			a.pod = "other"
		}
	case plan.Redirected, plan.Intercepted:
		if p.Protocol == "tcp" {
			a.to = p.To
		}
	}
	return a
}

func farOff(a netip.Addr) bool {
	for _, prefix := range []string{"10.20.0.0/16", "10.1.0.0/16", "fd20::/32", "fd01::/32"} {
		if netip.MustParsePrefix(prefix).Contains(a) {
			return true
		}
	}
	return false
}

func (l *lab) checkPackets(t *testing.T, all []labPacket) {
	sent := 0
	for batch := range slices.Chunk(all, 50) {
		packets := map[uint32]labPacket{}
		byPod := map[string][]uint32{}
		for _, p := range batch {
			sent++
			id := uint32(p.From.Port())
			if p.Protocol != "tcp" {
				id = uint32(1<<20 + sent)
			}
			packets[id] = p
			byPod[p.by] = append(byPod[p.by], id)
		}
		for name, ids := range byPod {
			pod := map[string]interface{ Do(func() error) error }{"pod": l.pod, "other": l.other, "vm": l.vm}[name]
			if err := pod.Do(func() error {
				for _, id := range ids {
					if packets[id].Protocol == "icmp" {
						if err := sendInvalid(packets[id].Packet, id); err != nil {
							return err
						}
						continue
					}
					if err := send(packets[id].Packet, id, name == "pod"); err != nil {
						return fmt.Errorf("send %+v: %w\n%s", packets[id].Packet, err, packets[id].verdict)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		for id, p := range packets {
			var got arrival
			if p.Protocol == "icmp" {
				eventually(t, "the packet after the invalid one arrives", func() bool { _, ok := l.arrived(id | valid); return ok })
				if _, ok := l.arrived(id); ok == (p.verdict.Outcome == plan.Dropped) {
					t.Fatalf("%+v arrived: %t\n%s", p.Packet, ok, p.verdict)
				}
				continue
			}
			eventually(t, fmt.Sprintf("%+v arrives, as %s", p.Packet, p.verdict.Sentence()), func() (ok bool) {
				got, ok = l.arrived(id)
				return ok
			})
			if want := p.want(); got != want {
				t.Fatalf("%+v from %s arrived at %+v, want %+v\n%s", p.Packet, p.by, got, want, p.verdict)
			}
		}
	}
}

// checkHits checks that each rule in the kernel matched 50 packets at least.
func (l *lab) checkHits(t *testing.T, planned plan.Ruleset, never []string) {
	do(t, l.pod, func() error {
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
			texts := texts(planned, chain)
			for i, r := range rules {
				for _, e := range r.Exprs {
					count, ok := e.(*expr.Counter)
					if !ok || count.Packets >= 50 || mayBeUnmet(texts[i], never) {
						continue
					}
					t.Errorf("%s %s: %d packets met %q", chain.Table.Name, chain.Name, count.Packets, texts[i])
				}
			}
		}
		return nil
	})
}

// texts are the planned rules of a chain.
func texts(rules plan.Ruleset, chain *nftables.Chain) (lines []string) {
	for _, table := range rules.Tables {
		for _, c := range table.Chains {
			if table.Name != chain.Table.Name || c.Name != chain.Name {
				continue
			}
			for _, r := range c.Rules {
				lines = append(lines, r.String())
				if r.Action.Verb == plan.TProxy {
					lines = append(lines, "counter drop")
				}
			}
		}
	}
	return lines
}

func mayBeUnmet(text string, never []string) bool {
	for _, part := range never {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
