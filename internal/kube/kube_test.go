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
	// As in KUBECONFIG: the first to set a value counts, a missing file is empty.
	second := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(second, []byte(strings.ReplaceAll(kubeconfig, "current-context: east", "current-context: west")), 0o600); err != nil {
		t.Fatal(err)
	}
	files := strings.Join([]string{path + ".missing", second, path}, string(filepath.ListSeparator))
	if c, err := kube.Load(kube.Options{Kubeconfig: files}); err != nil || c.Host != "https://192.0.2.2:6443" {
		t.Errorf("several files: %v, %v", c, err)
	}
	if name, err := kube.Namespace(kube.Options{Kubeconfig: path}); err != nil || name != "default" {
		t.Errorf("namespace of a context without one: %q, %v", name, err)
	}
	named := strings.ReplaceAll(kubeconfig, "{cluster: east, user: me}", "{cluster: east, user: me, namespace: shop}")
	if err := os.WriteFile(second, []byte(named), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, err := kube.Namespace(kube.Options{Kubeconfig: second}); err != nil || name != "shop" {
		t.Errorf("namespace of a context: %q, %v", name, err)
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
