package object

import "net/netip"

// NodeSpec is the place of a Node, from its topology labels. Each part may be empty.
type NodeSpec struct {
	Region, Zone, Subzone string
}

// ServiceSpec has the fields of a Kubernetes Service that are used.
type ServiceSpec struct {
	// Type is ClusterIP (the default if empty), NodePort, LoadBalancer or ExternalName.
	Type string
	// ClusterIPs are the virtual addresses; empty if none is assigned.
	ClusterIPs []netip.Addr
	// IPFamilies are the families of the addresses, "IPv4" and "IPv6", the preferred one first; empty if none are named.
	IPFamilies []string `json:",omitempty"`
	// Headless is set for clusterIP: None.
	Headless     bool
	ExternalName string
	Selector     map[string]string
	Ports        []ServicePort
	// PublishNotReady is set if endpoints that are not ready are used, too.
	PublishNotReady bool
	// ExternalAddresses are the IP addresses at which the service is reached from outside its cluster: those of its
	// load balancer, and its externalIPs.
	ExternalAddresses []netip.Addr `json:",omitempty"`
	// ExternalHostnames are the names of its load balancer, where that has names and no addresses.
	ExternalHostnames []string `json:",omitempty"`
	// TrafficDistribution is which endpoints clients should prefer, such as PreferSameZone; empty for none.
	TrafficDistribution string
	// NodeLocal is set if clients of the cluster may use only endpoints on their own Node: internalTrafficPolicy is Local.
	NodeLocal bool `json:",omitempty"`
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name        string
	Port        uint32
	Protocol    string // TCP (the default if empty), UDP or SCTP
	AppProtocol string
	// TargetPort is the endpoint's port number. If it is 0, TargetName is the name of a container
	// port, or, if that is empty, too, the endpoint's port is Port.
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
	// Serving is Ready, but that it does not depend on Terminating.
	Serving bool `json:",omitempty"`
	// Pod is the name of the endpoint's Pod in the slice's namespace, or empty.
	Pod      string
	NodeName string
	Zone     string
	// Hostname is the name that the endpoint has below that of its Service, or empty.
	Hostname string `json:",omitempty"`
}

// PodSpec has the fields of a Pod that are used.
type PodSpec struct {
	IPs            []netip.Addr
	ServiceAccount string // "default" if the Pod has none
	NodeName       string
	// Ready is the status condition Ready. Without such a condition it is true if the phase is
	// Running or absent.
	Ready bool
	// Done is set if the Pod has ended (phase Succeeded or Failed).
	Done        bool
	HostNetwork bool
	Ports       []ContainerPort
	// Hostname and Subdomain are the Pod's name in DNS below the Service Subdomain; empty if it has none.
	Hostname, Subdomain string `json:",omitempty"`
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
