package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// BackendTLSPolicy is a row.
type BackendTLSPolicy struct {
	Row
	Spec *gatewayv1.BackendTLSPolicySpec
}

// bundle is what the key ca.crt of a ConfigMap has: certificates in PEM, or why there are none.
type bundle struct{ pem, fault string }

// bundleKey is the key of a ConfigMap with certificates of CAs. [gateway-api BackendTLSPolicy]
const bundleKey = "ca.crt"

// maxAncestors is how many ancestors the status of a policy may have.
const maxAncestors = 16

// BackendTLS is how gateways connect to a port of a Service by a BackendTLSPolicy.
type BackendTLS struct {
	Policy Row
	// Why says why the policy is invalid, so that no connection may be made; empty if it is valid.
	Why string
	// ServerName is that of the handshake. The server's certificate must have one of the DNS names or URIs.
	ServerName string
	DNS, URIs  []string
	// CA are the certificates that it is verified with, in PEM; empty for those of the system.
	CA string
}

// isServiceTarget reports whether a target of a policy is a Service.
func isServiceTarget(t gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
	return t.Group == "" && t.Kind == "Service" && t.Name != ""
}

func putBackendTLS(m *Model, o *object.Object, spec *gatewayv1.BackendTLSPolicySpec) {
	var buckets []string
	for _, t := range spec.TargetRefs {
		if isServiceTarget(t) {
			buckets = append(buckets, hostBucket(m.serviceHost(o.Namespace, string(t.Name))))
		}
	}
	m.tables.policies.Put(rowKey(o.Key), &BackendTLSPolicy{Row: rowOf(o), Spec: spec}, buckets...)
}

// putBundle stores the certificates of a ConfigMap. Most ConfigMaps have none.
func putBundle(m *Model, o *object.Object, spec *object.ConfigMapSpec) {
	text, has := spec.Data[bundleKey]
	if !has {
		m.tables.bundles.Delete(rowKey(o.Key))
		return
	}
	b := bundle{pem: text}
	if c, err := credentials.Parse(map[string][]byte{bundleKey: []byte(text)}); err != nil || len(c.CA) == 0 {
		b = bundle{fault: "the key " + bundleKey + " has no certificates in PEM, or something else"}
	}
	m.tables.bundles.Put(rowKey(o.Key), b)
}

// older reports whether a policy has precedence over another one for the same target.
func (p *BackendTLSPolicy) older(other *BackendTLSPolicy) bool { return p.Row.Older(other.Row) }

// targets reports whether a policy names a section of the Service of a host.
func (m *Model) targets(p *BackendTLSPolicy, host, section string) bool {
	return slices.ContainsFunc(p.Spec.TargetRefs, func(t gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
		return isServiceTarget(t) && m.serviceHost(p.Namespace, string(t.Name)) == host && string(value(t.SectionName)) == section
	})
}

// policyAt returns the policy in force among those that name a section of the Service of a host; nil if there is none.
func (m *Model) policyAt(r *incr.Reader, host, section string) (best *BackendTLSPolicy) {
	for _, p := range incr.In(r, m.tables.policies, hostBucket(host)) {
		if m.targets(p, host, section) && (best == nil || p.older(best)) {
			best = p
		}
	}
	return best
}

// BackendTLS returns how gateways connect to a port of a service, as the oldest BackendTLSPolicy for the port's name says, else the oldest one
// for the whole Service; nil if there is none. [control-plane 1.11.7]
func (m *Model) BackendTLS(r *incr.Reader, s *Service, port Port) *BackendTLS {
	if !s.Source.Kubernetes {
		return nil
	}
	var p *BackendTLSPolicy
	if port.Name != "" {
		p = m.policyAt(r, s.Host, port.Name)
	}
	if p == nil {
		p = m.policyAt(r, s.Host, "")
	}
	if p == nil {
		return nil
	}
	out := &BackendTLS{Policy: p.Row, ServerName: string(p.Spec.Validation.Hostname)}
	if out.Why = p.invalid(); out.Why != "" {
		return out
	}
	for _, n := range p.Spec.Validation.SubjectAltNames {
		if n.Type == gatewayv1.URISubjectAltNameType {
			out.URIs = append(out.URIs, string(n.URI))
		} else {
			out.DNS = append(out.DNS, string(n.Hostname))
		}
	}
	if len(out.DNS)+len(out.URIs) == 0 {
		out.DNS = []string{out.ServerName}
	}
	if len(p.Spec.Validation.CACertificateRefs) > 0 {
		found, faults := m.bundlesOf(r, p)
		if out.CA = strings.Join(found, "\n"); len(found) == 0 {
			out.Why = faults[0].Message
		}
	}
	return out
}

// invalid returns why a policy cannot be applied, whatever else exists; empty if it can. In a cluster, the API server refuses most of this.
func (p *BackendTLSPolicy) invalid() string {
	v := p.Spec.Validation
	named, known := len(v.CACertificateRefs) > 0, value(v.WellKnownCACertificates)
	switch {
	case v.Hostname == "" || strings.Contains(string(v.Hostname), "*"):
		return "the hostname is missing, or has a wildcard"
	case named == (known != ""):
		return "want either caCertificateRefs or wellKnownCACertificates"
	case !named && known != gatewayv1.WellKnownCACertificatesSystem:
		return fmt.Sprintf("unknown wellKnownCACertificates %.100q: want System", string(known))
	}
	for _, n := range v.SubjectAltNames {
		host, uri := n.Type == gatewayv1.HostnameSubjectAltNameType && n.Hostname != "", n.Type == gatewayv1.URISubjectAltNameType && n.URI != ""
		if !host && !uri {
			return fmt.Sprintf("a subjectAltName of type %.100q without a value: want Hostname with hostname, or URI with uri", string(n.Type))
		}
	}
	return ""
}

