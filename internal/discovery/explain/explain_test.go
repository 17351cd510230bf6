package explain_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"
	"istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/explain"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// at is a listener with a port 80 for HTTP and 90 for TCP.
func at(mode mesh.MTLSMode, filters authz.Filters) *listenerv3.Listener {
	port := func(number uint32, protocol mesh.Protocol) listener.InboundPort {
		return listener.InboundPort{Port: number, Mode: mode, Protocol: protocol, Cluster: "inbound|x||", Routes: &routev3.RouteConfiguration{}}
	}
	in := listener.Inbound{Unknown: port(0, mesh.Auto), Ports: []listener.InboundPort{port(80, mesh.HTTP), port(90, mesh.TCP)}, Authorization: filters, TrustDomains: []string{"cluster.local"}}
	return listener.VirtualInbound(in, listener.Env{Caps: ^mesh.Capability(0) &^ (mesh.FIPS1402 | mesh.PQC), Mesh: &meshv1.MeshConfig{}})
}

func to(port uint16, tls *simulate.TLS) simulate.Connection {
	c := simulate.Connection{Source: netip.MustParseAddrPort("10.0.0.1:0"), Destination: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port), TLS: tls}
	if tls == nil {
		c.Protocol = "http/1.1"
	}
	return c
}

func policy(name string, spec *security.AuthorizationPolicy) (authz.Policy, *object.Object) {
	return authz.Policy{Namespace: "shop", Name: name, Spec: spec}, &object.Object{
		Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop", Name: name}, Spec: spec, Origin: object.Origin{File: "p.yaml", Line: 3},
	}
}

// TestModes has the mode of a port, and the PeerAuthentication that sets it.
func TestModes(t *testing.T) {
	peer := func(name, namespace string, selects bool, mode security.PeerAuthentication_MutualTLS_Mode, ports map[uint32]security.PeerAuthentication_MutualTLS_Mode) *object.Object {
		spec := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: mode}, PortLevelMtls: map[uint32]*security.PeerAuthentication_MutualTLS{}}
		if selects {
			spec.Selector = &v1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}}
		}
		for port, mode := range ports {
			spec.PortLevelMtls[port] = &security.PeerAuthentication_MutualTLS{Mode: mode}
		}
		return &object.Object{Key: object.Key{Kind: object.PeerAuthentication, Namespace: namespace, Name: name}, Spec: spec}
	}
	const unset, strict, permissive = security.PeerAuthentication_MutualTLS_UNSET, security.PeerAuthentication_MutualTLS_STRICT, security.PeerAuthentication_MutualTLS_PERMISSIVE
	for name, c := range map[string]struct {
		objects []*object.Object
		want    string
	}{
		"none":               {nil, ""},
		"the mesh's":         {[]*object.Object{peer("a", "shop", false, unset, nil), peer("b", "istio-system", false, strict, nil)}, "PeerAuthentication istio-system/b"},
		"the first of two":   {[]*object.Object{peer("a", "shop", false, strict, nil), peer("b", "shop", false, permissive, nil)}, "PeerAuthentication shop/a"},
		"the port's":         {[]*object.Object{peer("a", "shop", true, unset, map[uint32]security.PeerAuthentication_MutualTLS_Mode{80: permissive}), peer("b", "shop", false, strict, nil)}, "PeerAuthentication shop/a"},
		"not another port's": {[]*object.Object{peer("a", "shop", true, unset, map[uint32]security.PeerAuthentication_MutualTLS_Mode{81: permissive}), peer("b", "shop", false, strict, nil)}, "PeerAuthentication shop/b"},
		"no selector":        {[]*object.Object{peer("a", "shop", false, unset, map[uint32]security.PeerAuthentication_MutualTLS_Mode{80: permissive}), peer("b", "istio-system", false, strict, nil)}, "PeerAuthentication istio-system/b"},
	} {
		v := explain.Decide(at(mesh.Permissive, authz.Filters{}), to(80, nil), nil, c.objects, time.Now())
		got := ""
		if v.ModeFrom != nil {
			got = v.ModeFrom.Object
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for _, mode := range []mesh.MTLSMode{mesh.Strict, mesh.Permissive, mesh.Disable} {
		for _, port := range []uint16{80, 90, 99} {
			if v := explain.Decide(at(mode, authz.Filters{}), to(port, nil), nil, nil, time.Now()); v.Mode != mode.String() || (v.Decision == explain.Allowed) != (mode != mesh.Strict) {
				t.Errorf("%s at %d: %+v", mode, port, v)
			}
		}
	}
	closed := listener.VirtualInbound(listener.Inbound{Closed: true}, listener.Env{Caps: ^mesh.Capability(0), Mesh: &meshv1.MeshConfig{}})
	if v := explain.Decide(closed, to(80, nil), nil, nil, time.Now()); v.Mode != "CLOSED" || v.Decision != explain.Denied || !strings.Contains(v.Reason, "the workload accepts nothing") {
		t.Errorf("closed: %+v", v)
	}
	mesh := explain.Mesh("spiffe://cluster.local/ns/shop/sa/cart", false)
	if v := explain.Decide(at(2, authz.Filters{}), to(90, mesh), nil, nil, time.Now()); v.Decision != explain.Allowed || !strings.Contains(strings.Join(v.Notes, ""), "the proxy does not end TLS here") {
		t.Errorf("TLS to a port with DISABLE: %+v", v)
	}
}

// TestRulesThatAreNotThere has policies whose rules are not part of what a connection is checked against, or that have none.
func TestRulesThatAreNotThere(t *testing.T) {
	get := []*security.Rule_To{{Operation: &security.Operation{Methods: []string{"GET"}}}}
	allow, allowObject := policy("allow", &security.AuthorizationPolicy{Rules: []*security.Rule{{To: get}}})
	deny, denyObject := policy("deny", &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_DENY})
	l := at(mesh.Permissive, authz.Build([]authz.Policy{allow, deny}, []string{"cluster.local"}, nil, nil))
	v := explain.Decide(l, to(90, nil), nil, []*object.Object{allowObject, denyObject}, time.Now())
	if len(v.Rules) != 2 || v.Rules[0].State != explain.Other || v.Rules[0].Index != -1 || v.Rules[1].State != explain.NotHere {
		t.Errorf("rules %+v", v.Rules)
	}
	if v.Decision != explain.Denied || v.Reason != "no rule matches of AuthorizationPolicy shop/allow (p.yaml:3)" {
		t.Errorf("%+v", v)
	}
	// Without the objects, rules have their names still.
	v = explain.Decide(l, to(80, nil), &simulate.Request{Method: "GET", Authority: "x", Path: "/"}, nil, time.Now())
	if v.Decision != explain.Allowed || v.Reason != "ALLOW by spec.rules[0] of AuthorizationPolicy shop/allow" {
		t.Errorf("%+v", v)
	}
	nothing, _ := policy("nothing", &security.AuthorizationPolicy{Rules: []*security.Rule{{To: get}}})
	v = explain.Decide(at(mesh.Permissive, authz.Build([]authz.Policy{nothing}, nil, nil, nil)), to(90, nil), nil, nil, time.Now())
	if v.Decision != explain.Denied || v.Reason != "an ALLOW policy has no rule that lets anything in" {
		t.Errorf("%+v", v)
	}
}

