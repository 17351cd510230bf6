package discovery

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

// refusing has a client refuse every response with a resource that contains a text.
func (c *client) refusing(name, text string) *client {
	c.refuses = func(r *discoveryv3.DeltaDiscoveryResponse) string {
		for _, res := range r.Resources {
			if res.Name == name && strings.Contains(string(res.Resource.Value), text) {
				return name + ": " + text + " is bad"
			}
		}
		return ""
	}
	return c
}

// reported receives until the client has refused something, and waits until the plane reports it.
func (c *client) reported(p *plane, what string) {
	c.t.Helper()
	c.wait("a refusal", func() bool { return c.refused > 0 })
	wait.Until(c.t, "the report of a refusal", func() bool {
		return slices.ContainsFunc(p.objects(), func(o objectEntry) bool {
			return o.Object == "VirtualService shop/reviews" && strings.Contains(o.Text, what)
		})
	})
}

// What two proxies of a class refuse others are not sent; they have the last accepted version, until
// there is another one.
func TestWhatTwoProxiesRefuseIsKeptFromOthers(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	a, b := p.dial("", "").open().refusing("9080", "second"), p.dial("", "").open().refusing("9080", "second")
	a.until("9080", "first")
	b.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	a.reported(p, "refused by 1 proxies")
	if _, body := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 0`) {
		t.Error("one refusal is enough for a quarantine")
	}
	b.reported(p, "refused by 2 proxies, which go on with the last version that they accepted: 9080: second is bad")
	if _, body := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 1`) {
		t.Error("no quarantine is counted")
	}
	c := p.dial("", "").open()
	c.until("9080", "first")
	for _, body := range c.seen {
		if strings.Contains(body, "second") {
			t.Error("a third proxy was sent what two have refused")
		}
	}
	wait.NoError(t, "the proxies are listed with what is in quarantine", func() error {
		if _, body := p.get(p.addr.HTTP, "/debug/syncz"); strings.Count(body, `"RDS 9080"`) != 3 {
			return fmt.Errorf("/debug/syncz has:\n%s", body)
		}
		return nil
	})
	p.emit(route("{name: third, route: [{destination: {host: reviews}}]}"), false)
	for _, one := range []*client{a, b, c} {
		one.until("9080", "third")
	}
	wait.Until(t, "the end of the quarantine", func() bool {
		code, body := p.get(p.addr.Monitoring, "/metrics")
		return code == http.StatusOK && strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 0`)
	})
	for _, o := range p.objects() {
		t.Errorf("still reported: %+v", o)
	}
}

// A refusal is reported for the object that has changed, a Service here, and not for others that the resource
// was made from.
func TestRefusalIsReportedForWhatHasChanged(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	a := p.dial("", "").open().refusing("9080", "10.96.7.7")
	a.until("9080", "first")
	p.emit(strings.Replace(shop, "10.96.0.1", "10.96.7.7", 1), false)
	a.wait("a refusal", func() bool { return a.refused > 0 })
	var reported []string
	wait.Until(t, "the report of a refusal", func() bool {
		reported = nil
		for _, o := range p.objects() {
			if strings.Contains(o.Text, "refused by 1 proxies") {
				reported = append(reported, o.Object)
			}
		}
		return len(reported) > 0
	})
	if !slices.Equal(reported, []string{"Service shop/reviews"}) {
		t.Errorf("the refusal is reported for %q", reported)
	}
}

// What nobody has accepted is not sent at all; what one has accepted is sent to all.
func TestQuarantineNeedsTwoRefusalsAndNoAcceptance(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	good := p.dial("", "").open()
	good.until("9080", "first")
	good.wait("the server has its acknowledgements", func() bool {
		s := p.sync()["reviews-1.shop"]
		return s.Generation > 0 && s.Applied == s.Generation
	})
	refused := map[string]bool{}
	for i := range 3 {
		bad := p.dial("", "").open().refusing("9080", "first")
		bad.wait("a refusal", func() bool { return bad.refused > 0 })
		wait.Until(t, "the report of a refusal", func() bool {
			for _, c := range p.server.xds.Connections() {
				if c.Types[xds.RDS].Rejects > 0 {
					refused[c.ID] = true
				}
			}
			return len(refused) == i+1
		})
	}
	p.server.loop.ask(func() {})
	p.dial("", "").open().until("9080", "first")
	if _, body := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 0`) {
		t.Error("what a proxy has accepted is in quarantine")
	}
}

// Many proxies that refuse what a commit brings are each answered once: it is logged and counted
// within bounds, and nothing is sent again.
func TestManyRefusalsAreHandledOnce(t *testing.T) {
	const proxies = 60 // 64 streams of a node are served
	var log wait.Output
	p := start(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	var all []*client
	for range proxies {
		c := p.dial("", "").open().refusing("9080", "bad")
		c.until("9080", "first")
		all = append(all, c)
	}
	for round := range 3 {
		p.emit(route("{name: bad-"+strconv.Itoa(round)+", route: [{destination: {host: reviews}}]}"), false)
		p.emit("apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-1, namespace: shop, labels: {app: reviews}}\nstatus: {phase: Running, podIP: 10.99.1."+strconv.Itoa(round+1)+"}\n", false)
		for _, c := range all {
			c.until("outbound|9080||reviews.shop.svc.cluster.local", "10.99.1."+strconv.Itoa(round+1))
		}
	}
	refused := 0
	for _, c := range all {
		if refused += c.refused; c.refused > 3 {
			t.Errorf("a proxy was sent %d refused responses, want at most one for each of 3 versions", c.refused)
		}
	}
	if lines := strings.Count(log.String(), "proxy refused configuration"); refused < 2 || lines > refused {
		t.Errorf("%d lines are logged about %d refusals", lines, refused)
	}
	p.emit(route("{name: good, route: [{destination: {host: reviews}}]}"), false)
	for _, c := range all {
		c.until("9080", "good")
	}
}
