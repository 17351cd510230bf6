// Package object defines what a source of configuration reports: objects, changes and problems.
//
// A source, such as a directory of YAML, converts what it reads to the values of this package, so
// that its readers do not depend on where an object comes from. Kubernetes' own kinds become the
// structs of this package; Istio's kinds have their istio.io/api message. Values are shared and must
// not be modified after they have been emitted.
package object

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
)

// Kind is the kind of an object, as in its YAML.
type Kind string

// The kinds that are read. The comment is the type of Object.Spec.
const (
	Namespace          Kind = "Namespace"          // nil
	Node               Kind = "Node"               // *NodeSpec
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
	// *security/v1beta1.AuthorizationPolicy
	AuthorizationPolicy Kind = "AuthorizationPolicy"
	// *security/v1beta1.RequestAuthentication
	RequestAuthentication Kind = "RequestAuthentication"

	Sidecar       Kind = "Sidecar"       // *networking/v1alpha3.Sidecar
	EnvoyFilter   Kind = "EnvoyFilter"   // *networking/v1alpha3.EnvoyFilter
	Gateway       Kind = "Gateway"       // *networking/v1alpha3.Gateway
	ProxyConfig   Kind = "ProxyConfig"   // *networking/v1beta1.ProxyConfig
	WorkloadGroup Kind = "WorkloadGroup" // *networking/v1alpha3.WorkloadGroup
	Telemetry     Kind = "Telemetry"     // *telemetry/v1alpha1.Telemetry
	WasmPlugin    Kind = "WasmPlugin"    // *extensions/v1alpha1.WasmPlugin
	// *extensions/v1alpha1.TrafficExtension
	TrafficExtension Kind = "TrafficExtension"

	// The kinds of Kubernetes' Gateway API; the types are those of sigs.k8s.io/gateway-api/apis/v1. KubernetesGateway is
	// its kind Gateway, which Istio's has the name of, too.
	GatewayClass      Kind = "GatewayClass"      // *GatewayClassSpec
	KubernetesGateway Kind = "KubernetesGateway" // *GatewaySpec
	ListenerSet       Kind = "ListenerSet"       // *ListenerSetSpec
	HTTPRoute         Kind = "HTTPRoute"         // *HTTPRouteSpec
	GRPCRoute         Kind = "GRPCRoute"         // *GRPCRouteSpec
	TLSRoute          Kind = "TLSRoute"          // *TLSRouteSpec
	TCPRoute          Kind = "TCPRoute"          // *TCPRouteSpec
	UDPRoute          Kind = "UDPRoute"          // *UDPRouteSpec
	ReferenceGrant    Kind = "ReferenceGrant"    // *ReferenceGrantSpec
	BackendTLSPolicy  Kind = "BackendTLSPolicy"  // *BackendTLSPolicySpec

	IngressClass Kind = "IngressClass" // *IngressClassSpec
	Ingress      Kind = "Ingress"      // *IngressSpec
)

// Kinds returns all kinds, in the order in which listings show them.
func Kinds() []Kind {
	return []Kind{
		Namespace, Node, Service, EndpointSlice, Pod, ServiceAccount, Secret, ConfigMap, ServiceEntry,
		WorkloadEntry, VirtualService, DestinationRule, PeerAuthentication, RequestAuthentication, AuthorizationPolicy, Sidecar, EnvoyFilter, Gateway, ProxyConfig,
		WorkloadGroup, Telemetry, WasmPlugin, TrafficExtension,
		GatewayClass, KubernetesGateway, ListenerSet, HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute, ReferenceGrant, BackendTLSPolicy,
		IngressClass, Ingress,
	}
}

// Key identifies one object. Namespace is empty for the kinds Namespace, Node, GatewayClass and IngressClass.
type Key struct {
	Kind            Kind
	Namespace, Name string
	// Cluster is the ID of the remote cluster that has the object; empty for the control plane's own
	// cluster, and for files.
	Cluster string
}

// String returns "Kind namespace/name", or "Kind name" without a namespace, and for an object of a remote
// cluster " in cluster ID" after it.
func (k Key) String() string {
	s := fmt.Sprintf("%s %s", k.Kind, k.Name)
	if k.Namespace != "" {
		s = fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name)
	}
	if k.Cluster != "" {
		s += " in cluster " + k.Cluster
	}
	return s
}

