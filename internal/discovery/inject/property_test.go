package inject_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// choices are values of annotations that may be combined.
var choices = map[string][]string{
	"sidecar.istio.io/nativeSidecar":                {"true", "false"},
	"sidecar.istio.io/interceptionMode":             {"TPROXY", "NONE"},
	"sidecar.istio.io/rewriteAppHTTPProbers":        {"true", "false"},
	"sidecar.istio.io/proxyImage":                   {"other", "a/b:c"},
	"sidecar.istio.io/proxyCPULimit":                {"3"},
	"sidecar.istio.io/capNetBindService":            {"true"},
	"sidecar.istio.io/bootstrapOverride":            {"extra"},
	"sidecar.istio.io/userVolume":                   {`{"a":{"emptyDir":{}}}`},
	"sidecar.istio.io/userVolumeMount":              {`{"a":{"mountPath":"/a"}}`},
	"status.sidecar.istio.io/port":                  {"0", "15099"},
	"traffic.sidecar.istio.io/excludeInboundPorts":  {"22", "15020,15020"},
	"traffic.sidecar.istio.io/includeOutboundPorts": {"", "443"},
	"istio.io/reroute-virtual-interfaces":           {"net1"},
	"proxy.istio.io/config":                         {"holdApplicationUntilProxyStarts: true", "proxyMetadata: {Z: z, ISTIO_META_NETWORK: n9}", "statusPort: 15031"},
	"prometheus.io/port":                            {"15020", "9102"},
	"prometheus.io/scrape":                          {"true", "false"},
	"prometheus.istio.io/merge-metrics":             {"true", "false"},
	"prometheus.istio.io/scrape-targets":            {"80:/m,81"},
	"inject.istio.io/templates":                     {"sidecar", "grpc-agent", "gateway", "grpc-simple"},
	"k8s.v1.cni.cncf.io/networks":                   {"x", `[{"name":"x"}]`},
}

// randomPod has some of the annotations and containers.
func randomPod(r *rand.Rand) *corev1.Pod {
	p := pod("demo", map[string]string{"app": "web"}, map[string]string{})
	for _, name := range slices.Sorted(maps.Keys(choices)) { // so that a seed is always the same Pod
		if values := choices[name]; r.IntN(3) == 0 {
			p.Annotations[name] = values[r.IntN(len(values))]
		}
	}
	container := func(text string) corev1.Container {
		var c corev1.Container
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			panic(err)
		}
		return c
	}
	if r.IntN(2) == 0 {
		p.Spec.Containers[0] = container(`{"name":"web","image":"web:1","ports":[{"name":"http","containerPort":8080}],"readinessProbe":{"httpGet":{"path":"/","port":"http","scheme":"HTTPS"}},"lifecycle":{"preStop":{"tcpSocket":{"port":8080}}}}`)
	}
	if r.IntN(2) == 0 {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container(`{"name":"setup","image":"s:1"}`))
	}
	if r.IntN(3) == 0 {
		own := container(`{"name":"istio-proxy","image":"auto","env":[{"name":"TRUST_DOMAIN","value":"extra"},{"name":"Y","value":"y"}],"ports":[{"containerPort":8443}],"resources":{"requests":{"cpu":"1m"}},"volumeMounts":[{"name":"a","mountPath":"/a"}]}`)
		if at := r.IntN(3); at == 2 {
			own.RestartPolicy = new(corev1.ContainerRestartPolicy)
			*own.RestartPolicy = corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = append(p.Spec.InitContainers, own)
		} else {
			p.Spec.Containers = append(p.Spec.Containers[:at:at], append([]corev1.Container{own}, p.Spec.Containers[at:]...)...)
		}
	}
	if r.IntN(4) == 0 {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container(`{"name":"istio-init","image":"auto","resources":{"limits":{"cpu":"2m"}}}`))
	}
	return p
}

