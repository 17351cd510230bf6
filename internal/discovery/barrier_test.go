package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Policies for the workload reviews: one that selects it by its label, which gives it another class, and others of its namespace.
const (
	denySome    = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {selector: {matchLabels: {app: reviews}}, action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}\n"
	denyAll     = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}\n"
	validTokens = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: deny, namespace: shop}\nspec: {selector: {matchLabels: {app: reviews}}, jwtRules: [{issuer: a, jwks: '{\"keys\":[]}'}]}\n"
	mutualTLS   = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: deny, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n"
)

// ratings is a service that no policy is for.
const ratings = `
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: other}
spec: {clusterIP: 10.96.0.9, selector: {app: ratings}, ports: [{name: http, port: 7070}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: ratings, namespace: other}
spec: {hosts: [ratings], http: [{name: NAME, route: [{destination: {host: ratings}}]}]}
`

func ratingsRoute(name string) string { return strings.Replace(ratings, "NAME", name, 1) }

// guarded is a control plane with a server, whose listeners are not acknowledged from now on, and a client of it.
func guarded(t *testing.T) (p *plane, server, web *client) {
	t.Helper()
	p = start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}")+"---\n"+ratingsRoute("plain"), true)
	server = p.dial("", "").open()
	web = p.connectApp("web").open()
	web.ask(xds.RDS, "7070")
	for _, c := range []*client{server, web} {
		c.ask(xds.EDS, "outbound|7070||ratings.other.svc.cluster.local")
	}
	server.until("9080", "first")
	web.until("9080", "first")
	web.until("7070", "plain")
	server.wait("the acknowledgements", func() bool { return p.applied("reviews-1.shop") })
	server.delays = func(r *discoveryv3.DeltaDiscoveryResponse) bool { return r.TypeUrl == xds.LDS.URL() }
	return p, server, web
}

func (p *plane) connectApp(app string) *client {
	p.t.Helper()
	return p.connectAs(app, p.addr.GRPC, insecure.NewCredentials(), "")
}

// applied says whether a proxy has applied the newest generation.
func (p *plane) applied(proxy string) bool {
	s := p.sync()[proxy]
	return s.Generation > 0 && s.Applied == s.Generation
}

// policyWaits are the changes whose routes have waited, by result.
func (p *plane) policyWaits() string {
	var out []string
	_, body := p.get(p.addr.Monitoring, "/metrics")
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "pilothouse_policy_waits_total{result="); ok {
			out = append(out, strings.TrimSpace(strings.NewReplacer(`"`, "", "}", "").Replace(rest)))
		}
	}
	return strings.Join(out, ", ")
}

func (p *plane) expectWaits(want string) {
	p.t.Helper()
	wait.NoError(p.t, "the waits are counted", func() error {
		if got := p.policyWaits(); got != want {
			return fmt.Errorf("counted %s, want %s", got, want)
		}
		return nil
	})
}

// An AuthorizationPolicy and a route to what it guards arrive in one change: the client is sent the route once the
// server has acknowledged its listener, and nothing else waits.
func TestRoutesWaitForThePoliciesOfTheSameChange(t *testing.T) {
	for name, policy := range map[string]string{"by label": denySome, "of the namespace": denyAll, "tokens": validTokens, "mutual TLS": mutualTLS} {
		t.Run(name, func(t *testing.T) {
			p, server, web := guarded(t)
			p.emit(policy+"---\n"+route("{name: second, route: [{destination: {host: reviews}}]}")+"---\n"+ratingsRoute("waitsfornothing"), false)
			server.wait("the listener with the policy", func() bool { return len(server.delayed) > 0 })
			web.until("7070", "waitsfornothing")
			if strings.Contains(web.have["9080"], "second") {
				t.Error("the route was sent before the policy was acknowledged")
			}
			if p.applied("web-1.shop") {
				t.Error("the client counts as having the route")
			}
			server.answer()
			web.until("9080", "second")
			p.expectWaits("acknowledged 1, late 0")
			server.until("9080", "second") // the server is a client, too
			server.wait("all is applied", func() bool { web.takeWaiting(); return p.applied("web-1.shop") && p.applied("reviews-1.shop") })
		})
	}
}

