// Package object holds what a source of configuration says: objects, changes and problems.
//
// A source (a directory of YAML, later the Kubernetes API) reduces what it sees to the
// plain values here, so that nothing behind it knows where an object came from.
// Kubernetes' own kinds become the small structs of this package; Istio's kinds carry
// their istio.io/api message. Values are immutable once emitted: share them, never
// change them.
package object

import (
	"fmt"
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"
)

// Kind is the kind of an object, as its YAML says it.
type Kind string

// The kinds that are read. The comment says what Object.Spec holds.
const (
	Namespace          Kind = "Namespace"          // nil
	Service            Kind = "Service"            // *ServiceSpec
	EndpointSlice      Kind = "EndpointSlice"      // *EndpointSliceSpec
	Pod                Kind = "Pod"                // *PodSpec
	ServiceAccount     Kind = "ServiceAccount"     // nil
	Secret             Kind = "Secret"             // *SecretSpec
	ConfigMap          Kind = "ConfigMap"          // *ConfigMapSpec
	ServiceEntry       Kind = "ServiceEntry"       // *networking/v1alpha3.ServiceEntry
	WorkloadEntry      Kind = "WorkloadEntry"      // *networking/v1alpha3.WorkloadEntry
	VirtualService     Kind = "VirtualService"     // *networking/v1alpha3.VirtualService
	DestinationRule    Kind = "DestinationRule"    // *networking/v1alpha3.DestinationRule
	PeerAuthentication Kind = "PeerAuthentication" // *security/v1beta1.PeerAuthentication
	Sidecar            Kind = "Sidecar"            // *networking/v1alpha3.Sidecar
	Gateway            Kind = "Gateway"            // *networking/v1alpha3.Gateway
)

// Kinds lists every kind, in the order in which a listing shows them.
func Kinds() []Kind {
	return []Kind{
		Namespace, Service, EndpointSlice, Pod, ServiceAccount, Secret, ConfigMap, ServiceEntry,
		WorkloadEntry, VirtualService, DestinationRule, PeerAuthentication, Sidecar, Gateway,
	}
}

// Key names one object. Namespace is empty for a Namespace itself.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String is "Kind namespace/name", the way errors name an object.
func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %s", k.Kind, k.Name)
	}
	return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name)
}

// Meta is what of an object's metadata configuration can depend on.
type Meta struct {
	Labels, Annotations map[string]string
	// Created is zero where the source does not know; such objects are older than any other.
	Created         time.Time
	Generation      int64
	ResourceVersion string
}

// Origin says where an object or a problem stands, for people. Line is 1-based; 0 means unknown.
type Origin struct {
	File string
	Line int
}

// String is "file:line", "file", or "".
func (o Origin) String() string {
	if o.Line == 0 {
		return o.File
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

// Object is one whole object. See the Kind constants for what Spec holds.
type Object struct {
	Key
	Meta   Meta
	Spec   any
	Origin Origin
	// Saved is zero for a value that its source has read since the control plane started.
	// Else the value comes from the state folder, because its source cannot say it now,
	// and this is when it was saved.
	Saved time.Time
}

// SameSpec reports whether the specs of two objects are equal, messages as proto.Equal has it.
func SameSpec(a, b *Object) bool {
	x, isMessage := a.Spec.(proto.Message)
	y, both := b.Spec.(proto.Message)
	if isMessage && both {
		return proto.Equal(x, y)
	}
	return reflect.DeepEqual(a.Spec, b.Spec)
}

// Change is a new whole value of one object, or (Object nil) its end.
type Change struct {
	Key    Key
	Object *Object
}

// Severity says what a Problem does to its object.
type Severity uint8

// The severities.
const (
	// Error: the object is not applied as it is written, or what it is to enforce is not
	// enforced; its last good value, if there was one, stays in force.
	Error Severity = iota
	// Warning: the object, or a part of it, does not do what its author may think.
	Warning
	// Info: nothing is wrong.
	Info
)

// String is "error", "warning" or "info".
func (s Severity) String() string {
	switch s {
	case Error:
		return "error"
	case Warning:
		return "warning"
	}
	return "info"
}

// Problem is one finding about what a source read. Key is zero where the document has no
// readable key; Field is a path such as "spec.http[0].route[1].weight", or empty.
type Problem struct {
	Origin   Origin
	Key      Key
	Field    string
	Text     string
	Severity Severity
	// Policy is set where what cannot be used is, or may be, a security policy.
	Policy Policy
}

// Error makes a Problem an error that names place, object, field and remedy.
func (p Problem) Error() string {
	s := ""
	if o := p.Origin.String(); o != "" {
		s = o + ": "
	}
	if p.Key != (Key{}) {
		s += p.Key.String() + ": "
	}
	if p.Field != "" {
		s += p.Field + ": "
	}
	return s + p.Text
}

// Batch is what a source emits: changes that belong together, in order; the complete
// list of problems that stand now (Problems is nil where it did not change; empty, not
// nil, where the last one went away); and, once, Synced, when everything that existed at
// start has been emitted.
type Batch struct {
	Changes  []Change
	Problems []Problem
	Synced   bool
}
