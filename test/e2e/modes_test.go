package e2e_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const clientIdentity = "spiffe://cluster.local/ns/modes/sa/client"

// declared is what the server's side declares of its ports; lines says that the app
// behind it speaks lines of text rather than HTTP.
var declared = []struct {
	port, kind string
	lines      bool
}{
	{"9080", "http", false}, {"9081", "tcp", false}, {"9082", "auto", false}, {"9181", "tcp", true}, {"9182", "auto", true},
}

// TestModesBetweenPorts goes through STRICT, PERMISSIVE and DISABLE, between each pair of
// what the client's and the server's side declare of a port: HTTP, TCP, or nothing.
func TestModesBetweenPorts(t *testing.T) {
	m, _ := start(t, "modes")
	before := errorStats(t, m)
	for _, mode := range []string{"strict", "permissive", "disable"} {
		t.Run(mode, func(t *testing.T) {
			handshakes := countHandshakes(t, m, mode)
			for _, kind := range []string{"http", "tcp", "auto"} {
				t.Run("from_"+kind, func(t *testing.T) { meshCaller(t, m, mode, kind) })
			}
			if moved := countHandshakes(t, m, mode) > handshakes; moved != (mode != "disable") {
				t.Errorf("the server's TLS handshakes moved: %v", moved)
			}
			t.Run("legacy", func(t *testing.T) { legacyCaller(t, m, mode) })
		})
	}
	if err := meshup.CompareErrorStats(before, errorStats(t, m)); err != nil {
		t.Error(err)
	}
}

// meshCaller calls every port of a server from a Pod with a sidecar.
func meshCaller(t *testing.T, m *meshup.Mesh, mode, kind string) {
	client := m.Pod("client-1.modes").Net
	for _, d := range declared {
		if d.lines && kind == "http" {
			continue // the app does not use HTTP
		}
		addr := fmt.Sprintf("b-%s-%s:%s", mode, kind, d.port)
		if d.lines {
			if line, err := meshup.Line(t.Context(), client, addr, "hello"); err != nil || line != mode+"-1 v1 hello" {
				t.Errorf("lines to a %s port: %q, %v", d.kind, line, err)
			}
			continue
		}
		// The server's Envoy tells the app who called where it reads HTTP: always on an HTTP
		// port, and on an undeclared one when the client's Envoy said that HTTP follows.
		want := ""
		if mode != "disable" && (d.kind == "http" || d.kind == "auto" && kind != "tcp") {
			want = clientIdentity
		}
		a, err := meshup.Post(t.Context(), meshup.Client(client, 0), "http://"+addr+"/", nil)
		if err != nil || a.Status != http.StatusOK || a.Peer != want {
			t.Errorf("HTTP to a %s port: status %d, called as %q, want %q, error %v", d.kind, a.Status, a.Peer, want, err)
		}
	}
}

// legacyCaller calls every port of a server's Pod in plaintext.
func legacyCaller(t *testing.T, m *meshup.Mesh, mode string) {
	legacy, server := m.Pod("legacy-1.modes").Net, m.Pod(mode+"-1.modes")
	served, err := server.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range declared {
		addr := server.Spec.IP.String() + ":" + d.port
		if d.lines {
			line, err := meshup.Line(t.Context(), legacy, addr, "hello")
			if answered := err == nil && line == mode+"-1 v1 hello"; answered != (mode != "strict") {
				t.Errorf("lines to a %s port: answered %v: %q, %v", d.kind, answered, line, err)
			}
			// An application's own TLS goes to the application.
			line, err = meshup.Line(t.Context(), legacy, addr, clientHello(t))
			if answered := err == nil && strings.HasPrefix(line, mode+"-1 v1 "); answered != (mode != "strict") {
				t.Errorf("TLS to a %s port: answered %v: %q, %v", d.kind, answered, line, err)
			}
			continue
		}
		a, err := meshup.Post(t.Context(), meshup.Client(legacy, 0), "http://"+addr+"/", nil)
		if answered := err == nil && a.Status == http.StatusOK && a.Peer == ""; answered != (mode != "strict") {
			t.Errorf("HTTP to a %s port: answered %v: %+v, %v", d.kind, answered, a, err)
		}
	}
	after, err := server.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if moved := after > served; moved != (mode != "strict") {
		t.Errorf("requests reached the app: %v", moved)
	}
}

// countHandshakes returns the number of TLS handshakes that a server's Envoy made on its inbound listener.
func countHandshakes(t *testing.T, m *meshup.Mesh, mode string) int64 {
	t.Helper()
	stats, err := m.Pod(mode+"-1.modes").Stats(t.Context(), "^listener.*ssl.handshake$")
	if err != nil {
		t.Fatal(err)
	}
	var all int64
	for _, n := range stats {
		all += n
	}
	return all
}

// clientHello returns the first record of a TLS handshake.
func clientHello(t *testing.T) string {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: "app.example", MinVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
	}()
	b := make([]byte, 4096)
	n, err := far.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}
