package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// ingresses has what Ingresses depend on.
type ingresses struct {
	// classes are the controllers of IngressClasses, by name.
	classes map[string]string
	all     []*object.Object
	// secrets are those of files, by namespace/name; a cluster's are not known.
	secrets map[string]bool
	// first is the Ingress that serves a host with TLS, or, for "", that has the default backend.
	first map[string]*object.Object
}

func (a *index) meshConfig() *meshv1.MeshConfig {
	if a.o.Mesh != nil {
		return a.o.Mesh
	}
	return mesh.DefaultMeshConfig()
}

// addIngress adds an object that Ingresses depend on, or an Ingress.
func (a *index) addIngress(obj *object.Object) {
	switch spec := obj.Spec.(type) {
	case *object.IngressClassSpec:
		a.ingresses.classes[obj.Name] = spec.Controller
	case *object.SecretSpec:
		a.ingresses.secrets[obj.Namespace+"/"+obj.Name] = true
	case *object.IngressSpec:
		a.ingresses.all = append(a.ingresses.all, obj)
	}
}

// sortIngresses finds out which Ingresses come first; it is called when all objects have been added.
func (a *index) sortIngresses() {
	list := slices.DeleteFunc(slices.Clone(a.ingresses.all), func(o *object.Object) bool { return !a.servesIngress(o) })
	slices.SortFunc(list, func(x, y *object.Object) int {
		return cmp.Or(x.Meta.Created.Compare(y.Meta.Created), cmp.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name))
	})
	for _, o := range list {
		spec := o.Spec.(*object.IngressSpec)
		var names []string
		if spec.Default != nil {
			names = append(names, "")
		}
		for _, t := range spec.TLS {
			if t.Secret != "" {
				names = append(names, tlsHosts(t)...)
			}
		}
		for _, h := range names {
			if a.ingresses.first[h] == nil {
				a.ingresses.first[h] = o
			}
		}
	}
}

// tlsHosts are the hosts of an entry of spec.tls.
func tlsHosts(t object.IngressTLS) (out []string) {
	for _, h := range t.Hosts {
		out = append(out, mesh.HostName(h))
	}
	if len(out) == 0 {
		out = []string{"*"}
	}
	return out
}

func (a *index) servesIngress(o *object.Object) bool {
	class := mesh.IngressClass{}
	class.Annotation, class.Annotated = o.Meta.Annotations[object.IngressClassAnnotation]
	class.Controller, class.Exists = a.ingresses.classes[o.Spec.(*object.IngressSpec).ClassName]
	return mesh.ServesIngress(a.meshConfig(), class)
}

// ingress reports what has no effect in an Ingress that is served, and why one that looks like it is not.
func (a *index) ingress(obj *object.Object, spec *object.IngressSpec) {
	if !a.servesIngress(obj) {
		a.notServed(obj, spec)
		return
	}
	a.ingressSelector()
	a.ingressService()
	if spec.Default != nil {
		a.ingressBackend("spec.defaultBackend", *spec.Default)
		if other := a.ingresses.first[""]; other != nil && other != obj {
			a.warn("spec.defaultBackend", "not applied to hosts without a rule: the older Ingress %s/%s has a default backend", other.Namespace, other.Name)
		}
	}
	seen := map[string]bool{}
	for i, t := range spec.TLS {
		at := fmt.Sprintf("spec.tls[%d]", i)
		if t.Secret == "" {
			a.warn(at+".secretName", "not applied: it is missing, and the hosts are not served with TLS")
			continue
		}
		for _, h := range tlsHosts(t) {
			if other := a.ingresses.first[h]; other != nil && other != obj {
				a.warn(at, "not applied: the older Ingress %s/%s has a certificate for the host %q", other.Namespace, other.Name, h)
			} else if seen[h] {
				a.warn(at, "not applied: the host %q is in an entry before", h)
			}
			seen[h] = true
		}
		a.ingressSecret(at+".secretName", t.Secret)
	}
	for i, r := range spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		if r.NoHTTP && spec.Default == nil {
			a.warn(at, "not applied: it has no paths, and there is no defaultBackend")
		}
		for j, p := range r.Paths {
			at := fmt.Sprintf("%s.http.paths[%d]", at, j)
			if strings.ContainsAny(p.Path, "?#") {
				a.warn(at+".path", "no request has a path with ? or #")
			}
			a.ingressBackend(at+".backend", p.Backend)
		}
	}
}

