package config

import (
	"net/netip"
	"slices"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// NetworksKey is the key of the ConfigMap "istio" with the networks of the mesh. [control-plane 1.3.14]
const NetworksKey = "meshNetworks"

// MeshNetworks parses and validates the networks of a mesh in YAML. Unknown fields are warnings. If there is an error,
// the message is nil. Key and Origin of the verdicts are empty.
func MeshNetworks(text string) (*meshv1.MeshNetworks, []Verdict) {
	out := &meshv1.MeshNetworks{}
	c := &check{}
	root := c.oneDocument(text)
	if root != nil && !Rejected(c.out) {
		for _, f := range yamltree.Merge(root, "", out) {
			c.parseFault(f)
		}
	}
	if !Rejected(c.out) {
		c.networks(out)
	}
	if Rejected(c.out) {
		return nil, c.out
	}
	return out, c.out
}

func (c *check) networks(m *meshv1.MeshNetworks) {
	for _, name := range sorted(m.GetNetworks()) {
		at := entry("networks", name)
		n := m.Networks[name]
		if !isLabelText(name) || name == "" {
			c.fail(at, "invalid name of a network %q: want the value of a label", name)
		}
		for i, e := range n.GetEndpoints() {
			field := item(at+".endpoints", i)
			switch ne := e.GetNe().(type) {
			case *meshv1.Network_NetworkEndpoints_FromCidr:
				if _, err := netip.ParsePrefix(ne.FromCidr); err != nil {
					c.fail(field+".fromCidr", "invalid range %q: want one such as 10.0.0.0/8", ne.FromCidr)
				}
			case *meshv1.Network_NetworkEndpoints_FromRegistry:
				if ne.FromRegistry == "" {
					c.fail(field+".fromRegistry", "empty: want the ID of a cluster")
				}
			default:
				c.fail(field, "want fromRegistry or fromCidr")
			}
		}
		for i, g := range n.GetGateways() {
			field := item(at+".gateways", i)
			if g.GetPort() > 65535 {
				c.fail(field+".port", "invalid port %d: want 1–65535, or 0 for 15443", g.GetPort())
			}
			switch gw := g.GetGw().(type) {
			case *meshv1.Network_IstioNetworkGateway_Address:
				if !isIP(gw.Address) {
					c.fail(field+".address", "invalid IP address %q: want one such as 192.0.2.1: names of gateways are not resolved", gw.Address)
				}
			case *meshv1.Network_IstioNetworkGateway_RegistryServiceName:
				if !isHost(gw.RegistryServiceName) || !strings.Contains(gw.RegistryServiceName, ".") {
					c.fail(field+".registryServiceName", "invalid host %q: want the full name of a Service such as istio-eastwestgateway.istio-system.svc.cluster.local", gw.RegistryServiceName)
				}
			default:
				c.fail(field, "want address or registryServiceName")
			}
			if g.GetLocality() != "" {
				c.warn(field+".locality", "not applied: a gateway has the locality of the endpoints that it stands before")
			}
		}
	}
}

// networksText returns an object's networks, "" if it has none.
func networksText(o *object.Object) string {
	if s, ok := o.Spec.(*object.ConfigMapSpec); ok && mayHaveMesh(o.Key) {
		return s.Data[NetworksKey]
	}
	return ""
}

// Networks returns the networks of the mesh in force, nil if there are none: those of the object that MeshConfig is
// read from. The message is shared and must not be modified.
func (s *Store) Networks() *meshv1.MeshNetworks {
	for _, k := range s.meshKeys() {
		if o := s.good[k]; o != nil && networksText(o) != "" {
			n, _ := MeshNetworks(networksText(o)) // it was valid when it was stored
			return n
		}
	}
	return nil
}

// configSources checks where configuration is read from.
func (c *check) configSources(m *meshv1.MeshConfig) {
	var seen []string
	for i, s := range m.GetConfigSources() {
		at := item("configSources", i)
		address := s.GetAddress()
		path, directory := strings.CutPrefix(address, "fs://")
		switch {
		case directory && !strings.HasPrefix(path, "/"):
			c.fail(at+".address", "invalid directory %q: want one such as fs:///etc/config", address)
		case directory && slices.Contains(seen, path):
			c.warn(at+".address", "%q is listed twice", address)
		case !directory && !strings.HasPrefix(address, "k8s://"):
			c.warn(at+".address", "not applied: %q: want fs:///DIRECTORY or k8s://", address)
		}
		seen = append(seen, path)
	}
}
