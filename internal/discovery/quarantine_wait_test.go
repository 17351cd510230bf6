package discovery

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A change that is in quarantine is not applied: neither by the proxies that have refused it, nor by those that were
// never sent it. What the last accepted version has is.
func TestQuarantinedChangeIsNotApplied(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	a, b := p.dial("", "").open().refusing("9080", "second"), p.dial("", "").open().refusing("9080", "second")
	a.until("9080", "first")
	b.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	a.reported(p, "refused by 1 proxies")
	b.reported(p, "refused by 2 proxies")
	c := p.dial("", "").open()
	c.until("9080", "first")
	for _, one := range []*client{a, b, c} {
		go one.takeAll()
	}
	var e appliedEntry
	wait.Until(t, "all that is sent is answered", func() bool {
		service := p.appliedTo("Service", "shop", "reviews")
		e = p.appliedTo("VirtualService", "shop", "reviews")
		return len(e.Behind) == 1 && e.Behind[0].Refused && len(service.Behind) == 0
	})
	// All three are streams of one proxy, whose newest counts.
	if e.Applied != 0 || e.Proxies != 1 || !slices.ContainsFunc(e.Behind[0].Types, func(b behindType) bool {
		return b.Type == "RDS" && b.State == typeRefused && slices.Equal(b.Resources, []string{"9080"}) && strings.Contains(b.Message, "second is bad")
	}) {
		t.Errorf("the change is reported as %+v, want it refused by the proxy", e)
	}
	if e := p.appliedTo("Service", "shop", "reviews"); e.Applied != 1 || e.Proxies != 1 || len(e.Behind) > 0 {
		t.Errorf("what was accepted before is reported as %+v", e)
	}
	for proxy, s := range p.sync() {
		if s.Behind == nil || s.Applied >= s.Generation {
			t.Errorf("%s is listed at %d/%d, behind %+v", proxy, s.Applied, s.Generation, s.Behind)
		}
	}
	p.emit(route("{name: third, route: [{destination: {host: reviews}}]}"), false)
	wait.Until(t, "the change is applied", func() bool {
		e := p.appliedTo("VirtualService", "shop", "reviews")
		return e.Applied == 1 && e.Proxies == 1
	})
}
