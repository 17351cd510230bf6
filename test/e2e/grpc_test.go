package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// grpcMesh is a mesh whose Pods run gRPC applications.
type grpcMesh struct {
	*meshup.Mesh
	t      *testing.T
	config string
}

// grpcAnswer is what came back of a call: see test/grpcapp.
type grpcAnswer struct{ Server, Client, Peer, Error string }

const (
	libIdentity  = "spiffe://cluster.local/ns/grpc/sa/lib"
	sideIdentity = "spiffe://cluster.local/ns/grpc/sa/side"
)

// startGRPC starts the mesh and its applications.
func startGRPC(t *testing.T, adjust func(*meshup.Options)) *grpcMesh {
	t.Helper()
	return startGRPCIn(t, "grpc", adjust)
}

// startGRPCIn is startGRPC with the configuration of another directory.
func startGRPCIn(t *testing.T, dir string, adjust func(*meshup.Options)) *grpcMesh {
	t.Helper()
	m, config := startWith(t, dir, adjust)
	app := filepath.Join(filepath.Dir(config), "grpcapp")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", app, "./test/grpcapp")
	build.Dir, build.Stderr, build.Env = root, os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	g := &grpcMesh{Mesh: m, t: t, config: config}
	for _, p := range m.Pods() {
		args := []string{"-name=" + p.Spec.Name, "-listen=:7070"}
		env := []string{"PATH=/usr/bin:/bin"}
		if p.Spec.Proxyless() {
			args = append(args, "-xds")
			env = append(env, "GRPC_XDS_BOOTSTRAP="+filepath.Join(p.Dir, "etc/istio/proxy/grpc-bootstrap.json"))
		}
		var log strings.Builder
		c, err := p.Net.Start(netmesh.Command{Path: app, Args: args, Env: env, UID: 2000, GID: 2000, Stdout: &log, Stderr: &log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Signal(os.Kill)
			_ = c.Wait()
			if t.Failed() {
				t.Logf("the application of %s:\n%s", p.Spec.Name, log.String())
			}
		})
	}
	return g
}

// ask has a Pod call a target n times.
func (g *grpcMesh) ask(pod, target string, n int, header string) []grpcAnswer {
	g.t.Helper()
	q := url.Values{"target": {target}, "n": {fmt.Sprint(n)}, "header": {header}}
	text, err := g.Get(g.t.Context(), g.Pod(pod+".grpc").Net, "http://127.0.0.1:9999/ask?"+q.Encode())
	if err != nil {
		return []grpcAnswer{{Error: err.Error()}}
	}
	var out []grpcAnswer
	for dec := json.NewDecoder(strings.NewReader(string(text))); ; {
		var a grpcAnswer
		if err := dec.Decode(&a); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			g.t.Fatal(err)
		}
		out = append(out, a)
	}
}

// certificateEnds is when the certificate ends that a server shows to a Pod that connects anew.
func (g *grpcMesh) certificateEnds(pod, target string) string {
	g.t.Helper()
	text, err := g.Get(g.t.Context(), g.Pod(pod+".grpc").Net, "http://127.0.0.1:9999/ask?fresh&"+url.Values{"target": {target}}.Encode())
	var a struct{ Ends, Error string }
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil || a.Error != "" {
		g.t.Errorf("%s connects to %s: %v %s", pod, target, err, a.Error)
	}
	return a.Ends
}

// await calls a target until the answer is wanted.
func (g *grpcMesh) await(pod, target string, want grpcAnswer) {
	g.t.Helper()
	var got, last grpcAnswer
	wait.Until(g.t, fmt.Sprintf("%s calls %s and gets %v", pod, target, want), func() bool {
		if got = g.ask(pod, target, 1, "")[0]; got != want && got != last {
			g.t.Logf("%s → %s: %+v", pod, target, got)
			last = got
		}
		return got == want
	})
}

