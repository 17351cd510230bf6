package config

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// The mesh configuration is in ConfigMap "istio", key "mesh"; that of a revision in "istio-REVISION". [control-plane 1.3, 1.4, 1.16.6]
const (
	MeshConfigMap = "istio"
	MeshKey       = "mesh"
)

// MeshConfigKey is the key of the ConfigMap with the mesh configuration of a control plane, by its namespace and revision; that
// of the default revision is "default" or empty.
func MeshConfigKey(namespace, revision string) object.Key {
	k := object.Key{Kind: object.ConfigMap, Namespace: namespace, Name: MeshConfigMap}
	if revision != "" && revision != "default" {
		k.Name += "-" + revision
	}
	return k
}

// mayHaveMesh reports whether a ConfigMap may have mesh configuration, of any revision.
func mayHaveMesh(k object.Key) bool {
	return k.Kind == object.ConfigMap && (k.Name == MeshConfigMap || strings.HasPrefix(k.Name, MeshConfigMap+"-"))
}

// MeshFileKey is the key of the object with the contents of the mesh configuration file. Its namespace
// is not a valid name, so that no source reports it.
var MeshFileKey = object.Key{Kind: object.ConfigMap, Namespace: "(file)", Name: MeshConfigMap}

// IsMeshConfig reports whether the object with a key may be the mesh configuration of a control plane: the
// ConfigMap with the key own, or the file. Whoever may write ConfigMaps of other namespaces must not decide about the mesh.
func IsMeshConfig(k, own object.Key) bool { return k == MeshFileKey || k == own }

// meshText returns an object's mesh configuration, "" if it has none. The object may be in any namespace.
func meshText(o *object.Object) string {
	if s, ok := o.Spec.(*object.ConfigMapSpec); ok && mayHaveMesh(o.Key) {
		return s.Data[MeshKey]
	}
	return ""
}

// IsMeshConfig is the function of that name for the store's control plane.
func (s *Store) IsMeshConfig(k object.Key) bool { return IsMeshConfig(k, s.own) }

// validate is Validate, and also considers what the store knows: in which namespace mesh configuration
// is read, and the trust domain in force.
func (s *Store) validate(before, o *object.Object) []Verdict {
	if meshText(o) != "" && !s.IsMeshConfig(o.Key) {
		if o.Namespace == s.own.Namespace {
			return nil // another revision's
		}
		c := &check{key: o.Key, origin: o.Origin}
		c.warn("data."+MeshKey, "not used: mesh configuration is read from namespace %s only, which is that of the control plane; move it there, or remove it", s.own.Namespace)
		return c.out
	}
	return slices.Concat(Validate(*o), s.trust.check(before, o), s.trust.unusedRoots(o))
}

// MeshConfig parses and validates mesh configuration in YAML and merges it into the defaults: a field
// that is present replaces the default, even if its value is zero; messages and maps are merged, lists
// are replaced. Unknown fields are warnings. If there is an error, the message is nil. The Field of a
// verdict is the path in the text, and its Text names the line; Key and Origin are empty.
func MeshConfig(text string) (*meshv1.MeshConfig, []Verdict) {
	m, _, verdicts := meshConfig(text)
	return m, verdicts
}

// givenDomain is the trust domain that mesh configuration sets.
type givenDomain struct {
	name  string // valid or not; empty if none is set
	known bool   // false if the text cannot be parsed
}

