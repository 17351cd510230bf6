package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// clientCertificate returns the reference to the certificate that a Gateway presents to backends; nil for none.
// [gateway-api GatewayBackendTLS]
func (g *KubernetesGateway) clientCertificate() *gatewayv1.SecretObjectReference {
	if g.Spec.TLS == nil || g.Spec.TLS.Backend == nil {
		return nil
	}
	return g.Spec.TLS.Backend.ClientCertificateRef
}

// clientSecret returns the Secret that a Gateway's reference names, and why it may not be used; empty if it may.
func (m *Model) clientSecret(r *incr.Reader, g *KubernetesGateway, ref *gatewayv1.SecretObjectReference) (of credentials.Reference, reason, why string) {
	of = credentials.Reference{From: g.Namespace, Namespace: cmp.Or(string(value(ref.Namespace)), g.Namespace), Secret: string(ref.Name)}
	switch {
	case !isSecret(*ref):
		return of, "InvalidClientCertificateRef", fmt.Sprintf("%.100s %s of group %.100q: want a Secret (group \"\")", cmp.Or(string(value(ref.Kind)), "Secret"), ref.Name, string(value(ref.Group)))
	case !m.Permitted(r, object.Gateway, g.Namespace, of.Namespace, "", "Secret", of.Secret):
		return of, "RefNotPermitted", fmt.Sprintf("no ReferenceGrant in namespace %s permits Secret %s", of.Namespace, of.Secret)
	}
	return of, "", ""
}

// ClientCertificate returns the name of the secret with the certificate that routers of a scope present to backends of BackendTLSPolicies; empty
// for none. Of several Gateways that the same routers serve, the oldest with a certificate counts. One that must not be used is the name of a
// secret that does not exist, so that no connection is made without a certificate. [control-plane 1.11.7]
func (m *Model) ClientCertificate(r *incr.Reader, s mesh.ScopeID) string {
	var best *KubernetesGateway
	for _, field := range strings.Fields(s.Value().Gateways) {
		key, is := strings.CutPrefix(field, kubernetesPrefix)
		if !is {
			continue
		}
		if g, exists := incr.Get(r, m.tables.kubernetes, key); exists && g.clientCertificate() != nil && (best == nil || g.Older(best.Row)) {
			best = g
		}
	}
	if best == nil {
		return ""
	}
	return m.presented(r, best)
}

// presented returns the name of the secret with the client certificate of a Gateway that has one.
func (m *Model) presented(r *incr.Reader, g *KubernetesGateway) string {
	of, _, why := m.clientSecret(r, g, g.clientCertificate())
	if why != "" {
		return credentials.GatewayPrefix + g.Namespace + "/"
	}
	return credentials.GatewayPrefix + of.Namespace + "/" + of.Secret
}

// referencesResolved returns the condition ResolvedRefs of a Gateway that presents a certificate to backends; false for one that does not. It also says
// whether those of the listeners are True.
func (m *Model) referencesResolved(r *incr.Reader, g *KubernetesGateway, listeners []object.ListenerStatus) (c object.GatewayCondition, has bool) {
	ref := g.clientCertificate()
	if ref == nil {
		return c, false
	}
	no := func(reason, text string, args ...any) (object.GatewayCondition, bool) {
		return object.GatewayCondition{Type: "ResolvedRefs", Reason: reason, Message: fmt.Sprintf(text, args...)}, true
	}
	of, reason, why := m.clientSecret(r, g, ref)
	if why != "" {
		return no(reason, "%s", why)
	}
	if why, bad := incr.Get(r, m.tables.faults, of.Namespace+"/"+of.Secret); bad {
		return no("InvalidClientCertificateRef", "Secret %s in namespace %s: %s", of.Secret, of.Namespace, why)
	}
	if other := m.presentsInstead(r, g); other != nil {
		return no("ClientCertificateConflict", "the Pods of the Gateway present the client certificate of the older Gateway %s, which they serve, too", other.Name)
	}
	unresolved := 0
	for _, l := range listeners {
		if slices.ContainsFunc(l.Conditions, func(c object.GatewayCondition) bool { return c.Type == "ResolvedRefs" && !c.True }) {
			unresolved++
		}
	}
	if unresolved > 0 {
		return no(string(gatewayv1.GatewayReasonListenersNotResolved), "references of %d of %d listeners are not resolved", unresolved, len(listeners))
	}
	return object.GatewayCondition{Type: "ResolvedRefs", True: true, Reason: "ResolvedRefs"}, true
}

// presentsInstead returns the oldest Gateway whose addresses name a Service that those of a Gateway name, too, if its client certificate is another one
// than the Gateway's; else nil.
func (m *Model) presentsInstead(r *incr.Reader, g *KubernetesGateway) *KubernetesGateway {
	mine := m.addressHosts(g)
	if len(mine) == 0 {
		return nil
	}
	best := g
	for _, other := range incr.In(r, m.tables.kubernetes, namespaceBucket(g.Namespace)) {
		if other.clientCertificate() != nil && other.Older(best.Row) && m.OurClass(r, string(other.Spec.GatewayClassName)) &&
			slices.ContainsFunc(m.addressHosts(other), func(h string) bool { return slices.Contains(mine, h) }) {
			best = other
		}
	}
	if m.presented(r, best) == m.presented(r, g) {
		return nil
	}
	return best
}

// addressHosts are the hosts of the Services whose Pods serve a Gateway; none for one for which a Service is made.
func (m *Model) addressHosts(g *KubernetesGateway) (out []string) {
	if g.deployed != "" {
		return nil
	}
	for _, a := range g.Spec.Addresses {
		if value(a.Type) == gatewayv1.HostnameAddressType {
			out = append(out, mesh.FullHost(a.Value, g.Namespace, m.domain))
		}
	}
	return out
}
