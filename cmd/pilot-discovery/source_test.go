package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// Where configuration is read from: a directory if one is given, else the cluster that is named, else that of the
// Pod. What contradicts itself is an error.
func TestSourceOfConfiguration(t *testing.T) {
	pod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
	usual := map[string]string{"KUBECONFIG": "/env"}
	for name, tt := range map[string]struct {
		flags, env map[string]string
		dir, file  string
		err        string
	}{
		"a directory":                 {map[string]string{"configDir": "/d"}, nil, "/d", "", ""},
		"a directory in a Pod":        {map[string]string{"configDir": "/d"}, pod, "/d", "", ""},
		"a directory and $KUBECONFIG": {map[string]string{"configDir": "/d"}, usual, "/d", "/env", ""},
		"a directory alone":           {map[string]string{"configDir": "/d", "registries": "Mock"}, pod, "/d", "", ""},
		"a Pod":                       {nil, pod, "", "", ""},
		"$KUBECONFIG":                 {nil, usual, "", "/env", ""},
		"a kubeconfig in a Pod":       {map[string]string{"kubeconfig": "/f"}, pod, "", "/f", ""},
		"the flag first":              {map[string]string{"kubeconfig": "/f"}, usual, "", "/f", ""},
		"nothing":                     {nil, nil, "", "", "flag --configDir: required: want a directory, or a cluster with --kubeconfig"},
		"both":                        {map[string]string{"configDir": "/d", "kubeconfig": "/f"}, nil, "/d", "/f", "flag --kubeconfig: want either --configDir or --kubeconfig"},
		"no registry":                 {map[string]string{"registries": "Mock"}, pod, "", "", "flag --registries: want Kubernetes among them, or a directory"},
		"an unknown registry":         {map[string]string{"registries": "Kubernetes,Consul"}, pod, "", "", `flag --registries: invalid name "Consul": want Kubernetes or Mock`},
		"an invalid pattern":          {nil, map[string]string{"KUBECONFIG": "/env", "PILOT_IGNORE_RESOURCES": "[a"}, "", "/env", `environment PILOT_IGNORE_RESOURCES: invalid pattern "[a"`},
	} {
		v := settings.Read(tt.flags, tt.env, settings.Discovery)
		o := readOptions(v)
		got := ""
		if v.Err() != nil {
			got = v.Err().Error()
		}
		if o.ConfigDir != tt.dir || o.Kubernetes.API.Kubeconfig != tt.file || !strings.HasPrefix(got, tt.err) || (got == "") != (tt.err == "") {
			t.Errorf("%s: directory %q, kubeconfig %q, error %q; want %q, %q, %q", name, o.ConfigDir, o.Kubernetes.API.Kubeconfig, got, tt.dir, tt.file, tt.err)
		}
	}
}

func TestOptionsOfTheCluster(t *testing.T) {
	env := map[string]string{
		"KUBECONFIG": "/env", "CLUSTER_ID": "east", "ISTIO_WATCH_NAMESPACE": "shop", "PILOT_IGNORE_RESOURCES": "*.istio.io, nodes", "PILOT_INCLUDE_RESOURCES": "sidecars.networking.istio.io",
	}
	k := readOptions(settings.Read(map[string]string{"kubernetesApiQPS": "7.5", "kubernetesApiBurst": "9"}, env, settings.Discovery)).Kubernetes
	if k.Cluster != "east" || k.WatchNamespace != "shop" || !slices.Equal(k.Ignore, []string{"*.istio.io", "nodes"}) || len(k.Include) != 1 || k.API.QPS != 7.5 || k.API.Burst != 9 {
		t.Errorf("%+v", k)
	}
	if k = readOptions(settings.Read(nil, env, settings.Discovery)).Kubernetes; k.API.QPS != 80 || k.API.Burst != 160 {
		t.Errorf("by default %+v", k.API)
	}
	if k = readOptions(settings.Read(map[string]string{"kubernetesApiQPS": "0"}, env, settings.Discovery)).Kubernetes; k.API.QPS >= 0 {
		t.Errorf("without a limit %+v", k.API)
	}
	if k = readOptions(settings.Read(nil, nil, settings.Discovery)).Kubernetes; k.Cluster != "Kubernetes" {
		t.Errorf("cluster %q", k.Cluster)
	}
}

// What only a cluster has is named if a directory is read.
func TestSettingsOfTheClusterBesideADirectory(t *testing.T) {
	env := map[string]string{"CLUSTER_ID": "east", "ISTIO_WATCH_NAMESPACE": "shop", "PILOT_IGNORE_RESOURCES": "nodes", "PILOT_INCLUDE_RESOURCES": "pods"}
	var out strings.Builder
	v := settings.Read(map[string]string{"configDir": "/d", "kubernetesApiQPS": "1"}, env, settings.Discovery)
	log, err := readLogger(v, &out)
	if err != nil {
		t.Fatal(err)
	}
	warnOfSettings(log, v)
	for _, name := range append(slices.Collect(maps.Keys(env)), "--kubernetesApiQPS") {
		if !strings.Contains(out.String(), name+" has no effect") {
			t.Errorf("%s is not named in\n%s", name, out.String())
		}
	}
}
