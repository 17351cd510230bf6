package netns

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFactsOfFiles(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"resolv.conf": "# a comment\nsearch x\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver ::ffff:1.2.3.4\nnameserver x\nnameserver\n",
		"passwd":      "root:x:0:0:root:/root:/bin/sh\nenvoy:x:1337:1338::/:\nenvoy:x:1:1::/:\nbroken:x\nalso:x:y:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := ReadFacts(root)
	if err != nil {
		t.Fatal(err)
	}
	if want := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("1.2.3.4")}; !slices.Equal(f.Resolvers, want) {
		t.Errorf("resolvers %v, want %v", f.Resolvers, want)
	}
	if want := map[string]uint32{"root": 0, "envoy": 1337}; !maps.Equal(f.Users, want) {
		t.Errorf("users %v, want %v", f.Users, want)
	}
	if len(f.Groups) != 0 || !slices.Contains(f.Interfaces, "lo") {
		t.Errorf("groups %v, interfaces %v", f.Groups, f.Interfaces)
	}
}