// A policy that was removed for a moment is in force once the server has acknowledged it again: that it had acknowledged the same
// listener before says nothing.
func TestRoutesWaitForAPolicyThatComesBack(t *testing.T) {
	p, server, web := guarded(t)
	server.delays = nil
	p.emit(denySome, false)
	server.wait("the policy", func() bool { return strings.Contains(server.have["virtualInbound"], "/admin") })
	server.wait("the acknowledgements", func() bool { web.takeWaiting(); return p.applied("reviews-1.shop") })
	server.delays = func(r *discoveryv3.DeltaDiscoveryResponse) bool { return r.TypeUrl == xds.LDS.URL() }
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop", Name: "deny"}}}})
	server.wait("the listener without the policy", func() bool { return len(server.delayed) > 0 })
	p.emit(denySome+"---\n"+route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	p.staysClosed(web, "the server has not acknowledged that the policy was removed")
	delays := server.delays
	server.answer()
	server.delays = delays
	server.wait("the listener with the policy", func() bool { return len(server.delayed) > 0 })
	p.staysClosed(web, "the server has not acknowledged the policy")
	server.answer()
	web.until("9080", "second")
	p.expectWaits("acknowledged 1, late 0")
}

// staysClosed sends the client other changes, for longer than what a route waits for workers: it does not get the route of reviews.
func (p *plane) staysClosed(web *client, why string) {
	p.t.Helper()
	began := time.Now()
	for i := 0; time.Since(began) < 2*threadTime; i++ {
		name := fmt.Sprintf("other%d", i)
		p.emit(ratingsRoute(name), false)
		web.until("7070", name)
	}
	if strings.Contains(web.have["9080"], "second") {
		p.t.Errorf("%s, and the client has the route", why)
	}
}

// A policy that was removed and is back before the server was sent either is in force.
func TestRoutesDoNotWaitForAPolicyThatNeverWent(t *testing.T) {
	p, server, web := guarded(t)
	server.delays = nil
	p.emit(denySome, false)
	server.wait("the acknowledgements", func() bool { web.takeWaiting(); return p.applied("reviews-1.shop") })
	// While a response of listeners is unanswered, nothing else of them is sent.
	server.delays = func(r *discoveryv3.DeltaDiscoveryResponse) bool { return r.TypeUrl == xds.LDS.URL() }
	p.emit("apiVersion: v1\nkind: Service\nmetadata: {name: plain, namespace: other}\nspec: {clusterIP: 10.96.0.10, selector: {app: plain}, ports: [{name: tcp, port: 7171}]}\n", false)
	server.wait("another listener", func() bool { return len(server.delayed) > 0 })
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop", Name: "deny"}}}})
	p.emit(denySome+"---\n"+route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	web.until("9080", "second")
	p.expectWaits("acknowledged 1, late 0")
	server.answer()
}

// takeWaiting takes the responses that have arrived.
func (c *client) takeWaiting() {
	for {
		select {
		case r := <-c.got:
			c.take(r)
		default:
			return
		}
	}
}

// What does not guard where the route leads, or does not refuse more than before, is waited for by nothing.
func TestRoutesDoNotWaitForOtherChanges(t *testing.T) {
	second := route("{name: second, route: [{destination: {host: reviews}}]}")
	for name, change := range map[string]string{
		"a route alone":             second,
		"another route":             denySome + "---\n" + ratingsRoute("second"),
		"a policy for others":       strings.Replace(denySome, "app: reviews", "app: other", 1) + "---\n" + second,
		"a policy that lets all in": strings.Replace(mutualTLS, "STRICT", "PERMISSIVE", 1) + "---\n" + second,
	} {
		t.Run(name, func(t *testing.T) {
			p, server, web := guarded(t)
			p.emit(change, false)
			web.wait("the route", func() bool { return strings.Contains(web.have["9080"]+web.have["7070"], "second") })
			p.expectWaits("acknowledged 0, late 0")
			server.answer()
		})
	}
}

// late has a change with a policy and a route wait in vain: the client gets the route after 5 s, and it is told.
func (p *plane) late(server, web *client) {
	p.t.Helper()
	before := time.Now()
	p.emit(denySome+"---\n"+route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	web.wait("the route", func() bool {
		server.takeWaiting()
		return strings.Contains(web.have["9080"], "second")
	})
	if took := time.Since(before); took < policyLimit {
		p.t.Errorf("the route was sent after %s, want at least %s", took, policyLimit)
	}
	p.expectWaits("acknowledged 0, late 1")
	wait.Until(p.t, "it is told", func() bool { return p.told() })
}

func (p *plane) told() bool {
	return slices.ContainsFunc(p.objects(), func(o objectEntry) bool {
		return o.Object == "AuthorizationPolicy shop/deny" && strings.Contains(o.Text, "before 1 of 1 proxies had acknowledged the policy") && strings.Contains(o.Text, "reviews-1.shop")
	})
}

func TestRoutesGoWithoutAPolicyThatIsNotAcknowledged(t *testing.T) {
	p, server, web := guarded(t)
	p.late(server, web)
	server.answer()
	wait.Until(t, "it is told no more once the policy is acknowledged", func() bool { return !p.told() })
}

// A listener that the server refuses is not in force.
func TestRoutesWaitForAPolicyThatIsRefused(t *testing.T) {
	p, server, web := guarded(t)
	server.delays = nil
	server.refusing("virtualInbound", "/admin")
	p.late(server, web)
	if server.refused == 0 {
		t.Error("the server has refused nothing")
	}
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop", Name: "deny"}}}})
	wait.Until(t, "it is told no more once the policy is removed", func() bool {
		server.takeWaiting()
		return !p.told()
	})
}

// A server that has gone is not waited for.
func TestRoutesDoNotWaitForAProxyThatHasGone(t *testing.T) {
	p, server, web := guarded(t)
	p.emit(denySome+"---\n"+route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	server.wait("the listener with the policy", func() bool { return len(server.delayed) > 0 })
	_ = server.stream.CloseSend()
	web.until("9080", "second")
	p.expectWaits("acknowledged 1, late 0")
}

// A later change does not let through what an earlier one keeps back, and what supersedes a listener that is awaited is
// awaited in its place.
func TestRoutesWaitAcrossCommits(t *testing.T) {
	p, server, web := guarded(t)
	p.emit(denySome+"---\n"+route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	server.wait("the listener with the policy", func() bool { return len(server.delayed) > 0 })
	p.emit(strings.Replace(denySome, "/admin", "/root", 1)+"---\n"+ratingsRoute("later"), false)
	web.until("7070", "later")
	if strings.Contains(web.have["9080"], "second") {
		t.Error("the route was sent with a later change")
	}
	server.answer()
	server.until("virtualInbound", "/root")
	web.until("9080", "second")
	p.expectWaits("acknowledged 1, late 0")
}
