package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The defaults and bounds of resolv.conf, as in the C library.
const (
	maxServers      = 3
	defaultTimeout  = 5 * time.Second
	maxTimeout      = 30 * time.Second
	defaultAttempts = 2
	maxAttempts     = 5
	maxSearch       = 32
)

// conf holds the settings of a resolv.conf. Search domains are those that the application's resolver appends to names.
type conf struct {
	search   []string
	servers  []netip.Addr
	timeout  time.Duration
	attempts int
	rotate   bool
}

// parseConf parses the text of a resolv.conf as the C library does: it ignores what it does not know.
func parseConf(text string) conf {
	c := conf{timeout: defaultTimeout, attempts: defaultAttempts}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			a, err := netip.ParseAddr(fields[1])
			if a = a.Unmap(); err == nil && len(c.servers) < maxServers && !slices.Contains(c.servers, a) {
				c.servers = append(c.servers, a)
			}
		case "search":
			c.search = fields[1:min(len(fields), 1+maxSearch)]
		case "domain":
			c.search = fields[1:2]
		case "options":
			for _, o := range fields[1:] {
				c.setOption(o)
			}
		}
	}
	return c
}

func (c *conf) setOption(o string) {
	name, value, _ := strings.Cut(o, ":")
	n, err := strconv.Atoi(value)
	switch {
	case name == "rotate":
		c.rotate = true
	case err != nil || n < 0:
	case name == "timeout":
		c.timeout = min(time.Duration(max(1, min(n, 1000)))*time.Second, maxTimeout)
	case name == "attempts":
		c.attempts = max(1, min(n, maxAttempts))
	}
}

// attempt is one query to one server, sent that long after the first.
type attempt struct {
	server netip.Addr
	after  time.Duration
}

// budget returns how long a query may take in all: a little less than the client's timeout, which comes
// from the same resolv.conf, so that a failure also reaches the client in time.
func (c conf) budget() time.Duration { return c.timeout * 9 / 10 }

// schedule plans which server is queried when: each server in turn, c.attempts times, spread over
// the budget. Unresponsive servers come last. With rotate, offset selects the first server; with
// parallel, all servers are queried at once.
func (c conf) schedule(offset int, parallel bool, unresponsive func(netip.Addr) bool) []attempt {
	order := slices.Clone(c.servers)
	if c.rotate && len(order) > 0 {
		offset %= len(order)
		order = slices.Concat(order[offset:], order[:offset])
	}
	slices.SortStableFunc(order, func(a, b netip.Addr) int {
		switch x, y := unresponsive(a), unresponsive(b); {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	var out []attempt
	n := len(order) * c.attempts
	for i := range n {
		after := c.budget() / time.Duration(n) * time.Duration(i)
		if parallel {
			after = c.budget() / time.Duration(c.attempts) * time.Duration(i/len(order))
		}
		out = append(out, attempt{server: order[i%len(order)], after: after})
	}
	return out
}
