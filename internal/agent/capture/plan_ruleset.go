package capture

import (
	"fmt"
	"net/netip"
	"strings"
)

// Ruleset is everything that capture asks of a network namespace. It is a plain value: two equal
// plans have equal Rulesets and equal text.
type Ruleset struct {
	// Tables are those that have rules; a table of ours that is missing here must not exist.
	Tables []Table
	// Loopback are addresses that the loopback interface needs beyond its own.
	Loopback []netip.Prefix
	// Sysctls are settings wished for; capture works without them.
	Sysctls []Sysctl
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

// Base says where the kernel enters a chain. Such chains accept what no rule decides.
type Base struct {
	// Type is nat or filter; Hook is prerouting or output.
	Type, Hook string
	Priority   int32
}

// Rule acts on a packet for which all matches hold. Every rule counts its packets.
type Rule struct {
	Matches []Match
	Action  Action
}

// Field is what a match looks at, spelt as nft spells it.
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
	SocketUID    Field = "meta skuid"
	SocketGID    Field = "meta skgid"
)

// Match compares one field. Which of the values counts depends on the field: Name for
// interfaces (whole names), families (ipv4, ipv6) and protocols (tcp, udp), Prefix for addresses,
// From and To (inclusive) for ports and ids.
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
)

// Action is a verb with its object: the chain of a Jump, the local port of a Redirect.
type Action struct {
	Verb  Verb
	Chain string
	Port  uint16
}

// Sysctl is a kernel setting of the network namespace, by its dotted name.
type Sysctl struct {
	Key, Value string
}

// String is the rule set as a script that the nft program takes, with what nft cannot do as
// comments. Applied twice it changes nothing.
func (r Ruleset) String() string {
	var b strings.Builder
	for _, s := range r.Sysctls {
		fmt.Fprintf(&b, "# sysctl %s=%s\n", s.Key, s.Value)
	}
	for _, p := range r.Loopback {
		fmt.Fprintf(&b, "# address %s on lo\n", p)
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
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}

// String is the rule as nft spells it.
func (r Rule) String() string {
	var words []string
	for _, m := range r.Matches {
		words = append(words, m.String())
	}
	return strings.Join(append(words, "counter", r.Action.String()), " ")
}

// String is the match as nft spells it.
func (m Match) String() string {
	field := string(m.Field)
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
	case InInterface, OutInterface:
		return fmt.Sprintf("%q", m.Name)
	case Family, Protocol:
		return m.Name
	case Source, Destination:
		if m.Prefix.IsSingleIP() {
			return m.Prefix.Addr().String()
		}
		return m.Prefix.String()
	}
	if m.From == m.To {
		return fmt.Sprint(m.From)
	}
	return fmt.Sprintf("%d-%d", m.From, m.To)
}

// String is the action as nft spells it.
func (a Action) String() string {
	switch a.Verb {
	case Jump:
		return "jump " + a.Chain
	case Redirect:
		return fmt.Sprintf("redirect to :%d", a.Port)
	}
	return string(a.Verb)
}
