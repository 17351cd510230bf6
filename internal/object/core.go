package object

import "net/netip"

// ServiceSpec is what configuration uses of a Kubernetes Service.
type ServiceSpec struct {
	// Type is ClusterIP (also where empty), NodePort, LoadBalancer or ExternalName.
	Type string
	// ClusterIPs are the virtual addresses; empty where none is assigned.
	ClusterIPs []netip.Addr
	// Headless is set for clusterIP: None.
	Headless     bool
	ExternalName string
	Selector     map[string]string
	Ports        []ServicePort
	// PublishNotReady includes endpoints that are not ready.
	PublishNotReady bool
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name        string
	Port        uint32
	Protocol    string // TCP (also where empty) or UDP
	AppProtocol string
	// TargetPort is the endpoint's port number; 0 means "same as Port" unless
	// TargetName names a container port.
	TargetPort uint32
	TargetName string
}

// EndpointSliceSpec is one slice of a service's endpoints.
type EndpointSliceSpec struct {
	// Service is the name of the owning Service, in the slice's namespace (label
	// kubernetes.io/service-name).
	Service   string
	Ports     []SlicePort
	Endpoints []SliceEndpoint
}

// SlicePort is one port of a slice, matched with the Service's port by name.
type SlicePort struct {
	Name        string
	Port        uint32
	Protocol    string
	AppProtocol string
}

// SliceEndpoint is one endpoint of a slice.
type SliceEndpoint struct {
	Addresses          []netip.Addr
	Ready, Terminating bool
	// Pod is the name of the Pod behind it, in the slice's namespace, or empty.
	Pod      string
	NodeName string
	Zone     string
}

// PodSpec is what configuration uses of a Pod.
type PodSpec struct {
	IPs            []netip.Addr
	ServiceAccount string // "default" where the Pod names none
	NodeName       string
	// Ready is status condition Ready, true where the status has no such condition and
	// the phase is Running or absent.
	Ready bool
	// Done is set once the Pod has ended (phase Succeeded or Failed).
	Done        bool
	HostNetwork bool
	Ports       []ContainerPort
}

// ContainerPort is a named port of one of a Pod's containers.
type ContainerPort struct {
	Name     string
	Port     uint32
	Protocol string
}

// SecretSpec is a Secret's decoded data. Never log it.
type SecretSpec struct {
	Type string
	Data map[string][]byte
}

// ConfigMapSpec is a ConfigMap's data.
type ConfigMapSpec struct {
	Data map[string]string
}
