package kubetest

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// CA is the certificate of the cluster's CA, as PEM. It has signed the certificates of the API server and of
// [Cluster.ServerCertificate].
func (c *Cluster) CA() []byte { return c.authority.pem }

// ServerCertificate makes a certificate, signed by the cluster's CA, for host names and IP addresses: for
// webhooks, with CA as their caBundle, and kubelets.
func (c *Cluster) ServerCertificate(hosts ...string) (tls.Certificate, error) {
	if len(hosts) == 0 {
		return tls.Certificate{}, fmt.Errorf("make a server's certificate: no hosts: want at least one name or address")
	}
	pair, err := c.authority.server(hosts...)
	if err != nil {
		return tls.Certificate{}, err
	}
	return pair.tls()
}

// UserConfig is how a user with groups connects to the API server: with a client certificate, without a
// limit of requests per second. The user may do what RBAC says, and everything in the group system:masters.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	pair, err := c.authority.client(user, groups...)
	if err != nil {
		return nil, err
	}
	config := c.anonymous()
	config.CertData, config.KeyData = pair.cert, pair.key
	return config, nil
}

// TokenConfig is how the owner of a token connects to the API server.
func (c *Cluster) TokenConfig(token string) *rest.Config {
	config := c.anonymous()
	config.BearerToken = token
	return config
}

func (c *Cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem},
		QPS:             -1,
	}
}

// Token requests a token of a ServiceAccount by TokenRequest, valid for an hour. Without audiences it is for the
// API server.
func (c *Cluster) Token(t testing.TB, namespace, serviceAccount string, audiences ...string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	r, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), serviceAccount, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("request a token of ServiceAccount %s/%s: %v", namespace, serviceAccount, err)
	}
	return r.Status.Token
}

// Kubeconfig writes a kubeconfig file for a configuration of UserConfig, TokenConfig or Config, and returns
// its path. It is removed at the end of the test.
func Kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := writeKubeconfig(path, config); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeKubeconfig(path string, config *rest.Config) error {
	const name = "kubetest"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
