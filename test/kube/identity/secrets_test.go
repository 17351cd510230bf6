package identity_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"io/fs"
	"maps"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/pki"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

const secretsType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// gatewayAccounts are the ServiceAccount of a gateway that may list Secrets, and one that may not.
const gatewayAccounts = `apiVersion: v1
kind: ServiceAccount
metadata: {name: gateway}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: other}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: gateway}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: gateway}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gateway}
subjects: [{kind: ServiceAccount, name: gateway}]
`

// proxy is what a gateway has got over SDS.
type proxy struct {
	sent   map[string]*tlsv3.Secret
	counts map[string]int
	absent map[string]bool
}

// connectGateway opens the stream of a router that is authenticated by a certificate, and asks for secrets. The function that it returns
// gives what the router has got.
func (p *plane) connectGateway(t *testing.T, token, namespace, cluster string, names ...string) func() proxy {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots()))
	dial := func(with ...tls.Certificate) *grpc.ClientConn {
		conn, err := grpc.NewClient(p.server.Addresses().SecureGRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod." + p.namespace + ".svc", MinVersion: tls.VersionTLS12, Certificates: with})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := securityv1.NewIstioCertificateServiceClient(dial()).CreateCertificate(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token)),
		&securityv1.IstioCertificateRequest{Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := pki.ParseBundle([]byte(strings.Join(signed.CertChain, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "CLUSTER_ID": cluster})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	conn := dial(pair)
	state := make(chan proxy, 1)
	state <- proxy{map[string]*tlsv3.Secret{}, map[string]int{}, map[string]bool{}}
	read := func() error {
		g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		err = g.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node:    &corev3.Node{Id: "router~10.0.0.1~gw." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: meta},
			TypeUrl: secretsType, ResourceNamesSubscribe: names,
		})
		for err == nil {
			var m *discoveryv3.DeltaDiscoveryResponse
			if m, err = g.Recv(); err != nil || m.TypeUrl != secretsType {
				continue
			}
			now := <-state
			for _, r := range m.Resources {
				one := &tlsv3.Secret{}
				if err := r.Resource.UnmarshalTo(one); err != nil {
					t.Error(err)
				}
				now.sent[r.Name] = one
				now.counts[r.Name]++
			}
			for _, name := range m.RemovedResources {
				now.absent[name] = true
			}
			state <- now
			err = g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: secretsType, ResponseNonce: m.Nonce})
		}
		return err
	}
	go func() {
		for ctx.Err() == nil {
			_ = read() // until the control plane has read its configuration
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return func() proxy {
		now := <-state
		copied := proxy{map[string]*tlsv3.Secret{}, map[string]int{}, map[string]bool{}}
		for k, v := range now.sent {
			copied.sent[k], copied.counts[k] = v, now.counts[k]
		}
		for k, v := range now.absent {
			copied.absent[k] = v
		}
		state <- now
		return copied
	}
}

// A gateway that may list the Secrets of its namespace gets those that it names, and one without the permission gets none, with a line in
// the log that says what is missing; with the permission it gets them. A Secret that is replaced is sent alone, one that is broken is
// not used. Secrets of other namespaces, and of namespaces in which no such gateway is connected, are not even read. The keys are in
// no page, log or file of the control plane.
func TestSecretsOfGatewaysInACluster(t *testing.T) {
	c := kubetest.Shared(t)
	system, edge, foreign := c.Namespace(t, nil), c.Namespace(t, nil), c.Namespace(t, nil)
	c.Apply(t, edge, gatewayAccounts)
	p := start(t, account(t, c, system), system, "istiod-1")
	var keys []string
	pair := func(name string) (cert, key []byte) {
		k, err := pki.GenerateKey("")
		if err != nil {
			t.Fatal(err)
		}
		of := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true}
		der, err := x509.CreateCertificate(rand.Reader, of, of, k.Public(), k)
		if err != nil {
			t.Fatal(err)
		}
		text, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
		keys = append(keys, string(key[40:80]), string(text[40:80]), base64.StdEncoding.EncodeToString(key)[60:100], base64.StdEncoding.EncodeToString(text)[60:100])
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
	}
	put := func(namespace, name string, kind corev1.SecretType, data map[string][]byte) {
		t.Helper()
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Type: kind, Data: data}
		api := c.Client.CoreV1().Secrets(namespace)
		if _, err := api.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			if _, err = api.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	certA, keyA := pair("a.example.com")
	certB, keyB := pair("b.example.com")
	certF, keyF := pair("foreign.example.com")
	put(edge, "a", corev1.SecretTypeTLS, map[string][]byte{"tls.crt": certA, "tls.key": keyA})
	put(edge, "b", corev1.SecretTypeOpaque, map[string][]byte{"cert": certB, "key": keyB})
	put(edge, "b-cacert", corev1.SecretTypeOpaque, map[string][]byte{"cacert": certA})
	put(foreign, "f", corev1.SecretTypeTLS, map[string][]byte{"tls.crt": certF, "tls.key": keyF})

	inForeign := "kubernetes://" + foreign + "/f"
	names := []string{"kubernetes://a", "kubernetes://" + edge + "/b", "kubernetes://b-cacert", "kubernetes://missing", inForeign}
	may := p.connectGateway(t, c.Token(t, edge, "gateway", "istio-ca"), edge, "Kubernetes", names...)
	mayNot := p.connectGateway(t, c.Token(t, edge, "other", "istio-ca"), edge, "Kubernetes", names...)
	elsewhere := p.connectGateway(t, c.Token(t, edge, "gateway", "istio-ca"), edge, "west", names...)
	wait.Until(t, "the gateway has its Secrets", func() bool {
		now := may()
		return string(now.sent["kubernetes://a"].GetTlsCertificate().GetPrivateKey().GetInlineBytes()) == string(keyA) &&
			string(now.sent["kubernetes://"+edge+"/b"].GetTlsCertificate().GetCertificateChain().GetInlineBytes()) == string(certB) &&
			string(now.sent["kubernetes://b-cacert"].GetValidationContext().GetTrustedCa().GetInlineBytes()) == string(certA) &&
			now.absent["kubernetes://missing"] && now.absent[inForeign]
	})
	for what, gateway := range map[string]func() proxy{"without the permission": mayNot, "in another cluster": elsewhere} {
		wait.Until(t, "the gateway "+what+" is told that there are none", func() bool { return len(gateway().absent) == len(names) })
		if now := gateway(); len(now.sent) > 0 {
			t.Errorf("the gateway %s has %v", what, slices.Sorted(maps.Keys(now.sent)))
		}
	}
	for _, line := range []string{
		"the ServiceAccount other of the proxy may not list the Secrets of the namespace " + edge, "there is no such Secret", `it runs in the cluster \"west\"`,
		"Secrets of the proxy's own namespace only are served", "reading the Secrets of a namespace for its gateways", "namespace=" + edge,
	} {
		if !strings.Contains(p.log.String(), line) {
			t.Errorf("the log does not say %q", line)
		}
	}
	if strings.Contains(p.log.String(), "namespace="+foreign) {
		t.Error("Secrets of a namespace are read in which no gateway is connected")
	}

	newCert, newKey := pair("a.example.com")
	put(edge, "a", corev1.SecretTypeTLS, map[string][]byte{"tls.crt": newCert, "tls.key": newKey})
	wait.Until(t, "the new certificate", func() bool {
		return string(may().sent["kubernetes://a"].GetTlsCertificate().GetCertificateChain().GetInlineBytes()) == string(newCert)
	})
	put(edge, "a", corev1.SecretTypeTLS, map[string][]byte{"tls.crt": newCert, "tls.key": []byte("no key")})
	wait.Until(t, "a line about the broken Secret", func() bool {
		return strings.Contains(p.log.String(), "tls.crt and tls.key: want a certificate in PEM and its private key")
	})
	if now := may(); now.counts["kubernetes://a"] != 2 || now.counts["kubernetes://"+edge+"/b"] != 1 || now.counts["kubernetes://b-cacert"] != 1 {
		t.Errorf("secrets were sent as often as %v, want the changed one twice and others once", now.counts)
	}

	c.Apply(t, edge, strings.NewReplacer("{name: gateway}\nroleRef", "{name: other}\nroleRef", "name: gateway}]", "name: other}]").Replace(gatewayAccounts[strings.LastIndex(gatewayAccounts, "---\n"):]))
	wait.Until(t, "the other gateway has Secrets once it may list them", func() bool { return mayNot().sent["kubernetes://"+edge+"/b"] != nil })

	texts := map[string]string{"the log": p.log.String()}
	for _, page := range []string{"config_dump?proxyID=gw." + edge, "objectz", "syncz", "configz", "adsz", "classz", "registryz"} {
		resp, err := http.Get("http://" + p.server.Addresses().HTTP + "/debug/" + page)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		texts["/debug/"+page] = string(text)
	}
	p.stop() // saves
	err := filepath.WalkDir(p.state, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range texts {
		for _, key := range keys {
			if strings.Contains(text, key) {
				t.Errorf("%s has a private key", where)
			}
		}
	}
}
