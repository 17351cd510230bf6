package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/kube"
)

// remoteKubeconfig returns a kubeconfig whose cluster and user have more fields.
func remoteKubeconfig(cluster, user string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}],
clusters: [{name: x, cluster: {%s}}], users: [{name: x, user: {%s}}]}`, cluster, user)
}

const server = "server: 'https://192.0.2.1:6443'"

// A kubeconfig of a Secret must not make the control plane run programs, read its files, or send credentials to a server
// that is not verified; errors name the remedy, and have no credential.
func TestKubeconfigsOfSecrets(t *testing.T) {
	for want, text := range map[string]string{
		"uses exec":                  remoteKubeconfig(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: s3cret, interactiveMode: Never}"),
		"uses authProvider":          remoteKubeconfig(server, "auth-provider: {name: s3cret}"),
		"uses tokenFile":             remoteKubeconfig(server, "tokenFile: /s3cret"),
		"uses clientCertificate":     remoteKubeconfig(server, "client-certificate: /s3cret, client-key: /s3cret"),
		"uses clientKey":             remoteKubeconfig(server, "client-certificate-data: czNjcmV0, client-key: /s3cret"),
		"uses certificateAuthority":  remoteKubeconfig(server+", certificate-authority: /s3cret", "token: s3cret"),
		"uses insecureSkipTLSVerify": remoteKubeconfig(server+", insecure-skip-tls-verify: true", "token: s3cret"),
		"invalid server":             remoteKubeconfig("server: 'http://s3cret'", "token: s3cret"),
		"has no current context":     "{apiVersion: v1, kind: Config}",
		"is not a kubeconfig":        "s3cret: [",
		"has credentials or certificates that cannot be used": remoteKubeconfig(server+", certificate-authority-data: czNjcmV0", "token: s3cret"),
	} {
		_, err := kube.Parse([]byte(text), kube.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("error %v, want one with %q and without the secret", err, want)
		}
	}
	c, err := kube.Parse([]byte(remoteKubeconfig(server, "token: s3cret")), kube.Options{QPS: 5})
	if err != nil || c.BearerToken != "s3cret" || c.Host != "https://192.0.2.1:6443" || c.QPS != 5 {
		t.Errorf("%v, error %v", c, err)
	}
	if _, err := kube.Parse([]byte(remoteKubeconfig(server+", insecure-skip-tls-verify: true", "token: s3cret")), kube.Options{}, "insecureSkipTLSVerify"); err != nil {
		t.Errorf("what is allowed is refused: %v", err)
	}
}
