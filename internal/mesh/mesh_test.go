package mesh

import (
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestNodeIDsRoundTrip(t *testing.T) {
	for _, s := range []string{
		"sidecar~10.0.0.1~reviews-1.shop~shop.svc.cluster.local",
		"router~fd00::1~gw.istio-system~istio-system.svc.cluster.local",
		"sidecar~~vm.shop~shop.svc.cluster.local",
	} {
		n, err := DecodeNodeID(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if n.String() != s {
			t.Errorf("%s is encoded as %s", s, n)
		}
	}
}

// Package proxy decodes the same forms.
func TestNodeIDsOf2017(t *testing.T) {
	for s, want := range map[string]string{
		"10.0.0.1|x.y|d": "sidecar~10.0.0.1~x.y~d", "10.0.0.1~x.y~d": "sidecar~10.0.0.1~x.y~d", "|x.y|d": "sidecar~~x.y~d",
		"ingress": "router~~~", "egress": "router~~~",
	} {
		if n, err := DecodeNodeID(s); err != nil || n.String() != want {
			t.Errorf("%q is %s, %v; want %s", s, n, err, want)
		}
	}
}

func TestInvalidNodeIDs(t *testing.T) {
	for s, why := range map[string]string{
		"":                              "four parts",
		"sidecar~10.0.0.1~x.y":          `invalid IP address "sidecar"`,
		"10.0.0.1|x.y":                  "want ip|id|domain",
		"sidecar|10.0.0.1|x.y|d":        "want ip|id|domain",
		"sidecar~10.0.0.1~x.y~d~e":      "four parts",
		"waypoint~10.0.0.1~x.y~d":       "want sidecar or router",
		"sidecar~ten~x.y~d":             "invalid IP address",
		"sidecar~fe80::1%eth0~x~d":      "invalid IP address",
		strings.Repeat("sidecar", 9000): "at most",
	} {
		if _, err := DecodeNodeID(s); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40q: error %v, want one that says %q", s, err, why)
		}
	}
}

func TestOldRolesAreRouters(t *testing.T) {
	for _, s := range []string{"ingress", "egress", "router"} {
		if r, err := ParseRole(s); err != nil || r != Router {
			t.Errorf("%s: %v, %v", s, r, err)
		}
	}
}

func TestNodeNamespace(t *testing.T) {
	id := func(id, domain string) NodeID { return NodeID{ID: id, Domain: domain} }
	for _, c := range []struct {
		node Node
		want string
	}{
		{Node{NodeID: id("pod.shop", "other.svc.cluster.local")}, "shop"},
		{Node{NodeID: id("pod-0.db.shop", "")}, "shop"},
		{Node{NodeID: id("pod", "other.svc.cluster.local")}, "other"},
		{Node{NodeID: id("pod.shop", ""), Metadata: Metadata{Namespace: "said"}}, "said"},
	} {
		if got := c.node.Namespace(); got != c.want {
			t.Errorf("%+v: namespace %q, want %q", c.node.NodeID, got, c.want)
		}
	}
}

func TestDecodeMetadata(t *testing.T) {
	m, err := DecodeMetadata(map[string]any{
		"NAME": "p", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "a", "CLUSTER_ID": "c", "NETWORK": "n",
		"LABELS":       map[string]any{"app": "x", "number": 7.0, "flag": true},
		"INSTANCE_IPS": "10.0.0.1, ::ffff:10.0.0.2,", "DNS_CAPTURE": "true", "HTTP10": 1.0, "INTERCEPTION_MODE": "redirect",
		"VIRTUAL_HOST_DISCOVERY": "true",
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"app": "x", "number": "7", "flag": "true"}; !reflect.DeepEqual(m.Labels, want) {
		t.Errorf("labels %v, want %v", m.Labels, want)
	}
	if want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}; !reflect.DeepEqual(m.InstanceIPs, want) {
		t.Errorf("addresses %v, want %v", m.InstanceIPs, want)
	}
	if c := Capabilities(Node{Metadata: m}); !c.Has(VirtualHosts) || Capabilities(Node{}).Has(VirtualHosts) {
		t.Errorf("capabilities %#x: want VirtualHosts by metadata only", c)
	}
	if !m.DNSCapture || !m.HTTP10 || m.Interception != "REDIRECT" {
		t.Errorf("%+v", m)
	}
}

func TestEpochsAreNumbers(t *testing.T) {
	for v, want := range map[any]string{"3": "3", 4.0: "4", "007": "7", "": "", "x": "", "-1": "", 1.5: "", "99999999999": ""} {
		if m, err := DecodeMetadata(map[string]any{EpochKey: v}); err != nil || m.Epoch != want {
			t.Errorf("%v: %q, %v, want %q", v, m.Epoch, err, want)
		}
	}
}

func TestInvalidMetadata(t *testing.T) {
	many := map[string]any{}
	for i := range 600 {
		many[strings.Repeat("k", i+1)] = ""
	}
	for why, raw := range map[string]map[string]any{
		"invalid IP address": {"INSTANCE_IPS": "10.0.0.1,pod"},
		"at most 512":        many,
		"at most 256":        {"LABELS": many},
		"more than 64":       {"INSTANCE_IPS": strings.Repeat("10.0.0.1,", 65)},
	} {
		if _, err := DecodeMetadata(raw); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("error %v, want one that says %q", err, why)
		}
	}
}

