package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What resolv.conf means where it says nothing, and the bounds of what it may say: those of the C library.
const (
	maxServers      = 3
	defaultTimeout  = 5 * time.Second
	maxTimeout      = 30 * time.Second
	defaultAttempts = 2
	maxAttempts     = 5
)

// conf is what a resolv.conf asks for, as far as it concerns who answers: names are completed by
// the application's own resolver.
type conf struct {
	servers  []netip.Addr
	timeout  time.Duration
	attempts int
	rotate   bool
}

// parseConf reads the text of a resolv.conf as the C library does: what it does not know says nothing.
func parseConf(text string) conf {
	c := conf{timeout: defaultTimeout, attempts: defaultAttempts}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			a, err := netip.ParseAddr(words[1])
			if a = a.Unmap(); err == nil && len(c.servers) < maxServers && !slices.Contains(c.servers, a) {
				c.servers = append(c.servers, a)
			}
		case "options":
			for _, o := range words[1:] {
				c.option(o)
			}
		}
	}
	return c
}

func (c *conf) option(o string) {
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

// try is one question to one server, begun that long after the first.
type try struct {
	server netip.Addr
	after  time.Duration
}

// budget is how long a question may take in all: a little less than its asker waits, who has the
// same resolv.conf, so that the answer, be it that there is none, comes in time.
func (c conf) budget() time.Duration { return c.timeout * 9 / 10 }

// tries plans who is asked, and when if nobody has answered by then: every server in its turn, as
// often as there are attempts, spread over the budget. A server that kept silent a moment ago comes
// last. With rotate, turn moves the beginning; with parallel, all are asked at once.
func (c conf) tries(turn int, parallel bool, silent func(netip.Addr) bool) []try {
	order := slices.Clone(c.servers)
	if c.rotate && len(order) > 0 {
		turn %= len(order)
		order = slices.Concat(order[turn:], order[:turn])
	}
	slices.SortStableFunc(order, func(a, b netip.Addr) int {
		switch x, y := silent(a), silent(b); {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	var out []try
	n := len(order) * c.attempts
	for i := range n {
		after := c.budget() / time.Duration(n) * time.Duration(i)
		if parallel {
			after = c.budget() / time.Duration(c.attempts) * time.Duration(i/len(order))
		}
		out = append(out, try{server: order[i%len(order)], after: after})
	}
	return out
}
