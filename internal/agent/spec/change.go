package spec

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// Class says what a change of a field of ProxyConfig costs at run time.
type Class string

// The classes.
const (
	// Warm starts a new Envoy, which takes over from the running one.
	Warm Class = "warm"
	// Cold takes effect with the next agent; until then the old value is used.
	Cold Class = "cold"
	// Nothing means that a running agent does not use the field.
	Nothing Class = "nothing"
)

// cold are the fields that the agent itself is built from: its sockets, clients and
// deadlines, its environment, and what capture was set up with.
var cold = []protoreflect.Name{
	"config_path", "proxy_admin_port", "status_port", "discovery_address", "control_plane_auth_policy", "custom_config_file",
	"interception_mode", "private_key_provider", "proxy_metadata", "termination_drain_duration", "ca_certificates_pem", "service_cluster", "tracing_service_name", "readiness_probe",
}

// nothing are the fields that only an injector reads, and deprecated fields.
var nothing = []protoreflect.Name{
	"hold_application_until_proxy_starts", "image", "proxy_bootstrap_template_path", "discovery_refresh_delay", "availability_zone",
	"sds", "zipkin_address", "envoy_metrics_service_address",
}

// ClassOf returns the class of a field of ProxyConfig by its name in the protobuf definition. Fields not listed are warm: a new
// Envoy reports its whole configuration to the control plane.
func ClassOf(field protoreflect.Name) Class {
	switch {
	case slices.Contains(cold, field):
		return Cold
	case slices.Contains(nothing, field):
		return Nothing
	}
	return Warm
}

// changedFields lists the fields of a class that differ, by their JSON names, sorted.
func changedFields(old, next *meshv1.ProxyConfig, c Class) []string {
	var out []string
	each(old, next, func(fd protoreflect.FieldDescriptor) {
		if ClassOf(fd.Name()) == c {
			out = append(out, fd.JSONName())
		}
	})
	slices.Sort(out)
	return out
}

// keepFixed returns a copy of next with old's values of the fields that are not warm. It shares no memory with old.
func keepFixed(old, next *meshv1.ProxyConfig) *meshv1.ProxyConfig {
	out := proto.CloneOf(next)
	to, from := out.ProtoReflect(), proto.CloneOf(old).ProtoReflect()
	each(old, next, func(fd protoreflect.FieldDescriptor) {
		if ClassOf(fd.Name()) == Warm {
			return
		}
		if to.Clear(fd); from.Has(fd) {
			to.Set(fd, from.Get(fd))
		}
	})
	return out
}

// each calls f for the fields that differ.
func each(old, next *meshv1.ProxyConfig, f func(protoreflect.FieldDescriptor)) {
	x, y := old.ProtoReflect(), next.ProtoReflect()
	fields := x.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if x.Has(fd) != y.Has(fd) || !x.Get(fd).Equal(y.Get(fd)) {
			f(fd)
		}
	}
}

// ofJob reports whether the Pod's owner is a Job: kubernetes://apis/batch/v1/namespaces/NS/jobs/NAME.
func ofJob(owner string) bool {
	return strings.Contains(owner, "/apis/batch/") && strings.Contains(owner, "/jobs/")
}
