package decode

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// The API groups of the kinds that are read.
const (
	coreGroup       = ""
	discoveryGroup  = "discovery.k8s.io"
	extensionsGroup = "extensions.istio.io"
	gatewayGroup    = "gateway.networking.k8s.io"
	ingressGroup    = "networking.k8s.io"
	networkingGroup = "networking.istio.io"
	securityGroup   = "security.istio.io"
	telemetryGroup  = "telemetry.istio.io"
)

// The versions of one of Istio's kinds have the same schema, so all are decoded into the same message.
var groupVersions = map[string][]string{
	coreGroup:       {"v1"},
	discoveryGroup:  {discoveryGroup + "/v1"},
	extensionsGroup: {extensionsGroup + "/v1alpha1"},
	gatewayGroup:    {gatewayGroup + "/v1", gatewayGroup + "/v1beta1"},
	ingressGroup:    {ingressGroup + "/v1"},
	networkingGroup: {networkingGroup + "/v1", networkingGroup + "/v1beta1", networkingGroup + "/v1alpha3"},
	securityGroup:   {securityGroup + "/v1", securityGroup + "/v1beta1"},
	telemetryGroup:  {telemetryGroup + "/v1", telemetryGroup + "/v1alpha1"},
}

// kindRow says how objects of one kind are decoded.
type kindRow struct {
	group string
	// versions are the supported API versions; nil for those of the group.
	versions []string
	// resource is the name in paths of the API; cluster is set if the objects are in no namespace.
	resource string
	cluster  bool
	// enforces is set if objects of the kind deny requests, so that ignoring one would allow what it
	// denies.
	enforces bool
	// refusable is set if a control plane that must not read the kind serves all the same.
	refusable bool
	// defined is set for kinds of a CustomResourceDefinition that are Go structs, as Kubernetes' own kinds are.
	defined bool
	// newSpec returns an empty message of an Istio kind; nil for Kubernetes' own kinds.
	newSpec func() proto.Message
	// fromTree and fromTyped decode one of Kubernetes' own kinds; nil for Istio's. fromTyped returns
	// false for a value of another type.
	fromTree  func(t *yamltree.Tree, meta metav1.ObjectMeta) (any, *yamltree.Fault)
	fromTyped func(r *reducer, k8s any) bool
	// typ is the client type of one of Kubernetes' own kinds, of which unknown fields are warnings; nil for all others.
	typ reflect.Type
}

