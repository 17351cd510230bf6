package e2e_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Envoy accepts a client whose certificate is of a root in caCertificates, from when it is there until it is
// removed; proxies of the mesh call each other all the time.
func TestRootsOfMeshConfigReachEnvoy(t *testing.T) {
	m, config := start(t, "ports")
	path := filepath.Join(config, "mesh.yaml")
	original, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	root, certificate := otherMesh(t)
	// call sends a request with the certificate of the other mesh.
	call := func(ctx context.Context) error {
		raw, err := m.Pod("legacy-1.callers").Net.Dial(ctx, "tcp", "10.99.0.12:9080")
		if err != nil {
			return err
		}
		defer raw.Close()
		// With TLS 1.2 the server decides about the client before the handshake ends.
		conn := tls.Client(raw, &tls.Config{
			// Whether its root is among those that the server asks for does not matter.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil },
			InsecureSkipVerify:   true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"istio-http/1.1"}, //nolint:gosec // only the server verifies
		})
		if err := errors.Join(raw.SetDeadline(time.Now().Add(20*time.Second)), conn.HandshakeContext(ctx)); err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://strict.ports:9080/", nil)
		if err != nil {
			return err
		}
		if err := r.Write(conn); err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), r)
		if err != nil {
			return err
		}
		if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s (%w)", res.Status, err)
		}
		return nil
	}
	refused := func(ctx context.Context) error {
		err := call(ctx)
		if err == nil {
			return errors.New("it is accepted")
		}
		if !strings.Contains(err.Error(), "remote error: tls: unknown certificate authority") {
			return err
		}
		return nil
	}
	trusted := strings.ReplaceAll("caCertificates:\n- pem: |\n    "+strings.ReplaceAll(strings.TrimSpace(root), "\n", "\n    "), "\n", "\n    ")
	for _, step := range []struct {
		mesh, what string
		want       func(context.Context) error
	}{
		{"", "the client is refused at first", refused},
		{trusted, "the client is accepted", call},
		{"", "the client is refused again", refused},
	} {
		text := strings.Replace(string(original), "  mesh: |\n", "  mesh: |\n    "+step.mesh+"\n", 1)
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
		if err := meshup.Await(t.Context(), time.Minute, step.what, step.want); err != nil {
			t.Error(err)
		}
		a, err := meshup.Post(t.Context(), meshup.Client(m.Pod("client-1.callers").Net, 0), "http://strict.ports:9080/", nil)
		if err != nil || a.Status != http.StatusOK || a.Peer == "" {
			t.Errorf("%s: between sidecars: %+v, %v", step.what, a, err)
		}
	}
}

// otherMesh makes a root and a certificate that it has signed, of an identity that this mesh accepts.
func otherMesh(t *testing.T) (root string, leaf tls.Certificate) {
	t.Helper()
	term := pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	issuer, err := policy.NewRoot("other.example", "", term)
	if err != nil {
		t.Fatal(err)
	}
	text, err := issuer.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := pki.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: mesh.DefaultTrustDomain, Namespace: "elsewhere", ServiceAccount: "client"}, term)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.Sign(template, issuer.Root(), key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(pki.EncodeCerts(issuer.Root())), tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}
