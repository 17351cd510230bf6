package xds

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// separateRoutes is a route configuration that takes its virtual hosts from VHDS, and answers "unknown" to requests
// for others.
func separateRoutes(t testing.TB, name string) *Resource {
	return separateResource(name, string(encode(t, &routev3.RouteConfiguration{Name: name, Vhds: &routev3.Vhds{ConfigSource: ads()},
		VirtualHosts: []*routev3.VirtualHost{answers("all", "unknown", "*")}})))
}

// wholeRoutes is separateRoutes with its virtual hosts in it.
func wholeRoutes(t testing.TB, name string, hosts ...*routev3.VirtualHost) *Resource {
	return NewResource(RDS, name, encode(t, &routev3.RouteConfiguration{Name: name, VirtualHosts: append(hosts, answers("all", "unknown", "*"))}))
}

// answers is a virtual host that answers itself.
func answers(name, text string, domains ...string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: domains, Routes: []*routev3.Route{{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: 200, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}},
		}},
	}}}
}

// forwards is a virtual host that forwards to a cluster.
func forwards(name, cluster string, domains ...string) *routev3.VirtualHost {
	h := answers(name, "", domains...)
	h.Routes[0].Action = &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}}
	return h
}

// hostResource is a virtual host as a resource, which has its name.
func hostResource(t testing.TB, h *routev3.VirtualHost) *Resource {
	return NewResource(VHDS, h.Name, encode(t, h))
}

// hostAnswer is the answer of a listener to a request for a host.
func hostAnswer(url, host string) string {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		return fmt.Sprint(resp.StatusCode, " ", string(b), err)
	}
	return string(b)
}

// onDemand is the filter that asks for virtual hosts.
func onDemand(t testing.TB) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: "envoy.filters.http.on_demand", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &ondemandv3.OnDemand{})}}
}

// hostStorm is storm for requests for a host.
func hostStorm(url, host string, answers ...string) (stop func() (int, string)) {
	return stormOf(func() string { return hostAnswer(url, host) }, answers...)
}

func (r *rig) expect(url, host, want string) {
	r.t.Helper()
	got := ""
	wait.Until(r.t, host+" answered by "+want, func() bool { got = hostAnswer(url, host); return got == want })
}

func TestRealEnvoyTakesVirtualHosts(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := newRig(t, "DELTA_GRPC", (&View{}).put(edsCluster(t, "web", 1), endpoints(t, "web", a), listener(t, "in", "80"), separateRoutes(t, "80"),
		hostResource(t, forwards("80/web.test:80", "web", "web.test"))))
	url := r.url("in")
	// The listener has waited for the virtual hosts: the first request finds them.
	if got := hostAnswer(url, "web.test"); got != "a" {
		t.Fatalf("first answer %q, want a", got)
	}
	if got := hostAnswer(url, "other.test"); got != "unknown" {
		t.Errorf("answer for an unknown host %q", got)
	}
	stop := hostStorm(url, "web.test", "a", "b")
	r.publish("a virtual host added", r.view.put(hostResource(t, answers("80/more.test:80", "more", "more.test", "short"))))
	r.expect(url, "more.test", "more")
	r.publish("a virtual host changed", r.view.put(hostResource(t, answers("80/more.test:80", "changed", "more.test", "short"))))
	r.expect(url, "short", "changed")
	// Envoy refuses two virtual hosts with one domain.
	r.publish("a domain moved to another virtual host", r.view.drop(VHDS, "80/more.test:80").put(hostResource(t, answers("80/next.test:80", "next", "next.test", "short"))))
	r.expect(url, "short", "next")
	r.expect(url, "more.test", "unknown")
	r.publish("a new cluster for a virtual host", r.view.put(edsCluster(t, "next", 1), endpoints(t, "next", b), hostResource(t, forwards("80/web.test:80", "next", "web.test"))).
		drop(CDS, "web").drop(EDS, "web"))
	r.expect(url, "web.test", "b")
	r.publish("another catch-all", r.view.put(separateResource("80", string(encode(t, &routev3.RouteConfiguration{Name: "80", Vhds: &routev3.Vhds{ConfigSource: ads()},
		VirtualHosts: []*routev3.VirtualHost{answers("all", "refused", "*")}})))))
	r.expect(url, "other.test", "refused")
	r.expect(url, "short", "next")
	for _, n := range []string{"80/web.test:80", "80/next.test:80"} {
		if dump := r.get("/config_dump?resource=dynamic_route_configs"); !strings.Contains(dump, `"`+n+`"`) {
			t.Errorf("the dump lacks virtual host %s:\n%s", n, dump)
		}
	}
	if sent, wrong := stop(); wrong != "" || sent == 0 {
		t.Errorf("of %d requests one got %q", sent, wrong)
	}
	r.settled()
}

