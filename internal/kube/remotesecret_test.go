package kube_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/kube"
)

// The Secret that is printed is one that the control plane reads, with Istio's name and label.
func TestRemoteSecret(t *testing.T) {
	text, err := kube.RemoteSecret(kube.RemoteSecretOptions{Cluster: "two", Namespace: "mesh", Server: "https://192.0.2.1:6443", ServerName: "api.example.com", Token: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	var s corev1.Secret
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.Name != "istio-remote-secret-two" || s.Namespace != "mesh" || s.Labels["istio/multiCluster"] != "true" || s.Kind != "Secret" || len(s.StringData) != 1 {
		t.Errorf("%s", text)
	}
	c, err := kube.Parse([]byte(s.StringData["two"]), kube.Options{})
	if err != nil || c.Host != "https://192.0.2.1:6443" || c.BearerToken != "s3cret" || c.ServerName != "api.example.com" {
		t.Errorf("%+v, error %v", c, err)
	}
}

func TestRemoteSecretThatWouldBeRefused(t *testing.T) {
	for want, o := range map[string]kube.RemoteSecretOptions{
		"invalid server":            {Cluster: "two", Server: "http://192.0.2.1", Token: "s3cret"},
		"no name of a Secret":       {Cluster: "Two", Server: "https://192.0.2.1", Token: "s3cret"},
		"that cannot be used":       {Cluster: "two", Server: "https://192.0.2.1", Token: "s3cret", CA: []byte("no PEM")},
		`invalid name "a/b" of a c`: {Cluster: "a/b", Server: "https://192.0.2.1", Token: "s3cret"},
	} {
		if _, err := kube.RemoteSecret(o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
