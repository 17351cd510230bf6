package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestResolveAddr(t *testing.T) {
	names := map[string][]string{
		"both": {"2001:db8::1", "192.0.2.7", "192.0.2.8"}, "six": {"2001:db8::1", "2001:db8::2"},
		"mapped": {"::ffff:192.0.2.9"}, "none": {},
	}
	look := func(_ context.Context, network, host string) ([]netip.Addr, error) {
		known, ok := names[host]
		switch {
		case network != "ip":
			t.Errorf("looked up in %q", network)
		case host == "broken":
			return nil, errors.New("no resolver")
		case !ok:
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		var out []netip.Addr
		for _, ip := range known {
			out = append(out, netip.MustParseAddr(ip))
		}
		return out, nil
	}
	for _, c := range []struct {
		addr, want string
		err        error
	}{
		{"both:80", "192.0.2.7:80", nil},
		{"six:80", "[2001:db8::1]:80", nil},
		{"mapped:http", "192.0.2.9:http", nil},
		{"192.0.2.1:1", "192.0.2.1:1", nil},
		{"[2001:db8::5]:80", "[2001:db8::5]:80", nil},
		{"[fe80::1%eth0]:80", "[fe80::1%eth0]:80", nil},
		{"none:80", "", ErrNoAddress},
		{"gone:80", "", ErrNoAddress},
		{":80", "", ErrResolveNoAddress},
		{"", "", ErrResolveNoAddress},
		{"broken:80", "", nil},
		{"both", "", nil},
		{"2001:db8::5:80", "", nil},
	} {
		got, err := resolve(t.Context(), c.addr, look)
		if got != c.want || (err == nil) != (c.want != "") || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("resolve %q: got %q, %v; want %q, error %v", c.addr, got, err, c.want, c.err)
		}
	}
	if got, err := ResolveAddr("127.0.0.1:15010"); got != "127.0.0.1:15010" || err != nil {
		t.Errorf("IP address: %q, %v", got, err)
	}
}

func TestReachableAddresses(t *testing.T) {
	var addrs []net.Addr
	for _, text := range []string{"fe80::1/64", "2001:db8::1/64", "10.1.2.3/24", "169.254.1.1/16", "127.0.0.1/8", "fd00::7/64"} {
		ip, ipnet, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, &net.IPNet{IP: ip, Mask: ipnet.Mask})
	}
	got := reachable(addrs)
	want := []string{"10.1.2.3", "2001:db8::1", "fd00::7"}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i].String() != want[i] {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestGetPrivateIPsWaitsForAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		late := func() ([]netip.Addr, error) {
			if time.Since(began) < time.Second {
				return nil, nil
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
		}
		if ips, err := privateIPs(t.Context(), late); len(ips) != 1 || err != nil || time.Since(began) > 1200*time.Millisecond {
			t.Errorf("got %v, %v after %v", ips, err, time.Since(began))
		}
		began = time.Now()
		never := func() ([]netip.Addr, error) { return nil, nil }
		if _, err := privateIPs(t.Context(), never); !errors.Is(err, ErrNoAddress) || time.Since(began) != addressWait {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestGetPrivateIPsOfThisHost(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that a host without a network is not waited for
	ips, err := GetPrivateIPs(ctx)
	if err != nil && !errors.Is(err, ErrNoAddress) {
		t.Error(err)
	}
	for _, ip := range ips {
		if ip.IsLoopback() || !ip.IsValid() || ip.IsLinkLocalUnicast() {
			t.Errorf("got %v", ips)
		}
	}
}
