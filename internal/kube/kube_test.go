package kube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/kube"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- {name: east, cluster: {server: "https://192.0.2.1:6443"}}
- {name: west, cluster: {server: "https://192.0.2.2:6443"}}
users:
- {name: me, user: {token: t0ken}}
contexts:
- {name: east, context: {cluster: east, user: me}}
- {name: west, context: {cluster: west, user: me}}
current-context: east
`

func TestLoad(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for context, host := range map[string]string{"": "https://192.0.2.1:6443", "west": "https://192.0.2.2:6443"} {
		c, err := kube.Load(kube.Options{Kubeconfig: path, Context: context, QPS: 80, Burst: 160, UserAgent: "test/1"})
		if err != nil || c.Host != host || c.BearerToken != "t0ken" || c.QPS != 80 || c.Burst != 160 || c.UserAgent != "test/1" {
			t.Errorf("context %q: %v, %v; want %s", context, c, err, host)
		}
	}
	for _, tt := range []struct {
		o    kube.Options
		want string
	}{
		{kube.Options{}, "not in a Pod"},
		{kube.Options{Kubeconfig: path + ".missing"}, path + ".missing"},
		{kube.Options{Kubeconfig: path, Context: "north"}, "north"},
	} {
		if _, err := kube.Load(tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one with %q", tt.o, err, tt.want)
		}
	}
}