// TestInjectingTwiceChangesNothingWhateverIsSet combines annotations and containers at random.
func TestInjectingTwiceChangesNothingWhateverIsSet(t *testing.T) {
	mesh := meshConfig(t, string(read(t, "testdata/mesh.yaml")))
	var configs []*inject.Config
	for _, values := range []string{"", `{"pilot": {"cni": {"enabled": true, "provider": "multus"}}, "global": {"network": "n1", "imagePullSecrets": ["s"], "multiCluster": {"clusterName": "c"}}}`} {
		configs = append(configs, newConfig(t, inject.Options{Values: overlaid(t, "values.yaml", []byte(values)), Mesh: mesh}))
	}
	accepted := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := randomPod(r)
		c := configs[r.IntN(len(configs))]
		once, err := c.Inject(inject.Request{Pod: p})
		if err != nil {
			continue
		}
		accepted++
		before, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(typedPod(t, once.Pod), typedPod(t, applied(t, before, once.Patch))); diff != "" {
			t.Fatalf("seed %d: injected (-), patched (+):\n%s", seed, diff)
		}
		twice, err := c.Inject(inject.Request{Pod: once.Pod})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(typedPod(t, once.Pod), typedPod(t, twice.Pod)); diff != "" {
			t.Fatalf("seed %d: %s\nonce (-), twice (+):\n%s", seed, before, diff)
		}
	}
	if accepted < 100 {
		t.Errorf("%d of 150 Pods were accepted", accepted)
	}
}

func typedPod(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return typed(t, text)
}

// TestFilesAndTheWebhookAgree compares a Deployment of a file with the Pod that its ReplicaSet makes.
func TestFilesAndTheWebhookAgree(t *testing.T) {
	for _, tt := range cases(t) {
		root := yamltree.Parse(tt.input, false)[0].Root
		if root.Get("kind").Str() != "Deployment" {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			out, _, err := tt.config.Documents(tt.input, inject.Request{})
			if err != nil {
				t.Fatal(err)
			}
			template := func(text []byte) *corev1.Pod {
				p := &corev1.Pod{}
				if f := yamltree.Into(yamltree.Parse(text, false)[0].Root.Get("spec").Get("template"), "", p); f != nil {
					t.Fatal(f)
				}
				return p
			}
			want, made := template(out), template(tt.input)
			yes, name := true, root.Get("metadata").Get("name").Str()
			made.GenerateName, made.Labels["pod-template-hash"] = name+"-6d4cf56db6-", "6d4cf56db6"
			made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name + "-6d4cf56db6", Controller: &yes}}
			result, err := tt.config.Inject(inject.Request{Pod: made, Namespace: "demo"})
			if err != nil {
				t.Fatal(err)
			}
			got := result.Pod
			got.GenerateName, got.OwnerReferences = "", nil
			delete(got.Labels, "pod-template-hash")
			if diff := cmp.Diff(typedPod(t, want), typedPod(t, got)); diff != "" {
				t.Errorf("file (-), webhook (+):\n%s", diff)
			}
		})
	}
}

func ExampleParsePath() {
	env, err := inject.ParsePath("/inject/cluster/east/net/n1")
	fmt.Println(env["ISTIO_META_CLUSTER_ID"], env["ISTIO_META_NETWORK"], err)
	// Output: east n1 <nil>
}

// TestManyAtOnce injects one Pod by one Config from many goroutines.
func TestManyAtOnce(t *testing.T) {
	c := newConfig(t, inject.Options{Memo: &memo{known: map[string]any{}}})
	p := pod("demo", map[string]string{"app": "web"}, nil)
	want, err := c.Inject(inject.Request{Pod: p})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan string)
	for range 8 {
		go func() {
			got, err := c.Inject(inject.Request{Pod: p})
			if err != nil {
				results <- err.Error()
				return
			}
			results <- cmp.Diff(want.Pod, got.Pod)
		}()
	}
	for range 8 {
		if diff := <-results; diff != "" {
			t.Error(diff)
		}
	}
}
