package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Ruleset is everything that capture needs in a network namespace. Equal options and facts give equal
// Rulesets and equal text. A Ruleset must not be modified; it may be used by several goroutines at once.
type Ruleset struct {
	// Tables are those that have rules, in the order mangle, nat, raw; a table of [TableNames]
	// that is not among them must not exist.
	Tables []Table
	// Loopback are addresses to add to the loopback interface.
	Loopback []netip.Prefix
	// Routes make the kernel deliver marked packets to this host, whatever their destination.
	Routes []MarkRoute
	// Sysctls are useful kernel settings; capture works without them.
	Sysctls []Sysctl
	// Notes are sentences about options that have no effect or cannot be applied.
	Notes []string
}

// MarkRoute routes packets of one family with the mark Mark by the routing table Table, which delivers all to this host:
// "ip rule add fwmark Mark lookup Table" and "ip route add local default dev lo table Table".
type MarkRoute struct {
	IPv6        bool
	Mark, Table uint32
}

// Table is one nftables table of family inet, which sees IPv4 and IPv6.
type Table struct {
	Name   string
	Chains []Chain
}

// Chain is a list of rules; the kernel enters it at a hook if Base is set, and by jumps otherwise.
type Chain struct {
	Name  string
	Base  Base
	Rules []Rule
}

// Base makes a chain a base chain, which the kernel enters at a hook. Its policy is accept.
type Base struct {
	// Type is nat, filter or route (a filter after which marked packets are rerouted); Hook is
	// prerouting or output.
	Type, Hook string
	Priority   int32
}

// Rule acts on a packet for which all matches hold. Every rule counts its packets.
type Rule struct {
	Matches []Match
	Action  Action
}

// Field is what a match compares, in the syntax of nft.
type Field string

// The fields.
const (
	InInterface  Field = "iifname"
	OutInterface Field = "oifname"
	Family       Field = "meta nfproto"
	Protocol     Field = "meta l4proto"
	Source       Field = "saddr"
	Destination  Field = "daddr"
	TCPPort      Field = "tcp dport"
	UDPPort      Field = "udp dport"
	UDPSource    Field = "udp sport"
	SocketUID    Field = "meta skuid"
	SocketGID    Field = "meta skgid"
	SocketCgroup Field = "socket cgroupv2"
	PacketMark   Field = "meta mark"
	ConnMark     Field = "ct mark"
	ConnState    Field = "ct state"
)

// Match compares one field. Which of the values is used depends on the field: Name for
// interfaces (whole names), families (ipv4, ipv6), protocols (tcp, udp), a cgroup's path below the
// root of the hierarchy, and states (invalid, or related,established); Prefix for addresses; From
// and To (inclusive) for ports, ids and marks. A user or group that was given by name has that in
// Name too. A cgroup is never negated. A match of a field that the packet does not have, such as the
// owner of a packet without a socket, does not hold, negated or not.
type Match struct {
	Field    Field
	Not      bool
	Name     string
	Prefix   netip.Prefix
	From, To uint32
}

// Verb is what a rule does with a packet.
type Verb string

// The verbs.
const (
	Return   Verb = "return"
	Jump     Verb = "jump"
	Redirect Verb = "redirect"
	Accept   Verb = "accept"
	Drop     Verb = "drop"
	// TProxy delivers the packet unchanged to the transparent listener at Port and sets Mark. No
	// further rule of the table is evaluated; without a listener the packet is dropped.
	TProxy Verb = "tproxy"
	// SetMark sets the packet's mark to Mark, SaveMark the connection's mark to the packet's, and
	// RestoreMark the packet's to the connection's. SetZone has the packet tracked in the
	// conntrack zone Mark; the first such rule that holds counts. After all four, evaluation
	// continues with the next rule.
	SetMark     Verb = "meta mark set"
	SaveMark    Verb = "ct mark set meta mark"
	RestoreMark Verb = "meta mark set ct mark"
	SetZone     Verb = "ct zone set"
)

// Action is a verb with its argument: the chain of a Jump, the local port of a Redirect or TProxy,
// the mark or zone.
type Action struct {
	Verb  Verb
	Chain string
	Port  uint16
	Mark  uint32
}

// Sysctl is a kernel setting of the network namespace, by its dotted name.
type Sysctl struct {
	Key, Value string
}

