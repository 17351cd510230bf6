package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestTheServerSeesItsClients: under TPROXY an application sees the addresses of its clients, whatever the protocol, with mutual TLS and
// in plaintext; also at a port of no service, and where it calls itself by its service.
func TestTheServerSeesItsClients(t *testing.T) {
	m, _ := startWith(t, "tproxy", func(o *meshup.Options) { o.TPROXY = map[string]bool{"server-1.shop": true} })
	server, client, legacy := m.Pod("server-1.shop"), m.Pod("client-1.shop"), m.Pod("legacy-1.shop")
	for _, port := range []string{"9080", "9082"} {
		serve(t, listenAt(t, server, port), func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, hostOf(r.RemoteAddr)) })
	}
	for _, port := range []string{"9081", "9083"} {
		tellAddresses(t, listenAt(t, server, port))
	}
	for _, c := range []struct {
		from *meshup.Pod
		to   string
		http bool
	}{
		{client, "server:9080", true}, {client, "server:9081", false}, {client, "server:9082", true},
		{client, "10.99.0.2:9083", false},
		{legacy, "10.99.0.2:9080", true}, {legacy, "10.99.0.2:9081", false}, {legacy, "10.99.0.2:9082", true}, {legacy, "10.99.0.2:9083", false},
		{server, "server:9080", true}, {server, "server:9081", false},
	} {
		want := c.from.Spec.IP.String()
		wait.NoError(t, fmt.Sprintf("the server says at %s that %s has called", c.to, c.from.Spec.Name), func() error {
			got, err := askAddress(t.Context(), c.from, c.to, c.http)
			if err == nil && got != want {
				err = fmt.Errorf("it says that %s has", got)
			}
			return err
		})
	}
	stats, err := server.Stats(t.Context(), "^listener_manager.(listener_create_failure|lds.update_rejected)$")
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range stats {
		if n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

// listenAt listens on all addresses of a Pod.
func listenAt(t *testing.T, p *meshup.Pod, port string) net.Listener {
	t.Helper()
	l, err := p.Net.Listen("tcp", ":"+port)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

// tellAddresses answers lines with the addresses of the clients, until the test ends.
func tellAddresses(t *testing.T, l net.Listener) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(wait.Bound))
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, _ = fmt.Fprintln(c, hostOf(c.RemoteAddr().String()))
				}
			}()
		}
	}()
}

// askAddress asks for the address that the server sees.
func askAddress(ctx context.Context, from *meshup.Pod, to string, http bool) (string, error) {
	if !http {
		return meshup.Line(ctx, from.Net, to, "who am I")
	}
	text, err := meshup.Get(ctx, from.Net, "http://"+to+"/")
	return string(text), err
}
