package config

import (
	extensions "istio.io/api/extensions/v1alpha1"
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// targeted is a TrafficExtension, which has no targetRef, as an attached specification.
type targeted struct{ *extensions.TrafficExtension }

func (targeted) GetTargetRef() *typev1.PolicyTargetReference { return nil }

// wasmPlugin checks a WasmPlugin. [control-plane 1.11.5]
func (c *check) wasmPlugin(o object.Object, s *extensions.WasmPlugin) {
	c.extension(o, s, object.TrafficExtensionOf(s))
}

// trafficExtension checks a TrafficExtension. [control-plane 1.11.6]
func (c *check) trafficExtension(o object.Object, s *extensions.TrafficExtension) {
	c.extension(o, targeted{s}, s)
}

// extension checks an object that adds a filter to proxies. One that decides about requests denies them if it is invalid.
func (c *check) extension(o object.Object, of attached, spec *extensions.TrafficExtension) {
	if patch.Guards(spec) {
		c.attachment(o, of)
	} else {
		c.attachedTo(o.Namespace, of)
	}
	_, faults := patch.ParseExtension(o.Key, spec)
	for _, f := range faults {
		severity := object.Warning
		if f.Severity == patch.Invalid {
			severity = object.Error
		}
		c.report(severity, f.Field, "%s", f.Text)
	}
}
