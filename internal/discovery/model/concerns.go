package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Decides reports whether an object may have decided what class a proxy has, if the rule that classifies proxies has read the object. That
// rule reads most policies of a namespace to find those that select the proxy, and a class names what it has found. PeerAuthentications it
// finds through an index.
func Decides(o *object.Object, c mesh.Class) bool {
	key := rowKey(o.Key)
	in := func(lists ...string) bool {
		return slices.ContainsFunc(lists, func(list string) bool { return contains(strings.Fields(list), key) })
	}
	patches := func(key string) bool {
		return slices.ContainsFunc(append(Patchings(c.Scope.Patches), Patchings(c.Workload.Patches)...), func(p Patching) bool { return p.Key == key })
	}
	switch spec := o.Spec.(type) {
	case *security.AuthorizationPolicy:
		return in(c.Workload.Authorization)
	case *security.RequestAuthentication:
		return in(c.Workload.Tokens)
	case *networking.EnvoyFilter:
		return patches(key) || slices.ContainsFunc(spec.GetConfigPatches(), func(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) bool {
			return p.GetApplyTo() == networking.EnvoyFilter_BOOTSTRAP // not part of the class
		})
	}
	switch o.Kind {
	case object.WasmPlugin, object.TrafficExtension:
		return patches(extensionKey(o.Key))
	case object.Telemetry:
		return in(c.Scope.Telemetry, c.Workload.Telemetry)
	case object.Sidecar:
		return in(c.Scope.Sidecar, c.Workload.Sidecar)
	case object.Gateway:
		return contains(strings.Fields(c.Scope.Gateways), key)
	case object.KubernetesGateway:
		return ServesGateway(c.Scope, o.Key)
	case object.VirtualService, object.DestinationRule: // read for their selectors of clients only: resources depend on the rest
		return false
	}
	return true
}
