package xtables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Saved is what iptables-save printed: the tables of one version of IP.
type Saved []savedTable

// savedTable is a table in the kernel: all its chains, those of the kernel too, and all rules in order.
type savedTable struct {
	name     string
	chains   []string
	policies map[string]string
	rules    []savedRule
}

// savedRule is a rule as it was printed, and in canonical form: see canonical.
type savedRule struct {
	chain, text, canonical string
}

// ParseSaved parses the output of iptables-save, with counters or without. Options that it doesn't
// know are kept as text: rules of others may use any. The error names the line.
func ParseSaved(text string) (Saved, error) {
	var all Saved
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line == "COMMIT" {
			continue
		}
		if line[0] == '*' {
			all = append(all, savedTable{name: strings.TrimSpace(line[1:]), policies: map[string]string{}})
			continue
		}
		if len(all) == 0 || !all[len(all)-1].add(line) {
			return nil, fmt.Errorf("line %d: invalid line %q: want a table, chain or rule as iptables-save prints them", number, line)
		}
	}
	return all, nil
}

// add parses the line of a chain or rule, and reports whether it is one.
func (t *savedTable) add(line string) bool {
	if line[0] == ':' {
		name, rest, _ := strings.Cut(line[1:], " ")
		policy, _, _ := strings.Cut(rest, " ")
		if name == "" {
			return false
		}
		t.chains = append(t.chains, name)
		t.policies[name] = policy
		return true
	}
	if line[0] == '[' {
		_, rest, ok := strings.Cut(line, "] ")
		if !ok {
			return false
		}
		line = rest
	}
	rest, ok := strings.CutPrefix(line, "-A ")
	if !ok {
		return false
	}
	chain, text, _ := strings.Cut(rest, " ")
	tokens, ok := tokenize(text)
	if chain == "" || !ok {
		return false
	}
	t.rules = append(t.rules, savedRule{chain, text, canonical(tokens)})
	return true
}

// tokenize splits at blanks outside of double quotes, in which a backslash escapes; ok is false if a
// quote is not closed.
func tokenize(line string) (tokens []string, ok bool) {
	var b strings.Builder
	open, some, escaped := false, false, false
	for _, c := range []byte(line) {
		switch {
		case escaped:
			b.WriteByte(c)
			escaped = false
		case c == '\\' && open:
			escaped = true
		case c == '"':
			open, some = !open, true
		case (c == ' ' || c == '\t') && !open:
			if some || b.Len() > 0 {
				tokens = append(tokens, b.String())
			}
			b.Reset()
			some = false
		default:
			b.WriteByte(c)
		}
	}
	if some || b.Len() > 0 {
		tokens = append(tokens, b.String())
	}
	return tokens, !open && !escaped
}

// canonical is equal for two rules with the same meaning, as far as the options that our own rules use
// go. All matches of a rule must hold, so their order has no meaning.
func canonical(tokens []string) string {
	var parts []string
	for i := 0; i < len(tokens); {
		not := ""
		if tokens[i] == "!" && i+1 < len(tokens) {
			not = "! "
			i++
		}
		name := tokens[i]
		end := i + 1
		for end < len(tokens) && tokens[end] != "!" && !strings.HasPrefix(tokens[end], "-") {
			end++
		}
		if part := canonicalPart(not, name, tokens[i+1:end]); part != "" {
			parts = append(parts, part)
		}
		i = end
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// implicitModules have no meaning without their options.
var implicitModules = []string{"tcp", "udp", "owner", "mark", "connmark", "conntrack", "multiport", "cgroup"}

// synonyms maps options to the name that canonical uses.
var synonyms = map[string]string{
	"--to-port": "--to-ports", "--set-xmark": "--set-mark", "--destination-port": "--dport", "--source-port": "--sport",
	"--source": "-s", "--src": "-s", "--destination": "-d", "--dst": "-d", "--protocol": "-p", "--jump": "-j",
	"--in-interface": "-i", "--out-interface": "-o", "--match": "-m",
}

func canonicalPart(not, name string, values []string) string {
	if same, ok := synonyms[name]; ok {
		name = same
	}
	value := strings.Join(values, "\x00")
	switch name {
	case "-m":
		if slices.Contains(implicitModules, value) {
			return ""
		}
	case "-s", "-d":
		value = canonicalPrefix(value)
		if not == "" && (value == "0.0.0.0/0" || value == "::/0") {
			return ""
		}
	case "--ctstate":
		states := strings.Split(value, ",")
		slices.Sort(states)
		value = strings.Join(states, ",")
	case "--on-ip":
		if a, err := netip.ParseAddr(value); err == nil && a.IsUnspecified() {
			return ""
		}
	case "--nfmask", "--ctmask":
		if canonicalNumber(value) == strconv.FormatUint(1<<32-1, 10) {
			return ""
		}
	case "--set-mark", "--mark", "--tproxy-mark", "--zone", "--uid-owner", "--gid-owner":
		number, mask, masked := strings.Cut(value, "/")
		value = canonicalNumber(number)
		if mask = canonicalNumber(mask); masked && mask != strconv.FormatUint(1<<32-1, 10) {
			value += "/" + mask
		}
	}
	return strings.TrimSpace(not + name + " " + value)
}

// canonicalPrefix returns a network with its length.
func canonicalPrefix(text string) string {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked().String()
	}
	return text
}

func canonicalNumber(text string) string {
	if n, err := strconv.ParseUint(text, 0, 32); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return text
}
