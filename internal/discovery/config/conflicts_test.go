package config_test

import (
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// gatewayAt is a Gateway made at a second, with a server of each protocol at port 80.
func gatewayAt(name string, second int64, selector map[string]string, protocols ...string) object.Change {
	spec := &networking.Gateway{Selector: selector}
	for _, p := range protocols {
		s := &networking.Server{Port: &networking.Port{Number: 80, Protocol: p}, Hosts: []string{"*"}}
		if p == "TLS" {
			s.Tls = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_AUTO_PASSTHROUGH}
		} else if p == "HTTPS" {
			s.Tls = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: "a"}
		}
		spec.Servers = append(spec.Servers, s)
	}
	k := object.Key{Kind: object.Gateway, Namespace: "shop", Name: name}
	return object.Change{Key: k, Object: &object.Object{Key: k, Spec: spec, Meta: object.Meta{Created: time.Unix(second, 0)}}}
}

// A server that another Gateway's protocol keeps from being served is told by name, in whatever order the objects come, and
// as long as the other one is there.
func TestGatewaysThatConflict(t *testing.T) {
	edge, both := map[string]string{"app": "edge"}, map[string]string{"app": "edge", "tier": "a"}
	s := config.NewStore()
	check := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, v := range s.Verdicts() {
			got = append(got, v.Key.Name+" "+v.Field+": "+v.Text)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: the verdicts are %q, want %q", what, got, want)
		}
		for i, w := range want {
			if !strings.HasPrefix(got[i], w) {
				t.Errorf("%s: verdict %q, want %q", what, got[i], w)
			}
		}
	}
	const conflict = "b spec.servers[1]: not applied: port 80 is HTTP in server 0 of Gateway shop/a, which comes first; this one is AUTO_PASSTHROUGH"
	s.Apply([]object.Change{gatewayAt("b", 2, both, "HTTP2", "TLS"), gatewayAt("c", 3, map[string]string{"app": "other"}, "TLS")})
	check("servers of one Gateway", strings.Replace(conflict, "Gateway shop/a", "Gateway shop/b", 1))
	s.Apply([]object.Change{gatewayAt("a", 1, edge, "HTTP")})
	check("an older Gateway comes", conflict)
	s.Apply([]object.Change{gatewayAt("b", 2, both, "HTTP2")})
	check("the server is gone")
	s.Apply([]object.Change{gatewayAt("b", 2, both, "TLS")})
	check("and is back", strings.Replace(conflict, "servers[1]", "servers[0]", 1))
	s.Apply([]object.Change{{Key: gatewayAt("a", 1, edge).Key}})
	check("the older Gateway is gone")
	s.Apply([]object.Change{gatewayAt("a", 1, edge, "HTTPS")})
	check("TLS that the router ends is beside the mesh's")
}