// Envoy asks for virtual hosts once, however many route configurations have some.
func TestRealEnvoyTakesRouteConfigurationsLater(t *testing.T) {
	r := newRig(t, "DELTA_GRPC", (&View{}).put(listener(t, "in", "80"), separateRoutes(t, "80"), hostResource(t, answers("80/a.test:80", "a", "a.test"))))
	r.expect(r.url("in"), "a.test", "a")
	more := r.view.put(listener(t, "more", "90"), separateRoutes(t, "90"), hostResource(t, answers("90/b.test:90", "b", "b.test")))
	r.publish("another route configuration", more)
	r.expect(r.url("more"), "b.test", "b")
	r.expect(r.url("more"), "a.test", "unknown")
	r.publish("one without virtual hosts", r.view.put(listener(t, "empty", "100"), separateRoutes(t, "100")))
	r.expect(r.url("empty"), "a.test", "unknown")
	for _, gone := range []*View{r.view.drop(LDS, "more"), r.view.drop(LDS, "more").drop(RDS, "90").drop(VHDS, "90/b.test:90")} {
		all := r.view
		r.publish("the listener gone", gone.At(r.view.Generation+1))
		wait.Until(t, "the listener's end", func() bool { return r.listening("more") == "" })
		r.publish("the listener again", all.At(r.view.Generation+1))
		r.expect(r.url("more"), "b.test", "b")
	}
	// Nothing is sent again to a proxy that comes back, and what has changed is.
	r.stop()
	r.serve(t)
	r.inSync("the proxy back")
	if s := r.server.Connections()[0].Types; s[RDS].SentNonce != "" || s[LDS].SentNonce != "" {
		t.Errorf("sent to a proxy that has everything: %+v", s)
	}
	r.stop()
	r.view = r.view.put(hostResource(t, answers("90/b.test:90", "b2", "b.test"))).drop(VHDS, "80/a.test:80")
	r.serve(t)
	r.inSync("the change while the server was away")
	r.expect(r.url("more"), "b.test", "b2")
	r.expect(r.url("in"), "a.test", "unknown")
	r.settled()
}

// Envoy refuses all virtual hosts of a response because of one; the others get in.
func TestRealEnvoyRefusesVirtualHosts(t *testing.T) {
	r := newRig(t, "DELTA_GRPC", (&View{}).put(listener(t, "in", "80"), separateRoutes(t, "80"),
		hostResource(t, answers("80/a.test:80", "a1", "a.test")), hostResource(t, answers("80/b.test:80", "b1", "b.test"))))
	url := r.url("in")
	bad := answers("80/b.test:80", "b2", "b.test")
	bad.Routes[0].Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "["}}}
	r.view = r.view.put(hostResource(t, answers("80/a.test:80", "a2", "a.test")), hostResource(t, bad))
	r.reg.latest.Publish(r.view)
	wait.Until(t, "the refusal", func() bool { return r.server.Connections()[0].Types[VHDS].Rejects > 0 })
	r.expect(url, "a.test", "a2")
	r.expect(url, "b.test", "b1")
	r.publish("mended", r.view.put(hostResource(t, answers("80/b.test:80", "b3", "b.test"))))
	r.expect(url, "a.test", "a2")
	r.expect(url, "b.test", "b3")
}

// A host that Envoy asks for on demand is answered, also where there is none: it asks once only, and requests wait
// for the answer.
func TestRealEnvoyAsksForVirtualHostsOnDemand(t *testing.T) {
	bare := separateResource("80", string(encode(t, &routev3.RouteConfiguration{Name: "80", Vhds: &routev3.Vhds{ConfigSource: ads()}})))
	r := newRig(t, "DELTA_GRPC", (&View{}).put(listenerWith(t, "in", "80", 0, onDemand(t)), bare, hostResource(t, answers("80/a.test:80", "a", "a.test"))))
	url := r.url("in")
	r.expect(url, "a.test", "a")
	if got := hostAnswer(url, "b.test"); !strings.HasPrefix(got, "404") {
		t.Errorf("answer for a host that is not there: %q", got)
	}
	r.publish("the host", r.view.put(hostResource(t, answers("80/b.test:80", "b", "b.test"))))
	r.expect(url, "b.test", "b")
	r.settled()
}

