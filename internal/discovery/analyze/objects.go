package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	extensions "istio.io/api/extensions/v1alpha1"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1 "istio.io/api/type/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/delegate"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// check checks the references of one object.
func (a *index) check(obj *object.Object) {
	a.now = obj
	switch spec := obj.Spec.(type) {
	case *networking.VirtualService:
		a.virtualService(spec)
	case *networking.DestinationRule:
		a.destinationRule(spec)
	case *networking.Sidecar:
		a.sidecar(spec)
	case *security.AuthorizationPolicy:
		a.authorizationPolicy(spec)
		a.targets("spec.targetRef", spec.GetTargetRef())
		a.targets("spec.targetRefs", spec.GetTargetRefs()...)
	case *security.RequestAuthentication:
		a.targets("spec.targetRef", spec.GetTargetRef())
		a.targets("spec.targetRefs", spec.GetTargetRefs()...)
	case *telemetry.Telemetry:
		a.targets("spec.targetRef", spec.GetTargetRef())
		a.targets("spec.targetRefs", spec.GetTargetRefs()...)
		a.telemetryProviders(spec)
	case *networking.EnvoyFilter:
		a.targets("spec.targetRefs", spec.GetTargetRefs()...)
	case *extensions.WasmPlugin:
		a.targets("spec.targetRef", spec.GetTargetRef())
		a.targets("spec.targetRefs", spec.GetTargetRefs()...)
	case *extensions.TrafficExtension:
		a.targets("spec.targetRefs", spec.GetTargetRefs()...)
	case *networking.ServiceEntry:
		a.sessions(obj)
		a.serviceEntry(obj, spec)
	case *networking.WorkloadEntry:
		a.workloadEntry(obj, spec)
	case *object.ConfigMapSpec:
		if a.o.Mesh != nil && obj.Key == a.o.MeshObject {
			a.defaultProviders()
		}
	case *object.IngressSpec:
		a.ingress(obj, spec)
	case *gatewayv1.GRPCRouteSpec:
		a.grpcRoute(spec)
	case *object.IngressClassSpec:
		if spec.Controller == mesh.IngressController && spec.Parameters != "" {
			a.warn("spec.parameters", "not applied: there are none")
		}
	case *object.ServiceSpec:
		a.sessions(obj)
		if a.o.Workloads && len(spec.Selector) > 0 && !a.selected(obj.Namespace, spec.Selector) {
			a.warn("spec.selector", "no Pod has the labels %s: the Service has no endpoints", labelText(spec.Selector))
		} else if a.o.Workloads && len(spec.Selector) > 0 {
			a.targetPorts(obj.Namespace, spec)
		}
	}
	if m, ok := obj.Spec.(proto.Message); ok {
		a.selector(m.ProtoReflect())
	}
}

// sessions checks that there is a filter for the sessions that the labels of a service ask for. Without one they do no more than let
// draining endpoints be used for requests that name them. [control-plane 1.12.20]
func (a *index) sessions(obj *object.Object) {
	if !a.o.NoSessions {
		return
	}
	for _, label := range []string{mesh.SessionLabel, mesh.SessionHeaderLabel} {
		if obj.Meta.Labels[label] != "" {
			a.warn("metadata.labels["+label+"]", "not applied: no request names the endpoint of a session unless an EnvoyFilter adds the filter for it; set PILOT_ENABLE_PERSISTENT_SESSION_FILTER=true in the environment of pilot-discovery")
			return // one beside the other has no effect
		}
	}
}

// targets checks that the Gateways to which an object is attached exist.
func (a *index) targets(field string, refs ...*typev1.PolicyTargetReference) {
	for _, t := range refs {
		gateway := object.Target{Group: t.GetGroup(), Kind: t.GetKind(), Name: t.GetName()}.IsGateway()
		if name := a.now.Namespace + "/" + t.GetName(); gateway && t.GetName() != "" && !a.kubernetes[name] {
			a.warn(field, "there is no Gateway %s of the Gateway API: what is for it only applies to Pods with the label gateway.networking.k8s.io/gateway-name: %s", name, t.GetName())
		}
	}
}

