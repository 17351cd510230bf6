package simulate_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	meshvalues "github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/token"
)

// identityOnly leaves what is about the client's identity of policies.
func identityOnly(all []authz.Policy) {
	for _, p := range all {
		for _, r := range p.Spec.GetRules() {
			r.To, r.When = nil, nil
			for _, f := range r.GetFrom() {
				s := f.GetSource()
				f.Source = &security.Source{
					Principals: s.Principals, NotPrincipals: s.NotPrincipals, Namespaces: s.Namespaces, NotNamespaces: s.NotNamespaces,
					TrustDomains: s.TrustDomains, NotTrustDomains: s.NotTrustDomains, ServiceAccounts: s.ServiceAccounts, NotServiceAccounts: s.NotServiceAccounts,
				}
			}
		}
	}
}

// TestThePageAgreesWithTheSimulation compares who may talk to whom on the page at /ui, which is evaluated from policies, with the
// simulation of what they are compiled to, for random policies, clients and requests: what the page says is allowed or denied is so for
// every request, and where only the client's identity counts it always says one of these.
func TestThePageAgreesWithTheSimulation(t *testing.T) {
	const sets, requests = 120, 8
	g := gen{rand.New(rand.NewPCG(seedOf(t), 3)), map[string]*token.Issuer{}, t}
	for _, name := range []string{"a.example", "b.example", "none.example", "stranger.example", "impostor"} {
		g.issuers[name] = token.New(t, name)
	}
	domains := []string{"cluster.local", "old-td"}
	answers := map[ui.Answer]int{}
	for i := range sets {
		policies := g.policies()
		if i%2 == 0 {
			identityOnly(policies)
		}
		l := inbound(authz.Build(policies, domains, nil, nil))
		for _, strict := range []bool{false, true} {
			port := uint16(1002) // of HTTP, PERMISSIVE
			group := ui.Group{Strict: strict, TrustDomains: domains}
			if strict {
				port = 1005
			}
			for _, p := range policies {
				if !p.DryRun {
					group.Policies = append(group.Policies, ui.Policy{Namespace: p.Namespace, Name: p.Name, Spec: p.Spec})
				}
			}
			for _, name := range []string{"", "cluster.local/ns/shop/sa/cart", "cluster.local/ns/bad/sa/b", "old-td/ns/shop/sa/cart"} {
				c := simulate.Connection{Source: netip.MustParseAddrPort("10.0.0.1:40000"), Destination: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port), Protocol: "http/1.1"}
				caller := ui.Caller{}
				if name != "" {
					id, err := meshvalues.ParseSPIFFE("spiffe://" + name)
					if err != nil {
						t.Fatal(err)
					}
					caller = ui.Caller{Identity: id, Proxy: true}
					c.Protocol, c.TLS = "", &simulate.TLS{ALPN: []string{"istio-http/1.1", "istio-h2", "istio"}, Identities: []string{"spiffe://" + name}}
				}
				said := ui.Decide(group, caller)
				answers[said]++
				if said == ui.Depends && i%2 == 0 {
					t.Errorf("%q, mutual TLS only %v: the page says that it depends\n%v", name, strict, policies)
				}
				for range requests {
					r := received(g.request())
					v, err := simulate.Evaluate(l, c, r, time.Unix(0, 0))
					if err != nil {
						t.Fatal(err)
					}
					if v.Status != 400 && (said == ui.Allowed && !v.Allowed || said == ui.Denied && v.Allowed) {
						t.Fatalf("%q, mutual TLS only %v: the page says %s, the simulation of %+v: %+v\n%v", name, strict, said, r, v, policies)
					}
				}
			}
		}
	}
	t.Logf("answers %v", answers)
	for _, a := range []ui.Answer{ui.Allowed, ui.Denied, ui.Depends} {
		if answers[a] < 50 {
			t.Errorf("answers %v: the cases show little", answers)
		}
	}
}