// notServed reports an Ingress that names a class of the mesh and is not served.
func (a *index) notServed(obj *object.Object, spec *object.IngressSpec) {
	m := a.meshConfig()
	annotation, annotated := obj.Meta.Annotations[object.IngressClassAnnotation]
	_, exists := a.ingresses.classes[spec.ClassName]
	switch {
	case m.GetIngressControllerMode() == meshv1.MeshConfig_OFF:
		if annotation == m.GetIngressClass() && annotated || spec.ClassName == m.GetIngressClass() {
			a.warn("spec", "not served: ingressControllerMode of the mesh configuration is OFF")
		}
	case !annotated && spec.ClassName != "" && !exists:
		a.warn("spec.ingressClassName", "not served: there is no IngressClass %s; add one with spec.controller istio.io/ingress-controller", spec.ClassName)
	}
}

// ingressSelector checks that there is a router that serves Ingresses.
func (a *index) ingressSelector() {
	labels := mesh.IngressSelector(a.meshConfig())
	if a.o.Workloads && !a.selected("", labels) {
		a.warn("spec", "not served: no workload has the labels %s; run a gateway with them, or set ingressSelector or ingressService of the mesh configuration", labelText(labels))
	}
}

// ingressService checks that there is a Service whose addresses the status has. [control-plane 1.11.11]
func (a *index) ingressService() {
	ns, name := a.o.Gateways, a.meshConfig().GetIngressService()
	if ns != "" && name != "" && a.services[mesh.FullHost(name, ns, a.o.Domain)] == nil {
		a.warn("status.loadBalancer", "not written: there is no Service %s/%s, whose addresses it has; run the gateways there, or name their Service of that namespace in ingressService of the mesh configuration, and their label in ingressSelector", ns, name)
	}
}

// ingressSecret checks that a Secret is in the namespaces of the routers that serve Ingresses, where Secrets are known.
func (a *index) ingressSecret(field, name string) {
	if len(a.ingresses.secrets) == 0 {
		return
	}
	labels := mesh.IngressSelector(a.meshConfig())
	for _, ns := range slices.Sorted(maps.Keys(a.workloads)) {
		if a.selected(ns, labels) && !a.ingresses.secrets[ns+"/"+name] {
			a.warn(field, "there is no Secret %s/%s: Secrets are those of the gateway's namespace, and without it the hosts are not served with TLS there", ns, name)
		}
	}
}

// ingressBackend checks that a backend is a port of a Service.
func (a *index) ingressBackend(field string, b object.IngressBackend) {
	if b.Resource != "" {
		a.warn(field+".resource", "backends that are no Services are not supported: requests get 503")
		return
	}
	s := a.host(field+".service.name", mesh.FullHost(b.Service+"."+a.now.Namespace+".svc."+a.o.Domain, a.now.Namespace, a.o.Domain))
	switch {
	case s == nil || len(s.ports) == 0:
	case b.PortName != "" && !slices.Contains(s.names, b.PortName):
		a.warn(field+".service.port.name", "%s has no port %q: requests get 503", b.Service, b.PortName)
	case b.Port != 0 && !slices.Contains(s.ports, b.Port):
		var ports []string
		for _, p := range s.ports {
			ports = append(ports, fmt.Sprint(p))
		}
		a.warn(field+".service.port.number", "%s has no port %d: want %s", b.Service, b.Port, strings.Join(ports, ", "))
	}
}
