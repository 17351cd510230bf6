package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

func (c *check) peerAuthentication(s *security.PeerAuthentication) {
	c.labels("spec.selector.matchLabels", s.Selector.GetMatchLabels())
	if len(s.PortLevelMtls) > 0 && len(s.Selector.GetMatchLabels()) == 0 {
		c.fail("spec.portLevelMtls", "needs a selector, because the ports are those of a workload; add selector.matchLabels")
	}
	for _, p := range slices.Sorted(maps.Keys(s.PortLevelMtls)) {
		c.port(fmt.Sprintf("spec.portLevelMtls[%d]", p), p, false)
	}
}

// namespacedHost checks "namespace/host"; the namespace may be "*" (all), "." (the object's own) or
// "~" (none).
func (c *check) namespacedHost(field, s string) {
	namespace, host, slash := strings.Cut(s, "/")
	switch {
	case !slash:
		c.fail(field, "invalid host %q: want namespace/host, such as \"./%s\" or \"*/%s\"", s, s, s)
	case namespace != "*" && namespace != "." && namespace != "~" && !isLabel(namespace):
		c.fail(field, "invalid namespace %q: want a name, \"*\" (all), \".\" (this one) or \"~\" (none)", namespace)
	case !isHost(host):
		c.fail(field, "invalid host %q: want a DNS name or one that begins with \"*.\"", host)
	}
}

func (c *check) gateway(s *networking.Gateway) {
	c.labels("spec.selector", s.Selector)
	if len(s.Servers) == 0 {
		c.fail("spec.servers", "is empty; add at least one server")
	}
	for i, v := range s.Servers {
		at := item("spec.servers", i)
		c.serverAddress(at, v)
		c.protocol(at+".port.protocol", v.GetPort().GetProtocol())
		c.server(at, v)
		if len(v.GetHosts()) == 0 {
			c.fail(at+".hosts", "is empty; add at least one host")
		}
		for j, h := range v.GetHosts() {
			if strings.Contains(h, "/") {
				c.namespacedHost(item(at+".hosts", j), h)
			} else {
				c.host(item(at+".hosts", j), h)
			}
		}
	}
}

// serverAddress checks the port and the address of a server. [control-plane 1.9.4]
func (c *check) serverAddress(at string, v *networking.Server) {
	path, socket := strings.CutPrefix(v.GetBind(), mesh.UnixSocket)
	passthrough := v.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH // at all addresses
	c.port(at+".port.number", v.GetPort().GetNumber(), socket && !passthrough)
	switch {
	case v.GetBind() == "" || isIP(v.GetBind()) || passthrough:
	case !socket:
		c.warn(at+".bind", "not applied: %q is not an IP address, and the server is not served", v.GetBind())
	case !mesh.IsSocketPath(path):
		c.fail(at+".bind", "invalid Unix socket %q: want \"unix://\" and an absolute path, or \"@\" and a name, of at most %d bytes", v.GetBind(), mesh.MaxSocketPath)
	case v.GetPort().GetNumber() != 0:
		c.fail(at+".port.number", "invalid port %d: want 0 with a Unix socket", v.GetPort().GetNumber())
	}
}

// server checks what depends on the protocol of a server.
func (c *check) server(at string, v *networking.Server) {
	p := mesh.ParseProtocol(v.GetPort().GetProtocol())
	switch {
	case v.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		c.passthroughServer(at, v)
		return
	case p.IsHTTP():
		for _, f := range setFields(v.GetTls().ProtoReflect(), nil) {
			if f.JSONName() != "httpsRedirect" {
				c.warn(at+".tls."+f.JSONName(), "not applied: protocol %s is served without TLS", v.GetPort().GetProtocol())
			}
		}
	case !p.IsTCP():
		c.warn(at, "not applied: protocol %q is not served at gateways", v.GetPort().GetProtocol())
		return
	case v.GetTls() == nil && p.IsTLS():
		c.fail(at+".tls", "is missing; protocol %s needs a tls.mode", v.GetPort().GetProtocol())
	case v.GetTls() != nil:
		c.serverTLS(at+".tls", v.GetTls())
	}
	if v.GetDefaultEndpoint() != "" {
		c.warn(at+".defaultEndpoint", "not applied: requests go to the destinations of VirtualServices")
	}
	if v.GetName() != "" {
		c.warn(at+".name", "not applied: listeners are named by address and port")
	}
	if v.GetPort().GetTargetPort() != 0 { //nolint:staticcheck // deprecated, but it must be told
		c.warn(at+".port.targetPort", "not applied: the router's Service says at which port of the Pod a port is served")
	}
}

