package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestAMeshWithoutIPv4: capture, DNS, xDS and a gateway where no Pod has an IPv4 address.
func TestAMeshWithoutIPv4(t *testing.T) {
	m, _ := startWith(t, "ipv6", func(o *meshup.Options) {
		o.CaptureArgs, o.AgentEnv = []string{"--redirect-dns"}, []string{"ISTIO_META_DNS_CAPTURE=true"}
	})
	client, outside := m.Pod("client-1.six"), m.Pod("outside-1.six")
	server := netip.AddrPortFrom(m.Net.Host().IP6(), 53).String() // nothing listens there: the agent answers
	before := errorStats(t, m)

	// By the name's address, as the agent resolves it, to the port of a service. Each of these must come to hold and stay so.
	for _, c := range []struct{ name, port, from string }{
		{"server.six.svc.cluster.local", "9081", "server"}, {"pods.six.svc.cluster.local", "9081", "server"}, {"outside.example.com", "5000", "outside"},
	} {
		wait.NoError(t, "TCP to "+c.name, func() error {
			addr, err := find(t.Context(), client, server, c.name)
			if err != nil {
				return err
			}
			line, err := meshup.Line(t.Context(), client.Net, net.JoinHostPort(addr, c.port), "hello")
			if err == nil && !strings.HasPrefix(line, c.from+"-") {
				err = fmt.Errorf("the answer is %q", line)
			}
			return err
		})
	}
	wait.NoError(t, "HTTP to a service has the client's identity", func() error {
		addr, err := find(t.Context(), client, server, "server.six.svc.cluster.local")
		if err != nil {
			return err
		}
		return peer(t.Context(), client, "http://["+addr+"]/", "spiffe://cluster.local/ns/six/sa/client", "server")
	})

	// In mode STRICT nobody gets past the proxy.
	if line, err := meshup.Line(t.Context(), outside.Net, "[fd99:99::11]:9081", "hello"); err == nil {
		t.Errorf("in plaintext the server answers %q", line)
	}

	wait.NoError(t, "HTTP through the gateway", func() error {
		return peer(t.Context(), outside, "http://[fd99:99::9]:8080/", "spiffe://cluster.local/ns/istio-system/sa/ingress", "server-2")
	})
	wait.NoError(t, "TCP through the gateway", func() error {
		line, err := meshup.Line(t.Context(), outside.Net, "[fd99:99::9]:9000", "hello")
		if err == nil && line != "server-2 v2 hello" {
			err = fmt.Errorf("the answer is %q", line)
		}
		return err
	})
	if err := meshup.CompareErrorStats(before, errorStats(t, m)); err != nil {
		t.Error(err)
	}
}

// find resolves a name in a Pod; it has no IPv4 addresses.
func find(ctx context.Context, p *meshup.Pod, server, name string) (string, error) {
	ips, err := lookup(p, server, "").LookupNetIP(ctx, "ip", name)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(ips, netip.Addr.Is4) {
		return "", fmt.Errorf("%s has IPv4 addresses: %v", name, ips)
	}
	return ips[0].String(), nil
}

// peer makes a request, which a Pod whose name begins so is to answer, and says who called it.
func peer(ctx context.Context, from *meshup.Pod, url, want, pod string) error {
	a, err := meshup.Post(ctx, meshup.Client(from.Net, 0), url, nil)
	if err == nil && (a.Status != http.StatusOK || a.Peer != want || !strings.HasPrefix(a.Pod, pod)) {
		err = fmt.Errorf("status %d of %s, called by %q", a.Status, a.Pod, a.Peer)
	}
	return err
}
