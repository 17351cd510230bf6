package model

import (
	"cmp"
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

// validationOf returns how a listener of a Gateway is to verify the certificates of its clients; nil if it is not to. The settings of a port
// replace those for all ports. [gateway-api FrontendTLSConfig]
func validationOf(g *KubernetesGateway, l listenerOf) *gatewayv1.FrontendTLSValidation {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil || l.spec.Protocol != gatewayv1.HTTPSProtocolType {
		return nil
	}
	for _, p := range g.Spec.TLS.Frontend.PerPort {
		if uint32(p.Port) == l.Port {
			return p.TLS.Validation
		}
	}
	return g.Spec.TLS.Frontend.Default.Validation
}

// withClientCA returns the server of a listener with what its Gateway says about certificates of clients. Without any certificate to verify them
// with, the listener is not served.
func (m *Model) withClientCA(r *incr.Reader, g *KubernetesGateway, l listenerOf) Server {
	v, s := validationOf(g, l), l.Server
	if v == nil {
		return s
	}
	tls := listenerTLS(s.Gateway.Namespace, nil)
	if found, _ := m.clientRoots(r, g, v); len(found) > 0 {
		s.ClientCA = strings.Join(found, "\n")
		tls = s.Spec.Tls.DeepCopy()
		tls.Mode = networking.ServerTLSSettings_MUTUAL
		if v.Mode == gatewayv1.AllowInsecureFallback {
			tls.Mode = networking.ServerTLSSettings_OPTIONAL_MUTUAL
		}
	}
	s.Spec = &networking.Server{Port: s.Spec.Port, Hosts: s.Spec.Hosts, Tls: tls}
	return s
}

// clientRoots returns the certificates that a validation of a Gateway names, in its order, and the conditions of those references that are invalid.
func (m *Model) clientRoots(r *incr.Reader, g *KubernetesGateway, v *gatewayv1.FrontendTLSValidation) (found []string, faults []object.GatewayCondition) {
	no := func(reason, text string, args ...any) {
		faults = append(faults, object.GatewayCondition{Type: "ResolvedRefs", Reason: reason, Message: fmt.Sprintf(text, args...)})
	}
	size := 0
	for _, ref := range v.CACertificateRefs {
		ns := cmp.Or(string(value(ref.Namespace)), g.Namespace)
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			no("InvalidCACertificateKind", "%.100s %s: want a ConfigMap", ref.Kind, ref.Name)
			continue
		}
		if !m.Permitted(r, object.Gateway, g.Namespace, ns, "", "ConfigMap", string(ref.Name)) {
			no("RefNotPermitted", "no ReferenceGrant in namespace %s permits ConfigMap %s", ns, ref.Name)
			continue
		}
		b, exists := incr.Get(r, m.tables.bundles, ns+"/"+string(ref.Name))
		size += len(b.pem)
		switch {
		case !exists:
			no("InvalidCACertificateRef", "there is no ConfigMap %s with the key %s in namespace %s", ref.Name, bundleKey, ns)
		case b.fault != "":
			no("InvalidCACertificateRef", "ConfigMap %s in namespace %s: %s", ref.Name, ns, b.fault)
		case size > credentials.MaxBytes:
			no("InvalidCACertificateRef", "ConfigMap %s in namespace %s: all certificates of a listener are %d bytes: want at most %d", ref.Name, ns, size, credentials.MaxBytes)
		default:
			found = append(found, b.pem)
		}
	}
	if len(found)+len(faults) == 0 {
		no("InvalidCACertificateRef", "there is no reference to a ConfigMap")
	}
	return found, faults
}

// fallsBack reports whether a Gateway says that clients need no certificate where they may have one.
func fallsBack(t *gatewayv1.GatewayTLSConfig) bool {
	if t == nil || t.Frontend == nil {
		return false
	}
	insecure := func(c gatewayv1.TLSConfig) bool {
		return c.Validation != nil && c.Validation.Mode == gatewayv1.AllowInsecureFallback
	}
	some := insecure(t.Frontend.Default)
	for _, p := range t.Frontend.PerPort {
		some = some || insecure(p.TLS)
	}
	return some
}
