// Package analyze finds references between objects that lead nowhere.
//
// Such are a host that no service has, a subset without endpoints, a selector that selects nothing. [References] is a pure function of all objects. Each of them is valid on its own, which package config has decided; what it
// reports are warnings, since the object that is missing may be on its way. It costs a pass over the objects, and is called when
// somebody asks, not at a change.
package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/spelling"
)

// Options say what is known of the mesh.
type Options struct {
	// Domain is the DNS suffix of the cluster, RootNamespace the mesh's.
	Domain, RootNamespace string
	// Workloads is set if the objects have all Pods: only then a selector that selects none is reported.
	Workloads bool
	// Gateways is the namespace of the Service whose addresses the statuses of Ingresses have; empty if none are written.
	Gateways string
	// NoSessions is set if proxies have no filter that keeps sessions (PILOT_ENABLE_PERSISTENT_SESSION_FILTER is known not to be true).
	NoSessions bool
	// Mesh is mesh configuration; references to it are not checked if it is nil.
	Mesh *meshv1.MeshConfig
	// MeshObject is the object that has the mesh configuration; the zero key if none has.
	MeshObject object.Key
}

// maxFindings bounds what is reported.
const maxFindings = 1000

// References returns a warning for each reference of an object to one that does not exist, in the order of the origins of the objects.
func References(objects []*object.Object, o Options) []object.Problem {
	a := newIndex(objects, o)
	for _, obj := range objects {
		if len(a.out) >= maxFindings {
			break
		}
		a.check(obj)
	}
	slices.SortStableFunc(a.out, func(x, y object.Problem) int {
		return cmp.Or(cmp.Compare(x.Origin.File, y.Origin.File), cmp.Compare(x.Origin.Line, y.Origin.Line),
			cmp.Compare(x.Key.Kind, y.Key.Kind), cmp.Compare(x.Key.Namespace, y.Key.Namespace), cmp.Compare(x.Key.Name, y.Key.Name))
	})
	return a.out
}

// index has what can be referred to.
type index struct {
	o Options
	// services are the hosts of Services and ServiceEntries without wildcards.
	services map[string]*service
	// wildcards are the hosts of ServiceEntries with wildcards.
	wildcards []string
	// dynamic are the hosts of ServiceEntries whose names proxies resolve.
	dynamic []string
	// subsets has the names of the subsets that DestinationRules define, by host.
	subsets map[string]map[string]bool
	// http2 are the hosts of whose ports of HTTP a DestinationRule has clients use HTTP/2, or the version of their own clients.
	http2 map[string]bool
	// gateways are those of Istio, virtuals the VirtualServices, by namespace/name.
	gateways map[string]*networking.Gateway
	virtuals map[string]*networking.VirtualService
	// kubernetes are the Gateways of the Gateway API, by namespace/name.
	kubernetes map[string]bool
	// workloads are Pods and WorkloadEntries by namespace.
	workloads map[string][]workload
	accounts  map[string]bool // namespace/name
	// users are what needs IP addresses of WorkloadEntries, by namespace; takers are ports without addresses, by number.
	users      map[string][]user
	takers     map[uint32][]taker
	namespaces map[string]bool
	ingresses  ingresses

	// now is the object that is checked.
	now *object.Object
	out []object.Problem
}

type service struct {
	namespace string
	ports     []uint32
	// protocols are those of the ports of a Service, but for UDP.
	protocols map[uint32]mesh.Protocol
	// names are those of the ports of a Service.
	names    []string
	selector map[string]string
	// inline are the labels of endpoints that are written in a ServiceEntry.
	inline []map[string]string
	// other is set if endpoints come from elsewhere, so that their labels are not known.
	other bool
	// hides is the namespace of a Service of Kubernetes that has the host and is exported to this namespace: a ServiceEntry there is not
	// used for it. Empty if there is none.
	hides string
	// usable is set if Envoy itself can make requests to it, whatever the namespace; unusable says why not.
	usable   bool
	unusable string
}

// uses notes whether Envoy itself can make requests to one of the objects that the service is made of; why not is empty if it can.
func (s *service) uses(why string) {
	s.usable = s.usable || why == ""
	s.unusable = why
}

type workload struct {
	labels map[string]string
	// ports are those of the containers of a Pod; nil for other workloads.
	ports []object.ContainerPort
}

func newIndex(objects []*object.Object, o Options) *index {
	a := &index{
		o: o, services: map[string]*service{}, subsets: map[string]map[string]bool{}, http2: map[string]bool{}, gateways: map[string]*networking.Gateway{}, virtuals: map[string]*networking.VirtualService{}, kubernetes: map[string]bool{},
		workloads: map[string][]workload{}, accounts: map[string]bool{}, namespaces: map[string]bool{},
		users: map[string][]user{}, takers: map[uint32][]taker{},
		ingresses: ingresses{classes: map[string]string{}, secrets: map[string]bool{}, first: map[string]*object.Object{}},
	}
	for _, obj := range objects {
		a.add(obj)
		a.addIngress(obj)
	}
	a.sortIngresses()
	return a
}

