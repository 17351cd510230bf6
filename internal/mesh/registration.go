package mesh

// The annotations of a WorkloadEntry that was made when its proxy connected. They are those of Istio, so that control planes can
// take entries over from each other. [agent V7] [control-plane 1.3.10]
const (
	// AutoRegistrationGroup is the name of the WorkloadGroup that the entry was made from. Entries without it are their authors'.
	AutoRegistrationGroup = "istio.io/autoRegistrationGroup"
	// WorkloadController is which instance of the control plane the proxy is, or was last, connected to.
	WorkloadController = "istio.io/workloadController"
	// ConnectedAt is when it connected, and DisconnectedAt when it was found to have gone, both in RFC 3339. The second is
	// absent while it is connected.
	ConnectedAt    = "istio.io/connectedAt"
	DisconnectedAt = "istio.io/disconnectedAt"
	// HealthChecksEnabled is "true" if the workload reports its health, so that it is no endpoint before it is healthy. Authors of
	// WorkloadEntries may set it, too.
	HealthChecksEnabled = "proxy.istio.io/health-checks-enabled"
)

// IsRegistration reports whether an annotation is one of those that say how a WorkloadEntry was registered.
func IsRegistration(annotation string) bool {
	switch annotation {
	case AutoRegistrationGroup, WorkloadController, ConnectedAt, DisconnectedAt, HealthChecksEnabled:
		return true
	}
	return false
}