// meshConfig is MeshConfig, and also returns the trust domain that the text sets.
func meshConfig(text string) (m *meshv1.MeshConfig, given givenDomain, verdicts []Verdict) {
	out := mesh.DefaultMeshConfig()
	const absent = "\x00"
	out.TrustDomain = absent
	c := &check{}
	root := c.oneDocument(text)
	given.known = !Rejected(c.out)
	if root != nil && given.known {
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

// oneDocument parses YAML that has one document, nil if it has none or cannot be parsed.
func (c *check) oneDocument(text string) (root *yamltree.Tree) {
	for _, doc := range yamltree.Parse([]byte(text), false) {
		switch {
		case doc.Fault != nil:
			c.parseFault(doc.Fault)
		case doc.Root == nil:
		case root != nil:
			c.parseFault(&yamltree.Fault{Line: doc.Line, Text: "a second document; want one document"})
		default:
			root = doc.Root
		}
	}
	return root
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

// discoverySelectors checks what package scope selects namespaces by.
func (c *check) discoverySelectors(all []*meshv1.LabelSelector) {
	for i, s := range all {
		for j, e := range s.GetMatchExpressions() {
			at := item(item("discoverySelectors", i)+".matchExpressions", j)
			switch op := e.GetOperator(); op {
			case "In", "NotIn":
				if len(e.GetValues()) == 0 {
					c.fail(at+".values", "empty: want the values that %s compares with", op)
				}
			case "Exists", "DoesNotExist":
				if len(e.GetValues()) > 0 {
					c.fail(at+".values", "want none with %s", op)
				}
			default:
				c.fail(at+".operator", "invalid operator %q: want In, NotIn, Exists or DoesNotExist", op)
			}
			if e.GetKey() == "" {
				c.fail(at+".key", "empty: want the name of a label")
			}
		}
	}
}

func (c *check) meshConfig(m *meshv1.MeshConfig) {
	c.discoverySelectors(m.DiscoverySelectors)
	c.configSources(m)
	c.meshPort("proxyListenPort", m.ProxyListenPort)
	c.meshPort("proxyInboundListenPort", m.ProxyInboundListenPort)
	c.duration("connectTimeout", m.ConnectTimeout)
	if d := m.ProtocolDetectionTimeout; d != nil && (!d.IsValid() || d.AsDuration() < 0) {
		c.fail("protocolDetectionTimeout", "invalid duration %s: want 0s (no limit) or more", d.AsDuration())
	}
	c.duration("dnsRefreshRate", m.DnsRefreshRate)
	if !isDomain(m.TrustDomain) {
		c.fail("trustDomain", "invalid trust domain %q: want a DNS name such as cluster.local", m.TrustDomain)
	}
	for i, t := range m.TrustDomainAliases {
		if !isDomain(t) {
			c.fail(item("trustDomainAliases", i), "invalid trust domain %q: want a DNS name", t)
		}
	}
	if !isLabel(m.RootNamespace) {
		c.fail("rootNamespace", "invalid namespace %q: want a name such as istio-system", m.RootNamespace)
	}
	if m.GetIngressService() == "" && m.GetIngressControllerMode() != meshv1.MeshConfig_OFF {
		c.warn("ingressService", "not applied to statuses: the addresses of Nodes are not written to Ingresses; name the Service of their gateways, such as istio-ingressgateway")
	}
	if m.GetEnableEnvoyAccessLogService() && m.GetDefaultConfig().GetEnvoyAccessLogService().GetAddress() == "" {
		c.warn("enableEnvoyAccessLogService", "not applied to proxies whose own ProxyConfig has no envoyAccessLogService.address: defaultConfig has none")
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
	if z := m.ZoneAwareLbSetting; z != nil {
		c.zones("zoneAwareLbSetting", z)
	}
	if d := m.DefaultTrafficPolicy; d != nil {
		c.portPolicy("defaultTrafficPolicy", nil, d.ConnectionPool, d.OutlierDetection, nil)
	}
	if f := m.AccessLogFormat; f != "" && m.AccessLogEncoding == meshv1.MeshConfig_JSON {
		labels := &structpb.Struct{}
		if err := protojson.Unmarshal([]byte(f), labels); err != nil {
			c.fail("accessLogFormat", "want a JSON object, which accessLogEncoding JSON needs: %s", strings.ReplaceAll(err.Error(), "\u00a0", " "))
		}
		c.labelCommands("accessLogFormat", structpb.NewStructValue(labels))
	} else {
		c.commands("accessLogFormat", f)
	}
	c.extensionProviders(m)
	c.externalAuthorizers(m)
	c.tlsConfig("meshMTLS", m.MeshMTLS)
	c.tlsConfig("tlsDefaults", m.TlsDefaults)
	c.caCertificates(m.CaCertificates)
	c.unknownHosts(m.GetOutboundTrafficPolicy())
	c.meshNotApplied(m)
}

func (c *check) meshPort(field string, n int32) {
	if n < 1 || n > 65535 {
		c.fail(field, "invalid port %d: want 1–65535", n)
	}
}

// unknownHosts checks how hosts are reached that the mesh does not know.
func (c *check) unknownHosts(p *meshv1.MeshConfig_OutboundTrafficPolicy) {
	t := p.GetTls()
	if t == nil {
		return
	}
	if p.Mode != meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS {
		c.fail("outboundTrafficPolicy.tls", "mode %s makes connections to unknown hosts without this TLS; remove it, or use ALLOW_ANY_DYNAMIC_DNS", p.Mode)
	}
	c.clientTLS("outboundTrafficPolicy.tls", t)
	if t.CredentialName != "" {
		c.fail("outboundTrafficPolicy.tls.credentialName", "sidecars that no rule selects get no Secrets, and nothing could be sent; use files")
	}
}