// What is declared for a port counts, whatever its number.
func TestProtocolOfKnownPorts(t *testing.T) {
	for number, name := range map[uint32]string{25: "", 53: "dns", 3306: "db", 27017: "x-http"} {
		if got := ProtocolOfPort(number, name, "", "TCP"); got != TCP {
			t.Errorf("port %d named %q: %v, want TCP", number, name, got)
		}
	}
	if a, b, c := ProtocolOfPort(3306, "http-admin", "", "TCP"), ProtocolOfPort(53, "", "", "UDP"), ProtocolOfPort(3307, "", "", "TCP"); a != HTTP || b != UDP || c != Auto {
		t.Errorf("%v, %v, %v, want HTTP, UDP and Auto", a, b, c)
	}
}

func TestProtocolOf(t *testing.T) {
	for _, c := range []struct {
		name, app, transport string
		want                 Protocol
	}{
		{"http", "", "", HTTP}, {"http-web", "", "TCP", HTTP}, {"HTTP2-x", "", "", HTTP2}, {"grpc-web", "", "", GRPCWeb},
		{"grpc-web-1", "", "", GRPCWeb}, {"grpc", "", "", GRPC}, {"web", "", "", Auto}, {"", "", "", Auto}, {"tcp-db", "", "", TCP},
		{"mysql", "", "", MySQL}, {"https", "", "", HTTPS}, {"tls-x", "", "", TLS}, {"httpx", "", "", Auto},
		{"http", "tcp", "", TCP}, {"x", "kubernetes.io/h2c", "", HTTP2}, {"x", "unheard-of", "", Auto}, {"http", "", "UDP", UDP}, {"udp-x", "", "TCP", Auto},
	} {
		if got := ProtocolOf(c.name, c.app, c.transport); got != c.want {
			t.Errorf("name %q, appProtocol %q, %s: %v, want %v", c.name, c.app, c.transport, got, c.want)
		}
	}
}

func TestIdentitiesRoundTrip(t *testing.T) {
	i := Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "sa"}
	if got, err := ParseSPIFFE(i.SPIFFE()); err != nil || got != i {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "spiffe://td", "https://td/ns/a/sa/b", "spiffe://td/ns//sa/b", "spiffe:///ns/a/sa/b", "spiffe://td/ns/a/sa/b/c"} {
		if _, err := ParseSPIFFE(bad); err == nil {
			t.Errorf("ParseSPIFFE(%q) returned no error", bad)
		}
	}
}

