// Package node is a small kubelet for tests: it runs the Pods that a real scheduler binds to it as processes.
//
// A [Network] is the Pods' network on this machine: a bridge, the cluster's DNS, the translation of ClusterIPs in each
// Pod, and the way to the API server. A [Node] on it registers itself, renews its Lease, and runs each Pod in
// namespaces of its own: init containers, sidecars, environment and downward API, volumes of ConfigMaps, Secrets,
// tokens and emptyDir, probes, hooks, restarts with back-off, termination with grace, logs, status; and it serves the
// kubelet's API for logs, exec and port-forward. What an image stands for is said by [Options].Images. Decisions are in
// podstate and podnet; this package has the side effects.
//
// A container has a root directory of its own: the machine's /usr, read-only, with the files of its image in
// /usr/local, and an /etc with little in it. It has no PID namespace. Limits of resources are given to containers by
// the downward API, but not enforced, as are seccomp, AppArmor and SELinux; imagePullPolicy and imagePullSecrets, the
// size and medium of an emptyDir, topology and affinity of Services have no effect. What would matter and is missing
// is refused: such a Pod fails with the reason UnsupportedByNode (podstate.Unsupported).
//
// ConfigMaps and Secrets that change are written at once, not after a minute. The kubelet's API requires
// a client certificate of the cluster's CA, and listens on loopback only.
package node