// kinds has a row for each supported kind. To support another one, add its constant to package object,
// a row here, and one in the tables of packages config and model; init panics in all three for a kind
// without a row.
var kinds = map[object.Kind]kindRow{
	object.Namespace: inNoNamespace(core(object.Namespace, coreGroup, "namespaces", metaOnly, func(*reducer, *corev1.Namespace) any { return nil })),
	object.Node:      inNoNamespace(core(object.Node, coreGroup, "nodes", metaOnly, func(r *reducer, x *corev1.Node) any { return r.node(x) })),
	object.Service:   core(object.Service, coreGroup, "services", wholeTree, func(r *reducer, x *corev1.Service) any { return r.service(x) }),
	object.EndpointSlice: core(object.EndpointSlice, discoveryGroup, "endpointslices", wholeTree, func(r *reducer, x *discoveryv1.EndpointSlice) any {
		return r.slice(x)
	}),
	object.Pod: core(object.Pod, coreGroup, "pods", wholeTree, func(r *reducer, x *corev1.Pod) any { return r.pod(x) }),
	object.ServiceAccount: core(object.ServiceAccount, coreGroup, "serviceaccounts", metaOnly, func(*reducer, *corev1.ServiceAccount) any {
		return nil
	}),
	object.Secret: core(object.Secret, coreGroup, "secrets", wholeTree, func(_ *reducer, x *corev1.Secret) any { return secretSpec(x) }),
	object.ConfigMap: core(object.ConfigMap, coreGroup, "configmaps", wholeTree, func(_ *reducer, x *corev1.ConfigMap) any {
		return &object.ConfigMapSpec{Data: x.Data}
	}),

	object.ServiceEntry:    {group: networkingGroup, resource: "serviceentries", newSpec: func() proto.Message { return &networking.ServiceEntry{} }},
	object.WorkloadEntry:   {group: networkingGroup, resource: "workloadentries", newSpec: func() proto.Message { return &networking.WorkloadEntry{} }},
	object.VirtualService:  {group: networkingGroup, resource: "virtualservices", newSpec: func() proto.Message { return &networking.VirtualService{} }},
	object.DestinationRule: {group: networkingGroup, resource: "destinationrules", newSpec: func() proto.Message { return &networking.DestinationRule{} }},
	object.Sidecar:         {group: networkingGroup, resource: "sidecars", newSpec: func() proto.Message { return &networking.Sidecar{} }},
	object.Gateway:         {group: networkingGroup, resource: "gateways", newSpec: func() proto.Message { return &networking.Gateway{} }},
	object.ProxyConfig: {group: networkingGroup, versions: []string{networkingGroup + "/v1beta1"}, resource: "proxyconfigs", newSpec: func() proto.Message {
		return &networkingv1beta1.ProxyConfig{}
	}},
	object.EnvoyFilter:   {group: networkingGroup, resource: "envoyfilters", versions: []string{networkingGroup + "/v1alpha3"}, newSpec: func() proto.Message { return &networking.EnvoyFilter{} }},
	object.WorkloadGroup: {group: networkingGroup, resource: "workloadgroups", newSpec: func() proto.Message { return &networking.WorkloadGroup{} }},

	object.PeerAuthentication: {group: securityGroup, resource: "peerauthentications", enforces: true, newSpec: func() proto.Message { return &security.PeerAuthentication{} }},
	object.RequestAuthentication: {group: securityGroup, resource: "requestauthentications", enforces: true, newSpec: func() proto.Message {
		return &security.RequestAuthentication{}
	}},
	object.AuthorizationPolicy: {group: securityGroup, resource: "authorizationpolicies", enforces: true, newSpec: func() proto.Message {
		return &security.AuthorizationPolicy{}
	}},

	object.Telemetry: {group: telemetryGroup, resource: "telemetries", newSpec: func() proto.Message { return &telemetry.Telemetry{} }},

	object.WasmPlugin: {group: extensionsGroup, resource: "wasmplugins", refusable: true, newSpec: func() proto.Message { return &extensions.WasmPlugin{} }},
	object.TrafficExtension: {group: extensionsGroup, resource: "trafficextensions", refusable: true, newSpec: func() proto.Message {
		return &extensions.TrafficExtension{}
	}},

	object.GatewayClass:      inNoNamespace(gatewayAPI(object.GatewayClass, "gatewayclasses", func(x *gatewayv1.GatewayClass) any { return &x.Spec })),
	object.KubernetesGateway: gatewayAPI(object.KubernetesGateway, "gateways", func(x *gatewayv1.Gateway) any { return &x.Spec }),
	object.ListenerSet:       refusable(gatewayAPI(object.ListenerSet, "listenersets", func(x *gatewayv1.ListenerSet) any { return &x.Spec })),
	object.HTTPRoute:         gatewayAPI(object.HTTPRoute, "httproutes", func(x *gatewayv1.HTTPRoute) any { return &x.Spec }),
	object.GRPCRoute:         gatewayAPI(object.GRPCRoute, "grpcroutes", func(x *gatewayv1.GRPCRoute) any { return &x.Spec }),
	object.TLSRoute:          gatewayAPI(object.TLSRoute, "tlsroutes", func(x *gatewayv1.TLSRoute) any { return &x.Spec }, "v1alpha3", "v1alpha2"),
	object.TCPRoute:          gatewayAPI(object.TCPRoute, "tcproutes", func(x *gatewayv1.TCPRoute) any { return &x.Spec }, "v1alpha2"),
	object.UDPRoute:          refusable(gatewayAPI(object.UDPRoute, "udproutes", func(x *gatewayv1.UDPRoute) any { return &x.Spec }, "v1alpha2")),
	object.ReferenceGrant:    gatewayAPI(object.ReferenceGrant, "referencegrants", func(x *gatewayv1.ReferenceGrant) any { return &x.Spec }),
	object.BackendTLSPolicy:  gatewayAPI(object.BackendTLSPolicy, "backendtlspolicies", func(x *gatewayv1.BackendTLSPolicy) any { return &x.Spec }),

	object.IngressClass: refusable(inNoNamespace(core(object.IngressClass, ingressGroup, "ingressclasses", wholeTree, func(_ *reducer, x *networkingv1.IngressClass) any {
		return ingressClass(x)
	}))),
	object.Ingress: refusable(core(object.Ingress, ingressGroup, "ingresses", wholeTree, func(_ *reducer, x *networkingv1.Ingress) any { return ingress(x) })),
}

