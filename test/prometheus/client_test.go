package prometheus_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

func dial(t *testing.T, address string, c credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// refuse connects as a proxy that refuses virtualInbound whenever it is sent, until the test ends.
func refuse(t *testing.T, address, pod string) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, address, insecure.NewCredentials())).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~127.0.0.1~" + pod + "~shop.svc.cluster.local"}, TypeUrl: listeners, ResourceNamesSubscribe: []string{"*"},
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return // the test has ended
			}
			ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
			for _, l := range r.GetResources() {
				if l.GetName() == "virtualInbound" {
					ack.ErrorDetail = &status.Status{Code: 13, Message: "Error adding/updating listener(s) virtualInbound: refused by the test"}
				}
			}
			if stream.Send(ack) != nil {
				return
			}
		}
	}()
}

// unknown asks for a certificate without saying who asks.
func unknown(t *testing.T, d *discovery) {
	t.Helper()
	conn := dial(t, d.secure, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})) //nolint:gosec // the server is the test's own
	if err := conn.Invoke(t.Context(), "/istio.v1.auth.IstioCertificateService/CreateCertificate", &emptypb.Empty{}, &emptypb.Empty{}); err == nil {
		t.Error("a certificate for nobody")
	}
}

// shortCA returns a folder with a CA that ends soon, as Istio's Secret cacerts has it.
func shortCA(t *testing.T, life time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"test"}}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string]*pem.Block{
		"root-cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "ca-cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "cert-chain.pem": {Type: "CERTIFICATE", Bytes: cert},
		"ca-key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