// selectorFields are the fields of the messages of Istio's kinds that select workloads.
var selectorFields = []protoreflect.Name{"selector", "workload_selector"}

// selector checks that the selector of an object selects a workload.
func (a *index) selector(m protoreflect.Message) {
	if !a.o.Workloads {
		return
	}
	for _, name := range selectorFields {
		f := m.Descriptor().Fields().ByName(name)
		if f == nil || !m.Has(f) {
			continue
		}
		labels, field := map[string]string{}, "spec."+f.JSONName()
		value := m.Get(f)
		if !f.IsMap() {
			inner := value.Message()
			for _, n := range []protoreflect.Name{"match_labels", "labels"} {
				if g := inner.Descriptor().Fields().ByName(n); g != nil && g.IsMap() {
					f, value, field = g, inner.Get(g), field+"."+g.JSONName()
				}
			}
		}
		if !f.IsMap() {
			continue
		}
		value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			labels[k.String()] = v.String()
			return true
		})
		namespace := a.now.Namespace
		if namespace == a.o.RootNamespace || a.now.Kind == object.Gateway {
			namespace = "" // of all namespaces
		}
		if len(labels) > 0 && !a.selected(namespace, labels) {
			a.warn(field, "no workload has the labels %s", labelText(labels))
		}
	}
}

// targetPorts checks that the Pods of a Service have the ports that it names.
func (a *index) targetPorts(namespace string, spec *object.ServiceSpec) {
	for i, p := range spec.Ports {
		names, other := map[string]bool{}, p.TargetName == "" || p.TargetPort != 0
		for _, w := range a.workloads[namespace] {
			if !subset(spec.Selector, w.labels) {
				continue
			}
			other = other || w.ports == nil // a WorkloadEntry, whose ports are not those of containers
			for _, c := range w.ports {
				names[c.Name] = true
			}
		}
		if other || names[p.TargetName] {
			continue
		}
		text := fmt.Sprintf("no container of its Pods has a port with the name %q: the port has no endpoints", p.TargetName)
		delete(names, "")
		if len(names) > 0 {
			text += "; want one of " + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + ", or a number"
		} else {
			text += "; want a number"
		}
		a.warn(fmt.Sprintf("spec.ports[%d].targetPort", i), "%s", text)
	}
}

// ownHosts reports hosts of the mesh that are most likely misspelled: no Service has them, and one has nearly the same. A host that
// resembles none may be one that clients send in a header.
func (a *index) ownHosts(spec *networking.VirtualService) {
	if len(spec.Gateways) > 0 && !slices.Contains(spec.Gateways, "mesh") {
		return
	}
	for i, host := range spec.Hosts {
		full := mesh.FullHost(host, a.now.Namespace, a.o.Domain)
		if a.services[full] != nil || strings.HasPrefix(host, "*") || !strings.HasSuffix(full, ".svc."+a.o.Domain) {
			continue
		}
		if near := nearest(full, maps.Keys(a.services)); near != "" {
			a.warn(fmt.Sprintf("spec.hosts[%d]", i), "no Service or ServiceEntry has the host %q; did you mean %q?", full, near)
		}
	}
}

