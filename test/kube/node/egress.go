package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"
)

// EgressConfig is the text of the file for the API server's flag --egress-selector-config-file with which it connects to
// Pods, Services and Nodes through [NetworkOptions].EgressSocket: webhooks of Pods, and the proxy of Services.
func EgressConfig(socket string) string {
	return fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`, socket)
}

// connectTimeout bounds how long a connection for the API server may take to be made.
const connectTimeout = 10 * time.Second

// serveEgress takes the API server's connections to the cluster, as an HTTP proxy that knows CONNECT only.
func (n *Network) serveEgress(ctx context.Context) error {
	path := n.o.EgressSocket
	if path == "" {
		return nil
	}
	// One of a network that has ended.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	closeListener := n.track(l)
	n.group.Go(func() {
		defer closeListener()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.group.Go(func() { n.connect(ctx, c) })
		}
	})
	return nil
}

// connect serves one connection of the API server.
func (n *Network) connect(ctx context.Context, c net.Conn) {
	defer n.track(c)()
	if c.SetReadDeadline(time.Now().Add(connectTimeout)) != nil {
		return
	}
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil || req.Method != http.MethodConnect || r.Buffered() > 0 || c.SetReadDeadline(time.Time{}) != nil {
		n.o.Log.Debug("the API server's proxy: want a CONNECT", "error", err)
		return
	}
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	to, err := n.dialForAPI(bounded, req.Host)
	if err != nil {
		n.o.Log.Debug("connect for the API server", "to", req.Host, "error", err)
		_, _ = fmt.Fprintf(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer n.track(to)()
	if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil || ctx.Err() != nil {
		return
	}
	join(c, to)
}

// dialForAPI connects to a kubelet's API, which is on this machine's loopback, or into the cluster.
func (n *Network) dialForAPI(ctx context.Context, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == "localhost" {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	return n.Dial(ctx, "tcp", addr)
}
