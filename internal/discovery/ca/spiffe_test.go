package ca_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/test/bufconn"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// issued is a workload's certificate as its owner has it.
type issued struct {
	certs []*x509.Certificate // leaf first, without the roots
	roots []*x509.Certificate
	svid  *x509svid.SVID
}

func issue(t *testing.T, st *authority, id mesh.Identity) issued {
	t.Helper()
	key, csr := newCSR(t, id)
	chain, err := st.call(nil, st.token(id.Namespace, id.ServiceAccount, "", time.Now()), request(csr))
	if err != nil {
		t.Fatal(err)
	}
	last := len(chain) - 1
	text, err := pki.EncodeKey(key, true)
	if err != nil {
		t.Fatal(err)
	}
	svid, err := x509svid.Parse([]byte(strings.Join(chain[:last], "")), text)
	if err != nil {
		t.Fatalf("go-spiffe refuses the certificate of %s: %v", id, err)
	}
	return issued{certs: parse(t, strings.Join(chain[:last], "")), roots: parse(t, chain[last]), svid: svid}
}

// authorities are CAs of all kinds.
func authorities(t *testing.T) map[string]*ca.Authority {
	t.Helper()
	all := map[string]*ca.Authority{"self-signed": ok(t)(ca.OpenRoot(wait.Folder(t), "cluster.local", 0, "")), "self-signed, RSA": ok(t)(ca.OpenRoot(wait.Folder(t), "cluster.local", 0, pki.RSA2048))}
	root := newSigner(t, "root", signer{}, pki.RSA3072)
	upper := newSigner(t, "upper", root, pki.ECDSAP384)
	lower := newSigner(t, "lower", upper, pki.RSA2048)
	s := &secret{t: t, dir: wait.Folder(t)}
	s.swap(istio(t, root, upper, lower))
	all["plugged in, two intermediates"], _, _ = plugIn(t, s.dir, policy.Limits{})
	return all
}

// The reference implementation of SPIFFE accepts what the CA issues, alone and in a handshake.
func TestSPIFFEVerifiesIssuedCertificates(t *testing.T) {
	td := spiffeid.RequireTrustDomainFromString("cluster.local")
	bob := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "bob"}
	for name, a := range authorities(t) {
		st := startWith(t, a, policy.Limits{})
		one, two := issue(t, st, alice), issue(t, st, bob)
		bundle := x509bundle.FromX509Authorities(td, one.roots)
		id, _, err := x509svid.Verify(one.certs, bundle)
		if err != nil || id.String() != alice.SPIFFE() {
			t.Errorf("%s: %v, %v", name, id, err)
		}
		for _, tt := range []struct {
			want    spiffeid.ID
			allowed bool
		}{{two.svid.ID, true}, {one.svid.ID, false}} {
			client := tlsconfig.MTLSClientConfig(one.svid, bundle, tlsconfig.AuthorizeID(tt.want))
			server := tlsconfig.MTLSServerConfig(two.svid, bundle, tlsconfig.AuthorizeID(one.svid.ID))
			if err := handshake(t, client, server); (err == nil) != tt.allowed {
				t.Errorf("%s: a handshake that expects %s: %v", name, tt.want, err)
			}
		}
	}
}

// handshake makes a connection, and returns the client's error.
func handshake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	ln := bufconn.Listen(1 << 16)
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(tls.Server(conn, server), "hello") // the client reports errors
	}()
	conn, err := ln.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(conn, client)
	_, err = io.ReadFull(c, make([]byte, 5))
	_ = conn.Close()
	<-done
	return err
}

// OpenSSL in its strictest mode accepts what the CA issues and the certificate of the control plane.
func TestOpenSSLVerifiesIssuedCertificates(t *testing.T) {
	for name, a := range authorities(t) {
		st := startWith(t, a, policy.Limits{})
		workload := issue(t, st, alice)
		serving, err := a.ServerCertificate(ca.ServingNames("istio-system", ""))
		if err != nil {
			t.Fatal(err)
		}
		own, err := serving.Get(nil)
		if err != nil {
			t.Fatal(err)
		}
		for usage, leaf := range map[string]*x509.Certificate{"sslclient": workload.certs[0], "sslserver": own.Leaf} {
			dir := wait.Folder(t)
			files := map[string][]*x509.Certificate{"roots.pem": workload.roots, "chain.pem": workload.certs[1:], "leaf.pem": {leaf}}
			for file, certs := range files {
				if err := os.WriteFile(filepath.Join(dir, file), pki.EncodeCerts(certs...), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := []string{"verify", "-x509_strict", "-purpose", usage, "-CAfile", "roots.pem"}
			if len(files["chain.pem"]) > 0 {
				args = append(args, "-untrusted", "chain.pem")
			}
			cmd := exec.CommandContext(t.Context(), "openssl", append(args, "leaf.pem")...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "leaf.pem: OK") {
				t.Errorf("%s, %s: %v: %s", name, usage, err, out)
			}
		}
	}
}
