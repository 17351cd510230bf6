package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A signal ends the program while it waits for an API server that refuses to show the mesh configuration or the root, and
// is no error.
func TestASignalEndsTheStart(t *testing.T) {
	for _, resource := range []string{"configmaps", "secrets"} {
		t.Run(resource, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.Contains(r.URL.Path, "/"+resource):
					http.Error(w, "maintenance", http.StatusServiceUnavailable)
					stop()
				case strings.Contains(r.URL.Path, "/configmaps"):
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`))
				default:
					http.NotFound(w, r)
				}
			}))
			defer api.Close()
			config := clientcmdapi.NewConfig()
			config.Clusters["test"] = &clientcmdapi.Cluster{Server: api.URL}
			config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
			config.CurrentContext = "test"
			dir, any := t.TempDir(), "127.0.0.1:0"
			kubeconfig := filepath.Join(dir, "kubeconfig")
			if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
				t.Fatal(err)
			}
			var out, errs wait.Output
			code := run(ctx, []string{
				"discovery", "--kubeconfig", kubeconfig, "--stateDir", filepath.Join(dir, "state"), "--meshConfig", filepath.Join(dir, "mesh"),
				"--httpAddr", any, "--grpcAddr", "", "--secureGRPCAddr", any, "--monitoringAddr", "", "--httpsAddr", any,
			}, nil, &out, &errs)
			if code != 0 || ctx.Err() == nil {
				t.Errorf("ended with %d, signalled: %v; the log is\n%s", code, ctx.Err() != nil, errs.String())
			}
		})
	}
}
