package jwks_test

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
)

func TestSourceOf(t *testing.T) {
	for _, c := range []struct {
		rule *security.JWTRule
		want jwks.Source
		in   time.Duration
		ok   bool
	}{
		{&security.JWTRule{Issuer: "https://a.example", Jwks: "{}"}, jwks.Source{}, 0, false},
		{&security.JWTRule{Issuer: "a", JwksUri: "http://a.svc/keys"}, jwks.Source{URL: "http://a.svc/keys"}, 5 * time.Second, true},
		{&security.JWTRule{Issuer: "b", JwksUri: "http://a.svc/keys", Timeout: durationpb.New(time.Second)}, jwks.Source{URL: "http://a.svc/keys"}, time.Second, true},
		{&security.JWTRule{Issuer: "https://a.example/", Timeout: durationpb.New(time.Hour)}, jwks.Source{Issuer: "https://a.example/"}, time.Minute, true},
		{&security.JWTRule{Issuer: "a"}, jwks.Source{Issuer: "a"}, 5 * time.Second, false},
	} {
		got, in, ok := jwks.SourceOf(c.rule)
		if ok != c.ok || got != c.want || in != c.in {
			t.Errorf("%v: %+v, %s, %v", c.rule, got, in, ok)
		}
	}
	if got := (jwks.Source{Issuer: "https://a.example/"}).First(); got != "https://a.example/.well-known/openid-configuration" {
		t.Error(got)
	}
}

// TestModes: whose keys proxies may fetch, and whose the control plane does.
func TestModes(t *testing.T) {
	inline, document := &security.JWTRule{Issuer: "https://a.example", Jwks: "{}", JwksUri: "http://a.svc/keys"}, &security.JWTRule{Issuer: "https://a.example"}
	for _, c := range []struct {
		rule    *security.JWTRule
		host    string
		port    uint32
		fetches bool // by the control plane, in mode Proxies
	}{
		{inline, "", 0, true},
		{document, "", 0, true},
		{&security.JWTRule{JwksUri: "http://Keys.A.svc.cluster.local./keys?x=y"}, "keys.a.svc.cluster.local", 80, false},
		{&security.JWTRule{JwksUri: "https://keys.a.svc.cluster.local"}, "keys.a.svc.cluster.local", 443, false},
		{&security.JWTRule{JwksUri: "https://keys:8443/x"}, "keys", 8443, false},
		{&security.JWTRule{JwksUri: "http://[fd00::1]:8080/x"}, "fd00::1", 8080, false},
		{&security.JWTRule{JwksUri: "ftp://keys"}, "", 0, true},
	} {
		for _, m := range []jwks.Mode{jwks.Hybrid, jwks.Proxies} {
			url, host, port, ok := m.Remote(c.rule)
			if host != c.host || port != c.port || ok != (c.host != "") || ok && url != c.rule.JwksUri {
				t.Errorf("%v: %q %q %d %v", c.rule, url, host, port, ok)
			}
		}
		if _, _, _, ok := jwks.Discovery.Remote(c.rule); ok {
			t.Errorf("%v: proxies fetch the keys though the control plane is to", c.rule)
		}
		if !jwks.Hybrid.Fetches(c.rule) || !jwks.Discovery.Fetches(c.rule) || jwks.Proxies.Fetches(c.rule) != c.fetches {
			t.Errorf("%v: whether the control plane fetches is %v in mode Proxies, want %v, and true in the others", c.rule, jwks.Proxies.Fetches(c.rule), c.fetches)
		}
	}
}

