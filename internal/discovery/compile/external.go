package compile

import (
	"fmt"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// authorizers returns the providers of external authorization that policies name and that there are, as proxies of a namespace
// reach them. [control-plane 1.10.13]
func (c *Compiler) authorizers(r *incr.Reader, namespace string, policies []authz.Policy) map[string]authz.Authorizer {
	out := map[string]authz.Authorizer{}
	for _, p := range policies {
		name := p.Spec.GetProvider().GetName()
		if _, done := out[name]; done || p.Spec.GetAction() != security.AuthorizationPolicy_CUSTOM {
			continue
		}
		for _, provider := range c.model.Mesh(r).GetExtensionProviders() {
			if provider.GetName() != name {
				continue
			}
			a := authz.Authorizer{}
			if service, port, ok := mesh.ExternalAuthorizer(provider); !ok {
				a.Fault = fmt.Sprintf("provider %q is not one of external authorization: want envoyExtAuthzHttp or envoyExtAuthzGrpc", name)
			} else if a.Host, a.Fault = c.providerHost(r, namespace, service, port); a.Fault == "" {
				a.Provider, a.Cluster = provider, cluster.Name(cluster.Outbound, port, "", a.Host)
			} else {
				a.Fault = fmt.Sprintf("provider %q: %s", name, a.Fault)
			}
			out[name] = a
			break
		}
	}
	return out
}

// providerHost returns the host of a provider's service, and why proxies of a namespace cannot use it, empty if they can. Those of no
// namespace can use what is exported to all.
func (c *Compiler) providerHost(r *incr.Reader, namespace, service string, port uint32) (host, fault string) {
	want, host := mesh.ProviderService(service)
	s := c.model.ServiceFrom(r, namespace, host)
	switch {
	case s == nil:
		return "", fmt.Sprintf("namespace %s sees no Service or ServiceEntry with the host %q", namespace, host)
	case want != "" && s.Namespace != want:
		return "", fmt.Sprintf("in namespace %s the host %q is that of a service of namespace %s", namespace, host, s.Namespace)
	}
	p, ok := s.PortOf(port)
	switch {
	case !ok || p.Protocol == mesh.UDP:
		return "", fmt.Sprintf("%s has no port %d", host, port)
	case s.IsAlias():
		return "", fmt.Sprintf("%s is of type ExternalName: name the host that it stands for", host)
	case s.Resolution == model.Dynamic:
		return "", fmt.Sprintf("%s has no addresses of its own, as it has resolution DYNAMIC_DNS", host)
	case s.Resolution == model.Passthrough:
		return "", fmt.Sprintf("%s has no addresses of its own, as it is headless or has resolution NONE", host)
	}
	return s.Host, ""
}

// routerAuthorization returns the filters of a router's policies.
func (c *Compiler) routerAuthorization(r *incr.Reader, id mesh.ScopeID) authz.Filters {
	s := id.Value()
	return c.authorization(r, mesh.Workload{Namespace: s.Namespace, Authorization: s.Authorization, Tokens: s.Tokens}, true)
}

// ExternalAuthorization returns the CUSTOM policies of what a layer has filters for, "namespace/name", and why what they match is
// denied, empty if their provider is asked.
func (c *Compiler) ExternalAuthorization(l Layer) (policies []string, fault string) {
	f := c.securityOf(l)
	return f.Custom, f.Fault
}

// RemoteKeys returns the rules of RequestAuthentications in force in a layer whose keys its proxies fetch.
func (c *Compiler) RemoteKeys(l Layer) []authz.RemoteKeys { return c.securityOf(l).Keys }

// securityOf returns the filters of what a layer lets in, none if it does not decide that.
func (c *Compiler) securityOf(l Layer) (f authz.Filters) {
	l = l.bare()
	switch {
	case l.Kind == ScopeLayer && l.Scope.Value().Role == mesh.Router:
		f, _ = c.inner.routerSecurity.Value(l.Scope)
	case l.Kind == WorkloadLayer && l.Scope.Value().Role == mesh.Sidecar:
		decided, _ := c.inner.inbound.Value(Key{Kind: ListenerInbound, Name: mesh.VirtualInbound, Scope: l.Scope, Workload: l.Workload}.withoutServices())
		f = decided.Authorization
	}
	return f
}