func (a *index) virtualService(spec *networking.VirtualService) {
	a.ownHosts(spec)
	for i, name := range spec.Gateways {
		if name == "mesh" {
			continue
		}
		full := name
		if !strings.Contains(full, "/") {
			full = a.now.Namespace + "/" + name
		}
		g := a.gateways[full]
		if g == nil {
			text := fmt.Sprintf("there is no Gateway %s", full)
			if near := nearest(full, maps.Keys(a.gateways)); near != "" {
				text += fmt.Sprintf("; did you mean %s?", near)
			}
			a.warn(fmt.Sprintf("spec.gateways[%d]", i), "%s", text)
			continue
		}
		for j, host := range spec.Hosts {
			if !slices.ContainsFunc(g.Servers, func(s *networking.Server) bool { return a.serves(s, host) }) {
				a.warn(fmt.Sprintf("spec.hosts[%d]", j), "no server of Gateway %s has the host %q", full, host)
			}
		}
	}
	for i, r := range spec.Http {
		at := fmt.Sprintf("spec.http[%d]", i)
		for j, d := range r.Route {
			a.destination(fmt.Sprintf("%s.route[%d].destination", at, j), d.Destination)
		}
		if r.Mirror != nil {
			a.mirror(at+".mirror", r.Mirror)
		}
		for j, m := range r.Mirrors {
			a.mirror(fmt.Sprintf("%s.mirrors[%d].destination", at, j), m.Destination)
		}
	}
	_, problems := delegate.Merge(a.now.Namespace, spec, delegate.Mesh{
		Domain: a.o.Domain, ExportTo: a.o.Mesh.GetDefaultVirtualServiceExportTo(),
		Find: func(namespace, name string) *networking.VirtualService { return a.virtuals[namespace+"/"+name] },
	})
	for _, p := range problems {
		a.warn(fmt.Sprintf("spec.http[%d].delegate", p.Route), "%s", p.Text)
	}
	for i, r := range spec.Tls {
		for j, d := range r.Route {
			a.destination(fmt.Sprintf("spec.tls[%d].route[%d].destination", i, j), d.Destination)
		}
	}
	for i, r := range spec.Tcp {
		for j, d := range r.Route {
			a.destination(fmt.Sprintf("spec.tcp[%d].route[%d].destination", i, j), d.Destination)
		}
	}
}

// serves reports whether a server has a host in common with a host of a VirtualService.
func (a *index) serves(s *networking.Server, host string) bool {
	host = mesh.FullHost(host, a.now.Namespace, a.o.Domain)
	for _, h := range s.Hosts {
		namespace, name, ok := strings.Cut(h, "/")
		if !ok {
			namespace, name = "*", h
		}
		if namespace != "*" && namespace != "." && namespace != a.now.Namespace {
			continue
		}
		if covers(mesh.HostName(name), host) || covers(host, mesh.HostName(name)) {
			return true
		}
	}
	return false
}

// covers reports whether a host, perhaps with a wildcard, covers another one.
func covers(pattern, host string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	return pattern == host || wild && strings.HasSuffix(host, suffix)
}

// destination checks the host, port and subset of a destination.
func (a *index) destination(field string, d *networking.Destination) {
	if d.GetHost() == "" {
		return
	}
	s := a.host(field+".host", d.Host)
	if n := d.GetPort().GetNumber(); s != nil && n != 0 && len(s.ports) > 0 && !slices.Contains(s.ports, n) {
		var ports []string
		for _, p := range s.ports {
			ports = append(ports, fmt.Sprint(p))
		}
		a.warn(field+".port.number", "%s has no port %d: want %s", d.Host, n, strings.Join(ports, ", "))
	}
	if d.Subset == "" {
		return
	}
	have := a.subsets[mesh.FullHost(d.Host, a.now.Namespace, a.o.Domain)]
	switch {
	case have[d.Subset]:
	case len(have) == 0:
		a.warn(field+".subset", "no DestinationRule for %s has subsets: requests to %q get status 503", d.Host, d.Subset)
	default:
		a.warn(field+".subset", "no DestinationRule for %s has the subset %q: want %s", d.Host, d.Subset, strings.Join(slices.Sorted(maps.Keys(have)), ", "))
	}
}

// mirror checks where copies of requests go.
func (a *index) mirror(field string, d *networking.Destination) {
	a.destination(field, d)
	if a.resolvedByProxies(d.GetHost()) {
		a.warn(field+".host", "not applied: requests are not mirrored to %s, whose ServiceEntry has resolution DYNAMIC_DNS", d.GetHost())
	}
}

