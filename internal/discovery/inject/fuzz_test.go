package inject_test

import (
	"bytes"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// FuzzInject injects broken Pods: it must not panic, and what it accepts it must accept again without change.
func FuzzInject(f *testing.F) {
	for _, tt := range cases(f) {
		for _, d := range yamltree.Parse(tt.input, false) {
			if d.Root.Get("kind").Str() == "Pod" {
				f.Add(d.Root.JSON(), false)
			}
		}
	}
	for _, pod := range []string{
		`{}`, `{"spec":{"containers":[{"name":"istio-proxy"},{"name":"istio-proxy"}],"initContainers":[{"name":"istio-proxy"}]}}`,
		`{"spec":{"containers":[{"name":"a","ports":[{"containerPort":1},{"containerPort":1}],"livenessProbe":{"httpGet":{"port":"x"}}}]}}`,
		`{"metadata":{"annotations":{"proxy.istio.io/overrides":"{\"containers\":[{\"name\":\"istio-proxy\"}]}","sidecar.istio.io/status":"{}"}}}`,
		`{"metadata":{"annotations":{"sidecar.istio.io/userVolume":"{\"a\":null}","sidecar.istio.io/userVolumeMount":"[{}]"}}}`,
		`{"metadata":{"annotations":{"proxy.istio.io/config":"{a: &a [*a]}"}},"spec":{"volumes":[{"name":"istio-envoy","hostPath":{"path":"/"}}]}}`,
		`{"metadata":{"annotations":{"inject.istio.io/templates":"sidecar,gateway,grpc-agent,sidecar"}},"spec":{"containers":[{"name":"a\n- b"}]}}`,
	} {
		f.Add([]byte(pod), true)
	}
	mesh := meshConfig(f, string(read(f, "testdata/mesh.yaml")))
	values := string(read(f, "testdata/values.yaml"))
	configs := map[bool]*inject.Config{
		false: newConfig(f, inject.Options{Values: values, Mesh: mesh}),
		true:  newConfig(f, inject.Options{Values: overlaid(f, "values.yaml", []byte(`{"pilot": {"cni": {"enabled": true, "provider": "multus"}}, "global": {"network": "n"}}`)), Mesh: mesh, Native: inject.NativeOn}),
	}
	f.Fuzz(func(t *testing.T, text []byte, native bool) {
		pod := &corev1.Pod{}
		if json.Unmarshal(text, pod) != nil {
			return
		}
		r := inject.Request{Pod: pod, Namespace: "demo"}
		configs[native].Decide(r)
		once, err := configs[native].Inject(r)
		if err != nil {
			return
		}
		r.Pod = once.Pod
		twice, err := configs[native].Inject(r)
		if err != nil {
			t.Fatalf("the injected Pod is refused: %v", err)
		}
		if diff := cmp.Diff(once.Pod, twice.Pod); diff != "" {
			t.Errorf("once (-), twice (+):\n%s", diff)
		}
	})
}

// FuzzDocuments reads broken texts: it must not panic, and must keep what it does not inject.
func FuzzDocuments(f *testing.F) {
	for _, tt := range cases(f) {
		f.Add(tt.input)
	}
	f.Add([]byte(`{"kind":"List","apiVersion":"v1","items":[{"kind":"Pod","apiVersion":"v1"},1,null]} {"a":`))
	c := newConfig(f, inject.Options{Config: "policy: disabled"})
	f.Fuzz(func(t *testing.T, text []byte) {
		out, notes, err := c.Documents(text, inject.Request{Namespace: "demo"})
		if err != nil || bytes.Contains(text, []byte("sidecar.istio.io/inject")) {
			return
		}
		if !bytes.Equal(text, out) {
			t.Errorf("nothing is injected, but %q became %q (%v)", text, out, notes)
		}
	})
}