// TestUnknown has a rule about an address that is not known.
func TestUnknown(t *testing.T) {
	p, o := policy("p", &security.AuthorizationPolicy{Rules: []*security.Rule{{From: []*security.Rule_From{{Source: &security.Source{IpBlocks: []string{"10.0.0.0/8"}}}}}}})
	c := to(80, nil)
	c.Source = netip.AddrPort{}
	v := explain.Decide(at(mesh.Permissive, authz.Build([]authz.Policy{p}, nil, nil, nil)), c, &simulate.Request{Method: "GET", Authority: "x", Path: "/"}, []*object.Object{o}, time.Now())
	if v.Decision != explain.Unknown || !strings.Contains(v.Reason, "the client's address: not known") {
		t.Errorf("%+v", v)
	}
}

func TestConnects(t *testing.T) {
	c := marshal.MustEncodedAny(&clusterv3.Cluster{Name: "outbound|80||x"})
	here := netip.MustParseAddrPort("10.0.0.2:80")
	if _, _, found, err := explain.Connects(c, nil, here, "spiffe://x", true); found || err != nil {
		t.Errorf("an endpoint of none: %v, %v", found, err)
	}
	if _, _, _, err := explain.Connects([]byte{1}, nil, here, "spiffe://x", true); err == nil {
		t.Error("what is no cluster is decoded")
	}
}

func TestJoin(t *testing.T) {
	w := func(name string, d explain.Decision, elsewhere bool) explain.Workload {
		return explain.Workload{Name: name, Port: 80, Elsewhere: elsewhere, Verdict: explain.Verdict{Decision: d}}
	}
	got := explain.Join([]explain.Answer{
		{Workloads: []explain.Workload{w("b", explain.Unknown, true), w("a", explain.Allowed, false), w("c", explain.Unknown, true)}},
		{Workloads: []explain.Workload{w("a", explain.Unknown, true), w("b", explain.Denied, false), w("c", explain.Unknown, true)}},
	})
	var all []string
	for _, w := range got.Workloads {
		all = append(all, w.Name+" "+string(w.Decision))
	}
	if want := []string{"a allowed", "b denied", "c unknown"}; !slices.Equal(all, want) || got.Decision != explain.Depends {
		t.Errorf("%v, %s; want %v", all, got.Decision, want)
	}
	if d := explain.Of(nil); d != explain.Unknown {
		t.Errorf("of nobody: %s", d)
	}
}

// FuzzQuestion takes questions as they come, and listeners: whatever they have, there is an error or an answer with a reason.
func FuzzQuestion(f *testing.F) {
	p, _ := policy("p", &security.AuthorizationPolicy{Rules: []*security.Rule{{When: []*security.Condition{{Key: "request.headers[x]", Values: []string{"a*"}}}}}})
	b, err := proto.Marshal(at(mesh.Permissive, authz.Build([]authz.Policy{p}, nil, nil, nil)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"from": "a/b", "to": "c", "path": "/x?y", "headers": {"X": ["a", "b"]}, "claims": {"iss": "i", "sub": 7}}`, b)
	f.Add(`{"from": "none", "to": "c", "tcp": true}`, b)
	f.Fuzz(func(t *testing.T, question string, b []byte) {
		var q explain.Query
		var l listenerv3.Listener
		if json.Unmarshal([]byte(question), &q) != nil || proto.Unmarshal(b, &l) != nil {
			return
		}
		q, err := q.Complete()
		if err != nil {
			return
		}
		_, _, _ = q.Identity("cluster.local")
		v := explain.Decide(&l, to(80, explain.Mesh("spiffe://cluster.local/ns/a/sa/b", !q.TCP)), q.Request("host"), nil, time.Unix(0, 0))
		if v.Decision == "" || v.Reason == "" {
			t.Errorf("%+v", v)
		}
	})
}
