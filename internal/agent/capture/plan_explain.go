package capture

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is the first packet of a connection, or one of another State, as the kernel has it before
// our rules.
type Packet struct {
	// Outbound packets are sent here; the others arrive.
	Outbound bool `json:"outbound"`
	// Protocol is tcp, udp or another, which nothing captures.
	Protocol string         `json:"protocol"`
	From     netip.AddrPort `json:"from"`
	To       netip.AddrPort `json:"to"`
	// Interface is where it arrives, or where it would leave.
	Interface string `json:"interface"`
	// UID, GID, Cgroup (a path) and Mark are the sending socket's; of one that arrives, only
	// Mark counts.
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Cgroup string `json:"cgroup,omitempty"`
	Mark   uint32 `json:"mark,omitempty"`
	// State is new, which empty means, established, related or invalid; ConnMark is the mark
	// that the connection bears.
	State    string `json:"state,omitempty"`
	ConnMark uint32 `json:"connMark,omitempty"`
}

// Outcome is what becomes of a packet.
type Outcome string

// The outcomes.
const (
	// Passes: it goes where it was to go.
	Passes Outcome = "passes"
	// Redirected: it arrives at a local port; the listener can ask for its destination.
	Redirected Outcome = "redirected"
	// Intercepted: it arrives, unchanged, at the transparent listener of a port.
	Intercepted Outcome = "intercepted"
	Dropped     Outcome = "dropped"
)

// Verdict is what a plan does with a packet, and why.
type Verdict struct {
	Outcome Outcome `json:"outcome"`
	// Port is where it arrives instead, if it does.
	Port uint16 `json:"port,omitempty"`
	// Mark is the packet's in the end; Zone is where its connection is tracked.
	Mark uint32 `json:"mark,omitempty"`
	Zone uint32 `json:"zone,omitempty"`
	// Steps are the rules that were looked at, in that order.
	Steps []Step `json:"steps"`
}

// Step is a look at one rule.
type Step struct {
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Number is the rule's place in its chain, from 1.
	Number int    `json:"number"`
	Rule   string `json:"rule"`
	Holds  bool   `json:"holds"`
	// Because is the first match that does not hold.
	Because string `json:"because,omitempty"`
}

// Explain follows a packet through the rules as the kernel does: raw, mangle and nat, where nat
// decides on new connections only; what is sent on loopback arrives there too, past raw and mangle.
func Explain(r Ruleset, p Packet) Verdict {
	p.State = cmp.Or(p.State, "new")
	t := trace{rules: r, p: p, Verdict: Verdict{Outcome: Passes}}
	if !p.Outbound {
		t.hook(hookPrerouting, p.State == "new")
	} else if t.hook(hookOutput, p.State == "new") && t.p.Interface == "lo" {
		t.p.Outbound = false
		t.hook(hookPrerouting, false)
	}
	t.Mark = t.p.Mark
	return t.Verdict
}

// trace is a packet on its way.
type trace struct {
	Verdict
	rules Ruleset
	p     Packet
}

// hook runs the chains of a hook in the order of their priorities, and says whether the packet
// lives on.
func (t *trace) hook(hook string, nat bool) bool {
	type entry struct {
		table Table
		chain Chain
	}
	var entries []entry
	for _, table := range t.rules.Tables {
		for _, c := range table.Chains {
			if c.Base.Hook == hook && (nat || c.Base.Type != "nat") {
				entries = append(entries, entry{table, c})
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.chain.Base.Priority, b.chain.Base.Priority) })
	for _, e := range entries {
		mark := t.p.Mark
		t.chain(e.table, e.chain)
		if t.Outcome == Dropped {
			return false
		}
		if e.chain.Base.Type == "route" && mark != t.p.Mark && t.delivered() {
			t.p.Interface = "lo"
		}
	}
	return true
}

// delivered says whether a route of marks takes the packet to this host.
func (t *trace) delivered() bool {
	return slices.ContainsFunc(t.rules.Routes, func(m MarkRoute) bool {
		return m.Mark == t.p.Mark && m.IPv6 == t.p.To.Addr().Is6()
	})
}

