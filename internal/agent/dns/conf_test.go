package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseConf(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "[] 5s 2 false"},
		{"a Pod's", "search a.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n", "[10.96.0.10] 5s 2 false"},
		{"comments", "# nameserver 1.1.1.1\n;nameserver 2.2.2.2\n nameserver\t3.3.3.3 # here\n", "[3.3.3.3] 5s 2 false"},
		{"at most three", "nameserver 1.1.1.1\nnameserver ::1\nnameserver 1.1.1.1\nnameserver fe80::1%eth0\nnameserver 4.4.4.4", "[1.1.1.1 ::1 fe80::1%eth0] 5s 2 false"},
		{"mapped", "nameserver ::ffff:1.2.3.4", "[1.2.3.4] 5s 2 false"},
		{"invalid addresses", "nameserver here\nnameserver\n", "[] 5s 2 false"},
		{"options", "options timeout:1 rotate\noptions attempts:3", "[] 1s 3 true"},
		{"out of bounds", "options timeout:0 attempts:99", "[] 1s 5 false"},
		{"too long", "options timeout:99999999999999999999", "[] 5s 2 false"},
		{"above the maximum", "options timeout:99999", "[] 30s 2 false"},
		{"invalid numbers", "options timeout:soon attempts:-1 timeout", "[] 5s 2 false"},
	} {
		c := parseConf(tt.text)
		if got := fmt.Sprint(c.servers, c.timeout, c.attempts, c.rotate); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestSchedule(t *testing.T) {
	const three = "nameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\noptions timeout:10 attempts:"
	for _, tt := range []struct {
		name, text   string
		offset       int
		parallel     bool
		unresponsive []string
		want         string
	}{
		{"one server", "nameserver 1.1.1.1\noptions timeout:10", 0, false, nil, "1.1.1.1@0s 1.1.1.1@4.5s"},
		{"each in turn", three + "2", 0, false, nil, "1.1.1.1@0s 2.2.2.2@1.5s 3.3.3.3@3s 1.1.1.1@4.5s 2.2.2.2@6s 3.3.3.3@7.5s"},
		{"rotate", three + "1 rotate", 4, false, nil, "2.2.2.2@0s 3.3.3.3@3s 1.1.1.1@6s"},
		{"no rotate", three + "1", 4, false, nil, "1.1.1.1@0s 2.2.2.2@3s 3.3.3.3@6s"},
		{"an unresponsive server comes last", three + "1", 0, false, []string{"1.1.1.1"}, "2.2.2.2@0s 3.3.3.3@3s 1.1.1.1@6s"},
		{"all are unresponsive", three + "1", 0, false, []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}, "1.1.1.1@0s 2.2.2.2@3s 3.3.3.3@6s"},
		{"parallel", three + "2", 0, true, nil, "1.1.1.1@0s 2.2.2.2@0s 3.3.3.3@0s 1.1.1.1@4.5s 2.2.2.2@4.5s 3.3.3.3@4.5s"},
		{"no server", "options rotate", 3, true, nil, ""},
	} {
		c := parseConf(tt.text)
		var got []string
		for _, x := range c.schedule(tt.offset, tt.parallel, func(a netip.Addr) bool { return slices.Contains(tt.unresponsive, a.String()) }) {
			got = append(got, fmt.Sprintf("%v@%v", x.server, x.after))
			if x.after >= c.budget() || c.budget() >= c.timeout {
				t.Errorf("%s: at %v, budget %v, timeout %v: a response comes too late", tt.name, x.after, c.budget(), c.timeout)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, s, tt.want)
		}
	}
}

func FuzzParseConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\noptions timeout:3 attempts:2 rotate\n", 1, true)
	f.Fuzz(func(t *testing.T, text string, offset int, parallel bool) {
		c := parseConf(text)
		if len(c.servers) > maxServers || c.timeout < time.Second || c.timeout > maxTimeout || c.attempts < 1 || c.attempts > maxAttempts {
			t.Fatalf("%+v", c)
		}
		if n := len(c.schedule(offset&0xffff, parallel, func(netip.Addr) bool { return parallel })); n != len(c.servers)*c.attempts {
			t.Fatalf("%d attempts of %+v", n, c)
		}
	})
}