// add adds an object to what can be referred to.
func (a *index) add(obj *object.Object) {
	name := obj.Namespace + "/" + obj.Name
	if obj.Namespace != "" && obj.Kind != object.AuthorizationPolicy {
		a.namespaces[obj.Namespace] = true
	}
	switch spec := obj.Spec.(type) {
	case *object.ServiceSpec:
		host := mesh.FullHost(obj.Name, obj.Namespace, a.o.Domain)
		s := a.service(host, obj.Namespace)
		s.selector = spec.Selector
		s.other = s.other || len(spec.Selector) == 0
		s.uses(a.unusableService(obj, spec))
		if a.exported(obj, obj.Namespace) {
			s.hides = obj.Namespace
		}
		if len(spec.Selector) > 0 {
			a.users[obj.Namespace] = append(a.users[obj.Namespace], user{obj.Key, spec.Selector})
		}
		for _, p := range spec.Ports {
			s.ports, s.names = append(s.ports, p.Port), append(s.names, p.Name)
			s.speaks(p)
		}
	case *networking.ServiceEntry:
		a.addEntry(obj, spec)
		a.takes(obj, spec)
	case *object.PodSpec:
		a.workloads[obj.Namespace] = append(a.workloads[obj.Namespace], workload{obj.Meta.Labels, append([]object.ContainerPort{}, spec.Ports...)})
		a.accounts[obj.Namespace+"/"+spec.ServiceAccount] = true
	case *networking.WorkloadEntry:
		a.workloads[obj.Namespace] = append(a.workloads[obj.Namespace], workload{labels: mergedLabels(obj, spec)})
		a.accounts[obj.Namespace+"/"+cmp.Or(spec.ServiceAccount, "default")] = true
	case *networking.WorkloadGroup:
		a.workloads[obj.Namespace] = append(a.workloads[obj.Namespace], workload{labels: spec.GetMetadata().GetLabels()})
		a.accounts[obj.Namespace+"/"+cmp.Or(spec.GetTemplate().GetServiceAccount(), "default")] = true
	case *networking.DestinationRule:
		host := mesh.FullHost(spec.Host, obj.Namespace, a.o.Domain)
		if a.subsets[host] == nil {
			a.subsets[host] = map[string]bool{}
		}
		for _, s := range spec.Subsets {
			a.subsets[host][s.Name] = true
		}
		a.http2[host] = a.http2[host] || usesHTTP2(spec.TrafficPolicy)
	case *networking.Gateway:
		a.gateways[name] = spec
	case *networking.VirtualService:
		a.virtuals[name] = spec
	}
	switch obj.Kind {
	case object.KubernetesGateway:
		a.kubernetes[name] = true
	case object.ServiceAccount:
		a.accounts[name] = true
	case object.Namespace:
		a.namespaces[obj.Name] = true
	}
}

// mergedLabels are those of a WorkloadEntry, in its metadata and its spec.
func mergedLabels(obj *object.Object, spec *networking.WorkloadEntry) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, obj.Meta.Labels)
	maps.Copy(labels, spec.Labels)
	return labels
}

// notExported is why only some namespaces can use a service.
const notExported = "is not exported to all namespaces"

// exported reports whether a Service is exported to a namespace, "" for all.
func (a *index) exported(obj *object.Object, namespace string) bool {
	var to []string
	if list := obj.Meta.Annotations[mesh.ExportToAnnotation]; list != "" {
		to = mesh.List(list)
	}
	return mesh.Exported(to, a.o.Mesh.GetDefaultServiceExportTo(), obj.Namespace, namespace)
}

func (a *index) unusableService(obj *object.Object, spec *object.ServiceSpec) string {
	switch {
	case !a.exported(obj, ""):
		return notExported
	case spec.Type == "ExternalName":
		return "is of type ExternalName: name the host that it stands for"
	case spec.Headless:
		return "is headless, so that it has no addresses of its own"
	}
	return ""
}

func (a *index) unusableEntry(obj *object.Object, spec *networking.ServiceEntry) string {
	switch {
	case !mesh.Exported(spec.ExportTo, a.o.Mesh.GetDefaultServiceExportTo(), obj.Namespace, ""):
		return notExported
	case spec.Resolution == networking.ServiceEntry_NONE || spec.Resolution == networking.ServiceEntry_DYNAMIC_DNS:
		return "has resolution " + spec.Resolution.String() + ", so that it has no addresses of its own"
	}
	return ""
}

