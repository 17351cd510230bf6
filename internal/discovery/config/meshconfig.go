package config

import (
	"fmt"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Where the mesh configuration stands: ConfigMap "istio", key "mesh". [control-plane 1.3, 1.4]
const (
	MeshConfigMap = "istio"
	MeshKey       = "mesh"
)

// IsMeshConfig says whether a key is that of a ConfigMap with mesh configuration. It may
// stand in any namespace; of several, istio-system's counts, else the first by name.
func IsMeshConfig(k object.Key) bool { return k.Kind == object.ConfigMap && k.Name == MeshConfigMap }

// MeshConfig lays mesh configuration in YAML over the defaults: a field that is given
// replaces the default, also with a zero; messages and maps are merged, lists replaced.
// Unknown fields are warnings. With an error the message is nil. A verdict's Field is the
// path in the text, and its Text names the text's line; Key and Origin are for the
// caller to fill.
func MeshConfig(text string) (*meshv1.MeshConfig, []Verdict) {
	m, _, verdicts := meshConfig(text)
	return m, verdicts
}

// givenDomain is the trust domain that mesh configuration gives.
type givenDomain struct {
	name string // good or not; empty where none is given
	told bool   // false where the text cannot be parsed
}

// meshConfig is MeshConfig, and also returns the trust domain that the text gives.
func meshConfig(text string) (m *meshv1.MeshConfig, given givenDomain, verdicts []Verdict) {
	out := mesh.DefaultMeshConfig()
	const absent = "\x00"
	out.TrustDomain = absent
	c := &check{}
	var root *yamltree.Tree
	for _, doc := range yamltree.Parse([]byte(text), false) {
		switch {
		case doc.Fault != nil:
			c.parseFault(doc.Fault)
		case doc.Root == nil:
		case root != nil:
			c.parseFault(&yamltree.Fault{Line: doc.Line, Text: "a second document; mesh configuration is one"})
		default:
			root = doc.Root
		}
	}
	given.told = !Rejected(c.out)
	if root != nil && given.told {
		for _, f := range yamltree.Merge(root, "", out) {
			c.parseFault(f)
		}
	}
	if out.TrustDomain == absent {
		out.TrustDomain = mesh.DefaultTrustDomain
	} else {
		given.name = out.TrustDomain
	}
	if !Rejected(c.out) {
		c.meshConfig(out)
	}
	if Rejected(c.out) {
		return nil, given, c.out
	}
	return out, given, c.out
}

func (c *check) parseFault(f *yamltree.Fault) {
	text := f.Text
	if f.Line > 0 {
		text = fmt.Sprintf("line %d: %s", f.Line, text)
	}
	if f.Unknown {
		c.warn(f.Path, "%s", text)
		return
	}
	c.fail(f.Path, "%s", text)
}

func (c *check) meshConfig(m *meshv1.MeshConfig) {
	c.meshPort("proxyListenPort", m.ProxyListenPort)
	c.meshPort("proxyInboundListenPort", m.ProxyInboundListenPort)
	c.duration("connectTimeout", m.ConnectTimeout)
	if d := m.ProtocolDetectionTimeout; d != nil && (!d.IsValid() || d.AsDuration() < 0) {
		c.fail("protocolDetectionTimeout", "%s is negative; give 0s (never) or more", d.AsDuration())
	}
	c.duration("dnsRefreshRate", m.DnsRefreshRate)
	if !isDomain(m.TrustDomain) {
		c.fail("trustDomain", "%q is no trust domain; write a DNS name such as cluster.local", m.TrustDomain)
	}
	for i, t := range m.TrustDomainAliases {
		if !isDomain(t) {
			c.fail(item("trustDomainAliases", i), "%q is no trust domain; write a DNS name", t)
		}
	}
	if !isLabel(m.RootNamespace) {
		c.fail("rootNamespace", "%q is no namespace; write one such as istio-system", m.RootNamespace)
	}
	c.exportTo("defaultServiceExportTo", m.DefaultServiceExportTo, true)
	c.exportTo("defaultVirtualServiceExportTo", m.DefaultVirtualServiceExportTo, false)
	c.exportTo("defaultDestinationRuleExportTo", m.DefaultDestinationRuleExportTo, false)
	if p := m.DefaultHttpRetryPolicy; p != nil {
		c.retries("defaultHttpRetryPolicy", p)
	}
	if l := m.LocalityLbSetting; l != nil {
		c.locality("localityLbSetting", l)
	}
}

func (c *check) meshPort(field string, n int32) {
	if n < 1 || n > 65535 {
		c.fail(field, "%d is no port; give a number from 1 to 65535", n)
	}
}