// balancing reports load balancers for a host of which proxies resolve one name for each request, so that there is nothing to choose from.
func (a *index) balancing(spec *networking.DestinationRule) {
	if !a.resolvedByProxies(spec.Host) {
		return
	}
	policy := func(field string, p *networking.TrafficPolicy) {
		if p.GetLoadBalancer() != nil {
			a.warn(field+".loadBalancer", "not applied: the ServiceEntry of %s has resolution DYNAMIC_DNS", spec.Host)
		}
		for i, port := range p.GetPortLevelSettings() {
			if port.GetLoadBalancer() != nil {
				a.warn(fmt.Sprintf("%s.portLevelSettings[%d].loadBalancer", field, i), "not applied: the ServiceEntry of %s has resolution DYNAMIC_DNS", spec.Host)
			}
		}
	}
	policy("spec.trafficPolicy", spec.TrafficPolicy)
	for i, s := range spec.Subsets {
		policy(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.TrafficPolicy)
	}
}

func (a *index) destinationRule(spec *networking.DestinationRule) {
	a.balancing(spec)
	s := a.host("spec.host", spec.Host)
	if s == nil || s.other || len(s.selector) > 0 && !a.o.Workloads {
		return
	}
	for i, sub := range spec.Subsets {
		if len(sub.Labels) == 0 {
			continue
		}
		want := maps.Clone(sub.Labels)
		maps.Copy(want, s.selector)
		inline := slices.ContainsFunc(s.inline, func(labels map[string]string) bool { return subset(sub.Labels, labels) })
		if !inline && (len(s.selector) == 0 || !a.selected(s.namespace, want)) {
			a.warn(fmt.Sprintf("spec.subsets[%d].labels", i), "no endpoint of %s has the labels %s", spec.Host, labelText(sub.Labels))
		}
	}
}

func (a *index) sidecar(spec *networking.Sidecar) {
	for i, e := range spec.Egress {
		for j, h := range e.Hosts {
			field := fmt.Sprintf("spec.egress[%d].hosts[%d]", i, j)
			namespace, host, ok := strings.Cut(h, "/")
			if !ok || namespace == "~" {
				continue
			}
			if namespace == "." {
				namespace = a.now.Namespace
			}
			if namespace != "*" && !a.namespaces[namespace] {
				a.warn(field, "there is nothing in a namespace %q", namespace)
				continue
			}
			if host != "*" {
				a.host(field, host)
			}
		}
	}
}

// authorizationPolicy checks that the identities and namespaces that rules name exist.
func (a *index) authorizationPolicy(spec *security.AuthorizationPolicy) {
	a.provider(spec)
	a.trustDomains(spec)
	if !a.o.Workloads {
		return
	}
	for i, r := range spec.Rules {
		for j, f := range r.From {
			at := fmt.Sprintf("spec.rules[%d].from[%d].source", i, j)
			for k, p := range f.Source.GetPrincipals() {
				a.principal(fmt.Sprintf("%s.principals[%d]", at, k), p)
			}
			for k, name := range f.Source.GetServiceAccounts() {
				if !strings.Contains(name, "/") {
					name = a.now.Namespace + "/" + name
				}
				a.account(fmt.Sprintf("%s.serviceAccounts[%d]", at, k), name)
			}
			for k, name := range f.Source.GetNamespaces() {
				if !strings.Contains(name, "*") && !a.namespaces[name] {
					a.warn(fmt.Sprintf("%s.namespaces[%d]", at, k), "there is nothing in a namespace %q", name)
				}
			}
		}
	}
}

// trustDomains tells of principals that look as if their trust domain stood for all of the mesh's, and do not. [control-plane 1.10.11]
func (a *index) trustDomains(spec *security.AuthorizationPolicy) {
	if a.o.Mesh == nil {
		return
	}
	domain := cmp.Or(a.o.Mesh.GetTrustDomain(), mesh.DefaultTrustDomain)
	names := append([]string{domain}, a.o.Mesh.GetTrustDomainAliases()...)
	check := func(field string, principals []string) {
		for i, p := range principals {
			first, rest, _ := strings.Cut(p, "/")
			known := first == mesh.DefaultTrustDomain || slices.Contains(names, first)
			if !known || rest == "" || strings.Count(p, "/") == 4 || len(names) == 1 && first == domain {
				continue
			}
			a.warn(fmt.Sprintf("%s[%d]", field, i), "%q is for identities of the trust domain %q only: cluster.local and the mesh's trust domains (%s) stand for each other where a principal has all parts, DOMAIN/ns/NAMESPACE/sa/ACCOUNT; use namespaces, or name each domain",
				p, first, strings.Join(names, ", "))
		}
	}
	for i, r := range spec.Rules {
		for j, f := range r.From {
			at := fmt.Sprintf("spec.rules[%d].from[%d].source", i, j)
			check(at+".principals", f.Source.GetPrincipals())
			check(at+".notPrincipals", f.Source.GetNotPrincipals())
		}
		for j, w := range r.When {
			if w.GetKey() == "source.principal" {
				at := fmt.Sprintf("spec.rules[%d].when[%d]", i, j)
				check(at+".values", w.GetValues())
				check(at+".notValues", w.GetNotValues())
			}
		}
	}
}

