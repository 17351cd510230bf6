package decode

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Istio's versions of one kind share their schema, so all are read into the same message.
var groupVersions = map[string][]string{
	"":                    {"v1"},
	"discovery.k8s.io":    {"discovery.k8s.io/v1"},
	"networking.istio.io": {"networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"},
	"security.istio.io":   {"security.istio.io/v1", "security.istio.io/v1beta1"},
}

func groupOf(kind object.Kind) (group string, known bool) {
	switch kind {
	case object.Namespace, object.Service, object.Pod, object.ServiceAccount, object.Secret, object.ConfigMap:
		return "", true
	case object.EndpointSlice:
		return "discovery.k8s.io", true
	case object.ServiceEntry, object.WorkloadEntry, object.VirtualService, object.DestinationRule, object.Sidecar, object.Gateway:
		return "networking.istio.io", true
	case object.PeerAuthentication:
		return "security.istio.io", true
	}
	return "", false
}

// versionsOf gives the API versions in which a kind is read; known is false where kind
// and group together are none of ours (another project's Service, for one).
func versionsOf(kind object.Kind, version string) (versions []string, known bool) {
	group, known := groupOf(kind)
	given, _, grouped := strings.Cut(version, "/")
	if !grouped {
		given = ""
	}
	if !known || given != group {
		return nil, false
	}
	return groupVersions[group], true
}

func isIstio(kind object.Kind) bool {
	group, known := groupOf(kind)
	return known && strings.HasSuffix(group, ".istio.io")
}

// NewSpec is a fresh message of the type that objects of an Istio kind carry; nil for
// every other kind.
func NewSpec(kind object.Kind) proto.Message {
	switch kind {
	case object.ServiceEntry:
		return &networking.ServiceEntry{}
	case object.WorkloadEntry:
		return &networking.WorkloadEntry{}
	case object.VirtualService:
		return &networking.VirtualService{}
	case object.DestinationRule:
		return &networking.DestinationRule{}
	case object.Sidecar:
		return &networking.Sidecar{}
	case object.Gateway:
		return &networking.Gateway{}
	case object.PeerAuthentication:
		return &security.PeerAuthentication{}
	}
	return nil
}

// Istio makes an object of an Istio kind from its parts; spec is shared, not copied, and
// must be of NewSpec's type.
func Istio(kind object.Kind, m *metav1.ObjectMeta, spec proto.Message) object.Object {
	return object.Object{Key: keyOf(kind, m.Namespace, m.Name), Meta: metaOf(m), Spec: spec}
}

func istioFrom(t *yamltree.Tree, kind object.Kind, meta metav1.ObjectMeta) (object.Object, []*yamltree.Fault) {
	spec := NewSpec(kind)
	for _, e := range t.Entries {
		switch e.Key {
		case "apiVersion", "kind", "metadata", "spec", "status":
		default:
			return object.Object{}, []*yamltree.Fault{{Line: e.Line, Path: e.Key, Text: "unknown field; what the object says goes under spec"}}
		}
	}
	if s := t.Get("spec"); !s.IsNull() {
		if faults := yamltree.IntoMessage(s, "spec", spec); len(faults) > 0 {
			return object.Object{}, faults
		}
	}
	return Istio(kind, &meta, spec), nil
}

// coreFrom decodes one of Kubernetes' own kinds.
func coreFrom(t *yamltree.Tree, kind object.Kind, meta metav1.ObjectMeta) (object.Object, []*yamltree.Fault) {
	var typed any
	switch kind {
	case object.Namespace:
		typed = &corev1.Namespace{ObjectMeta: meta}
	case object.ServiceAccount:
		typed = &corev1.ServiceAccount{ObjectMeta: meta}
	case object.Service:
		typed = &corev1.Service{}
	case object.Pod:
		typed = &corev1.Pod{}
	case object.Secret:
		typed = &corev1.Secret{}
	case object.ConfigMap:
		typed = &corev1.ConfigMap{}
	case object.EndpointSlice:
		typed = &discoveryv1.EndpointSlice{}
	}
	if kind != object.Namespace && kind != object.ServiceAccount {
		if f := yamltree.Into(t, "", typed); f != nil {
			return object.Object{}, []*yamltree.Fault{f}
		}
	}
	o, problems := Typed(typed)
	var faults []*yamltree.Fault
	for _, p := range problems {
		faults = append(faults, &yamltree.Fault{Path: p.Field, Text: p.Text})
	}
	return o, faults
}

// Typed makes an object of *corev1.Namespace, Service, Pod, ServiceAccount, Secret,
// ConfigMap or *discoveryv1.EndpointSlice. Maps are shared with the argument, not copied.
// With problems the object is not to be used, except for its key.
func Typed(k8s any) (object.Object, []object.Problem) {
	r := reducer{}
	switch x := k8s.(type) {
	case *corev1.Namespace:
		r.start(object.Namespace, &x.ObjectMeta, nil)
	case *corev1.ServiceAccount:
		r.start(object.ServiceAccount, &x.ObjectMeta, nil)
	case *corev1.Secret:
		r.start(object.Secret, &x.ObjectMeta, secretSpec(x))
	case *corev1.ConfigMap:
		r.start(object.ConfigMap, &x.ObjectMeta, &object.ConfigMapSpec{Data: x.Data})
	case *corev1.Service:
		r.start(object.Service, &x.ObjectMeta, nil)
		r.out.Spec = r.service(x)
	case *corev1.Pod:
		r.start(object.Pod, &x.ObjectMeta, nil)
		r.out.Spec = r.pod(x)
	case *discoveryv1.EndpointSlice:
		r.start(object.EndpointSlice, &x.ObjectMeta, nil)
		r.out.Spec = r.slice(x)
	default:
		r.problem("", "objects of Go type %T are not read", k8s)
	}
	return r.out, r.problems
}

// reducer turns one typed object into an object.
type reducer struct {
	out      object.Object
	problems []object.Problem
}

func (r *reducer) start(kind object.Kind, m *metav1.ObjectMeta, spec any) {
	r.out = object.Object{Key: keyOf(kind, m.Namespace, m.Name), Meta: metaOf(m), Spec: spec}
}

func (r *reducer) problem(field, format string, args ...any) {
	r.problems = append(r.problems, object.Problem{Key: r.out.Key, Field: field, Text: fmt.Sprintf(format, args...)})
}
