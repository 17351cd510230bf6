package agent

import "testing"

// An agent that is the DNS server of its host asks those that were there before.
func TestServersOfBefore(t *testing.T) {
	for _, c := range []struct {
		address        string
		root, original bool
		want           string
	}{
		{"127.0.0.1:53", true, true, "/var/lib/istio/resolv.conf"},
		{"127.0.0.1:53", false, true, "/etc/resolv.conf"},
		{"127.0.0.1:53", true, false, "/etc/resolv.conf"},
		{"127.0.0.1:15053", true, true, "/etc/resolv.conf"},
	} {
		if got := confOf(c.address, c.root, c.original); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
