package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/deploy"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// unsupportedAddress returns an address of a Gateway whose type is not supported. [gateway-api GatewayReasonUnsupportedAddress]
func (g *KubernetesGateway) unsupportedAddress() (gatewayv1.GatewaySpecAddress, bool) {
	for _, a := range g.Spec.Addresses {
		if a.Type != nil && *a.Type != gatewayv1.IPAddressType && *a.Type != gatewayv1.HostnameAddressType {
			return a, true
		}
	}
	return gatewayv1.GatewaySpecAddress{}, false
}

// addressFault returns the condition Programmed of a Gateway with an address in its spec at which it cannot be reached; reached are those at
// which it can. While there is no Service for it, as with a directory, nothing is known. [gateway-api GatewayReasonAddressNotUsable]
func (m *Model) addressFault(r *incr.Reader, g *KubernetesGateway, reached []object.GatewayAddress) (object.GatewayCondition, bool) {
	no := func(reason, text string, args ...any) (object.GatewayCondition, bool) {
		return object.GatewayCondition{Type: "Programmed", Reason: reason, Message: fmt.Sprintf(text, args...)}, true
	}
	if g.deployed != "" {
		if len(reached) == 0 {
			return object.GatewayCondition{}, false
		}
		var have []string
		for _, a := range reached {
			if a.Type == "IPAddress" {
				have = append(have, a.Value)
			}
		}
		for _, want := range deploy.Requested(g.Spec) {
			if !slices.ContainsFunc(have, func(a string) bool { return sameAddress(a, want) }) {
				return no("AddressNotUsable", "the load balancer of Service %s has not assigned the address %.100s; it has assigned: %s", g.deployed, want, strings.Join(append(have, "none")[:max(len(have), 1)], ", "))
			}
		}
		return object.GatewayCondition{}, false
	}
	for _, a := range g.Spec.Addresses {
		switch {
		case value(a.Type) != gatewayv1.HostnameAddressType:
			return no("AddressNotUsable", "the address %.100s cannot be used: the Gateway is served by the Pods of the Service in its address of type Hostname", a.Value)
		case a.Value == "":
			return no("AddressNotAssigned", "there is an address of type Hostname without a value: want the name of a Service in namespace %s", g.Namespace)
		case !m.hasServiceOf(r, mesh.FullHost(a.Value, g.Namespace, m.domain), g.Namespace):
			return no("AddressNotUsable", "there is no Service %.100s in namespace %s, whose Pods could serve the Gateway", a.Value, g.Namespace)
		}
	}
	return object.GatewayCondition{}, false
}

// hasServiceOf reports whether a Service of a namespace has a host.
func (m *Model) hasServiceOf(r *incr.Reader, host, namespace string) bool {
	for _, s := range incr.In(r, m.tables.services, "host:"+mesh.HostName(host)) {
		if s.Source.Kubernetes && s.Namespace == namespace {
			return true
		}
	}
	return false
}

// sameAddress reports whether two texts are the same IP address.
func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, other := netip.ParseAddr(b)
	return err == nil && other == nil && x == y
}
