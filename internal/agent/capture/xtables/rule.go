package xtables

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// fragment is some arguments of a rule and their rank among the others.
type fragment struct {
	rank int
	args []string
}

// ranks are the orders in which Istio writes the matches of a rule; the order depends on the table and
// the chain. The index is one of byAddress, byProtocol and byDestination.
var ranks = [3]struct{ nic, source, destination, protocol, module int }{
	{nic: 0, source: 1, destination: 1, protocol: 2, module: 3},
	{nic: 0, source: 2, destination: 2, protocol: 1, module: 3},
	{nic: 3, source: 2, destination: 0, protocol: 1, module: 4},
}

const (
	byAddress = iota
	byProtocol
	byDestination
)

// argOrder returns the index in ranks for the rules of a chain.
func argOrder(table, chain string) int {
	switch {
	case table == "mangle":
		return byDestination
	case table == "raw", chain == "ISTIO_OUTPUT_DNS":
		return byProtocol
	}
	return byAddress
}

// ruleArgs returns a rule as arguments of iptables, without its chain.
func ruleArgs(table, chain string, r plan.Rule) []string {
	rank := ranks[argOrder(table, chain)]
	fragments := []fragment{{rank.protocol, protocolArgs(table, chain, r)}}
	for _, m := range r.Matches {
		switch m.Field {
		case plan.InInterface:
			fragments = append(fragments, fragment{rank.nic, negate(m, "-i", m.Name)})
		case plan.OutInterface:
			fragments = append(fragments, fragment{rank.nic, negate(m, "-o", m.Name)})
		case plan.Source:
			fragments = append(fragments, fragment{rank.source, negate(m, "-s", m.Prefix.String())})
		case plan.Destination:
			fragments = append(fragments, fragment{rank.destination, negate(m, "-d", m.Prefix.String())})
		case plan.SocketUID:
			fragments = append(fragments, fragment{rank.module, append([]string{"-m", "owner"}, negate(m, "--uid-owner", owner(m))...)})
		case plan.SocketGID:
			fragments = append(fragments, fragment{rank.module, append([]string{"-m", "owner"}, negate(m, "--gid-owner", owner(m))...)})
		case plan.SocketCgroup:
			fragments = append(fragments, fragment{rank.module, append([]string{"-m", "cgroup"}, negate(m, "--path", m.Name)...)})
		case plan.PacketMark:
			fragments = append(fragments, fragment{rank.module, append([]string{"-m", "mark"}, negate(m, "--mark", numbers(m, ":"))...)})
		case plan.ConnMark:
			fragments = append(fragments, fragment{rank.module, append([]string{"-m", "connmark"}, negate(m, "--mark", numbers(m, ":"))...)})
		case plan.ConnState:
			fragments = append(fragments, fragment{rank.module, append([]string{"-m", "conntrack"}, negate(m, "--ctstate", strings.ToUpper(m.Name))...)})
		case plan.Family: // there is a program for each
		case plan.Protocol, plan.TCPPort, plan.UDPPort, plan.UDPSource: // see protocolArgs
		default:
			panic(fmt.Sprintf("xtables: unexpected field %q", string(m.Field)))
		}
	}
	slices.SortStableFunc(fragments, func(a, b fragment) int { return cmp.Compare(a.rank, b.rank) })
	var all []string
	for _, f := range fragments {
		all = append(all, f.args...)
	}
	return append(all, actionArgs(r)...)
}

// protocolArgs returns the protocol and the ports; iptables accepts only one -p.
func protocolArgs(table, chain string, r plan.Rule) []string {
	name := protocol(r)
	if name == "" && chain == "ISTIO_INBOUND" && table != "raw" {
		name = "tcp" // redundant, but Istio writes it
	}
	if name == "" {
		return nil
	}
	all := []string{"-p", name}
	var not []string
	for _, m := range r.Matches {
		if m.Field == plan.Protocol && m.Not {
			return []string{"!", "-p", name}
		}
		if m.Not && (m.Field == plan.TCPPort || m.Field == plan.UDPPort) {
			not = append(not, numbers(m, ":"))
		}
	}
	if len(not) > 1 {
		all = append(all, "-m", "multiport", "!", "--dports", strings.Join(not, ","))
	}
	for _, m := range r.Matches {
		switch {
		case m.Field == plan.UDPSource:
			all = append(all, negate(m, "--sport", numbers(m, ":"))...)
		case (m.Field == plan.TCPPort || m.Field == plan.UDPPort) && (!m.Not || len(not) == 1):
			all = append(all, negate(m, "--dport", numbers(m, ":"))...)
		}
	}
	return all
}

// protocol returns the protocol that a rule matches, if only by its ports, or empty.
func protocol(r plan.Rule) string {
	for _, m := range r.Matches {
		switch m.Field {
		case plan.Protocol:
			return m.Name
		case plan.TCPPort:
			return "tcp"
		case plan.UDPPort, plan.UDPSource:
			return "udp"
		}
	}
	return ""
}

func negate(m plan.Match, args ...string) []string {
	if m.Not {
		return append([]string{"!"}, args...)
	}
	return args
}

// owner returns a user or group, by name if it was configured by name.
func owner(m plan.Match) string {
	if m.Name != "" {
		return m.Name
	}
	return numbers(m, "-")
}

func numbers(m plan.Match, separator string) string {
	if m.From == m.To {
		return strconv.FormatUint(uint64(m.From), 10)
	}
	return fmt.Sprintf("%d%s%d", m.From, separator, m.To)
}

// actionArgs returns what the rule does. For UDP, Istio writes --to-port instead of --to-ports.
func actionArgs(r plan.Rule) []string {
	a := r.Action
	mark := strconv.FormatUint(uint64(a.Mark), 10)
	switch a.Verb {
	case plan.Jump:
		return []string{"-j", upper(a.Chain)}
	case plan.Redirect:
		option := "--to-ports"
		if protocol(r) == "udp" {
			option = "--to-port"
		}
		return []string{"-j", "REDIRECT", option, strconv.Itoa(int(a.Port))}
	case plan.TProxy:
		return []string{"-j", "TPROXY", "--tproxy-mark", mark + "/0xffffffff", "--on-port", strconv.Itoa(int(a.Port))}
	case plan.SetMark:
		return []string{"-j", "MARK", "--set-mark", mark}
	case plan.SaveMark:
		return []string{"-j", "CONNMARK", "--save-mark"}
	case plan.RestoreMark:
		return []string{"-j", "CONNMARK", "--restore-mark"}
	case plan.SetZone:
		return []string{"-j", "CT", "--zone", mark}
	case plan.Return, plan.Accept, plan.Drop:
		return []string{"-j", strings.ToUpper(string(a.Verb))}
	}
	panic(fmt.Sprintf("xtables: unexpected verb %q", string(a.Verb)))
}
