package config

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxRegex is the maximum length of a regular expression in bytes; each one runs for every request.
const maxRegex = 1024

// isLabel reports whether s is one label of a DNS name.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// isDomain reports whether s is a DNS name, which may end in a dot. Underscores are accepted, because
// names with underscores exist in DNS.
func isDomain(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(strings.ReplaceAll(label, "_", "x")) {
			return false
		}
	}
	return true
}

// isHost reports whether s is a DNS name or a wildcard of one ("*", "*.example.com").
func isHost(s string) bool {
	if s == "*" {
		return true
	}
	return isDomain(strings.TrimPrefix(s, "*."))
}

func isIP(s string) bool {
	ip, err := netip.ParseAddr(s)
	return err == nil && ip.Zone() == ""
}

func isCIDR(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// host checks the name of a service or of a host that routes match.
func (c *check) host(field, s string) {
	if !isHost(s) && !isIP(s) {
		c.fail(field, "invalid host %q: want a DNS name, one that begins with \"*.\", or an IP address", s)
	}
}

// hostsOnce reports duplicates in spec.hosts, ignoring case and a final dot.
func (c *check) hostsOnce(hosts []string) {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = mesh.HostName(h)
	}
	once(names, func(i int, _ string) { c.fail(item("spec.hosts", i), "duplicate %q; remove one", hosts[i]) })
}

// port checks a port number; zero allows 0.
func (c *check) port(field string, n uint32, zero bool) {
	if n > 65535 || n == 0 && !zero {
		c.fail(field, "invalid port %d: want 1–65535", n)
	}
}

// duration checks a duration, if it is set: at least 1 ms, in whole milliseconds.
func (c *check) duration(field string, d *durationpb.Duration) {
	switch {
	case d == nil:
	case !d.IsValid() || d.AsDuration() < time.Millisecond:
		c.fail(field, "invalid duration %s: want at least 1ms; remove it for the default", d.AsDuration())
	case d.AsDuration()%time.Millisecond != 0:
		c.fail(field, "invalid duration %s: want whole milliseconds", d.AsDuration())
	}
}

func (c *check) percent(field string, p *networking.Percent) {
	if p != nil {
		c.number(field+".value", p.Value, 0, 100)
	}
}

func (c *check) number(field string, n, lowest, highest float64) {
	if !(n >= lowest && n <= highest) { // so that NaN fails
		c.fail(field, "invalid number %v: want %v–%v", n, lowest, highest)
	}
}

// notNegative checks a count for which 0 means "not limited" or "not set".
func (c *check) notNegative(field string, n int32) {
	if n < 0 {
		c.fail(field, "invalid number %d: want 0 or more", n)
	}
}

func (c *check) regex(field, s string) {
	if len(s) > maxRegex {
		c.fail(field, "invalid regular expression of %d bytes: want at most %d", len(s), maxRegex)
		return
	}
	if _, err := regexp.Compile(s); err != nil {
		c.fail(field, "invalid regular expression: %s; want the syntax of RE2", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
}

// match checks a StringMatch; presence allows an empty one, which matches any value.
func (c *check) match(field string, m *networking.StringMatch, presence bool) {
	switch x := m.GetMatchType().(type) {
	case nil:
		if !presence {
			c.fail(field, "is empty; set exact, prefix or regex")
		}
	case *networking.StringMatch_Prefix:
		if x.Prefix == "" {
			c.fail(field+".prefix", "is empty and matches everything; set it, or remove the match")
		}
	case *networking.StringMatch_Regex:
		if x.Regex == "" {
			c.fail(field+".regex", "is empty; set it, or remove the match")
		}
		c.regex(field+".regex", x.Regex)
	}
}

// isToken reports whether s is a token, the syntax of names in HTTP (RFC 9110 5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// labels checks the labels of a selector or of an endpoint.
func (c *check) labels(field string, labels map[string]string) {
	for _, k := range sorted(labels) {
		v := labels[k]
		prefix, name, slash := strings.Cut(k, "/")
		if !slash {
			prefix, name = "", k
		}
		if slash && !isDomain(prefix) || !isLabelText(name) || name == "" {
			c.fail(entry(field, k), "invalid label name: want letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends")
		}
		if !isLabelText(v) {
			c.fail(entry(field, k), "invalid label value %q: want at most 63 letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends", v)
		}
	}
}

func isLabelText(s string) bool {
	letter := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' }
	for i := 0; i < len(s); i++ {
		inside := i > 0 && i < len(s)-1
		if !letter(s[i]) && (!inside || strings.IndexByte("-_.", s[i]) < 0) {
			return false
		}
	}
	return len(s) <= 63
}

// exportTo checks a list of namespaces, ".", and "*"; hidden allows "~" (none).
func (c *check) exportTo(field string, list []string, hidden bool) {
	for i, s := range list {
		at := item(field, i)
		switch {
		case s == "*" || s == "~" && hidden:
			if len(list) > 1 {
				c.fail(at, "%q must be the only entry; remove the others", s)
			}
		case s != "." && (!isLabel(s) || strings.ToLower(s) != s):
			c.fail(at, "invalid namespace %q: want \".\" (this one), \"*\" (all) or a namespace's name", s)
		case slices.Contains(list[:i], s):
			c.fail(at, "duplicate %q; remove one", s)
		}
	}
}

// sorted returns the sorted keys of a map, so that the order of verdicts is deterministic.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// once calls report for every element that occurs earlier in the list.
func once[T comparable](list []T, report func(i int, v T)) {
	seen := make(map[T]bool, len(list))
	for i, v := range list {
		if seen[v] {
			report(i, v)
		}
		seen[v] = true
	}
}