// classes is a registry with a class for proxies that take virtual hosts, which it may not offer, and one for others.
type classes struct {
	whole, separate *LatestView
	offer           bool
}

func (c *classes) Join(_ context.Context, n mesh.Node, _ mesh.Identity, _ string) (*LatestView, func(), error) {
	if c.offer && n.Metadata.VirtualHosts {
		return c.separate, func() {}, nil
	}
	return c.whole, func() {}, nil
}

// Servers with and without virtual hosts follow one another. An Envoy that has begun with whole route configurations
// keeps them, since it would answer requests without virtual hosts otherwise until they have come.
func TestRealEnvoySwitchesBetweenWholeRoutesAndVirtualHosts(t *testing.T) {
	generation := uint64(0)
	var base, whole, separate *View
	views := func(text string) {
		generation++
		base = (&View{}).put(listener(t, "in", "80")).At(generation)
		whole = base.put(wholeRoutes(t, "80", answers("a.test:80", text, "a.test"))).At(generation)
		separate = base.put(separateRoutes(t, "80"), hostResource(t, answers("80/a.test:80", text, "a.test"))).At(generation)
	}
	views("first")
	for _, offered := range []bool{false, true} {
		t.Run(fmt.Sprint("begins with virtual hosts ", offered), func(t *testing.T) {
			c := &classes{offer: offered}
			var server *Server
			var stop func()
			addr := freeAddress(t)
			serve := func() {
				var l net.Listener
				wait.Until(t, "the server's port", func() (ok bool) {
					var err error
					l, err = net.Listen("tcp", addr)
					return err == nil
				})
				addr = l.Addr().String()
				c.whole, c.separate = NewLatestView(whole), NewLatestView(separate)
				server = New(c, slog.New(slog.DiscardHandler), nil)
				stop = serveOn(t, l, server, nil)
			}
			serve()
			e := startEnvoy(t, addr, "DELTA_GRPC")
			r := &rig{realEnvoy: e}
			url := r.url("in")
			r.expect(url, "a.test", "first")
			finish := hostStorm(url, "a.test", "first", "next", "last")
			has := func(want bool, text string) {
				t.Helper()
				wait.Until(t, "the proxy in sync", func() bool { s := server.Connections(); return len(s) == 1 && s[0].Applied == generation })
				r.expect(url, "a.test", text)
				if got := strings.Contains(r.get("/config_dump?resource=dynamic_route_configs"), `"80/a.test:80"`); got != want {
					t.Errorf("%s: virtual hosts by VHDS %v, want %v", text, got, want)
				}
			}
			has(offered, "first")
			text := "first"
			for i, offer := range []bool{false, true, true, false} {
				stop()
				if i%2 == 1 {
					text = []string{"next", "last"}[i/2]
					views(text)
				}
				c.offer = offer
				serve()
				has(false, text)
			}
			for _, text := range []string{"first", "next"} {
				views(text)
				c.whole.Publish(whole)
				c.separate.Publish(separate)
				has(false, text)
			}
			if sent, wrong := finish(); wrong != "" || sent == 0 {
				t.Errorf("of %d requests one got %q", sent, wrong)
			}
			r.settled()
			views("first")
		})
	}
}

// A domain moves to a virtual host from one that waits for a cluster: Envoy is sent the two together, and refuses nothing.
func TestRealEnvoyTakesADomainThatMovesWhileItsClusterWarms(t *testing.T) {
	r := newRig(t, "DELTA_GRPC", (&View{}).put(listener(t, "in", "80"), separateRoutes(t, "80"),
		hostResource(t, answers("80/one", "one", "one.test", "moves.test")), hostResource(t, answers("80/two", "two", "two.test"))))
	url := r.url("in")
	r.expect(url, "moves.test", "one")
	stop := hostStorm(url, "moves.test", "one", "two")
	r.show(r.view.put(dnsCluster(t, "never", silentResolver(t)),
		hostResource(t, forwards("80/one", "never", "one.test")), hostResource(t, answers("80/two", "two", "two.test", "moves.test"))))
	r.expect(url, "moves.test", "two")
	if sent, wrong := stop(); wrong != "" || sent == 0 {
		t.Errorf("of %d requests one got %q", sent, wrong)
	}
	if s := r.server.Connections()[0].Types[VHDS]; s.Rejects > 0 {
		t.Errorf("%d refusals: %+v", s.Rejects, s)
	}
}
