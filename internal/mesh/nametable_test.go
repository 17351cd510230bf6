package mesh

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestNameTableEncoding(t *testing.T) {
	list := []NameInfo{
		{Host: "*.wild.example.com", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Registry: ExternalRegistry},
		{Host: "web.shop.svc.cluster.local", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::1")}, Registry: KubernetesRegistry, Short: "web", Namespace: "shop", Others: []string{"other.example.com"}},
	}
	var text []byte
	for _, n := range list {
		text = AppendNameInfo(text, n)
	}
	if got, err := ParseNameTable(text); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("%+v, %v", got, err)
	}
	// What nobody can ask for, and what has no address, is left out.
	for _, host := range []string{"", ".", "a..b", strings.Repeat("x", 64), strings.Repeat("x.", 127) + "x"} {
		if got, err := ParseNameTable(AppendNameInfo(nil, NameInfo{Host: host, IPs: list[0].IPs})); err != nil || len(got) > 0 {
			t.Errorf("%q: %v, %v", host, got, err)
		}
	}
	if got, err := ParseNameTable(AppendNameInfo(nil, NameInfo{Host: "a"})); err != nil || len(got) > 0 {
		t.Errorf("without an address: %v, %v", got, err)
	}
	if _, err := ParseNameTable(text[:len(text)-1]); err == nil {
		t.Error("a truncated table is accepted")
	}
}

func FuzzParseNameTable(f *testing.F) {
	f.Add(AppendNameInfo(nil, NameInfo{Host: "a.b", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Registry: "Kubernetes", Short: "a", Namespace: "b", Others: []string{"c"}}))
	f.Add([]byte("\x0a\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseNameTable(text)
		if err != nil {
			return
		}
		var again []byte
		for _, n := range list {
			if len(n.IPs) == 0 || !isDNSName(n.Host) {
				t.Fatalf("%+v", n)
			}
			again = AppendNameInfo(again, n)
		}
		if second, err := ParseNameTable(again); err != nil || len(second) != len(list) {
			t.Fatalf("%v, %v: encoded again %v", list, err, second)
		}
	})
}
