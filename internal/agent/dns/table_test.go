package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func ips(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

var podSearch = []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example.com"}

func shopTable() *Table {
	k8s := func(short, ns string, addresses ...string) mesh.NameInfo {
		return mesh.NameInfo{Host: short + "." + ns + ".svc.cluster.local", IPs: ips(addresses...), Registry: mesh.KubernetesRegistry, Short: short, Namespace: ns}
	}
	other := mesh.NameInfo{Host: "mcs.far.svc.clusterset.local", IPs: ips("10.0.0.30"), Registry: mesh.KubernetesRegistry}
	other.Others = []string{"alt.example.com", "web.shop.svc.cluster.local"}
	return NewTable([]mesh.NameInfo{
		k8s("web", "shop", "10.0.0.1"), k8s("web", "far", "10.0.0.2"), k8s("db", "shop", "10.0.0.3", "10.0.0.4"), k8s("db-0.db", "shop", "10.0.0.3"),
		k8s("six", "shop", "2001:db8::6"), other,
		{Host: "auto.example.com", IPs: ips("240.240.1.1", "2001:2::1"), Registry: mesh.ExternalRegistry, Short: "auto", Namespace: "shop"},
		{Host: "*.example.com", IPs: ips("10.9.0.1"), Registry: mesh.ExternalRegistry},
		{Host: "*.deep.example.com", IPs: ips("10.9.0.2"), Registry: mesh.ExternalRegistry},
		{Host: "single", IPs: ips("10.9.0.3"), Registry: mesh.ExternalRegistry},
	}, Self{Namespace: "shop", Domain: "svc.cluster.local"})
}

// The forms of names of rows N4 to N8.
func TestTableAnswers(t *testing.T) {
	table := shopTable()
	for _, tt := range []struct{ name, want string }{
		// Hosts and short names of Kubernetes Services.
		{"web.shop.svc.cluster.local", "10.0.0.1"},
		{"WEB.Shop.svc.cluster.LOCAL", "10.0.0.1"},
		{"web.shop.svc", "10.0.0.1"},
		{"web.shop", "10.0.0.1"},
		{"web", "10.0.0.1"},
		{"web.shop.svc.cluster", "unknown"},
		{"web.far.svc.cluster.local", "10.0.0.2"},
		{"web.far.svc", "10.0.0.2"},
		{"web.far", "10.0.0.2"},
		{"db.far", "unknown"},
		{"far", "unknown"},
		{"svc.cluster.local", "unknown"},
		// Pods of headless Services.
		{"db", "10.0.0.3 10.0.0.4"},
		{"db-0.db.shop.svc.cluster.local", "10.0.0.3"},
		{"db-0.db.shop.svc", "10.0.0.3"},
		{"db-0.db.shop", "10.0.0.3"},
		{"db-0.db", "10.0.0.3"},
		{"db-1.db", "unknown"},
		// Others have no short names, but further names.
		{"auto.example.com", "240.240.1.1"},
		{"auto.shop", "unknown"},
		{"auto", "unknown"},
		{"single", "10.9.0.3"},
		{"mcs.far.svc.clusterset.local", "10.0.0.30"},
		{"mcs.far", "unknown"},
		{"alt.example.com", "10.0.0.30"},
		// Search domains: the first one, and those of the cluster.
		{"auto.example.com.shop.svc.cluster.local", "auto.example.com: 240.240.1.1"},
		{"auto.example.com.svc.cluster.local", "auto.example.com: 240.240.1.1"},
		{"auto.example.com.cluster.local", "auto.example.com: 240.240.1.1"},
		{"auto.example.com.corp.example.com", "10.9.0.1"},
		{"web.far.shop.svc.cluster.local", "web.far: 10.0.0.2"},
		{"web.shop.svc.cluster.local.shop.svc.cluster.local", "web.shop.svc.cluster.local: 10.0.0.1"},
		{"single.svc.cluster.local", "single: 10.9.0.3"},
		{"shop.svc.cluster.local", "unknown"},
		// Wildcards: the most specific one.
		{"x.example.com", "10.9.0.1"},
		{"x.y.example.com", "10.9.0.1"},
		{"x.deep.example.com", "10.9.0.2"},
		{"deep.example.com", "10.9.0.1"},
		{"example.com", "unknown"},
		{"x.deep.example.com.shop.svc.cluster.local", "x.deep.example.com: 10.9.0.2"},
		// A name without an address of the family.
		{"six", ""},
		{"six.shop.svc.cluster.local", ""},
		{"", "unknown"},
		{"unknown.example.org", "unknown"},
	} {
		a, ok := table.Answer(tt.name, false, podSearch, 0)
		got := strings.Trim(fmt.Sprint(a.IPs), "[]")
		if a.Alias != "" {
			got = a.Alias + ": " + got
		}
		if !ok {
			got = "unknown"
		}
		if got != tt.want {
			t.Errorf("%q: %q, want %q", tt.name, got, tt.want)
		}
	}
	if a, ok := table.Answer("auto.example.com", true, podSearch, 0); !ok || len(a.IPs) != 1 || a.IPs[0].String() != "2001:2::1" {
		t.Errorf("IPv6: %v", a)
	}
	if a, ok := table.Answer("web", true, podSearch, 0); !ok || len(a.IPs) > 0 {
		t.Errorf("no address of IPv6: %v, %v", a, ok)
	}
	// Another address is first each turn, and nothing is lost.
	first := map[string]int{}
	for turn := range uint32(10) {
		a, _ := table.Answer("db", false, nil, turn)
		if len(a.IPs) != 2 || a.IPs[0] == a.IPs[1] {
			t.Fatalf("%v", a)
		}
		first[a.IPs[0].String()]++
	}
	if first["10.0.0.3"] != 5 || first["10.0.0.4"] != 5 {
		t.Errorf("first addresses: %v", first)
	}
	var none *Table
	if _, ok := none.Answer("web", false, nil, 0); ok {
		t.Error("without a table there is an answer")
	}
}

// ask returns the response to a query, decoded by another library than the one that encodes it.
func ask(t *testing.T, s *Server, m *dns.Msg, by transport) *dns.Msg {
	t.Helper()
	text, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	out := s.answer(text, by)
	if out == nil {
		return nil
	}
	r := new(dns.Msg)
	if err := r.Unpack(out); err != nil {
		t.Fatal(err)
	}
	if r.Id != m.Id || !r.Response || len(r.Question) != 1 || r.Question[0] != m.Question[0] || !r.RecursionAvailable || r.RecursionDesired != m.RecursionDesired {
		t.Fatalf("%v to %v", r, m)
	}
	return r
}

// tableServer is a server with a table, which does not run.
func tableServer(t testing.TB, list []mesh.NameInfo, conf string) *Server {
	t.Helper()
	s := &Server{up: &upstream{conf: &confFile{}}}
	c := parseConf(conf)
	s.up.conf.domains.Store(&c.search)
	s.table.Store(NewTable(list, Self{Namespace: "shop", Domain: "svc.cluster.local"}))
	return s
}

func TestAnswersOnTheWire(t *testing.T) {
	var many []netip.Addr
	for i := range 200 {
		many = append(many, netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}))
	}
	s := tableServer(t, []mesh.NameInfo{
		{Host: "auto.example.com", IPs: ips("240.240.1.1", "240.240.1.2"), Registry: mesh.ExternalRegistry},
		{Host: "many.shop.svc.cluster.local", IPs: many, Registry: mesh.KubernetesRegistry, Short: "many", Namespace: "shop"},
	}, "search shop.svc.cluster.local svc.cluster.local\n")
	query := func(name string, typ uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, typ) }

	r := ask(t, s, query("Auto.EXAMPLE.com.", dns.TypeA), overUDP)
	if r == nil || !r.Authoritative || r.Rcode != 0 || len(r.Answer) != 2 || r.Answer[0].Header().Ttl != 30 || !strings.EqualFold(r.Answer[0].Header().Name, "auto.example.com.") || r.IsEdns0() != nil {
		t.Errorf("%v", r)
	}
	r = ask(t, s, query("Auto.example.com.shop.svc.cluster.local.", dns.TypeA).SetEdns0(4096, false), overUDP)
	if r == nil || len(r.Answer) != 3 || r.IsEdns0() == nil {
		t.Fatalf("%v", r)
	}
	if c, ok := r.Answer[0].(*dns.CNAME); !ok || c.Target != "auto.example.com." || r.Answer[1].Header().Name != c.Target {
		t.Errorf("%v, want a CNAME and its addresses", r)
	}
	if r = ask(t, s, query("auto.example.com.", dns.TypeAAAA), overUDP); r == nil || r.Rcode != 0 || !r.Authoritative || len(r.Answer) > 0 {
		t.Errorf("no address of IPv6: %v", r)
	}
	// Other types and classes, and other operations, are for the name servers.
	for _, m := range []*dns.Msg{query("auto.example.com.", dns.TypeTXT), query("auto.example.com.", dns.TypeANY), query("other.example.com.", dns.TypeA), query(".", dns.TypeA), new(dns.Msg).SetNotify("auto.example.com."), {MsgHdr: dns.MsgHdr{Id: 1}, Question: []dns.Question{{Name: "auto.example.com.", Qtype: dns.TypeA, Qclass: dns.ClassCHAOS}}}} {
		if r := ask(t, s, m, overUDP); r != nil {
			t.Errorf("%v: %v", m, r)
		}
	}
	// What a datagram cannot hold is truncated, by the size that the client says.
	for _, tt := range []struct {
		size    uint16
		by      transport
		answers int
	}{{0, overUDP, 0}, {1232, overUDP, 0}, {4096, overUDP, 200}, {0, overTCP, 200}} {
		m := query("many.", dns.TypeA)
		if tt.size > 0 {
			m.SetEdns0(tt.size, false)
		}
		if r := ask(t, s, m, tt.by); r == nil || r.Truncated != (tt.answers == 0) || len(r.Answer) != tt.answers || r.Len() > max(512, int(tt.size)) && tt.by == overUDP {
			t.Errorf("%d over %s: %v", tt.size, tt.by, r)
		}
	}
}

// Whatever a client sends, the answer is a response to it that another library can decode.
func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"auto.example.com.", "web.", "db-0.db.shop.svc.cluster.local.", "auto.example.com.shop.svc.cluster.local.", `a\.b.example.com.`} {
		for _, typ := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeANY} {
			text, err := new(dns.Msg).SetQuestion(name, typ).SetEdns0(1232, true).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text, true)
		}
	}
	s := tableServer(f, nil, "search shop.svc.cluster.local svc.cluster.local\n")
	s.table.Store(shopTable())
	f.Fuzz(func(t *testing.T, msg []byte, tcp bool) {
		by := overUDP
		if tcp {
			by = overTCP
		}
		out := s.answer(msg, by)
		if out == nil {
			return
		}
		var q, r dns.Msg
		if err := r.Unpack(out); err != nil {
			t.Fatalf("%x to %x: %v", out, msg, err)
		}
		if err := q.Unpack(msg); err == nil && (len(q.Question) != 1 || r.Id != q.Id || r.Question[0] != q.Question[0]) {
			t.Fatalf("%v to %v", r, q)
		}
		if !r.Response || by == overUDP && len(out) > max(512, len(msg), 65535) {
			t.Fatalf("%v", r)
		}
	})
}
