package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

// What no proxy of a class has ever accepted is not sent to others of the class: they have nothing of the name, and
// everything else. It is sent again once it has changed.
func TestQuarantineOfWhatNobodyAccepted(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: broken, route: [{destination: {host: reviews}}]}"), true)
	a, b := p.dial("", "").open().refusing("9080", "broken"), p.dial("", "").open().refusing("9080", "broken")
	a.reported(p, "refused by 1 proxies")
	b.reported(p, "refused by 2 proxies")
	answered := false
	c := p.dial("", "").open()
	c.refuses = func(r *discoveryv3.DeltaDiscoveryResponse) string {
		answered = answered || r.TypeUrl == xds.RDS.URL() && slices.Contains(r.RemovedResources, "9080")
		return ""
	}
	c.wait("that there is no route configuration", func() bool { return answered })
	c.expect("EDS", "outbound|9080||reviews.shop.svc.cluster.local")
	c.expect("LDS", "virtualInbound")
	if c.have["9080"] != "" {
		t.Error("a third proxy was sent what two have refused")
	}
	if _, body := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 1`) {
		t.Error("no quarantine is counted")
	}
	wait.NoError(t, "the proxies are listed with what is in quarantine", func() error {
		for _, q := range p.server.xds.Connections() {
			if !slices.Equal(q.Quarantined, []string{"RDS 9080"}) {
				return fmt.Errorf("proxy %s is listed with %q in quarantine", q.ID, q.Quarantined)
			}
		}
		return nil
	})
	p.emit(route("{name: mended, route: [{destination: {host: reviews}}]}"), false)
	for _, one := range []*client{a, b, c} {
		one.until("9080", "mended")
	}
	wait.Until(t, "the end of the quarantine", func() bool {
		_, body := p.get(p.addr.Monitoring, "/metrics")
		return strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 0`)
	})
}

// inbound is the listener of inbound connections that a client has: how many filter chains it has, and whether one
// accepts plaintext.
func (c *client) inbound() (chains int, plaintext bool) {
	c.t.Helper()
	var l listenerv3.Listener
	if err := proto.Unmarshal([]byte(c.have["virtualInbound"]), &l); err != nil {
		c.t.Fatal(err)
	}
	return len(l.FilterChains), strings.Contains(c.have["virtualInbound"], "raw_buffer")
}

// Two proxies refuse an inbound listener with a stricter policy. The class, with a proxy that starts then, has one that
// accepts no connection.
func TestQuarantineOfAStricterInboundListenerIsClosed(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n"
	refuses := func(c *client) *client {
		c.refuses = func(r *discoveryv3.DeltaDiscoveryResponse) string {
			for _, res := range r.Resources {
				var l listenerv3.Listener
				if res.Name != "virtualInbound" || proto.Unmarshal(res.Resource.Value, &l) != nil {
					continue
				}
				if len(l.FilterChains) > 1 && !strings.Contains(string(res.Resource.Value), "raw_buffer") {
					return "virtualInbound: it is strict"
				}
			}
			return ""
		}
		return c
	}
	closed := func(c *client) func() bool {
		return func() bool {
			if c.have["virtualInbound"] == "" {
				return false
			}
			chains, _ := c.inbound()
			return chains == 1
		}
	}
	a, b := refuses(p.dial("", "").open()), refuses(p.dial("", "").open())
	for _, c := range []*client{a, b} {
		c.until("virtualInbound", "raw_buffer")
	}
	p.emit(strict, false)
	for _, c := range []*client{a, b} {
		c.wait("a listener that accepts nothing", closed(c))
		if _, plaintext := c.inbound(); plaintext {
			t.Error("the listener accepts plaintext")
		}
	}
	wait.Until(t, "the quarantine", func() bool {
		_, body := p.get(p.addr.Monitoring, "/metrics")
		return strings.Contains(body, `pilothouse_quarantined_resources{type="lds"} 1`)
	})
	third := p.dial("", "").open()
	third.wait("a listener that accepts nothing", closed(third))
	p.emit(strings.Replace(strict, "STRICT", "PERMISSIVE", 1), false)
	for _, c := range []*client{a, b, third} {
		c.until("virtualInbound", "raw_buffer")
	}
}