// provider checks that the provider of a CUSTOM policy exists, and its service.
func (a *index) provider(spec *security.AuthorizationPolicy) {
	name := spec.GetProvider().GetName()
	if a.o.Mesh == nil || spec.GetAction() != security.AuthorizationPolicy_CUSTOM || name == "" {
		return
	}
	const field, denied = "spec.provider.name", ": what the rules match is denied"
	known := map[string]*meshv1.MeshConfig_ExtensionProvider{}
	for _, p := range a.o.Mesh.GetExtensionProviders() {
		if _, _, ok := mesh.ExternalAuthorizer(p); ok || p.GetName() == name {
			known[p.GetName()] = p
		}
	}
	p := known[name]
	service, port, ok := mesh.ExternalAuthorizer(p)
	_, host := mesh.ProviderService(service)
	switch s := a.services[host]; {
	case p == nil:
		text := fmt.Sprintf("there is no provider %q in extensionProviders of mesh configuration%s", name, denied)
		if near := nearest(name, maps.Keys(known)); near != "" {
			text += fmt.Sprintf("; did you mean %s?", near)
		}
		a.warn(field, "%s", text)
	case !ok:
		a.warn(field, "provider %q is not one of external authorization%s; want envoyExtAuthzHttp or envoyExtAuthzGrpc", name, denied)
	case s == nil:
		a.warn(field, "provider %q: no Service or ServiceEntry has the host %q%s", name, host, denied)
	case !slices.Contains(s.ports, port):
		a.warn(field, "provider %q: %s has no port %d%s", name, host, port, denied)
	}
}

// principal checks a principal of the form TRUSTDOMAIN/ns/NAMESPACE/sa/ACCOUNT without wildcards.
func (a *index) principal(field, p string) {
	parts := strings.Split(p, "/")
	if len(parts) == 5 && parts[1] == "ns" && parts[3] == "sa" && !strings.Contains(p, "*") {
		a.account(field, parts[2]+"/"+parts[4])
	}
}

func (a *index) account(field, name string) {
	if strings.Contains(name, "*") || a.accounts[name] {
		return
	}
	text := fmt.Sprintf("no workload runs as the service account %s, and there is none of this name", name)
	if near := nearest(name, maps.Keys(a.accounts)); near != "" {
		text += fmt.Sprintf("; did you mean %s?", near)
	}
	a.warn(field, "%s", text)
}

// nothingTraced is the consequence of a provider of tracing that proxies cannot use.
const nothingTraced = "nothing is traced"

// telemetryProviders checks that the providers that a Telemetry names exist, and the services of these.
func (a *index) telemetryProviders(spec *telemetry.Telemetry) {
	if a.o.Mesh == nil {
		return
	}
	for i, l := range spec.GetAccessLogging() {
		a.providers(fmt.Sprintf("spec.accessLogging[%d]", i), l.GetProviders(), mesh.LogProvider, "access logs", "it logs nothing")
	}
	for i, m := range spec.GetMetrics() {
		for j, ref := range m.GetProviders() {
			field := fmt.Sprintf("spec.metrics[%d].providers[%d].name", i, j)
			if p := mesh.Provider(a.o.Mesh, ref.GetName()); p == nil {
				a.warn(field, "mesh configuration has no provider %q in extensionProviders: it counts nothing; want prometheus", ref.GetName())
			} else if p.GetPrometheus() == nil {
				a.warn(field, "provider %q is not one of metrics that proxies have: it counts nothing; want prometheus", ref.GetName())
			}
		}
	}
	for i, t := range spec.GetTracing() {
		a.providers(fmt.Sprintf("spec.tracing[%d]", i), t.GetProviders(), mesh.TraceProvider, "tracing that proxies have ("+mesh.TraceProviders+")", nothingTraced)
		for j, ref := range t.GetProviders() {
			a.collector(fmt.Sprintf("spec.tracing[%d].providers[%d].name", i, j), mesh.Provider(a.o.Mesh, ref.GetName()))
		}
	}
}

