package object

// IngressClassAnnotation names the class of an Ingress, before the field existed. It counts more than the field.
const IngressClassAnnotation = "kubernetes.io/ingress.class"

// IngressClassSpec has the fields of an IngressClass that are used.
type IngressClassSpec struct {
	Controller string
	// Parameters is "Kind name" of spec.parameters, empty without them.
	Parameters string `json:",omitempty"`
}

// IngressSpec has the fields of an Ingress.
type IngressSpec struct {
	// ClassName is spec.ingressClassName; empty for none.
	ClassName string `json:",omitempty"`
	// Default is spec.defaultBackend; nil for none.
	Default *IngressBackend `json:",omitempty"`
	Rules   []IngressRule   `json:",omitempty"`
	TLS     []IngressTLS    `json:",omitempty"`
}

// IngressRule is one rule of an Ingress.
type IngressRule struct {
	// Host may begin with "*."; empty is every host.
	Host string `json:",omitempty"`
	// NoHTTP is set for a rule without http: its requests are for the default backend.
	NoHTTP bool          `json:",omitempty"`
	Paths  []IngressPath `json:",omitempty"`
}

// IngressPath is one path of a rule.
type IngressPath struct {
	// Path may be empty. Type is Exact, Prefix or ImplementationSpecific; empty means the last.
	Path, Type string `json:",omitempty"`
	Backend    IngressBackend
}

// IngressBackend is where requests go: a port of a Service in the namespace of the Ingress, by number or name. Resource is "Kind name" of
// a backend that is none; empty for a Service.
type IngressBackend struct {
	Service  string `json:",omitempty"`
	Port     uint32 `json:",omitempty"`
	PortName string `json:",omitempty"`
	Resource string `json:",omitempty"`
}

// IngressTLS is one entry of spec.tls. Without hosts it is for all.
type IngressTLS struct {
	Hosts  []string `json:",omitempty"`
	Secret string   `json:",omitempty"`
}