func (a *index) service(host, namespace string) *service {
	s := a.services[host]
	if s == nil {
		s = &service{namespace: namespace}
		a.services[host] = s
	}
	return s
}

func (a *index) addEntry(obj *object.Object, spec *networking.ServiceEntry) {
	if l := spec.GetWorkloadSelector().GetLabels(); len(l) > 0 && spec.Resolution != networking.ServiceEntry_DNS && spec.Resolution != networking.ServiceEntry_DNS_ROUND_ROBIN {
		a.users[obj.Namespace] = append(a.users[obj.Namespace], user{obj.Key, l})
	}
	for _, host := range spec.Hosts {
		host = mesh.HostName(host)
		if spec.Resolution == networking.ServiceEntry_DYNAMIC_DNS {
			a.dynamic = append(a.dynamic, host)
		}
		if strings.HasPrefix(host, "*") {
			a.wildcards = append(a.wildcards, strings.TrimPrefix(host, "*"))
			continue
		}
		s := a.service(host, obj.Namespace)
		s.uses(a.unusableEntry(obj, spec))
		for _, p := range spec.Ports {
			s.ports = append(s.ports, p.Number)
		}
		if spec.WorkloadSelector != nil {
			s.selector = spec.WorkloadSelector.Labels
			continue
		}
		s.other = s.other || len(spec.Endpoints) == 0
		for _, e := range spec.Endpoints {
			s.inline = append(s.inline, e.Labels)
		}
	}
}

// warn reports something about the object that is checked.
func (a *index) warn(field, format string, args ...any) {
	a.out = append(a.out, object.Problem{
		Severity: object.Warning, Origin: a.now.Origin, Key: a.now.Key, Generation: a.now.Meta.Generation, Field: field, Text: fmt.Sprintf(format, args...),
	})
}

// host checks that something has a host, and returns its service if one object has exactly that host.
func (a *index) host(field, host string) *service {
	full := mesh.FullHost(host, a.now.Namespace, a.o.Domain)
	if s := a.services[full]; s != nil {
		return s
	}
	if strings.HasPrefix(full, "*") {
		suffix := strings.TrimPrefix(full, "*")
		for known := range a.services {
			if strings.HasSuffix(known, suffix) {
				return nil
			}
		}
	}
	for _, suffix := range a.wildcards {
		if strings.HasSuffix(full, suffix) {
			return nil
		}
	}
	text := fmt.Sprintf("no Service or ServiceEntry has the host %q", full)
	if near := cmp.Or(nearest(full, maps.Keys(a.services)), a.elsewhere(full)); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	a.warn(field, "%s", text)
	return nil
}

// elsewhere is the host of a Service of the same name in another namespace, the first by name; "" if there is none.
func (a *index) elsewhere(host string) (first string) {
	name, _, ok := strings.Cut(host, ".")
	suffix := ".svc." + a.o.Domain
	if !ok || !strings.HasSuffix(host, suffix) {
		return ""
	}
	for known := range a.services {
		if strings.HasPrefix(known, name+".") && strings.HasSuffix(known, suffix) && (first == "" || known < first) {
			first = known
		}
	}
	return first
}

// resolvedByProxies reports whether proxies resolve the names of a host, by a ServiceEntry with resolution DYNAMIC_DNS.
func (a *index) resolvedByProxies(host string) bool {
	full := mesh.FullHost(host, a.now.Namespace, a.o.Domain)
	return slices.ContainsFunc(a.dynamic, func(d string) bool {
		suffix, wildcard := strings.CutPrefix(d, "*")
		return full == d || wildcard && strings.HasSuffix(full, suffix)
	})
}

// nearest is the name that is most like another one, "" if none is much like it.
func nearest(name string, among func(func(string) bool)) string {
	best, distance := "", max(2, len(name)/8)+1
	for other := range among {
		if d := spelling.Distance(name, other); d < distance || d == distance && best != "" && other < best {
			best, distance = other, d
		}
	}
	return best
}

// selected reports whether a workload has all labels; namespace "" stands for all namespaces.
func (a *index) selected(namespace string, labels map[string]string) bool {
	has := func(list []workload) bool {
		return slices.ContainsFunc(list, func(w workload) bool { return subset(labels, w.labels) })
	}
	if namespace != "" {
		return has(a.workloads[namespace])
	}
	for _, list := range a.workloads {
		if has(list) {
			return true
		}
	}
	return false
}

// subset reports whether all labels of a are in b.
func subset(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; !ok || w != v {
			return false
		}
	}
	return true
}

// labels are labels as they are written: a=b, c=d.
func labelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ", ")
}