func TestLocalities(t *testing.T) {
	for in, want := range map[string]Locality{
		"":         {},
		"eu":       {Region: "eu"},
		"eu/a/1":   {Region: "eu", Zone: "a", Subzone: "1"},
		"eu.a":     {Region: "eu", Zone: "a"},
		"eu-1.2/a": {Region: "eu-1.2", Zone: "a"},
	} {
		if got := ParseLocality(in); got != want {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
	if s := (Locality{Region: "eu", Zone: "a"}).String(); s != "eu/a" {
		t.Errorf("%q", s)
	}
}

func TestCapabilitiesHaveTheCompliancePolicy(t *testing.T) {
	for _, name := range []string{"fips-140-2", "fips-140-3", "pqc", "", "other"} {
		m, err := DecodeMetadata(map[string]any{CompliancePolicyKey: name})
		if err != nil {
			t.Fatal(err)
		}
		want := name
		if name == "other" {
			want = ""
		}
		if got := Capabilities(Node{Metadata: m}).CompliancePolicy(); got != want {
			t.Errorf("%q gives the policy %q", name, got)
		}
	}
}

func TestCapabilitiesFollowTheExtensionList(t *testing.T) {
	n := Node{NodeID: NodeID{IP: netip.MustParseAddr("fd00::1")}, Extensions: map[string]bool{"envoy.filters.http.fault": true}}
	if c := Capabilities(n); !c.Has(IPv6|Fault) || c.Has(IPv4) || c.Has(CORS) || c.Has(FilterState) {
		t.Errorf("capabilities %b", c)
	}
	n.Extensions = nil
	if c := Capabilities(n); !c.Has(Fault | CORS | FilterState | HTTPInspector | DynamicDNS) {
		t.Errorf("capabilities %b of a proxy that sent no list, want those of a stock Envoy", c)
	}
}

func TestTransparentSidecars(t *testing.T) {
	for _, tt := range []struct {
		role Role
		mode string
		want bool
	}{{Sidecar, "TPROXY", true}, {Sidecar, "tproxy", true}, {Sidecar, "REDIRECT", false}, {Sidecar, "", false}, {Router, "TPROXY", false}} {
		m, err := DecodeMetadata(map[string]any{"INTERCEPTION_MODE": tt.mode})
		if err != nil {
			t.Fatal(err)
		}
		if got := Capabilities(Node{NodeID: NodeID{Role: tt.role}, Metadata: m}).Has(Transparent); got != tt.want {
			t.Errorf("%s with INTERCEPTION_MODE %q: transparent %v, want %v", tt.role, tt.mode, got, tt.want)
		}
	}
}

// TestOnlyNewProxiesResolveNames: an Envoy before 1.39 ignores the list of addresses that are left out.
func TestOnlyNewProxiesResolveNames(t *testing.T) {
	all := map[string]bool{"envoy.clusters.dynamic_forward_proxy": true, "envoy.filters.http.set_filter_state": true, "envoy.filters.network.sni_dynamic_forward_proxy": true}
	for agent, want := range map[string]bool{
		"envoy/1.40.0": true, "envoy/1.39.2": true, "envoy/2.0": true, "": true,
		"envoy/1.38.9": false, "envoy/1.9.0": false, "envoy": false, "envoy/x.40": false, "envoy/1": false, "pilot-agent/dev": false,
	} {
		if got := Capabilities(Node{Extensions: all, UserAgent: agent}).Has(DynamicDNS); got != want {
			t.Errorf("%q has the capability: %v, want %v", agent, got, want)
		}
	}
	for name := range all {
		some := maps.Clone(all)
		delete(some, name)
		if Capabilities(Node{Extensions: some}).Has(DynamicDNS) {
			t.Errorf("a proxy without %s has the capability", name)
		}
	}
}

func FuzzDecodeNodeID(f *testing.F) {
	f.Add("sidecar~10.0.0.1~a.b~c")
	f.Add("~~~")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := DecodeNodeID(s)
		if err != nil {
			return
		}
		again, err := DecodeNodeID(n.String())
		if err != nil || again != n {
			t.Errorf("%q decodes to %+v, which encodes to %q: %+v, %v", s, n, n.String(), again, err)
		}
	})
}