// String returns a script for the nft program, which may be applied repeatedly; what nft cannot do is in
// comments.
func (r Ruleset) String() string {
	var b strings.Builder
	for _, s := range r.Sysctls {
		fmt.Fprintf(&b, "# sysctl %s=%s\n", s.Key, s.Value)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "# note: %s\n", n)
	}
	for _, p := range r.Loopback {
		fmt.Fprintf(&b, "# address %s on lo\n", p)
	}
	for _, m := range r.Routes {
		fmt.Fprintf(&b, "# %s\n", m)
	}
	for _, t := range r.Tables {
		fmt.Fprintf(&b, "add table inet %s\nflush table inet %s\n", t.Name, t.Name)
	}
	for _, t := range r.Tables {
		fmt.Fprintf(&b, "table inet %s {\n", t.Name)
		for i, c := range t.Chains {
			if i > 0 {
				b.WriteByte('\n')
			}
			c.write(&b)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func (c Chain) write(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Base.Hook != "" {
		fmt.Fprintf(b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.Base.Type, c.Base.Hook, c.Base.Priority)
	}
	for _, rule := range c.Rules {
		for _, r := range rule.Nftables() {
			fmt.Fprintf(b, "\t\t%s\n", r)
		}
	}
	b.WriteString("\t}\n")
}

// String returns the route in the syntax of the ip program.
func (m MarkRoute) String() string {
	family := "-4"
	if m.IPv6 {
		family = "-6"
	}
	return fmt.Sprintf("ip %s rule fwmark %d lookup %d; ip %s route local default dev lo table %d", family, m.Mark, m.Table, family, m.Table)
}

// Nftables returns the rules for nftables. Without a listener its tproxy continues with the next rule, so
// that packets would not be captured while the proxy starts; a second rule drops them.
func (r Rule) Nftables() []Rule {
	if r.Action.Verb != TProxy {
		return []Rule{r}
	}
	return []Rule{r, {Matches: r.Matches, Action: Action{Verb: Drop}}}
}

// String returns the rule in the syntax of nft.
func (r Rule) String() string {
	var parts []string
	for _, m := range r.Matches {
		parts = append(parts, m.String())
	}
	return strings.Join(append(parts, "counter", r.Action.String()), " ")
}

// String returns the match in the syntax of nft.
func (m Match) String() string {
	field := string(m.Field)
	if m.Field == SocketCgroup {
		field += fmt.Sprintf(" level %d", m.CgroupLevel())
	}
	if m.Field == Source || m.Field == Destination {
		if field = "ip " + field; m.Prefix.Addr().Is6() {
			field = "ip6 " + string(m.Field)
		}
	}
	if m.Not {
		field += " !="
	}
	return field + " " + m.value()
}

func (m Match) value() string {
	switch m.Field {
	case InInterface, OutInterface, SocketCgroup:
		return fmt.Sprintf("%q", m.Name)
	case Family, Protocol, ConnState:
		return m.Name
	case Source, Destination:
		if m.Prefix.IsSingleIP() {
			return m.Prefix.Addr().String()
		}
		return m.Prefix.String()
	case TCPPort, UDPPort, UDPSource, SocketUID, SocketGID, PacketMark, ConnMark:
		if m.From == m.To {
			return fmt.Sprint(m.From)
		}
		return fmt.Sprintf("%d-%d", m.From, m.To)
	}
	panic(fmt.Sprintf("plan: unexpected field %q", string(m.Field)))
}

// String returns the action in the syntax of nft.
func (a Action) String() string {
	switch a.Verb {
	case Jump:
		return "jump " + a.Chain
	case Redirect:
		return fmt.Sprintf("redirect to :%d", a.Port)
	case TProxy:
		return fmt.Sprintf("tproxy to :%d meta mark set %d accept", a.Port, a.Mark)
	case SetMark, SetZone:
		return fmt.Sprintf("%s %d", a.Verb, a.Mark)
	case Return, Accept, Drop, SaveMark, RestoreMark:
		return string(a.Verb)
	}
	panic(fmt.Sprintf("plan: unexpected verb %q", string(a.Verb)))
}

// CgroupLevel returns the depth of a SocketCgroup match's cgroup below the root of the hierarchy, from 1.
func (m Match) CgroupLevel() uint32 { return uint32(strings.Count(m.Name, "/")) + 1 }

// Captures reports whether any connection of one version of IP reaches a chain of ours.
func (r Ruleset) Captures(ipv6 bool) bool {
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			if c.Base.Hook != "" && slices.ContainsFunc(c.Rules, func(rule Rule) bool {
				return rule.Action.Verb == Jump && rule.AppliesTo(ipv6)
			}) {
				return true
			}
		}
	}
	return false
}

// AppliesTo reports whether a packet of that version of IP can match at all.
func (r Rule) AppliesTo(ipv6 bool) bool {
	for _, m := range r.Matches {
		switch m.Field {
		case Family:
			if (m.Name == "ipv6") == m.Not == ipv6 {
				return false
			}
		case Source, Destination:
			if m.Prefix.Addr().Is6() != ipv6 {
				return false
			}
		}
	}
	return true
}
