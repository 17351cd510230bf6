package main

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/agenttest"
)

// testCA is a certificate authority of the test.
type testCA struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
	term pki.Validity
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	ca := &testCA{t: t, key: key, term: pki.Validity{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}}
	if ca.cert, err = pki.Sign(pki.RootTemplate("crl.example", ca.term), nil, key.Public(), key); err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue makes a workload's certificate and key.
func (ca *testCA) issue(account string) (*x509.Certificate, crypto.Signer) {
	ca.t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		ca.t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "crl.example", Namespace: "n", ServiceAccount: account}, ca.term)
	if err != nil {
		ca.t.Fatal(err)
	}
	leaf, err := pki.Sign(template, ca.cert, key.Public(), ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return leaf, key
}

// revoke makes a revocation list in PEM.
func (ca *testCA) revoke(number int64, certs ...*x509.Certificate) []byte {
	ca.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: ca.term.NotBefore, NextUpdate: ca.term.NotAfter}
	for _, c := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: ca.term.NotBefore})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// TestRevokedClientsAreRefused: a list that is mounted while the proxy runs takes effect, and a client that it does not name is
// served all the time.
func TestRevokedClientsAreRefused(t *testing.T) {
	const list = "var/run/secrets/istio/crl/ca-crl.pem"
	ca := newTestCA(t)
	plane := agenttest.NewPlane(t)
	port := agenttest.Port(t)
	plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": mutualListener(t, port)})
	plane.Start()
	a := agenttest.New(t, plane, "")
	own, key := ca.issue("server")
	text, err := pki.EncodeKey(key, true)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"cert-chain.pem": pki.EncodeCerts(own), "key.pem": text, "root-cert.pem": pki.EncodeCerts(ca.cert)} {
		a.Write("var/run/secrets/workload-spiffe-credentials/"+name, text)
	}
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	good, goodKey := ca.issue("good")
	bad, badKey := ca.issue("bad")
	request := func(leaf *x509.Certificate, key crypto.Signer) error {
		c, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", port), &tls.Config{
			MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // only the client's certificate matters here
			Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
		})
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(agenttest.Bound)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("GET /healthz/ready HTTP/1.0\r\n\r\n")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1)) // the server's refusal comes with the first answer
		return err
	}
	for _, step := range []struct {
		what    string
		list    []byte
		refused bool
	}{
		{"no list", nil, false},
		{"a list that revokes nothing", ca.revoke(1), false},
		{"a list that revokes the client", ca.revoke(2, bad), true},
		{"a damaged list", []byte("-----BEGIN X509 CRL-----\n"), true},
		{"a list that revokes nothing again", ca.revoke(3), false},
	} {
		if step.list != nil {
			a.Write(list, step.list)
		}
		agenttest.Until(t, step.what, func() error {
			if err := request(good, goodKey); err != nil {
				return err
			}
			err := request(bad, badKey)
			switch {
			case step.refused && err == nil:
				return errors.New("a revoked client is served")
			case step.refused:
				return nil
			}
			return err
		})
	}
}

// mutualListener is tlsListener for clients with a certificate of the mesh.
func mutualListener(t *testing.T, port string) *listenerv3.Listener {
	t.Helper()
	l := tlsListener(t, port)
	socket := l.GetFilterChains()[0].GetTransportSocket()
	var context tlsv3.DownstreamTlsContext
	if err := socket.GetTypedConfig().UnmarshalTo(&context); err != nil {
		t.Fatal(err)
	}
	context.RequireClientCertificate = wrapperspb.Bool(true)
	roots := proto.CloneOf(context.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()[0])
	roots.Name = "ROOTCA"
	context.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: roots}
	socket.GetTypedConfig().Reset()
	if err := socket.GetTypedConfig().MarshalFrom(&context); err != nil {
		t.Fatal(err)
	}
	return l
}
