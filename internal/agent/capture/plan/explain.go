package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet before it reaches the rules of capture.
type Packet struct {
	// Outbound says that this network namespace sends the packet; otherwise it receives it.
	Outbound bool `json:"outbound"`
	// Protocol is tcp or udp; no rule captures another one.
	Protocol string         `json:"protocol"`
	From     netip.AddrPort `json:"from"`
	To       netip.AddrPort `json:"to"`
	// Interface is the one that receives it, or that would send it.
	Interface string `json:"interface"`
	// UID, GID, Cgroup (a path) and Mark are those of the sending socket; for a received packet,
	// only Mark matters.
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Cgroup string `json:"cgroup,omitempty"`
	Mark   uint32 `json:"mark,omitempty"`
	// State is the conntrack state of the connection: new (also if empty), established, related or
	// invalid; ConnMark is its mark.
	State    string `json:"state,omitempty"`
	ConnMark uint32 `json:"connMark,omitempty"`
}

// Outcome is what the rules do with a packet.
type Outcome string

// The outcomes.
const (
	// Passes: it is not captured.
	Passes Outcome = "passes"
	// Redirected: its destination is rewritten to a local port; the listener can ask for the
	// original one (SO_ORIGINAL_DST).
	Redirected Outcome = "redirected"
	// Intercepted: it is delivered unchanged to the transparent listener of a port.
	Intercepted Outcome = "intercepted"
	// Dropped: no socket receives it.
	Dropped Outcome = "dropped"
)

// Verdict is what a plan does with a packet, and why.
type Verdict struct {
	Outcome Outcome `json:"outcome"`
	// Port is the local port of a captured packet, else 0.
	Port uint16 `json:"port,omitempty"`
	// Mark is the packet's mark after the rules; Zone is the conntrack zone of its connection.
	Mark uint32 `json:"mark,omitempty"`
	Zone uint32 `json:"zone,omitempty"`
	// Steps are the evaluated rules in order.
	Steps []Evaluation `json:"steps"`
}

// Evaluation is one rule applied to the packet.
type Evaluation struct {
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Number is the rule's position in its chain, from 1.
	Number int    `json:"number"`
	Rule   string `json:"rule"`
	Holds  bool   `json:"holds"`
	// Holds says that all matches hold; otherwise Because is the first that does not.
	Because string `json:"because,omitempty"`
}

// Explain evaluates the rules for a packet as the kernel does: raw, mangle and nat, of which nat sees
// new connections only. A packet sent on loopback is also received there, so the prerouting rules of raw
// and mangle see it too.
func Explain(r Ruleset, p Packet) Verdict { return NewExplainer(r).Explain(p) }

// Explainer is Explain for many packets and the same rules, whose texts it makes once. It is not for concurrent use.
type Explainer struct {
	rules Ruleset
	texts map[place]string
}

// place is that of a rule, or of one of its matches; match is -1 for the rule.
type place struct {
	table, chain string
	rule, match  int
}

// NewExplainer returns an Explainer of rules, which must not change.
func NewExplainer(r Ruleset) *Explainer { return &Explainer{r, map[place]string{}} }

// text is what a rule or a match says.
func (x *Explainer) text(at place, what fmt.Stringer) string {
	s, ok := x.texts[at]
	if !ok {
		s = what.String()
		x.texts[at] = s
	}
	return s
}

// Explain evaluates the rules for a packet.
func (x *Explainer) Explain(p Packet) Verdict {
	p.State = cmp.Or(p.State, "new")
	e := evaluator{Explainer: x, p: p, verdict: Verdict{Outcome: Passes}}
	if !p.Outbound {
		e.hook(hookPrerouting, p.State == "new")
	} else if e.hook(hookOutput, p.State == "new") && e.p.Interface == "lo" {
		e.p.Outbound = false
		e.hook(hookPrerouting, false)
	}
	e.verdict.Mark = e.p.Mark
	return e.verdict
}

// evaluator holds a packet as the rules have changed it so far, and the verdict so far.
type evaluator struct {
	*Explainer
	p       Packet
	verdict Verdict
}

// hook evaluates the chains of a hook in the order of their priorities, and reports whether the
// packet continues.
func (e *evaluator) hook(hook string, nat bool) bool {
	type entry struct {
		table Table
		chain Chain
	}
	var entries []entry
	for _, table := range e.rules.Tables {
		for _, c := range table.Chains {
			if c.Base.Hook == hook && (nat || c.Base.Type != "nat") {
				entries = append(entries, entry{table, c})
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.chain.Base.Priority, b.chain.Base.Priority) })
	for _, entry := range entries {
		mark := e.p.Mark
		e.chain(entry.table, entry.chain)
		if e.verdict.Outcome == Dropped {
			return false
		}
		if entry.chain.Base.Type == "route" && mark != e.p.Mark && e.routedHere() {
			e.p.Interface = "lo"
		}
	}
	return true
}