func init() {
	for _, k := range object.Kinds() {
		if row := kinds[k]; (row.newSpec == nil) == (row.fromTyped == nil) || row.resource == "" {
			panic("decode: no complete row in kinds for " + string(k))
		}
	}
}

// Whether the whole document is decoded into the typed object, or only its metadata is used, which has
// been decoded already.
const (
	wholeTree = true
	metaOnly  = false
)

// core returns the row of one of Kubernetes' own kinds, whose client type is T.
func core[T any, P interface {
	*T
	metav1.ObjectMetaAccessor
}](kind object.Kind, group, resource string, whole bool, spec func(*reducer, *T) any) kindRow {
	metaIn := func(x *T) *metav1.ObjectMeta { return P(x).GetObjectMeta().(*metav1.ObjectMeta) }
	return kindRow{
		group: group, resource: resource, typ: reflect.TypeFor[T](),
		fromTree: func(t *yamltree.Tree, meta metav1.ObjectMeta) (any, *yamltree.Fault) {
			x := new(T)
			if whole {
				return x, yamltree.Into(t, "", x)
			}
			*metaIn(x) = meta
			return x, nil
		},
		fromTyped: func(r *reducer, k8s any) bool {
			x, ok := k8s.(*T)
			if ok {
				m := metaIn(x)
				r.out = object.Object{Key: KeyOf(kind, m.Namespace, m.Name), Meta: metaOf(m)}
				r.out.Spec = spec(r, x)
			}
			return ok
		},
	}
}

// inNoNamespace returns the row of a kind whose objects are in no namespace.
func inNoNamespace(row kindRow) kindRow {
	row.cluster = true
	return row
}

// refusable returns the row of a kind that a control plane that must not read it does without.
func refusable(row kindRow) kindRow {
	row.refusable = true
	return row
}

// versionsOf returns the supported API versions of a kind; known is false if no row has both kind and
// group, such as for a Service of another project.
func versionsOf(kind object.Kind, version string) (versions []string, known bool) {
	row, known := kinds[kind]
	given, _, grouped := strings.Cut(version, "/")
	if !grouped {
		given = ""
	}
	if !known || given != row.group {
		return nil, false
	}
	return row.apiVersions(), true
}

// apiVersions returns the supported API versions of a kind, the preferred one first.
func (r kindRow) apiVersions() []string {
	if r.versions != nil {
		return r.versions
	}
	return groupVersions[r.group]
}

// NewSpec returns an empty message of the type of Spec for an Istio kind, nil for every other kind.
func NewSpec(kind object.Kind) proto.Message {
	if newSpec := kinds[kind].newSpec; newSpec != nil {
		return newSpec()
	}
	return nil
}

