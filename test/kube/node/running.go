package node

import (
	"context"
	"fmt"
	"net"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// Pod are the namespaces of a Pod that runs on the Node, or nil. They end with the Pod.
func (n *Node) Pod(namespace, name string) *netmesh.Pod {
	if w := n.workerOf(namespace, name); w != nil {
		if s := w.sandboxNow(); s != nil {
			return s.pod
		}
	}
	return nil
}

// PID is the process of a container that runs.
func (n *Node) PID(namespace, name, container string) (int, error) {
	if w := n.workerOf(namespace, name); w != nil {
		if a := w.attemptOf(container); a != nil {
			return a.process.PID(), nil
		}
	}
	return 0, fmt.Errorf("container %s of Pod %s/%s does not run on Node %s", container, namespace, name, n.o.Name)
}

// DialFrom connects from a Pod that runs on the Node, as the user of this program, to an address or to a name of the
// cluster's DNS, which is looked up as the Pod would.
func (n *Node) DialFrom(ctx context.Context, namespace, name, network, addr string) (net.Conn, error) {
	pod := n.Pod(namespace, name)
	if pod == nil {
		return nil, fmt.Errorf("dial %s from Pod %s/%s: it does not run on Node %s", addr, namespace, name, n.o.Name)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host != "localhost" && net.ParseIP(host) == nil {
		addrs := n.net.lookup(host, "", "."+namespace+".svc."+Domain, ".svc."+Domain, "."+Domain)
		if len(addrs) == 0 {
			return nil, fmt.Errorf("dial %s from Pod %s/%s: the cluster has no name %q", addr, namespace, name, host)
		}
		addr = net.JoinHostPort(addrs[0].String(), port)
	}
	return pod.Dial(ctx, network, addr)
}
