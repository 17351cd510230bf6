package proxy_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/proxy"
)

func TestNodeIDs(t *testing.T) {
	for node, role := range map[string]proxy.Role{
		"sidecar~10.0.0.1~a.n~n.svc.cluster.local":  proxy.Sidecar{IPAddress: "10.0.0.1", ID: "a.n", Domain: "n.svc.cluster.local"},
		"sidecar~2001:db8::1~a.n~n.svc":             proxy.Sidecar{IPAddress: "2001:db8::1", ID: "a.n", Domain: "n.svc"},
		"sidecar~2001:DB8::1~a.n~n.svc":             proxy.Sidecar{IPAddress: "2001:DB8::1", ID: "a.n", Domain: "n.svc"},
		"sidecar~~~":                                proxy.Sidecar{},
		"router~10.0.0.2~g.n~n.svc.cluster.local":   proxy.Router{IPAddress: "10.0.0.2", ID: "g.n", Domain: "n.svc.cluster.local"},
		"ingress~10.0.0.3~in.n~n.svc.cluster.local": proxy.Ingress{IPAddress: "10.0.0.3", ID: "in.n", Domain: "n.svc.cluster.local"},
		"egress~~out.n~":                            proxy.Egress{ID: "out.n"},
	} {
		if got := role.ServiceNode(); got != node {
			t.Errorf("%#v is %q, want %q", role, got, node)
		}
		if got, err := proxy.DecodeServiceNode(node); got != role || err != nil {
			t.Errorf("%q is %#v, %v; want %#v", node, got, err, role)
		}
	}
}

func TestNodeIDsOf2017(t *testing.T) {
	for node, role := range map[string]proxy.Role{
		"10.0.0.1~a.n~n.svc.cluster.local": proxy.Sidecar{IPAddress: "10.0.0.1", ID: "a.n", Domain: "n.svc.cluster.local"},
		"10.0.0.1|a.n|n.svc.cluster.local": proxy.Sidecar{IPAddress: "10.0.0.1", ID: "a.n", Domain: "n.svc.cluster.local"},
		"fd00::1|a.n|d":                    proxy.Sidecar{IPAddress: "fd00::1", ID: "a.n", Domain: "d"},
		"|a.n|d":                           proxy.Sidecar{ID: "a.n", Domain: "d"},
		proxy.IngressNode:                  proxy.Ingress{},
		proxy.EgressNode:                   proxy.Egress{},
	} {
		if got, err := proxy.DecodeServiceNode(node); got != role || err != nil {
			t.Errorf("%q is %#v, %v; want %#v", node, got, err, role)
		}
	}
}

func TestInvalidNodeIDs(t *testing.T) {
	for _, node := range []string{
		"", "sidecar", "a~b", "a|b", "sidecar|10.0.0.1|a.n|d", "10.0.0.1|a~b|d", "sidecar~10.0.0.1~a.n~d~e", "waypoint~10.0.0.1~a.n~d", "sidecar~10.0.0~a.n~d", "10.0.0~a.n~d",
		strings.Repeat("x", 5000), "sidecar~~" + strings.Repeat("x", 5000) + "~d",
	} {
		if role, err := proxy.DecodeServiceNode(node); err == nil || len(err.Error()) > 500 {
			t.Errorf("%.40q is %#v, %v", node, role, err)
		}
	}
}

func FuzzDecodeServiceNode(f *testing.F) {
	f.Add("sidecar~10.0.0.1~a.n~n.svc.cluster.local")
	f.Add("10.0.0.1~a.n~d")
	f.Add("ingress")
	f.Add("10.0.0.1|a.n|d")
	f.Fuzz(func(t *testing.T, node string) {
		role, err := proxy.DecodeServiceNode(node)
		if err != nil {
			return
		}
		if again, err := proxy.DecodeServiceNode(role.ServiceNode()); again != role || err != nil {
			t.Errorf("%q is %#v, and that is %#v, %v", node, role, again, err)
		}
	})
}