// bundlesOf returns the certificates that a policy names, in its order, and the conditions of those references that are invalid.
func (m *Model) bundlesOf(r *incr.Reader, p *BackendTLSPolicy) (found []string, faults []object.GatewayCondition) {
	no := func(reason, text string, args ...any) {
		faults = append(faults, object.GatewayCondition{Type: "ResolvedRefs", Reason: reason, Message: fmt.Sprintf(text, args...)})
	}
	size := 0
	for _, ref := range p.Spec.Validation.CACertificateRefs {
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			no("InvalidKind", "%.100s %s: want a ConfigMap", ref.Kind, ref.Name)
			continue
		}
		b, exists := incr.Get(r, m.tables.bundles, p.Namespace+"/"+string(ref.Name))
		size += len(b.pem)
		switch {
		case !exists:
			no("InvalidCACertificateRef", "there is no ConfigMap %s with the key %s in namespace %s", ref.Name, bundleKey, p.Namespace)
		case b.fault != "":
			no("InvalidCACertificateRef", "ConfigMap %s in namespace %s: %s", ref.Name, p.Namespace, b.fault)
		case size > credentials.MaxBytes:
			no("InvalidCACertificateRef", "ConfigMap %s in namespace %s: all certificates of a policy are %d bytes: want at most %d", ref.Name, p.Namespace, size, credentials.MaxBytes)
		default:
			found = append(found, b.pem)
		}
	}
	return found, faults
}

// backendTLSStatus returns what the status of a BackendTLSPolicy says: the same for each Gateway with a route to one of its Services, which
// are its ancestors.
func (m *Model) backendTLSStatus(r *incr.Reader, p *BackendTLSPolicy) *object.GatewayStatus {
	accepted := object.GatewayCondition{Type: "Accepted", True: true, Reason: "Accepted"}
	resolved := object.GatewayCondition{Type: "ResolvedRefs", True: true, Reason: "ResolvedRefs"}
	if found, faults := m.bundlesOf(r, p); len(faults) > 0 {
		resolved = faults[0]
		if len(found) == 0 {
			accepted = object.GatewayCondition{Type: "Accepted", Reason: "NoValidCACertificate", Message: resolved.Message}
		}
	}
	if why := p.invalid(); why != "" {
		accepted = object.GatewayCondition{Type: "Accepted", Reason: "Invalid", Message: why}
	}
	ancestors := map[string]*KubernetesGateway{}
	for _, t := range p.Spec.TargetRefs {
		if !isServiceTarget(t) {
			if accepted.True {
				accepted = object.GatewayCondition{Type: "Accepted", Reason: "TargetNotFound", Message: fmt.Sprintf("%.100s %s: want a Service", t.Kind, t.Name)}
			}
			continue
		}
		host, section := m.serviceHost(p.Namespace, string(t.Name)), string(value(t.SectionName))
		m.gatewaysTo(r, host, ancestors)
		service := m.kubernetesService(r, p.Namespace, string(t.Name))
		switch best := m.policyAt(r, host, section); {
		case !accepted.True:
		case service == nil:
			accepted = object.GatewayCondition{Type: "Accepted", Reason: "TargetNotFound", Message: fmt.Sprintf("there is no Service %s in namespace %s", t.Name, p.Namespace)}
		case section != "" && !slices.ContainsFunc(service.Ports, func(port Port) bool { return port.Name == section }):
			accepted = object.GatewayCondition{Type: "Accepted", Reason: "TargetNotFound", Message: fmt.Sprintf("Service %s has no port named %s", t.Name, section)}
		case best != nil && best.Row != p.Row:
			accepted = object.GatewayCondition{Type: "Accepted", Reason: "Conflicted", Message: fmt.Sprintf("the older BackendTLSPolicy %s counts for Service %s", best.Name, t.Name)}
		}
	}
	out := &object.GatewayStatus{Kind: object.BackendTLSPolicy}
	for _, key := range slices.Sorted(maps.Keys(ancestors)) {
		if len(out.Parents) == maxAncestors {
			break
		}
		g := ancestors[key]
		out.Parents = append(out.Parents, object.ParentStatus{
			Group: gatewayAPI, Kind: "Gateway", Namespace: g.Namespace, Name: g.Name, Conditions: []object.GatewayCondition{accepted, resolved},
		})
	}
	return out
}

// gatewaysTo adds the Gateways that are served and have a route to the Service of a host.
func (m *Model) gatewaysTo(r *incr.Reader, host string, into map[string]*KubernetesGateway) {
	for _, route := range incr.In(r, m.tables.routes, backendBucket(host)) {
		for _, p := range route.Parents {
			if !isGateway(p) && !isListenerSet(p) {
				continue
			}
			if g, _, _, ours := m.parentListeners(r, route, p); ours {
				if c, _ := m.acceptedBy(r, route, p); c.True {
					into[g.Key()] = g
				}
			}
		}
	}
}

// backendBucket is the bucket of the routes of the Gateway API to the Service of a host.
func backendBucket(host string) string { return "backend:" + mesh.HostName(host) }
