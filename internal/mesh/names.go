package mesh

// Names by which the two halves, Envoy and Istio's own programs find each other's parts. Each
// stands here once; whoever writes or reads one uses the constant.
const (
	// SDSCluster is the static cluster of the bootstrap that leads to the agent's secret
	// server; transport sockets that the control plane writes name it. [agent B13]
	SDSCluster = "sds-grpc"
	// SDSFilesCluster leads to the agent's secrets of files, if another server has the workload's secret.
	SDSFilesCluster = "sds-files-grpc"
	// LocalCluster is the static cluster of the bootstrap with the endpoints of the proxy's own workload, by which Envoy
	// computes how much of its requests stays in its zone.
	LocalCluster = "local_cluster"
	// UnixSocket begins addresses of Unix sockets, before the path.
	UnixSocket = "unix://"
	// XDSCluster is the static cluster of the bootstrap through which Envoy gets its
	// configuration from the agent. [agent B13]
	XDSCluster = "xds-grpc"

	// SecretDefault is the secret with the workload's own certificate and key. [agent S2]
	SecretDefault = "default"
	// SecretRoot is the secret with the mesh's trust bundle. [agent S2]
	SecretRoot = "ROOTCA"
	// SecretFileCert begins the name of a secret that lies in files:
	// "file-cert:<path of the chain>~<path of the key>". [agent S2]
	SecretFileCert = "file-cert:"
	// SecretFileRoot begins the name of a trust bundle that lies in a file, and is followed by
	// its path; see SecretSystemRoot. [agent S2]
	SecretFileRoot = "file-root:"
	// SecretSystemRoot is the trust bundle of the operating system. [agent S2]
	SecretSystemRoot = SecretFileRoot + "system"

	// AllowAnyDynamicDNSCluster is the cluster for HTTP to hosts that the mesh does not know, by the names in requests. [control-plane 1.4.6]
	AllowAnyDynamicDNSCluster = "AllowAnyDynamicDNSCluster"
	// BlackHoleCluster is the cluster without endpoints, for what must not leave. [control-plane 1.12.1]
	BlackHoleCluster = "BlackHoleCluster"
	// InvalidBackend is the name of a cluster that never exists: requests to it get the status of routes without a cluster. Nothing waits for it.
	InvalidBackend = "InvalidBackend"
	// PassthroughCluster leads to the address that the application called. [control-plane 1.12.1]
	PassthroughCluster = "PassthroughCluster"
	// InboundPassthroughCluster leads to a port of the application that no service declares.
	// [control-plane 1.12.1]
	InboundPassthroughCluster = "InboundPassthroughCluster"

	// VirtualOutbound is the listener that receives captured outbound connections, on
	// OutboundPort. [control-plane 1.12.2]
	VirtualOutbound = "virtualOutbound"
	// VirtualInbound is the listener that receives captured inbound connections, on InboundPort.
	// [control-plane 1.12.2]
	VirtualInbound = "virtualInbound"
)