// routedHere reports whether a route for its mark delivers the packet to this host.
func (e *evaluator) routedHere() bool {
	return slices.ContainsFunc(e.rules.Routes, func(m MarkRoute) bool {
		return m.Mark == e.p.Mark && m.IPv6 == e.p.To.Addr().Is6()
	})
}

// chain evaluates a chain and reports whether its table is done with the packet.
func (e *evaluator) chain(table Table, c Chain) bool {
	for i, r := range c.Rules {
		evaluation := Evaluation{Table: table.Name, Chain: c.Name, Number: i + 1, Rule: e.text(place{table.Name, c.Name, i, -1}, r), Holds: true}
		if at := slices.IndexFunc(r.Matches, func(m Match) bool { return !m.holds(e.p) }); at >= 0 {
			evaluation.Holds, evaluation.Because = false, e.text(place{table.Name, c.Name, i, at}, r.Matches[at])
		}
		e.verdict.Steps = append(e.verdict.Steps, evaluation)
		if !evaluation.Holds {
			continue
		}
		switch r.Action.Verb {
		case Return:
			return false
		case Jump:
			next := slices.IndexFunc(table.Chains, func(c Chain) bool { return c.Name == r.Action.Chain })
			if next >= 0 && e.chain(table, table.Chains[next]) {
				return true
			}
		default:
			if e.act(r.Action) {
				return true
			}
		}
	}
	return false
}

// act performs an action and reports whether the table is done with the packet.
func (e *evaluator) act(a Action) (done bool) {
	switch a.Verb {
	case Redirect:
		e.verdict.Outcome, e.verdict.Port = Redirected, a.Port
		if e.p.Outbound {
			// What this namespace sends itself is redirected to loopback.
			e.p.To, e.p.Interface = netip.AddrPortFrom(redirectAddr(e.p.To.Addr().Is6()), a.Port), "lo"
		}
		return true
	case TProxy:
		e.verdict.Outcome, e.verdict.Port, e.p.Mark = Intercepted, a.Port, a.Mark
		return true
	case Drop:
		e.verdict.Outcome = Dropped
		return true
	case Accept:
		return true
	case SetMark:
		e.p.Mark = a.Mark
	case SaveMark:
		e.p.ConnMark = e.p.Mark
	case RestoreMark:
		e.p.Mark = e.p.ConnMark
	case SetZone:
		e.verdict.Zone = cmp.Or(e.verdict.Zone, a.Mark)
	default:
		panic(fmt.Sprintf("plan: unexpected verb %q", a.Verb))
	}
	return false
}

func (m Match) holds(p Packet) bool {
	has, equal := m.compare(p)
	return has && equal != m.Not
}

// compare reports whether the packet has the field at all, and whether its value is that of the match.
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
		return p.Outbound, cgroupWithin(p.Cgroup, m.Name)
	case PacketMark:
		return true, in(p.Mark)
	case ConnMark:
		return p.State != "invalid", in(p.ConnMark)
	case ConnState:
		return true, slices.Contains(strings.Split(m.Name, ","), p.State)
	}
	panic(fmt.Sprintf("plan: unexpected field %q", m.Field))
}

// cgroupWithin reports whether a cgroup is ancestor or one of its descendants.
func cgroupWithin(path, ancestor string) bool {
	return strings.HasPrefix(strings.Trim(path, "/")+"/", ancestor+"/")
}

// String returns the verdict and the evaluated rules as text.
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

// Sentence returns the verdict as a sentence, without the rules.
func (v Verdict) Sentence() string {
	var text string
	switch v.Outcome {
	case Passes:
		text = "It passes: no rule captures it."
	case Redirected:
		text = fmt.Sprintf("It is captured: redirected to port %d.", v.Port)
	case Intercepted:
		text = fmt.Sprintf("It is captured: given, unchanged, to the transparent listener at port %d.", v.Port)
	case Dropped:
		text = "It is dropped."
	default:
		panic(fmt.Sprintf("plan: unexpected outcome %q", v.Outcome))
	}
	if len(v.Steps) == 0 {
		text += " There are no rules for it."
	}
	if v.Zone != 0 {
		text += fmt.Sprintf(" Its connection is tracked in zone %d.", v.Zone)
	}
	return text
}
