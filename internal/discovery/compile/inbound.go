package compile

import (
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshv1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Inbound is what a workload's inbound security decides.
type Inbound struct {
	Modes model.Modes
	// Authorization are the filters of the AuthorizationPolicies in force; Rules is a hash of them, "" for none.
	Authorization authz.Filters
	Rules         string
	// Closed is the listener without a filter chain that accepts connections, encoded as resources are.
	Closed []byte
}

// withoutServices is the key of what the services of a workload do not decide, which workloads that differ in them only share.
func (k Key) withoutServices() Key {
	w := k.Workload.Value()
	w.Services, w.Peers = "", ""
	k.Workload = w.ID()
	return k
}

// inbound returns the inbound security of a workload, whose key is without services; of the key, only what decides it counts.
func (c *Compiler) inbound(r *incr.Reader, k Key) Inbound {
	w := k.Workload.Value()
	modes := c.model.ModesOf(r, w.Namespace, strings.Fields(w.Policies))
	filters := c.authorization(r, w, false)
	if !k.Scope.Value().Caps.Has(filters.Needs) {
		modes.Closed = true // the proxy cannot tell whom to let in
	}
	out := Inbound{Modes: modes, Authorization: filters, Rules: filters.Hash()}
	out.Closed = c.encodeInbound(r, k, listener.NewFrame(listener.Inbound{Closed: true}, c.inboundEnv(r, k)), nil, modes)
	return out
}

// authorization returns the filters of the AuthorizationPolicies and RequestAuthentications of a workload. routed is set if
// its routes may match the claims of tokens.
func (c *Compiler) authorization(r *incr.Reader, w mesh.Workload, routed bool) authz.Filters {
	var policies []authz.Policy
	for _, p := range c.model.AuthorizationOf(r, w) {
		policies = append(policies, authz.Policy{Namespace: p.Namespace, Name: p.Name, Spec: p.Spec, DryRun: p.DryRun})
	}
	rules, remote := c.tokenRules(r, w)
	out := authz.Build(policies, trustDomains(c.model.Mesh(r)), c.authorizers(r, w.Namespace, policies), jwt.Build(rules, routed))
	out.Keys = remote
	return out
}

// tokenRules returns the rules of the RequestAuthentications of a workload, with their keys, and those whose keys the proxy fetches.
func (c *Compiler) tokenRules(r *incr.Reader, w mesh.Workload) (out []jwt.Rule, remote []authz.RemoteKeys) {
	for _, p := range c.model.TokensOf(r, w) {
		for i, rule := range p.Spec.GetJwtRules() {
			if from, fault, ok := c.remoteKeys(r, w.Namespace, rule); ok {
				remote = append(remote, authz.RemoteKeys{Policy: p.Key(), Rule: i, Cluster: from.Cluster, Fault: fault})
				out = append(out, jwt.Rule{Spec: rule, Keys: pki.NoKeys, Remote: from})
				continue
			}
			keys, ok := jwt.KeysOf(rule)
			if !ok {
				keys, ok = c.model.KeysOf(r, rule)
			}
			if !ok {
				keys = pki.NoKeys // none are known: every token is refused
			}
			out = append(out, jwt.Rule{Spec: rule, Keys: keys})
		}
	}
	return out, remote
}

// remoteKeys returns where proxies of a namespace fetch the keys of a rule, or, without a URL, why they cannot; false if they do not,
// since the keys are known here or fetched by the control plane.
func (c *Compiler) remoteKeys(r *incr.Reader, namespace string, rule *security.JWTRule) (from jwt.Remote, fault string, ok bool) {
	url, host, port, ok := c.opts.RemoteKeys.Remote(rule)
	if !ok {
		return jwt.Remote{}, "", false
	}
	host, fault = c.providerHost(r, namespace, host, port)
	if fault != "" {
		return jwt.Remote{}, fault, c.opts.RemoteKeys == jwks.Proxies
	}
	_, timeout, _ := jwks.SourceOf(rule)
	return jwt.Remote{URL: url, Cluster: cluster.Name(cluster.Outbound, port, "", host), Timeout: timeout}, "", true
}

// restricted reports whether a policy may deny requests to a workload.
func (c *Compiler) restricted(r *incr.Reader, w mesh.Workload) bool {
	for _, p := range c.model.TokensOf(r, w) {
		if len(p.Spec.GetJwtRules()) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(c.model.AuthorizationOf(r, w), func(p *model.AuthorizationPolicy) bool {
		return !p.DryRun && p.Spec.GetAction() != security.AuthorizationPolicy_AUDIT
	})
}

// trustDomains are the mesh's trust domain and its aliases.
func trustDomains(m *meshv1.MeshConfig) []string {
	return append([]string{m.TrustDomain}, m.TrustDomainAliases...)
}

// InboundOf returns the security that a listener was made with, one of a sidecar's inbound connections or of a router; false for
// others, and if it is not wanted.
func (c *Compiler) InboundOf(k Key) (Inbound, bool) {
	switch bare := k.Bare(); {
	case bare.Kind == ListenerInbound:
		return c.inner.inbound.Value(bare.withoutServices())
	case (k.Kind == Listener || k.Kind == ListenerPatched) && k.Scope.Value().Role == mesh.Router:
		return c.routerInbound(k)
	}
	return Inbound{}, false
}

// routerInbound returns the security of a router's listener; false for one that forwards mutual TLS without ending it, and for what
// patches have added.
func (c *Compiler) routerInbound(k Key) (Inbound, bool) {
	id := bareScope(k.Scope)
	plan, ok := c.inner.gatewayPlan.Value(scopeName{id, k.Name})
	if !ok || len(plan.Chains) == 0 {
		return Inbound{}, false
	}
	filters, _ := c.inner.routerSecurity.Value(id)
	s := id.Value()
	return Inbound{
		Modes:         model.Modes{Closed: s.Closed || !s.Caps.Has(filters.Needs)},
		Authorization: filters, Rules: filters.Hash(),
		Closed: marshal.MustEncodedAny(listener.ClosedGateway(plan, listener.Env{Caps: s.Caps})),
	}, true
}

func (c *Compiler) inboundEnv(r *incr.Reader, k Key) listener.Env {
	caps, keys := k.Scope.Value().Caps, k.Workload.Value().Telemetry
	env := listener.Env{
		Caps: caps, Mesh: c.model.Mesh(r), Protocols: c.opts.ProtocolFilters,
		Logs: c.accessLogs(r, keys, telemetry.WorkloadMode_SERVER), Metrics: c.metrics(r, keys, telemetry.WorkloadMode_SERVER),
		Tracing: c.tracing(r, keys, k.Workload.Value().Service, k.Workload.Value().Tracing, telemetry.WorkloadMode_SERVER),
	}
	if c.opts.NoSniffInbound {
		env.Caps &^= mesh.HTTPInspector
	}
	return env
}

// encodeInbound returns the encoded listener of a key: virtualInbound, with these ports, or one of a Sidecar that binds; nil if the
// Sidecar no longer has it.
func (c *Compiler) encodeInbound(r *incr.Reader, k Key, f *listener.Frame, ports []listener.InboundPort, modes model.Modes) []byte {
	if k.Name == mesh.VirtualInbound {
		return f.EncodedVirtualInbound(ports)
	}
	list, _ := c.model.Ingress(r, k.Workload.Value())
	for _, i := range list {
		if i.Bind != "" && i.Name() == k.Name {
			return marshal.MustEncodedAny(f.Bound(c.ingressPort(r, k.Workload.Value(), i, modes)))
		}
	}
	return nil
}

// inboundFrame returns what the inbound listeners of a workload have whatever its services; its key is without these, and that of
// virtualInbound.
func (c *Compiler) inboundFrame(r *incr.Reader, k Key) *listener.Frame {
	m := c.model.Mesh(r)
	decided := c.inner.inbound.Of(r, k)
	return listener.NewFrame(listener.Inbound{
		Closed:        decided.Modes.Closed,
		TrustDomains:  trustDomains(m),
		Authorization: decided.Authorization,
		Unknown: listener.InboundPort{
			Protocol: mesh.Auto, Mode: decided.Modes.Default, Cluster: mesh.InboundPassthroughCluster,
			Routes: inboundRoutes(m, mesh.InboundPassthroughCluster, "", model.Port{Protocol: mesh.Auto}),
		},
	}, c.inboundEnv(r, k))
}

// ingressPort is the port of a Sidecar's listener.
func (c *Compiler) ingressPort(r *incr.Reader, w mesh.Workload, i model.Ingress, modes model.Modes) listener.InboundPort {
	m := c.model.Mesh(r)
	name := cluster.Name(cluster.Inbound, i.Port, "", "")
	return listener.InboundPort{
		Port: i.Port, Protocol: i.Protocol, Mode: modes.Of(i.Port), Cluster: name, Bind: i.Bind, TLS: i.TLS, Host: i.Host, Namespace: w.Namespace,
		TCP:    c.inboundTCP(r, w, i.Port),
		Routes: inboundRoutes(m, name, i.Host, model.Port{Number: i.Port, Protocol: i.Protocol}),
	}
}

// inboundTCP returns the limits on connections that a Sidecar sets for a port of a workload.
func (c *Compiler) inboundTCP(r *incr.Reader, w mesh.Workload, port uint32) listener.TCP {
	t := c.model.InboundPool(r, w, port).GetTcp()
	return listener.TCP{IdleTimeout: t.GetIdleTimeout(), MaxDuration: t.GetMaxConnectionDuration()}
}

// inboundListener returns virtualInbound for a workload: filter chains for each of its ports, and for
// ports that belong to no service. Which ports these are, a Sidecar may say; one that binds has a listener of its own.
func (c *Compiler) inboundListener(r *incr.Reader, k Key) []byte {
	m, w := c.model.Mesh(r), k.Workload.Value()
	shared := k.withoutServices()
	modes := c.inner.inbound.Of(r, shared).Modes
	shared.Name = mesh.VirtualInbound
	frame := c.inner.inboundFrame.Of(r, shared)
	var ports []listener.InboundPort
	list, listed := c.model.Ingress(r, w)
	for _, i := range list {
		if i.Bind == "" {
			ports = append(ports, c.ingressPort(r, w, i, modes))
		}
	}
	last := uint32(0)
	for _, p := range model.InboundPorts(w) {
		if p.Target == last || listed {
			continue
		}
		last = p.Target
		behind := c.portsAt(r, w, p.Target)
		if len(behind) == 0 {
			continue
		}
		first := behind[0]
		name := cluster.Name(cluster.Inbound, p.Target, "", "")
		ports = append(ports, listener.InboundPort{
			Port: p.Target, Protocol: first.port.Protocol, Mode: modes.Of(p.Target), Cluster: name, Host: first.service.Host, Namespace: first.service.Namespace,
			Routes: inboundRoutes(m, name, first.service.Host, first.port), TCP: c.inboundTCP(r, w, p.Target),
		})
	}
	ports = append(ports, undeclared(ports, frame.In.Unknown, modes)...)
	return c.encodeInbound(r, k, frame, ports, modes) // if it is nil, the Run that removes it also drops this value
}

// undeclared returns the ports with a mode of their own that are not declared, sorted.
func undeclared(declared []listener.InboundPort, unknown listener.InboundPort, modes model.Modes) []listener.InboundPort {
	var out []listener.InboundPort
	for _, port := range slices.Sorted(maps.Keys(modes.Ports)) {
		known := slices.ContainsFunc(declared, func(p listener.InboundPort) bool { return p.Port == port })
		if known || modes.Of(port) == modes.Default {
			continue
		}
		p := unknown
		p.Port, p.Mode = port, modes.Of(port)
		out = append(out, p)
	}
	return out
}

// inboundRoutes returns route.Inbound, without retries if the mesh's default policy has no attempts: a
// mesh in which requests must not be repeated does not repeat them on the server's side either. Calls of gRPC are not
// repeated: clients have their own retries, and a stream must not be buffered for them.
func inboundRoutes(m *meshv1.MeshConfig, name, host string, port model.Port) *routev3.RouteConfiguration {
	rc := route.Inbound(name, host, port.Number)
	grpc := port.Protocol == mesh.GRPC || port.Protocol == mesh.GRPCWeb
	if p := m.GetDefaultHttpRetryPolicy(); grpc || p != nil && p.Attempts == 0 {
		for _, h := range rc.VirtualHosts {
			for _, rt := range h.Routes {
				rt.GetRoute().RetryPolicy = nil
			}
		}
	}
	return rc
}
