package nft

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan/plantest"
)

// Every rule of every plan can be encoded for the kernel.
func TestEveryRuleIsEncoded(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	facts := plan.Facts{
		Addrs:     []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Resolvers: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")},
	}
	for range 300 {
		o := plantest.Random(r)
		rules, err := plan.Build(o, facts)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		for _, table := range rules.Tables {
			if _, err := describeTable(table); err != nil {
				t.Fatalf("%+v: table %s: %v", o, table.Name, err)
			}
		}
	}
}