func TestURLs(t *testing.T) {
	for text, want := range map[string]string{
		"https://a.example": "", "http://[fd00::1]:8080/x?y=z": "", "HTTPS://a.example/": "",
		"ftp://a.example": "http://", "a.example": "http://", "": "http://", "https:///x": "http://", "https:a": "http://", "https://:443/": "http://",
		"https://u@a.example": "password", "https://a.example:99999": "port", "https://a.example:0": "port", "https://a b/": "http://",
		"https://a.example/" + strings.Repeat("x", 3000): "2048",
	} {
		if _, err := jwks.ParseURL(text); err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
	from := func(s string) *url.URL { u, _ := url.Parse(s); return u }
	if _, err := jwks.Follow(from("https://a.example"), "http://a.example"); err == nil {
		t.Error("from https to http")
	}
	if _, err := jwks.Follow(from("http://a.example"), "https://b.example"); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		`{"issuer": "x", "jwks_uri": "https://b.example/keys"}`: "",
		`{"jwks_uri": "http://b.example/keys"}`:                 "from https to http",
		`{"jwks_uri": "file:///etc/passwd"}`:                    "invalid URL",
		`{}`:                                                    "no jwks_uri", `[]`: "invalid JSON", `{"jwks_uri": 1}`: "invalid JSON", "": "invalid JSON",
		strings.Repeat(" ", jwks.MaxDocument) + "{}": "bytes",
	} {
		u, err := jwks.KeysIn([]byte(text), from("https://a.example"))
		if err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && u.String() != "https://b.example/keys" {
			t.Errorf("%.60q: %v, %v, want %q", text, u, err, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	blocked, err := jwks.ParseBlocked([]string{"10.1.0.0/16", "fd11::/16"})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{
		"10.0.0.1", "192.168.1.1", "172.16.3.4", "100.64.0.1", "8.8.8.8", "fd00::1", "2606:4700::1111", "::ffff:10.0.0.1", "64:ff9b::8.8.8.8", "2002:808:808::1",
	} {
		if err := jwks.CheckAddress(netip.MustParseAddr(a), blocked); err != nil {
			t.Error(err)
		}
	}
	for _, a := range []string{
		"127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.1.1", "224.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "fd00:ec2::254",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::169.254.169.254",
		"2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::", "2001:db8::5efe:127.0.0.1", "2001:db8::200:5efe:169.254.169.254",
		"10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd11::2",
	} {
		if err := jwks.CheckAddress(netip.MustParseAddr(a), blocked); err == nil {
			t.Errorf("%s is asked", a)
		}
	}
	for _, text := range []string{"10.0.0.1", "x", "::ffff:10.0.0.0/104", "10.0.0.0/33"} {
		if _, err := jwks.ParseBlocked([]string{text}); err == nil {
			t.Errorf("%s is a CIDR", text)
		}
	}
}

// An address that is refused is refused in every form in which it can be written.
func FuzzAddresses(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{169, 254, 169, 254})
	f.Add([]byte{10, 0, 0, 1})
	f.Add(netip.MustParseAddr("fd00:ec2::254").AsSlice())
	f.Fuzz(func(t *testing.T, data []byte) {
		a, ok := netip.AddrFromSlice(data)
		if !ok {
			return
		}
		refused := jwks.CheckAddress(a, nil) != nil
		if (a.Unmap().IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()) && !refused {
			t.Errorf("%s is asked", a)
		}
		if !a.Is4() {
			return
		}
		four := a.As4()
		for _, prefix := range []string{"::ffff:0:0", "64:ff9b::", "::ffff:0:0:0"} {
			b := netip.MustParseAddr(prefix).As16()
			copy(b[12:], four[:])
			if jwks.CheckAddress(netip.AddrFrom16(b), nil) != nil != refused {
				t.Errorf("%s and %s differ", a, netip.AddrFrom16(b))
			}
		}
	})
}

var start = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func source(n int) jwks.Source {
	return jwks.Source{URL: fmt.Sprintf("https://host-%d.example/keys", n)}
}

func wanted(sources ...jwks.Source) map[jwks.Source]time.Duration {
	out := map[jwks.Source]time.Duration{}
	for _, s := range sources {
		out[s] = 5 * time.Second
	}
	return out
}

func TestPlanRefreshesAndKeepsTheLastGood(t *testing.T) {
	p, now, a := jwks.NewPlan(20*time.Minute, nil), start, source(1)
	if len(p.Due(now)) != 0 || !p.Next().IsZero() {
		t.Error("something is due although nothing is wanted")
	}
	p.Want(wanted(a), now)
	if due := p.Due(now); len(due) != 1 || due[0] != (jwks.Fetch{Source: a, Timeout: 5 * time.Second}) {
		t.Fatalf("due: %v", due)
	}
	if due := p.Due(now); len(due) != 0 {
		t.Errorf("started twice: %v", due)
	}
	// First failures: every second, then less often, at most each minute.
	var pauses []time.Duration
	for range 9 {
		st, _ := p.Done(a, "", 0, "refused", now, 0)
		if st.Keys != "" || st.Err != "refused" || !st.Failing.Equal(start) {
			t.Errorf("%+v", st)
		}
		pauses = append(pauses, p.Next().Sub(now))
		now = p.Next()
		if len(p.Due(now.Add(-1))) != 0 || len(p.Due(now)) != 1 {
			t.Fatal("not due at the time that Next says")
		}
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	st, _ := p.Done(a, "keys", 1, "", now, 1)
	if st != (jwks.State{Keys: "keys", Number: 1, Fetched: now, Tried: now}) || p.Next().Sub(now) != 18*time.Minute {
		t.Errorf("%+v, next in %s", st, p.Next().Sub(now))
	}
	good := now
	now = p.Next()
	p.Due(now)
	st, _ = p.Done(a, "", 0, "status 500", now, 1)
	if st.Keys != "keys" || !st.Fetched.Equal(good) || st.Err == "" || !st.Failing.Equal(now) || p.Next().Sub(now) != 500*time.Millisecond {
		t.Errorf("after a failure: %+v, next in %s", st, p.Next().Sub(now))
	}
	// What is not wanted any more is forgotten, even while it is fetched.
	now = p.Next()
	p.Due(now)
	p.Want(nil, now)
	if _, ok := p.Done(a, "new", 1, "", now, 0); ok || !p.Next().IsZero() {
		t.Error("a source that is not wanted is still known")
	}
	// Wanted again while a fetch runs: one fetch at a time.
	p.Want(wanted(a), now)
	p.Due(now)
	p.Want(nil, now)
	p.Want(wanted(a), now)
	if len(p.Due(now)) != 0 {
		t.Error("two fetches of one source")
	}
}

func TestPlanStartsWithWhatIsKnown(t *testing.T) {
	a, b := source(1), source(2)
	p := jwks.NewPlan(time.Minute, map[jwks.Source]jwks.State{a: {Keys: "old", Fetched: start.Add(-time.Hour)}, b: {Keys: "gone"}})
	if len(p.Due(start)) != 0 {
		t.Error("fetched before it is wanted")
	}
	p.Want(wanted(a), start)
	if due := p.Due(start); len(due) != 1 || due[0].Source != a {
		t.Errorf("due: %v", due)
	}
	if st, _ := p.Done(a, "", 0, "refused", start, 0); st.Keys != "old" || !st.Fetched.Equal(start.Add(-time.Hour)) {
		t.Errorf("%+v", st)
	}
}

// Sources that fail, or many of one host, leave room for others.
func TestPlanIsFair(t *testing.T) {
	p, now := jwks.NewPlan(20*time.Minute, nil), start
	var dead []jwks.Source
	for n := range 100 {
		dead = append(dead, source(n))
	}
	p.Want(wanted(dead...), now)
	for round := 0; round < 50; round++ {
		due := p.Due(now)
		if len(due) > 16 {
			t.Fatalf("%d at a time", len(due))
		}
		for _, f := range due {
			p.Done(f.Source, "", 0, "refused", now, 0)
		}
	}
	now = now.Add(time.Hour)
	running := p.Due(now)
	if len(running) != 8 {
		t.Errorf("%d failing ones at a time, want 8", len(running))
	}
	fresh := jwks.Source{Issuer: "https://fresh.example"}
	p.Want(wanted(append(slices.Clone(dead), fresh)...), now)
	if due := p.Due(now); len(due) != 1 || due[0].Source != fresh {
		t.Errorf("a new source waits for dead ones: %v", due)
	}
	q := jwks.NewPlan(time.Minute, nil)
	var same []jwks.Source
	for n := range 10 {
		same = append(same, jwks.Source{URL: fmt.Sprintf("https://one.example/%d", n)})
	}
	q.Want(wanted(append(same, fresh)...), now)
	if due := q.Due(now); len(due) != 3 {
		t.Errorf("%d at a time, want 2 of one host and another", len(due))
	}
}