// FuzzDecodeMetadata feeds values of every JSON type to every key.
func FuzzDecodeMetadata(f *testing.F) {
	f.Add("LABELS", "app", "x", 1.5, true)
	f.Add("INSTANCE_IPS", "10.0.0.1", "::1", 0.0, false)
	f.Fuzz(func(t *testing.T, key, a, b string, n float64, yes bool) {
		for _, v := range []any{a, n, yes, nil, []any{a, n, yes, nil, b}, map[string]any{a: b, b: n, "": yes}, map[string]any{a: []any{b}}} {
			m, err := DecodeMetadata(map[string]any{key: v, a: b})
			if err != nil {
				if !strings.Contains(err.Error(), "node metadata") {
					t.Errorf("error %v does not contain \"node metadata\"", err)
				}
				continue
			}
			if len(m.InstanceIPs) > maxInstanceIPs || len(m.Labels) > maxLabels {
				t.Errorf("limits are exceeded: %+v", m)
			}
			Capabilities(Node{Metadata: m})
		}
	})
}

func TestFullHost(t *testing.T) {
	for name, want := range map[string]string{
		"ratings": "ratings.bookshop.svc.cluster.local", "Ratings": "ratings.bookshop.svc.cluster.local",
		"ratings.bookshop": "ratings.bookshop", "api.example.com": "api.example.com", "API.Example.com": "api.example.com",
		"api.example.com.": "api.example.com", "localhost.": "localhost", "*": "*", "10.0.0.1": "10.0.0.1", "FD00::1": "fd00::1", "*.Example.com": "*.example.com", "": "",
	} {
		if got := FullHost(name, "bookshop", "Cluster.local"); got != want {
			t.Errorf("FullHost(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestCheckIdentity(t *testing.T) {
	alice := Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "alice"}
	node := func(id, namespace, account string) Node {
		return Node{NodeID: NodeID{ID: id}, Metadata: Metadata{Namespace: namespace, ServiceAccount: account}}
	}
	for _, c := range []struct {
		node Node
		id   Identity
		ok   bool
	}{
		{node("pod.shop", "shop", "alice"), alice, true},
		{node("pod.shop", "shop", ""), alice, true},
		{node("pod.shop", "", "alice"), alice, true},
		{node("pod.shop", "", ""), alice, true},
		{node("pod.bank", "shop", "alice"), alice, false}, // it would be listed as a Pod of bank
		{node("pod", "shop", "alice"), alice, true},
		{node("pod.shop", "bank", "alice"), alice, false},
		{node("pod.bank", "", "alice"), alice, false},
		{node("pod.shop", "shop", "bob"), alice, false},
		{node("", "", ""), alice, false},
		{node("", "", "alice"), alice, false},
		{node("", "", ""), Identity{}, false},
		{node("pod.shop", "shop", ""), Identity{}, false},
	} {
		if err := c.node.CheckIdentity(c.id); (err == nil) != c.ok {
			t.Errorf("%s %+v of %s: error %v, want ok %v", c.node.ID, c.node.Metadata, c.id, err, c.ok)
		}
	}
	if err := node("pod.bank", "shop", "alice").CheckIdentity(alice); err == nil || !strings.Contains(err.Error(), `"pod.bank"`) {
		t.Errorf("a node id of another namespace: %v, want it named", err)
	}
}

func TestUnknownProtocol(t *testing.T) {
	if s := Protocol(200).String(); s != "Protocol(200)" {
		t.Errorf("got %q", s)
	}
}