// TestProxylessAndSidecars has gRPC libraries under an agent without Envoy call each other, a sidecar, and a Pod without
// anything, and be called by the sidecar, all with mutual TLS where both sides have it, in mode PERMISSIVE and in mode STRICT.
func TestProxylessAndSidecars(t *testing.T) {
	g := startGRPC(t, func(*meshup.Options) {})
	const side, lib, plain = "xds:///side.grpc.svc.cluster.local:80", "xds:///lib.grpc.svc.cluster.local:80", "xds:///plain.grpc.svc.cluster.local:80"
	both := func(mode string) {
		t.Helper()
		t.Log("mode", mode)
		g.await("lib-1", side, grpcAnswer{Server: "side-1", Client: libIdentity, Peer: sideIdentity})
		g.await("lib-1", "xds:///side:80", grpcAnswer{Server: "side-1", Client: libIdentity, Peer: sideIdentity})
		for _, name := range []string{"lib-1", "lib-2"} {
			g.await("lib-1", lib, grpcAnswer{Server: name, Client: libIdentity, Peer: libIdentity})
			g.await("side-1", "dns:///lib.grpc.svc.cluster.local:80", grpcAnswer{Server: name, Client: sideIdentity})
		}
		g.await("lib-1", plain, grpcAnswer{Server: "plain-1"})
	}
	both("PERMISSIVE")
	g.ownTLS()
	g.write("strict.yaml", `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: grpc}
spec: {mtls: {mode: STRICT}}
`)
	wait.Until(t, "the sidecar refuses plaintext", func() bool { return g.ask("plain-1", "dns:///10.99.0.63:7070", 1, "")[0].Error != "" })
	both("STRICT")
	for _, target := range []string{"dns:///10.99.0.61:7070", "dns:///10.99.0.62:7070"} {
		if got := g.ask("plain-1", target, 1, "")[0]; got.Error == "" {
			t.Errorf("plaintext to %s: %+v", target, got)
		}
	}
}

// TestProxylessCertificatesAreRenewed has gRPC libraries call each other, on connections that stay and on new ones, while their
// certificates are renewed and replaced in the files that they read.
func TestProxylessCertificatesAreRenewed(t *testing.T) {
	g := startGRPC(t, func(o *meshup.Options) { o.AgentEnv = []string{"SECRET_TTL=40s"} })
	const side, lib = "xds:///side.grpc.svc.cluster.local:80", "xds:///lib.grpc.svc.cluster.local:80"
	g.await("lib-2", side, grpcAnswer{Server: "side-1", Client: libIdentity, Peer: sideIdentity})
	g.await("lib-1", lib, grpcAnswer{Server: "lib-2", Client: libIdentity, Peer: libIdentity})
	first := g.certificateEnds("lib-1", lib)
	wait.Until(t, "a new certificate is shown", func() bool {
		if got := g.ask("lib-2", side, 1, "")[0]; got.Error != "" {
			t.Errorf("on a connection that stays: %s", got.Error)
		}
		return g.certificateEnds("lib-1", lib) > first || t.Failed()
	})
}

// write writes a file of the mesh's directory.
func (g *grpcMesh) write(name, text string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.config, name), []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// ownTLS has a client with TLS of its own, which offers the ALPN of gRPC, connect to a Pod with a sidecar in mode PERMISSIVE. At a
// port that is declared as HTTP it is refused by the sidecar, at any other port it gets to the application.
func (g *grpcMesh) ownTLS() {
	g.t.Helper()
	cert, err := tls.X509KeyPair(selfSigned(g.t))
	if err != nil {
		g.t.Fatal(err)
	}
	l, err := g.Pod("side-1.grpc").Net.Listen("tcp", "10.99.0.63:7443")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
			_ = s.SetDeadline(time.Now().Add(wait.Bound))
			_, _ = s.Write([]byte("own"))
			_ = s.Close()
		}
	}()
	dial := func(address string) (string, error) {
		c, err := g.Pod("plain-1.grpc").Net.Dial(g.t.Context(), "tcp", address)
		if err != nil {
			return "", err
		}
		s := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // whose certificate it is does not matter
		defer func() { _ = s.Close() }()
		_ = s.SetDeadline(time.Now().Add(wait.Bound))
		text, err := io.ReadAll(s)
		return string(text), err
	}
	if text, err := dial("10.99.0.63:7443"); text != "own" {
		g.t.Errorf("at a port that is not declared: %q, %v; want what the application writes", text, err)
	}
	if text, err := dial("10.99.0.63:7070"); err == nil || !strings.Contains(err.Error(), "certificate required") {
		g.t.Errorf("at a port that is declared as gRPC: %q, %v; want that a certificate is required", text, err)
	}
}

// selfSigned returns a certificate and its key in PEM.
func selfSigned(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"own"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}
