package capture

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// part is some words of a rule and where they stand among the others.
type part struct {
	rank  int
	words []string
}

// ranks say in which order the drop-in names what a rule looks at; it is not the same everywhere.
// The first index is one of byAddress, byProtocol and byDestination.
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

func dialect(table, chain string) int {
	switch {
	case table == "mangle":
		return byDestination
	case table == "raw", chain == "ISTIO_OUTPUT_DNS":
		return byProtocol
	}
	return byAddress
}

// words are a rule in the words of iptables.
func words(table, chain string, r Rule) []string {
	rank := ranks[dialect(table, chain)]
	parts := []part{{rank.protocol, protocolWords(table, chain, r)}}
	for _, m := range r.Matches {
		switch m.Field {
		case InInterface:
			parts = append(parts, part{rank.nic, negate(m, "-i", m.Name)})
		case OutInterface:
			parts = append(parts, part{rank.nic, negate(m, "-o", m.Name)})
		case Source:
			parts = append(parts, part{rank.source, negate(m, "-s", m.Prefix.String())})
		case Destination:
			parts = append(parts, part{rank.destination, negate(m, "-d", m.Prefix.String())})
		case SocketUID:
			parts = append(parts, part{rank.module, append([]string{"-m", "owner"}, negate(m, "--uid-owner", owner(m))...)})
		case SocketGID:
			parts = append(parts, part{rank.module, append([]string{"-m", "owner"}, negate(m, "--gid-owner", owner(m))...)})
		case SocketCgroup:
			parts = append(parts, part{rank.module, append([]string{"-m", "cgroup"}, negate(m, "--path", m.Name)...)})
		case PacketMark:
			parts = append(parts, part{rank.module, append([]string{"-m", "mark"}, negate(m, "--mark", numbers(m, ":"))...)})
		case ConnMark:
			parts = append(parts, part{rank.module, append([]string{"-m", "connmark"}, negate(m, "--mark", numbers(m, ":"))...)})
		case ConnState:
			parts = append(parts, part{rank.module, append([]string{"-m", "conntrack"}, negate(m, "--ctstate", strings.ToUpper(m.Name))...)})
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.rank, b.rank) })
	var all []string
	for _, p := range parts {
		all = append(all, p.words...)
	}
	return append(all, r.xaction()...)
}

// protocolWords name protocol and ports, once: iptables takes no second -p.
func protocolWords(table, chain string, r Rule) []string {
	name := r.protocol()
	if name == "" && chain == "ISTIO_INBOUND" && table != "raw" {
		name = "tcp" // nothing else comes here; the drop-in says so again
	}
	if name == "" {
		return nil
	}
	all := []string{"-p", name}
	var not []string
	for _, m := range r.Matches {
		if m.Field == Protocol && m.Not {
			return []string{"!", "-p", name}
		}
		if m.Not && (m.Field == TCPPort || m.Field == UDPPort) {
			not = append(not, numbers(m, ":"))
		}
	}
	if len(not) > 1 {
		all = append(all, "-m", "multiport", "!", "--dports", strings.Join(not, ","))
	}
	for _, m := range r.Matches {
		switch {
		case m.Field == UDPSource:
			all = append(all, negate(m, "--sport", numbers(m, ":"))...)
		case (m.Field == TCPPort || m.Field == UDPPort) && (!m.Not || len(not) == 1):
			all = append(all, negate(m, "--dport", numbers(m, ":"))...)
		}
	}
	return all
}

// protocol is the one that a rule is about, by its ports too, or empty.
func (r Rule) protocol() string {
	for _, m := range r.Matches {
		switch m.Field {
		case Protocol:
			return m.Name
		case TCPPort:
			return "tcp"
		case UDPPort, UDPSource:
			return "udp"
		}
	}
	return ""
}

func negate(m Match, words ...string) []string {
	if m.Not {
		return append([]string{"!"}, words...)
	}
	return words
}

func owner(m Match) string {
	if m.Name != "" {
		return m.Name
	}
	return numbers(m, "-")
}

func numbers(m Match, to string) string {
	if m.From == m.To {
		return strconv.FormatUint(uint64(m.From), 10)
	}
	return fmt.Sprintf("%d%s%d", m.From, to, m.To)
}

// xaction is what the rule does. Ports of UDP have a spelling of their own, by history.
func (r Rule) xaction() []string {
	a := r.Action
	mark := strconv.FormatUint(uint64(a.Mark), 10)
	switch a.Verb {
	case Jump:
		return []string{"-j", strings.ToUpper(strings.ReplaceAll(a.Chain, "-", "_"))}
	case Redirect:
		word := "--to-ports"
		if r.protocol() == "udp" {
			word = "--to-port"
		}
		return []string{"-j", "REDIRECT", word, strconv.Itoa(int(a.Port))}
	case TProxy:
		return []string{"-j", "TPROXY", "--tproxy-mark", mark + "/0xffffffff", "--on-port", strconv.Itoa(int(a.Port))}
	case SetMark:
		return []string{"-j", "MARK", "--set-mark", mark}
	case SaveMark:
		return []string{"-j", "CONNMARK", "--save-mark"}
	case RestoreMark:
		return []string{"-j", "CONNMARK", "--restore-mark"}
	case SetZone:
		return []string{"-j", "CT", "--zone", mark}
	}
	return []string{"-j", strings.ToUpper(string(a.Verb))}
}
