// Package filesecret_test shows on a real Envoy that clusters get the secrets that they name by file.
//
// The clusters are those that the control plane compiles, the secrets come from the
// agent's own server, and between them stands nothing but Envoy and a control plane that
// sends clusters one response at a time, as ours does.
package filesecret_test

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// bound is how long anything may take on a busy machine.
const bound = 60 * time.Second

const serverName = "server.example"

// authority is a certificate authority with one root.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
}

func term() pki.Validity {
	return pki.Validity{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := newKey(t)
	cert, err := pki.Sign(pki.RootTemplate("example", term()), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, cert, key}
}

// issue makes a certificate from a template.
func (a *authority) issue(template *x509.Certificate) *tls.Certificate {
	a.t.Helper()
	key := newKey(a.t)
	leaf, err := pki.Sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server() *tls.Certificate {
	return a.issue(pki.ServerTemplate([]string{serverName}, term()))
}

// write puts the root into a file.
func (a *authority) write(path string) { write(a.t, path, pki.EncodeCerts(a.cert)) }

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// greeter is a TLS server that sends a greeting to every client.
type greeter struct {
	port uint32
	cert atomic.Pointer[tls.Certificate]
}

// greet starts a server with a certificate of a's; clients, where given, is
// whom the client's certificate must come from.
func greet(t *testing.T, a, clients *authority) *greeter {
	t.Helper()
	g := &greeter{}
	g.cert.Store(a.server())
	// A resumed session would show no certificate.
	c := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.cert.Load(), nil }}
	if clients != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, pki.Pool([]*x509.Certificate{clients.cert})
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	g.port = uint32(l.Addr().(*net.TCPAddr).Port)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// One after the other: each is asked by one client that waits for the answer.
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return g
}

// ask says whether the greeting comes through Envoy's listener at addr.
func ask(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	got, err := io.ReadAll(conn)
	if string(got) == "hello" {
		return nil // how the connection then ended is not what was asked
	}
	if err != nil {
		return fmt.Errorf("got %q: %w", got, err)
	}
	return fmt.Errorf("got %q", got)
}

// TestClustersGetTheSecretsOfFiles: a missing file closes its own cluster, and no other.
func TestClustersGetTheSecretsOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	one, clients := newAuthority(t), newAuthority(t)
	one.write(file("ca.pem"))
	one.write(file("system.pem"))
	leaf := clients.issue(func() *x509.Certificate {
		c, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "sa"}, term())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}())
	key, err := pki.EncodeKey(leaf.PrivateKey.(crypto.Signer), true)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file("key.pem"), key)
	write(t, file("cert.pem"), pki.EncodeCerts(leaf.Leaf))
	open, closed := greet(t, one, nil), greet(t, one, clients)

	simple := func(ca string) *networking.ClientTLSSettings {
		return &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, Sni: serverName, SubjectAltNames: []string{serverName}, CaCertificates: ca}
	}
	mutual := simple(file("ca.pem"))
	mutual.Mode, mutual.ClientCertificate, mutual.PrivateKey = networking.ClientTLSSettings_MUTUAL, file("cert.pem"), file("key.pem")

	e := start(t, file("system.pem"), "file", "system", "mutual", "missing", "after")
	e.send("file", open.port, simple(file("ca.pem")))
	e.send("system", open.port, simple(""))
	e.send("mutual", closed.port, mutual)
	for _, name := range []string{"file", "system", "mutual"} {
		wait.NoError(t, "a connection by cluster "+name, func() error { return ask(e.at[name]) })
	}
	e.send("missing", open.port, simple(file("none.pem")))
	e.send("after", open.port, simple(file("ca.pem")))
	wait.NoError(t, "the cluster after one whose file is missing", func() error { return ask(e.at["after"]) })
	if ask(e.at["missing"]) == nil {
		t.Error("connected to a server whose certificate no trusted root has signed")
	}
	if p := e.files.Problems(); len(p) != 1 || p[0] != "read trust bundle "+file("none.pem")+": no such file or directory" {
		t.Errorf("problems: %v", p)
	}
	one.write(file("none.pem"))
	wait.NoError(t, "the cluster whose file came", func() error { return ask(e.at["missing"]) })

	two := newAuthority(t) // the server's authority is replaced
	open.cert.Store(two.server())
	if ask(e.at["file"]) == nil {
		t.Error("a server of another authority is trusted")
	}
	two.write(file("ca.pem"))
	wait.NoError(t, "a connection after the file changed", func() error { return ask(e.at["file"]) })
	if ask(e.at["system"]) == nil {
		t.Error("a file that did not change trusts the other authority")
	}
}

// build is the input of a cluster for one endpoint on loopback.
func build(name string, port uint32, t *networking.ClientTLSSettings) cluster.Input {
	return cluster.Input{
		Service: cluster.Service{Host: name}, Port: 443, Protocol: mesh.ParseProtocol("tcp"), Resolution: cluster.StrictDNS,
		Endpoints: []cluster.Endpoint{{Address: "127.0.0.1", Port: port}},
		Policy:    &networking.TrafficPolicy{Tls: t}, Mesh: mesh.DefaultMeshConfig(), Caps: mesh.IPv4,
	}
}
