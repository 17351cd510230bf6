package decode

import (
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// ownKind returns the kind of package object for a kind of an API group: two groups have a Gateway.
func ownKind(group string, kind object.Kind) object.Kind {
	switch {
	case group == gatewayGroup && kind == object.Gateway:
		return object.KubernetesGateway
	case kind == object.KubernetesGateway:
		return "Kubernetes Gateway" // the name is ours: it is no kind of any API
	}
	return kind
}

// APIKind returns a kind as it is in YAML.
func APIKind(kind object.Kind) string {
	if kind == object.KubernetesGateway {
		return string(object.Gateway)
	}
	return string(kind)
}

// Defined reports whether the kind is one of a CustomResourceDefinition: Istio's and the Gateway API's.
func Defined(kind object.Kind) bool { return kinds[kind].newSpec != nil || kinds[kind].defined }

// GatewaySpec returns an empty spec of a kind of the Gateway API, nil for every other kind.
func GatewaySpec(kind object.Kind) any {
	switch kind {
	case object.GatewayClass:
		return &gatewayv1.GatewayClassSpec{}
	case object.KubernetesGateway:
		return &gatewayv1.GatewaySpec{}
	case object.ListenerSet:
		return &gatewayv1.ListenerSetSpec{}
	case object.HTTPRoute:
		return &gatewayv1.HTTPRouteSpec{}
	case object.GRPCRoute:
		return &gatewayv1.GRPCRouteSpec{}
	case object.TLSRoute:
		return &gatewayv1.TLSRouteSpec{}
	case object.TCPRoute:
		return &gatewayv1.TCPRouteSpec{}
	case object.UDPRoute:
		return &gatewayv1.UDPRouteSpec{}
	case object.ReferenceGrant:
		return &gatewayv1.ReferenceGrantSpec{}
	case object.BackendTLSPolicy:
		return &gatewayv1.BackendTLSPolicySpec{}
	}
	return nil
}

// gatewayAPI returns the row of a kind of the Gateway API, whose client type is T. An unknown field is a problem.
func gatewayAPI[T any, P interface {
	*T
	metav1.ObjectMetaAccessor
}](kind object.Kind, resource string, spec func(*T) any, more ...string) kindRow {
	row := core[T, P](kind, gatewayGroup, resource, wholeTree, func(_ *reducer, x *T) any { return spec(x) })
	row.defined, row.typ = true, nil
	row.versions = []string{gatewayGroup + "/v1", gatewayGroup + "/v1beta1"}
	for _, v := range more {
		row.versions = append(row.versions, gatewayGroup+"/"+v)
	}
	into := row.fromTree
	row.fromTree = func(t *yamltree.Tree, meta metav1.ObjectMeta) (any, *yamltree.Fault) {
		for _, e := range t.Entries {
			switch e.Key {
			case "apiVersion", "kind", "metadata", "spec", "status":
			default:
				return nil, &yamltree.Fault{Line: e.Line, Path: e.Key, Text: "unknown field; want apiVersion, kind, metadata, spec or status"}
			}
		}
		if f := unknownField(t.Get("spec"), "spec", reflect.TypeOf(spec(new(T)))); f != nil {
			return nil, f
		}
		return into(t, meta)
	}
	return row
}

// unknownField returns the first field of a tree that the struct of its type does not have.
func unknownField(t *yamltree.Tree, path string, typ reflect.Type) *yamltree.Fault {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case t == nil:
	case typ.Kind() == reflect.Slice && t.Kind == yamltree.Sequence:
		for i, item := range t.Items {
			if f := unknownField(item, fmt.Sprintf("%s[%d]", path, i), typ.Elem()); f != nil {
				return f
			}
		}
	case typ.Kind() == reflect.Map && t.Kind == yamltree.Mapping:
		for _, e := range t.Entries {
			if f := unknownField(e.Value, yamltree.JoinPath(path, e.Key), typ.Elem()); f != nil {
				return f
			}
		}
	case typ.Kind() == reflect.Struct && t.Kind == yamltree.Mapping:
		fields := jsonFields(typ)
		for _, e := range t.Entries {
			at, known := fields[e.Key]
			if !known {
				return &yamltree.Fault{Line: e.Line, Path: yamltree.JoinPath(path, e.Key), Text: "unknown field" + meantField(e.Key, fields)}
			}
			if f := unknownField(e.Value, yamltree.JoinPath(path, e.Key), at); f != nil {
				return f
			}
		}
	}
	return nil
}

// jsonFields returns the types of a struct's fields by their names in JSON, with those of embedded structs.
func jsonFields(typ reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case strings.Contains(options, "inline") || f.Anonymous && name == "":
			for n, t := range jsonFields(f.Type) {
				out[n] = t
			}
		case name != "" && name != "-":
			out[name] = f.Type
		}
	}
	return out
}