// Meta has the fields of an object's metadata that are used.
type Meta struct {
	Labels, Annotations map[string]string
	// Created is zero if the source does not know it; such an object counts as older than all others.
	Created time.Time
	// UID is empty if the source gives none, as files do not.
	UID             string
	Generation      int64
	ResourceVersion string
}

// Origin is the location of an object or a problem. Line is 1-based; 0 means unknown.
type Origin struct {
	File string
	Line int
}

// String returns "file:line", "file" if the line is unknown, or "".
func (o Origin) String() string {
	if o.Line == 0 {
		return o.File
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

// Object is one complete object. See the Kind constants for the type of Spec.
type Object struct {
	Key
	Meta Meta
	Spec any
	// Addresses are status.addresses of a ServiceEntry; nil for other kinds.
	Addresses []HostAddress
	// Healthy is the condition Healthy in the status of a WorkloadEntry; nil if it has none, and for other kinds.
	Healthy *Health
	Origin  Origin
	// Saved is zero if the source has read this version since the control plane started. Otherwise
	// the version comes from the state folder, because the source cannot be read now, and Saved is
	// when it was saved.
	Saved time.Time
}

// HostAddress is an address that was allocated for a host of a ServiceEntry.
type HostAddress struct {
	Host    string     `json:"host"`
	Address netip.Addr `json:"address"`
}

// ConditionHealthy is the type of the condition with the health of a workload. [control-plane 1.9.18]
const ConditionHealthy = "Healthy"

// Health is what a workload has reported of itself. Message says why it is not healthy; it is empty for a healthy one.
type Health struct {
	Is      bool   `json:"is"`
	Message string `json:"message,omitempty"`
}

// maxHealthMessage is how much of a message is kept, in bytes.
const maxHealthMessage = 512

// HealthOf returns the health of a workload, with a message of which only the first 512 bytes are kept: what is encoded as
// text and read again is equal.
func HealthOf(is bool, message string) *Health {
	if is {
		return &Health{Is: true}
	}
	message = strings.ToValidUTF8(message[:min(len(message), 2*maxHealthMessage)], "\uFFFD")
	end := min(len(message), maxHealthMessage)
	for end < len(message) && !utf8.RuneStart(message[end]) {
		end--
	}
	return &Health{Message: message[:end]}
}

// SameSpec reports whether the specs of two objects are equal, messages as proto.Equal has it, and what is read of their statuses.
func SameSpec(a, b *Object) bool {
	if !slices.Equal(a.Addresses, b.Addresses) || (a.Healthy == nil) != (b.Healthy == nil) || a.Healthy != nil && *a.Healthy != *b.Healthy {
		return false
	}
	x, isMessage := a.Spec.(proto.Message)
	y, both := b.Spec.(proto.Message)
	if isMessage && both {
		return proto.Equal(x, y)
	}
	return reflect.DeepEqual(a.Spec, b.Spec)
}

// Change is a new version of one object, or, if Object is nil, its removal.
type Change struct {
	Key    Key
	Object *Object
}

// Severity is the effect of a Problem on its object.
type Severity uint8

// The severities.
const (
	// Error means that the object is rejected, so that its last valid version, if any, stays in
	// force, or that a policy is not enforced.
	Error Severity = iota
	// Warning means that the object is accepted, and that it or a part of it does not have the
	// effect that its author may expect.
	Warning
	// Info means that nothing is wrong.
	Info
)

// String returns "error", "warning" or "info". It panics for another value.
func (s Severity) String() string {
	switch s {
	case Error:
		return "error"
	case Warning:
		return "warning"
	case Info:
		return "info"
	}
	panic(fmt.Sprintf("object: unknown severity %d", uint8(s)))
}

// Problem is one finding about what a source read. Key is zero if that of the document is unknown;
// Field is a path such as "spec.http[0].route[1].weight", or empty.
type Problem struct {
	Origin   Origin
	Key      Key
	Field    string
	Text     string
	Severity Severity
	// Generation is metadata.generation of the version with the problem; 0 if it is unknown.
	Generation int64
	// Policy is set if the rejected object is or may be a security policy.
	Policy Policy
}

// Error implements error: "file:line: Kind namespace/name: field: text", without the parts that are
// empty.
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

// Batch is what a source emits at a time.
type Batch struct {
	// Changes are applied together, in their order.
	Changes []Change
	// Problems are all current problems. It is nil if they have not changed, and empty but not nil
	// if there are none any more.
	Problems []Problem
	// Synced is set once, when everything that existed at the start has been emitted.
	Synced bool
}