// chain says whether the packet is done with the table.
func (t *trace) chain(table Table, c Chain) bool {
	for i, r := range c.Rules {
		step := Step{Table: table.Name, Chain: c.Name, Number: i + 1, Rule: r.String(), Holds: true}
		if at := slices.IndexFunc(r.Matches, func(m Match) bool { return !m.holds(t.p) }); at >= 0 {
			step.Holds, step.Because = false, r.Matches[at].String()
		}
		t.Steps = append(t.Steps, step)
		if !step.Holds {
			continue
		}
		switch r.Action.Verb {
		case Return:
			return false
		case Jump:
			next := slices.IndexFunc(table.Chains, func(c Chain) bool { return c.Name == r.Action.Chain })
			if next >= 0 && t.chain(table, table.Chains[next]) {
				return true
			}
		default:
			if t.act(r.Action) {
				return true
			}
		}
	}
	return false
}

// act does what ends the way through the table, or changes the packet.
func (t *trace) act(a Action) (done bool) {
	switch a.Verb {
	case Redirect:
		t.Outcome, t.Port = Redirected, a.Port
		if t.p.Outbound {
			// What is sent here and redirected goes by loopback.
			to := ipv4
			if t.p.To.Addr().Is6() {
				to = ipv6
			}
			t.p.To, t.p.Interface = netip.AddrPortFrom(to.redirected(), a.Port), "lo"
		}
		return true
	case TProxy:
		t.Outcome, t.Port, t.p.Mark = Intercepted, a.Port, a.Mark
		return true
	case Drop:
		t.Outcome = Dropped
		return true
	case Accept:
		return true
	case SetMark:
		t.p.Mark = a.Mark
	case SaveMark:
		t.p.ConnMark = t.p.Mark
	case RestoreMark:
		t.p.Mark = t.p.ConnMark
	case SetZone:
		t.Zone = cmp.Or(t.Zone, a.Mark)
	}
	return false
}

func (m Match) holds(p Packet) bool {
	has, equal := m.compare(p)
	return has && equal != m.Not
}

// compare says whether the packet has the field at all, and whether it is as the match has it.
func (m Match) compare(p Packet) (has, equal bool) {
	in := func(n uint32) bool { return m.From <= n && n <= m.To }
	switch m.Field {
	case InInterface:
		return true, !p.Outbound && m.Name == p.Interface
	case OutInterface:
		return true, p.Outbound && m.Name == p.Interface
	case Family:
		return true, p.To.Addr().Is6() == (m.Name == ipv6.name)
	case Protocol:
		return true, m.Name == p.Protocol
	case Source, Destination:
		a := p.From.Addr()
		if m.Field == Destination {
			a = p.To.Addr()
		}
		return a.Is6() == m.Prefix.Addr().Is6(), m.Prefix.Contains(a)
	case TCPPort:
		return p.Protocol == "tcp", in(uint32(p.To.Port()))
	case UDPPort:
		return p.Protocol == "udp", in(uint32(p.To.Port()))
	case UDPSource:
		return p.Protocol == "udp", in(uint32(p.From.Port()))
	case SocketUID:
		return p.Outbound, in(p.UID)
	case SocketGID:
		return p.Outbound, in(p.GID)
	case SocketCgroup:
		return p.Outbound, below(p.Cgroup, m.Name)
	case PacketMark:
		return true, in(p.Mark)
	case ConnMark:
		return p.State != "invalid", in(p.ConnMark)
	case ConnState:
		return true, slices.Contains(strings.Split(m.Name, ","), p.State)
	}
	return false, false
}

// below says whether a cgroup is the other or one of its descendants.
func below(path, ancestor string) bool {
	return strings.HasPrefix(strings.Trim(path, "/")+"/", ancestor+"/")
}

// String tells the verdict, then the rules that were looked at, for people.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", v.Sentence())
	chain := ""
	for _, s := range v.Steps {
		if now := s.Table + " " + s.Chain; now != chain {
			chain = now
			fmt.Fprintf(&b, "\n%s\n", chain)
		}
		if s.Holds {
			fmt.Fprintf(&b, "  %2d * %s\n", s.Number, s.Rule)
		} else {
			fmt.Fprintf(&b, "  %2d   %s (not: %s)\n", s.Number, s.Rule, s.Because)
		}
	}
	return b.String()
}

// Sentence is the verdict alone.
func (v Verdict) Sentence() string {
	text := "It passes: no rule captures it."
	switch v.Outcome {
	case Redirected:
		text = fmt.Sprintf("It is captured: redirected to port %d.", v.Port)
	case Intercepted:
		text = fmt.Sprintf("It is captured: given, unchanged, to the transparent listener at port %d.", v.Port)
	case Dropped:
		text = "It is dropped."
	}
	if len(v.Steps) == 0 {
		text += " There are no rules for it."
	}
	if v.Zone != 0 {
		text += fmt.Sprintf(" Its connection is tracked in zone %d.", v.Zone)
	}
	return text
}
