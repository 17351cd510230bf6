package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// apiServer serves what pilotctl inject reads of a cluster.
func apiServer(t *testing.T, answers map[string]string) (kubeconfig string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind": "Status", "message": "not here"}`
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"" + s.URL + "\"}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestInjectFromACluster reads ConfigMaps, the versions of kubelets and ProxyConfigs from an API server; files
// have priority.
func TestInjectFromACluster(t *testing.T) {
	const configMaps = "/api/v1/namespaces/mesh-system/configmaps/"
	answers := map[string]string{
		configMaps + "istio-sidecar-injector-canary":     `{"data": {"config": "policy: enabled", "values": "{\"global\": {\"hub\": \"cluster.example\", \"tag\": \"v7\"}}"}}`,
		configMaps + "istio-canary":                      `{"data": {"mesh": "trustDomain: cluster.example"}}`,
		"/api/v1/nodes":                                  `{"items": [{"status": {"nodeInfo": {"kubeletVersion": "v1.34.0"}}}]}`,
		"/apis/networking.istio.io/v1beta1/proxyconfigs": `{"items": [{"metadata": {"namespace": "shop", "name": "all", "creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {"concurrency": 3}}]}`,
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {containers: [{name: web, image: 'web:1'}]}\n")
	args := []string{"inject", "-f", file, "--kubeconfig", apiServer(t, answers), "-i", "mesh-system", "--revision", "canary"}
	for _, tt := range []struct {
		name       string
		more, want []string
	}{
		{"all from the cluster", nil, []string{"image: cluster.example/agent:v7", "value: cluster.example\n", "restartPolicy: Always", `{"concurrency":3}`}},
		{"files have priority", []string{"--meshConfigFile", write("mesh.yaml", "trustDomain: file.example"), "--injectConfigFile", write("config.yaml", "policy: enabled"), "--nativeSidecars", "false"},
			[]string{"image: pilothouse/agent\n", "value: file.example\n", `{"concurrency":3}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(t.Context(), append(args[:len(args):len(args)], tt.more...), nil, &out, &errs); code != 0 {
				t.Fatalf("exit code %d: %s", code, &errs)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
		})
	}
	delete(answers, "/apis/networking.istio.io/v1beta1/proxyconfigs") // the cluster does not know the kind
	var out, errs bytes.Buffer
	if code := run(t.Context(), args, nil, &out, &errs); code != 0 || strings.Contains(out.String(), "concurrency") {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	answers[configMaps+"istio-canary"] = `{"data": {"mesh": "trustDomain: [1]"}}`
	errs.Reset()
	if code := run(t.Context(), args, nil, &out, &errs); code != 1 || !strings.Contains(errs.String(), "ConfigMap istio-canary: trustDomain: line 1: want a string") {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	delete(answers, configMaps+"istio-sidecar-injector-canary")
	errs.Reset()
	if code := run(t.Context(), args, nil, &out, &errs); code != 1 || !strings.Contains(errs.String(), "get "+configMaps+"istio-sidecar-injector-canary: not found: not here") {
		t.Errorf("exit code %d: %s", code, &errs)
	}
}