// collector checks that Envoy itself can make requests to the service of a provider of tracing, if it exists, and to that of its sampler.
func (a *index) collector(field string, p *meshv1.MeshConfig_ExtensionProvider) {
	service, _, _ := mesh.TraceProvider(p)
	a.usedByEnvoy(field, p, service)
	if api := p.GetOpentelemetry().GetDynatraceSampler().GetHttpService(); api != nil {
		a.providerService(field, p, api.GetService(), api.GetPort(), nothingTraced)
		a.usedByEnvoy(field, p, api.GetService())
	}
}

// usedByEnvoy checks that Envoy itself can make requests to a service of a provider of tracing, if it exists.
func (a *index) usedByEnvoy(field string, p *meshv1.MeshConfig_ExtensionProvider, service string) {
	_, host := mesh.ProviderService(service)
	if s := a.services[host]; s != nil && !s.usable {
		a.warn(field, "%q, the service of provider %q, %s: %s", service, p.GetName(), s.unusable, nothingTraced)
	}
}

// defaultProviders checks that the services of the default providers of access logs and tracing exist. That there are such providers
// package config checks.
func (a *index) defaultProviders() {
	for i, name := range a.o.Mesh.GetDefaultProviders().GetAccessLogging() {
		p := mesh.Provider(a.o.Mesh, name)
		if service, port, _ := mesh.LogProvider(p); service != "" {
			a.providerService(fmt.Sprintf("defaultProviders.accessLogging[%d]", i), p, service, port, "it logs nothing")
		}
	}
	for i, name := range a.o.Mesh.GetDefaultProviders().GetTracing() {
		p := mesh.Provider(a.o.Mesh, name)
		if service, port, _ := mesh.TraceProvider(p); i == 0 && service != "" {
			field := fmt.Sprintf("defaultProviders.tracing[%d]", i)
			a.providerService(field, p, service, port, nothingTraced+" where no Telemetry names another provider")
			a.collector(field, p)
		}
	}
}

// providers checks the providers of one entry, of which service says whether they are of the entry's kind. Their absence has the
// consequence.
func (a *index) providers(at string, refs []*telemetry.ProviderRef, service func(*meshv1.MeshConfig_ExtensionProvider) (string, uint32, bool), kind, consequence string) {
	for j, ref := range refs {
		field := fmt.Sprintf("%s.providers[%d].name", at, j)
		p := mesh.Provider(a.o.Mesh, ref.GetName())
		name, port, ok := service(p)
		switch {
		case p == nil:
			a.warn(field, "mesh configuration has no provider %q in extensionProviders: %s", ref.GetName(), consequence)
		case !ok:
			a.warn(field, "provider %q is not one of %s: %s", ref.GetName(), kind, consequence)
		case name != "":
			a.providerService(field, p, name, port, consequence)
		}
	}
}

// providerService checks that a provider's service exists.
func (a *index) providerService(field string, p *meshv1.MeshConfig_ExtensionProvider, service string, port uint32, consequence string) {
	ns, host := mesh.ProviderService(service)
	s := a.services[host]
	switch {
	case s == nil || ns != "" && ns != s.namespace:
		a.warn(field, "no Service or ServiceEntry has the host %q of provider %q: %s", service, p.GetName(), consequence)
	case !slices.Contains(s.ports, port):
		a.warn(field, "%q, the service of provider %q, has no port %d: %s", service, p.GetName(), port, consequence)
	}
}
