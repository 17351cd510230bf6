package config

import (
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

func (c *check) service(s *object.ServiceSpec, m object.Meta) {
	if !slices.Contains([]string{"", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"}, s.Type) {
		c.fail("spec.type", "invalid type %q: want ClusterIP, NodePort, LoadBalancer or ExternalName", s.Type)
	}
	if s.Type == "ExternalName" && !isDomain(s.ExternalName) && !isIP(s.ExternalName) {
		c.fail("spec.externalName", "invalid DNS name %q, which a Service of type ExternalName needs", s.ExternalName)
	}
	type portKey struct {
		protocol string
		port     uint32
	}
	var names []string
	var numbers []portKey
	for i, p := range s.Ports {
		at := item("spec.ports", i)
		c.port(at+".port", p.Port, false)
		c.port(at+".targetPort", p.TargetPort, true)
		if p.Name == "" && len(s.Ports) > 1 {
			c.fail(at+".name", "is missing; each port of a Service with several ports needs a name")
		}
		if p.Name != "" && !isLabel(p.Name) {
			c.fail(at+".name", "invalid port name %q: want letters, digits and \"-\"", p.Name)
		}
		if !slices.Contains([]string{"", "TCP", "UDP", "SCTP"}, p.Protocol) {
			c.fail(at+".protocol", "invalid protocol %q: want TCP, UDP or SCTP; the application's protocol goes into appProtocol", p.Protocol)
		}
		if p.Name != "" {
			names = append(names, p.Name)
		}
		numbers = append(numbers, portKey{p.Protocol, p.Port})
	}
	once(names, func(_ int, n string) { c.fail("spec.ports", "duplicate port name %q; rename one", n) })
	once(numbers, func(i int, k portKey) {
		c.fail(item("spec.ports", i)+".port", "duplicate port %d; remove one", k.port)
	})
	c.preference("spec.trafficDistribution", s.TrafficDistribution)
	c.distribution(m)
	c.sessions(m)
	if list := m.Annotations[mesh.ExportToAnnotation]; list != "" {
		var namespaces []string
		for ns := range strings.SplitSeq(list, ",") {
			namespaces = append(namespaces, strings.TrimSpace(ns))
		}
		c.exportTo("metadata.annotations["+mesh.ExportToAnnotation+"]", namespaces, true)
	}
}

// sessions checks the labels that keep the requests of a session at one endpoint.
func (c *check) sessions(m object.Meta) {
	cookie, header := m.Labels[mesh.SessionLabel], m.Labels[mesh.SessionHeaderLabel]
	at := func(label string) string { return "metadata.labels[" + label + "]" }
	if cookie != "" {
		name, path := mesh.SessionCookie(cookie)
		if !isToken(name) {
			c.fail(at(mesh.SessionLabel), "invalid name of a cookie %q: want letters, digits, \"-\", \"_\" and \".\"", name)
		}
		if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' || r == ';' }) {
			c.fail(at(mesh.SessionLabel), "invalid path of a cookie %q: want one such as /shop", path)
		}
	}
	if header != "" && !isToken(header) {
		c.fail(at(mesh.SessionHeaderLabel), "invalid name of a header %q: want letters, digits, \"-\", \"_\" and \".\"", header)
	}
	if cookie != "" && header != "" {
		c.warn(at(mesh.SessionHeaderLabel), "not applied: %s keeps sessions by a cookie", mesh.SessionLabel)
	}
}

// distribution checks the annotation that says which endpoints to prefer.
func (c *check) distribution(m object.Meta) {
	c.preference("metadata.annotations["+mesh.DistributionAnnotation+"]", m.Annotations[mesh.DistributionAnnotation])
}

// preference checks which endpoints are preferred. It is a warning, since Kubernetes has other values for its own proxies.
func (c *check) preference(field, value string) {
	if _, ok := mesh.ParsePreference(value); !ok {
		c.warn(field, "not applied: unknown preference %q: want PreferClose, PreferSameZone or PreferSameNode", value)
	}
}

func (c *check) endpointSlice(s *object.EndpointSliceSpec) {
	if s.Service == "" {
		c.warn("metadata.labels", "label kubernetes.io/service-name is missing: the slice does not belong to a Service")
	}
	for i, p := range s.Ports {
		c.port(item("ports", i)+".port", p.Port, false)
	}
}

func (c *check) pod(s *object.PodSpec) {
	for i, p := range s.Ports {
		if p.Port == 0 || p.Port > 65535 {
			c.fail("spec.containers", "invalid port %d (%q, port %d of the Pod): want 1–65535", p.Port, p.Name, i+1)
		}
	}
}

// configMap checks mesh configuration; other ConfigMaps are not used.
func (c *check) configMap(s *object.ConfigMapSpec) {
	if text, ok := s.Data[MeshKey]; ok && mayHaveMesh(c.key) {
		_, verdicts := MeshConfig(text)
		c.reportIn("data."+MeshKey, verdicts)
	}
	if text, ok := s.Data[NetworksKey]; ok && mayHaveMesh(c.key) {
		_, verdicts := MeshNetworks(text)
		c.reportIn("data."+NetworksKey, verdicts)
	}
}

// reportIn reports the verdicts about the text of a field.
func (c *check) reportIn(at string, verdicts []Verdict) {
	for _, v := range verdicts {
		field := at
		if v.Field != "" {
			field += "." + v.Field
		}
		c.report(v.Severity, field, "%s", v.Text)
	}
}

// secret checks a Secret that is for TLS. One of which a part is wrong is rejected, so that the last good certificate stays; what
// is wrong is told without contents.
func (c *check) secret(s *object.SecretSpec) {
	if _, err := credentials.Parse(s.Data); err != nil && !credentials.IsOther(err) {
		c.fail("data", "%v", err)
	}
}
