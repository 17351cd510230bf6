package object

// GatewayStatus is what the status of an object of the Gateway API says, but for what proxies have applied, or that of an Ingress. It is immutable.
type GatewayStatus struct {
	Kind Kind
	// Conditions are those of a GatewayClass, a Gateway or a ListenerSet.
	Conditions []GatewayCondition
	// Features are the names of the features of a GatewayClass.
	Features []string
	// Addresses are those of a Gateway, or of the gateways that serve an Ingress.
	Addresses []GatewayAddress
	// Sets is how many ListenerSets of a Gateway are accepted.
	Sets int
	// Foreign is set for an Ingress that another controller serves, or none.
	Foreign   bool
	Listeners []ListenerStatus
	// Parents are those of a route that are this control plane's, in the order of the route; of a BackendTLSPolicy, its ancestors.
	Parents []ParentStatus
}

// GatewayAddress is an address of a Gateway; its type is IPAddress or Hostname.
type GatewayAddress struct{ Type, Value string }

// GatewayCondition is a condition of the Gateway API: its status is True or False.
type GatewayCondition struct {
	Type            string
	True            bool
	Reason, Message string
}

// ListenerStatus is the status of one listener of a Gateway or a ListenerSet.
type ListenerStatus struct {
	Name string
	// Kinds are the kinds of routes that may attach.
	Kinds      []string
	Attached   int
	Conditions []GatewayCondition
}

// ParentStatus is the status of a route at one of its parents. Namespace and Section are empty, and Port is 0, where the route's
// reference does not have them.
type ParentStatus struct {
	Group, Kind, Namespace, Name, Section string
	Port                                  int32
	Conditions                            []GatewayCondition
}
