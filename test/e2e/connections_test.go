package e2e_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// sayName answers the first line of each connection that a listener accepts with a name, and ends the connection.
func sayName(t *testing.T, l net.Listener, name string) {
	t.Helper()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // an error is one of the next read, too
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, _ = io.WriteString(c, name+"\n") // an error means that the caller has gone
				}
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	})
}

// overTLS dials with TLS within the connections.
type overTLS struct {
	meshup.Dialer
	config *tls.Config
}

func (d overTLS) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.Dialer.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return tls.Client(c, d.config), nil
}

const connectionRoutes = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: data, namespace: pipes}
spec:
  hosts: [data]
  tcp:
  - match: [{sourceLabels: {app: blue}, destinationSubnets: [10.98.0.0/16]}]
    route: [{destination: {host: nosuch.example.com, port: {number: 5000}}}]
  - match: [{sourceLabels: {app: blue}, port: 5000, destinationSubnets: [10.96.40.0/24]}]
    route: [{destination: {host: data}, weight: 0}, {destination: {host: copy, port: {number: 5000}}, weight: 100}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: pipes}
spec:
  hosts: [one.example.com]
  tls:
  - match: [{sniHosts: [one.example.com], port: 8443, destinationSubnets: [10.98.0.0/16]}]
    route: [{destination: {host: nosuch.example.com, port: {number: 8443}}}]
  - match: [{sniHosts: [one.example.com], port: 8443, destinationSubnets: [10.99.0.14]}]
    route: [{destination: {host: copy, port: {number: 8443}}}]
`

// TestConnectionsAreRouted makes connections of TCP and TLS with and without routes of VirtualServices: by the client's labels,
// by the server's name, and by the destination's address. Routes are added and removed while the mesh runs.
func TestConnectionsAreRouted(t *testing.T) {
	m, config := start(t, "connections")
	ca := newAuthority(t)
	for _, s := range []struct{ pod, addr, name string }{
		{"data-1.pipes", "10.99.0.12:5000", "data"}, {"copy-1.pipes", "10.99.0.13:5000", "copy"},
		{"copy-1.pipes", "10.99.0.13:8443", "copy"}, {"outside-1.pipes", "10.99.0.14:9000", "outside"},
		{"outside-1.pipes", "10.99.0.14:8443", "outside"},
	} {
		l, err := m.Pod(s.pod).Net.Listen("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if s.addr[len(s.addr)-4:] == "8443" {
			var pairs []tls.Certificate
			for _, name := range []string{"one.example.com", "two.example.com"} {
				_, files, _ := ca.issue(t, name)
				pair, err := tls.X509KeyPair(files[0], files[1])
				if err != nil {
					t.Fatal(err)
				}
				pairs = append(pairs, pair)
			}
			l = tls.NewListener(l, &tls.Config{Certificates: pairs, MinVersion: tls.VersionTLS12})
		}
		sayName(t, l, s.name)
	}
	type connection struct{ from, addr, serverName, want string }
	await := func(when string, all ...connection) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, "connections go where they should "+when, func(ctx context.Context) error {
			var wrong []error
			for _, c := range all {
				var from meshup.Dialer = m.Pod(c.from).Net
				if c.serverName != "" {
					from = overTLS{from, &tls.Config{RootCAs: ca.pool, ServerName: c.serverName, MinVersion: tls.VersionTLS12}}
				}
				got, err := meshup.Line(ctx, from, c.addr, "who")
				if err != nil || got != c.want {
					wrong = append(wrong, fmt.Errorf("%+v: answered by %q, error %w", c, got, err))
				}
			}
			return errors.Join(wrong...)
		}); err != nil {
			t.Fatal(err)
		}
	}
	const blue, green, data, anyTLS = "blue-1.pipes", "green-1.pipes", "10.96.40.2:5000", "10.99.0.14:8443"
	before := []connection{
		{blue, data, "", "data"}, {green, data, "", "data"},
		{blue, anyTLS, "one.example.com", "outside"}, {blue, anyTLS, "two.example.com", "outside"},
		// An ExternalName Service with this port does not take connections to other hosts.
		{blue, "10.99.0.14:9000", "", "outside"},
	}
	await("without routes", before...)
	put(t, config, "routes.yaml", connectionRoutes)
	await("with routes",
		connection{blue, data, "", "copy"}, connection{green, data, "", "data"},
		connection{blue, anyTLS, "one.example.com", "copy"}, connection{green, anyTLS, "one.example.com", "copy"},
		connection{blue, anyTLS, "two.example.com", "outside"})
	put(t, config, "routes.yaml", "")
	await("after the routes are removed", before...)
}