// Istio returns an object of an Istio kind; spec is not copied, and must be of NewSpec's type.
func Istio(kind object.Kind, m *metav1.ObjectMeta, spec proto.Message) object.Object {
	return object.Object{Key: KeyOf(kind, m.Namespace, m.Name), Meta: metaOf(m), Spec: spec}
}

func istioFrom(t *yamltree.Tree, kind object.Kind, meta metav1.ObjectMeta) (object.Object, []*yamltree.Fault) {
	spec := NewSpec(kind)
	for _, e := range t.Entries {
		switch e.Key {
		case "apiVersion", "kind", "metadata", "spec", "status":
		default:
			return object.Object{}, []*yamltree.Fault{{Line: e.Line, Path: e.Key, Text: "unknown field; want apiVersion, kind, metadata, spec or status"}}
		}
	}
	if s := t.Get("spec"); !s.IsNull() {
		if faults := yamltree.IntoMessage(s, "spec", spec); len(faults) > 0 {
			return object.Object{}, faults
		}
	}
	o := Istio(kind, &meta, spec)
	switch kind {
	case object.ServiceEntry:
		o.Addresses = allocated(t.Get("status").Get("addresses"))
	case object.WorkloadEntry:
		o.Healthy = healthy(t.Get("status").Get("conditions"))
	}
	return o, nil
}

// maxAddresses is how many addresses of a status are read.
const maxAddresses = 1024

// allocated returns the addresses in a status. What has another form is left out: others may write a status.
func allocated(list *yamltree.Tree) (out []object.HostAddress) {
	if list == nil {
		return nil
	}
	for _, e := range list.Items[:min(len(list.Items), maxAddresses)] {
		ip, err := netip.ParseAddr(e.Get("value").Str())
		if host := e.Get("host").Str(); err == nil && ip.Zone() == "" && host != "" {
			out = append(out, object.HostAddress{Host: host, Address: ip.Unmap()})
		}
	}
	return out
}

// maxConditions is how many conditions of a status are read.
const maxConditions = 64

// healthy returns the condition Healthy in a status. What has another form is left out: others may write a status.
func healthy(list *yamltree.Tree) *object.Health {
	if list == nil {
		return nil
	}
	for _, e := range list.Items[:min(len(list.Items), maxConditions)] {
		if e.Get("type").Str() == object.ConditionHealthy {
			return object.HealthOf(e.Get("status").Str() == "True", e.Get("message").Str())
		}
	}
	return nil
}

// coreFrom decodes an object of one of Kubernetes' own kinds.
func coreFrom(t *yamltree.Tree, kind object.Kind, meta metav1.ObjectMeta) (object.Object, []*yamltree.Fault) {
	typed, fault := kinds[kind].fromTree(t, meta)
	if fault != nil {
		return object.Object{}, []*yamltree.Fault{fault}
	}
	o, problems := Typed(typed)
	var faults []*yamltree.Fault
	for _, p := range problems {
		faults = append(faults, &yamltree.Fault{Path: p.Field, Text: p.Text})
	}
	return o, faults
}

// Typed converts an object of a Kubernetes client, such as *corev1.Service or
// *discoveryv1.EndpointSlice. Maps are not copied. If there are problems, only the key of the returned
// object may be used.
func Typed(k8s any) (object.Object, []object.Problem) {
	r := reducer{}
	for _, kind := range object.Kinds() {
		if read := kinds[kind].fromTyped; read != nil && read(&r, k8s) {
			return r.out, r.problems
		}
	}
	r.problem("", "unsupported Go type %T", k8s)
	return r.out, r.problems
}

// reducer converts one typed object.
type reducer struct {
	out      object.Object
	problems []object.Problem
}

func (r *reducer) problem(field, format string, args ...any) {
	r.problems = append(r.problems, object.Problem{Key: r.out.Key, Field: field, Text: fmt.Sprintf(format, args...)})
}
