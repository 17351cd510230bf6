package model_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

// What the status of a Gateway says of the addresses in its spec follows its Service, and the addresses of the Service's load balancer.
func TestAddressesOfAGateway(t *testing.T) {
	g := incr.New()
	m := model.New(g, "cluster.local")
	key := object.Key{Kind: object.KubernetesGateway, Namespace: "edge", Name: "gw"}
	status := func(r *incr.Reader, _ int) string {
		s := m.GatewayStatus(r, key)
		var out []string
		for _, c := range s.Conditions {
			out = append(out, fmt.Sprintf("%s=%t/%s", c.Type, c.True, c.Reason))
			if !c.True {
				out = append(out, "("+c.Message+")")
			}
		}
		return strings.Join(out, " ")
	}
	gateway := func(addresses ...string) object.Change {
		spec := &gatewayv1.GatewaySpec{GatewayClassName: "istio", Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}}}
		for _, a := range addresses {
			kind, text, _ := strings.Cut(a, " ")
			spec.Addresses = append(spec.Addresses, gatewayv1.GatewaySpecAddress{Type: (*gatewayv1.AddressType)(&kind), Value: text})
		}
		return inCluster("", object.KubernetesGateway, "edge", "gw", nil, spec)
	}
	service := func(namespace, name string, addresses ...string) object.Change {
		spec := &object.ServiceSpec{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []object.ServicePort{{Name: "http", Port: 80}}}
		for _, a := range addresses {
			spec.ExternalAddresses = append(spec.ExternalAddresses, netip.MustParseAddr(a))
		}
		return inCluster("", object.Service, namespace, name, nil, spec)
	}
	const accepted = "Accepted=true/Accepted"
	unusable := func(message string) string { return accepted + " Programmed=false/AddressNotUsable (" + message + ")" }
	m.Apply([]object.Change{gateway()})
	g.Run()
	kept := incr.Derive(g, model.LevelCompile, "kept", status)
	kept.Want(0)
	for i, step := range []struct {
		change object.Change
		want   string
	}{
		{gateway("IPAddress 192.0.2.1"), accepted}, // as with a directory, there is no Service
		{service("edge", "gw-istio"), unusable("the load balancer of Service gw-istio has not assigned the address 192.0.2.1; it has assigned: none")},
		{service("edge", "gw-istio", "192.0.2.9"), unusable("the load balancer of Service gw-istio has not assigned the address 192.0.2.1; it has assigned: 192.0.2.9")},
		{service("edge", "gw-istio", "192.0.2.1"), accepted},
		{gateway("IPAddress 192.0.2.1", "IPAddress 2001:DB8:0::2"), unusable("the load balancer of Service gw-istio has not assigned the address 2001:DB8:0::2; it has assigned: 192.0.2.1")},
		{service("edge", "gw-istio", "192.0.2.1", "2001:db8::2"), accepted},
		{gateway("IPAddress "), accepted},
		{gateway("example.com/x y", "IPAddress 192.0.2.1"), "Accepted=false/UnsupportedAddress (address \"y\" has the type \"example.com/x\": want IPAddress, or Hostname with the name of a Service)"},
		{gateway("Hostname mine"), unusable("there is no Service mine in namespace edge, whose Pods could serve the Gateway")},
		{service("other", "mine"), unusable("there is no Service mine in namespace edge, whose Pods could serve the Gateway")},
		{service("edge", "mine"), accepted},
		{gateway("Hostname mine.edge.svc.cluster.local", "IPAddress 192.0.2.1"), unusable("the address 192.0.2.1 cannot be used: the Gateway is served by the Pods of the Service in its address of type Hostname")},
		{gateway("Hostname mine", "Hostname "), accepted + " Programmed=false/AddressNotAssigned (there is an address of type Hostname without a value: want the name of a Service in namespace edge)"},
	} {
		m.Apply([]object.Change{step.change})
		g.Run()
		if got, _ := kept.Value(0); got != step.want {
			t.Errorf("step %d: %s\nwant %s", i, got, step.want)
		}
	}
}