// serverTLS checks how a server ends TLS, or forwards it by the server name.
func (c *check) serverTLS(at string, t *networking.ServerTLSSettings) {
	used := []string{"mode"}
	verified := []string{"subjectAltNames", "verifyCertificateSpki", "verifyCertificateHash", "caCrl"}
	params := []string{"minProtocolVersion", "maxProtocolVersion", "cipherSuites"}
	switch t.GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH:
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		used = slices.Concat(used, verified, params)
	case networking.ServerTLSSettings_SIMPLE:
		used = slices.Concat(used, params, certificateFields)
	case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		used = slices.Concat(used, verified, params, certificateFields, []string{"caCertificates"})
		if t.CaCertificates == "" && t.CredentialName == "" && len(t.CredentialNames) == 0 && t.CaCertCredentialName == "" {
			c.fail(at+".caCertificates", "is missing; mode %s verifies certificates of clients", t.GetMode())
		}
	default:
		c.fail(at+".mode", "unknown mode %d", t.GetMode())
		return
	}
	if used = append(used, c.serverCredentials(at, t)...); slices.Contains(used, "serverCertificate") && t.CredentialName == "" && len(t.CredentialNames) == 0 && (len(t.TlsCertificates) == 0) == (t.ServerCertificate == "" || t.PrivateKey == "") {
		c.fail(at, "wants either serverCertificate and privateKey, or tlsCertificates")
	}
	for i, one := range t.TlsCertificates {
		if one.GetServerCertificate() == "" || one.GetPrivateKey() == "" {
			c.fail(item(at+".tlsCertificates", i), "wants serverCertificate and privateKey")
		}
		if one.GetCaCertificates() != "" {
			c.warn(item(at+".tlsCertificates", i)+".caCertificates", "not applied: certificates of clients are verified with tls.caCertificates")
		}
	}
	c.serverParams(at, t)
	c.serverPins(at, t)
	for _, f := range setFields(t.ProtoReflect(), nil) {
		switch {
		case slices.Contains(used, f.JSONName()):
		case f.JSONName() == "insecureSkipVerify" && verifiesClients(t.GetMode()):
			c.warn(at+"."+f.JSONName(), "not applied: certificates of clients are always verified, since policies believe the identities in them; use OPTIONAL_MUTUAL to serve clients without one")
		default:
			c.warn(at+"."+f.JSONName(), "not applied: it has no effect with mode %s", t.GetMode())
		}
	}
}

// verifiesClients reports whether certificates of clients are verified.
func verifiesClients(m networking.ServerTLSSettings_TLSmode) bool {
	return m == networking.ServerTLSSettings_MUTUAL || m == networking.ServerTLSSettings_OPTIONAL_MUTUAL || m == networking.ServerTLSSettings_ISTIO_MUTUAL
}

// serverCredentials checks the names of Secrets, and returns the fields that are used.
func (c *check) serverCredentials(at string, t *networking.ServerTLSSettings) (used []string) {
	if !mesh.NamesCredential(t) {
		return nil
	}
	verifies := verifiesClients(t.Mode) && t.Mode != networking.ServerTLSSettings_ISTIO_MUTUAL
	if t.Mode != networking.ServerTLSSettings_SIMPLE && !verifies {
		return nil // told as having no effect with the mode
	}
	used = []string{"credentialName", "credentialNames"}
	if verifies {
		used = append(used, "caCertCredentialName")
	}
	named := t.CredentialName != "" || len(t.CredentialNames) > 0
	switch {
	case t.CredentialName != "" && len(t.CredentialNames) > 0:
		c.fail(at+".credentialNames", "credentialName is set too; remove one of the two")
	case named && (t.ServerCertificate != "" || t.PrivateKey != "" || len(t.TlsCertificates) > 0):
		c.fail(at+".credentialName", "files of certificates are set too; remove one of the two")
	case named && t.CaCertificates != "":
		c.fail(at+".caCertificates", "not used with a Secret: want the CA's certificates in the Secret, in NAME-cacert beside it, or caCertCredentialName")
	case t.CaCertCredentialName != "" && t.CaCertificates != "":
		c.fail(at+".caCertCredentialName", "caCertificates is set too; remove one of the two")
	}
	for i, name := range t.CredentialNames {
		c.credentialName(item(at+".credentialNames", i), name)
	}
	for _, f := range []struct{ field, name string }{{"credentialName", t.CredentialName}, {"caCertCredentialName", t.CaCertCredentialName}} {
		if f.name != "" {
			c.credentialName(at+"."+f.field, f.name)
		}
	}
	return used
}

// credentialName checks the name of a Secret: NAME, or NAMESPACE/NAME after a prefix that says that it is one.
func (c *check) credentialName(at, name string) {
	scheme, _, ok := strings.Cut(name, "://")
	switch {
	case !ok && (name == "" || strings.Contains(name, "/")):
		c.fail(at, "invalid name %q: want that of a Secret in the gateway's namespace", name)
	case ok && scheme == "sds":
		c.fail(at, "secrets of other SDS servers are not used: want the name of a Secret, or files")
	case ok:
		if _, valid := credentials.ParseName(name, "x"); !valid {
			c.fail(at, "invalid name %q: want kubernetes://NAME, kubernetes://NAMESPACE/NAME, or the name of a Secret", name)
		}
	}
}

// certificateFields are those of a server's own certificates.
var certificateFields = []string{"serverCertificate", "privateKey", "tlsCertificates"}

// passthroughServer checks a server whose connections are forwarded without ending their TLS.
func (c *check) passthroughServer(at string, v *networking.Server) {
	if p := v.GetPort().GetProtocol(); !strings.EqualFold(p, "TLS") {
		c.fail(at+".port.protocol", "invalid protocol %q with tls.mode AUTO_PASSTHROUGH: want TLS", p)
	}
	for _, f := range setFields(v.ProtoReflect(), nil) {
		switch f.JSONName() {
		case "port", "hosts", "tls", "name":
		default:
			c.warn(at+"."+f.JSONName(), "not applied: a server with tls.mode AUTO_PASSTHROUGH listens on all addresses and forwards by the server name")
		}
	}
	for _, f := range setFields(v.GetTls().ProtoReflect(), nil) {
		if f.JSONName() != "mode" {
			c.warn(at+".tls."+f.JSONName(), "not applied: with mode AUTO_PASSTHROUGH the endpoints end the TLS")
		}
	}
}
