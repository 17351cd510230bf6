package inject_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	meshv1 "istio.io/api/mesh/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// testCase is a Pod, or an object with a Pod template, and what Istio's injector was observed to make of it.
type testCase struct {
	name        string
	config      *inject.Config
	input, want []byte
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// overlaid is a file of testdata with the values of a case over it.
func overlaid(t testing.TB, file string, over []byte) string {
	t.Helper()
	var base, add map[string]any
	if err := yaml.Unmarshal(read(t, "testdata/"+file), &base); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(over, &add); err != nil {
		t.Fatal(err)
	}
	var put func(dst, src map[string]any)
	put = func(dst, src map[string]any) {
		for k, v := range src {
			to, ok := dst[k].(map[string]any)
			from, both := v.(map[string]any)
			if ok && both {
				put(to, from)
				continue
			}
			dst[k] = v
		}
	}
	put(base, add)
	text, err := yaml.Marshal(base)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func meshConfig(t testing.TB, text string) *meshv1.MeshConfig {
	t.Helper()
	m, verdicts := config.MeshConfig(text)
	if m == nil {
		t.Fatalf("mesh configuration: %v", verdicts)
	}
	return m
}

func newConfig(t testing.TB, o inject.Options) *inject.Config {
	t.Helper()
	c, err := inject.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// cases are all pairs in testdata.
func cases(t testing.TB) []testCase {
	t.Helper()
	files, err := filepath.Glob("testdata/[0-9]*.txtar")
	if err != nil || len(files) != 48 {
		t.Fatalf("%d cases, error %v; want 48", len(files), err)
	}
	var all []testCase
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		part := map[string][]byte{}
		for _, f := range a.Files {
			part[f.Name] = f.Data
		}
		all = append(all, testCase{
			name: strings.TrimSuffix(filepath.Base(file), ".txtar"),
			config: newConfig(t, inject.Options{
				Values: overlaid(t, "values.yaml", part["values.yaml"]), Mesh: meshConfig(t, overlaid(t, "mesh.yaml", part["mesh.yaml"])),
				Native: inject.Native(strings.TrimSpace(string(part["native"]))), Revision: strings.TrimSpace(string(part["revision"])),
			}),
			input: part["input.yaml"], want: part["want.yaml"],
		})
	}
	return all
}

// deviations are where the result differs on purpose from what was observed, with the reason. Each changes the
// observed text to what is wanted here.
var deviations = map[string]struct {
	reason string
	change func(want string) string
}{
	"36-job-and-cronjob": {
		"labels and annotations of the proxy belong to the Pod: on the Job of a CronJob the mesh does not find them, and the webhook puts them on the Pod",
		func(want string) string {
			head, cron, _ := strings.Cut(want, "kind: CronJob\n")
			at, end := strings.Index(cron, "    metadata:\n      annotations:"), strings.Index(cron, "    spec:\n      template:")
			labels := strings.ReplaceAll(cron[at:end], "\n    ", "\n        ")
			cron = cron[:at] + cron[end:]
			return head + "kind: CronJob\n" + strings.Replace(cron, "        metadata:\n          labels:\n            app: nightly\n", "    "+strings.TrimRight(labels, " ")+"            app: nightly\n", 1)
		},
	},
	"46-template-grpc-simple": {
		"the script that writes the same bootstrap is our own (TestGRPCBootstrap), and the namespace has no line break",
		func(want string) string {
			script := strings.ReplaceAll(strings.TrimSuffix(grpcScript, "\n"), "\n", "\n      ")
			want = strings.Replace(want, "    - SCRIPT\n", "    - |\n      "+script+"\n", 1)
			return strings.Replace(want, "value: |\n        istio-system\n", "value: istio-system\n", 1)
		},
	},
}

const grpcScript = `cat > /var/lib/grpc/data/bootstrap.json <<END
{"xds_servers": [{
  "server_uri": "dns:///istiod.$ISTIO_NAMESPACE.svc:15010",
  "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]
}], "node": {
  "id": "sidecar~$INSTANCE_IP~$POD_NAME.$POD_NAMESPACE~cluster.local",
  "metadata": {"GENERATOR": "grpc"}
}}
END
`

func TestEveryObservedInjection(t *testing.T) {
	used := map[string]bool{}
	for _, tt := range cases(t) {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := tt.config.Documents(tt.input, inject.Request{})
			if err != nil {
				t.Fatal(err)
			}
			want := string(tt.want)
			if d, ok := deviations[tt.name]; ok {
				used[tt.name] = true
				changed := d.change(want)
				if changed == want {
					t.Errorf("the deviation %q changes nothing", d.reason)
				}
				want = changed
			}
			if diff := cmp.Diff(typed(t, []byte(want)), typed(t, got)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
	for name := range deviations {
		if !used[name] {
			t.Errorf("there is no case %s", name)
		}
	}
}

// typed decodes the documents into the types of Kubernetes and encodes them again, so that only what they mean
// is compared: defaults that are not written, and the order of fields, are not.
func typed(t testing.TB, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	for _, d := range yamltree.Parse(text, false) {
		if d.Fault != nil {
			t.Fatalf("%v in:\n%s", d.Fault, text)
		}
		if d.Root == nil {
			continue
		}
		into := map[string]any{
			"Pod": &corev1.Pod{}, "Deployment": &appsv1.Deployment{}, "StatefulSet": &appsv1.StatefulSet{}, "DaemonSet": &appsv1.DaemonSet{},
			"ReplicaSet": &appsv1.ReplicaSet{}, "Job": &batchv1.Job{}, "CronJob": &batchv1.CronJob{}, "Service": &corev1.Service{},
		}[d.Root.Get("kind").Str()]
		if into == nil {
			t.Fatalf("kind %q", d.Root.Get("kind").Str())
		}
		if err := json.Unmarshal(d.Root.JSON(), into); err != nil {
			t.Fatal(err)
		}
		y, err := yaml.Marshal(into)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(y)
	}
	return out.String()
}

func TestGRPCBootstrap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	c := exec.Command("sh", "-c", strings.Replace(grpcScript, "/var/lib/grpc/data/bootstrap.json", file, 1))
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "INSTANCE_IP=10.1.2.3", "POD_NAME=web-1", "POD_NAMESPACE=demo", "ISTIO_NAMESPACE=istio-system"}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const want = `{"xds_servers":[{"server_uri":"dns:///istiod.istio-system.svc:15010","channel_creds":[{"type":"insecure"}],"server_features":["xds_v3"]}],"node":{"id":"sidecar~10.1.2.3~web-1.demo~cluster.local","metadata":{"GENERATOR":"grpc"}}}`
	var got bytes.Buffer
	if err := json.Compact(&got, read(t, file)); err != nil || got.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, &got, want)
	}
}

// TestInjectingTwiceChangesNothing also feeds each result in again as the Pod that a webhook sees.
func TestInjectingTwiceChangesNothing(t *testing.T) {
	for _, tt := range cases(t) {
		t.Run(tt.name, func(t *testing.T) {
			once, _, err := tt.config.Documents(tt.input, inject.Request{})
			if err != nil {
				t.Fatal(err)
			}
			twice, _, err := tt.config.Documents(once, inject.Request{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(typed(t, once), typed(t, twice)); diff != "" {
				t.Errorf("once (-), twice (+):\n%s", diff)
			}
		})
	}
}

// refusal is what Istio's injector said about a value of an annotation.
type refusal struct {
	Annotation, Value, Observed string
	Exit                        int
}

func TestRefusedAnnotations(t *testing.T) {
	var all []refusal
	if err := yaml.Unmarshal(read(t, "testdata/refused.yaml"), &all); err != nil || len(all) != 10 {
		t.Fatalf("%d rows, error %v", len(all), err)
	}
	for _, tt := range all {
		t.Run(tt.Annotation, func(t *testing.T) {
			c := newConfig(t, inject.Options{Values: string(read(t, "testdata/values.yaml")), Mesh: meshConfig(t, string(read(t, "testdata/mesh.yaml")))})
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}}
			pod.Name, pod.Annotations = "web", map[string]string{tt.Annotation: tt.Value}
			result, err := c.Inject(inject.Request{Pod: pod, Namespace: "demo"})
			if refused := tt.Exit != 0; refused != (err != nil) {
				t.Fatalf("error %v; observed: %s", err, tt.Observed)
			}
			if err == nil {
				// Istio says nothing about what has no effect; here it is told.
				if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], tt.Annotation) {
					t.Errorf("warnings %q, want one about %s", result.Warnings, tt.Annotation)
				}
				return
			}
			for _, begin := range []string{"invalid value '" + tt.Value + "' for annotation '" + tt.Annotation + "': ", "requested template \"" + tt.Value + "\" not found; have ", "invalid prometheus scrape configuration: "} {
				if strings.Contains(tt.Observed, begin) {
					if !strings.HasPrefix(err.Error(), begin) {
						t.Errorf("%v\nwant it to begin with %s", err, begin)
					}
					return
				}
			}
			t.Errorf("no form for what was observed: %s", tt.Observed)
		})
	}
}

// TestPatches applies the patch of each Pod of testdata as the API server does.
func TestPatches(t *testing.T) {
	for _, tt := range cases(t) {
		for i, d := range yamltree.Parse(tt.input, false) {
			if d.Root.Get("kind").Str() != "Pod" {
				continue
			}
			t.Run(fmt.Sprintf("%s-%d", tt.name, i), func(t *testing.T) {
				pod := &corev1.Pod{}
				if err := json.Unmarshal(d.Root.JSON(), pod); err != nil {
					t.Fatal(err)
				}
				before, err := json.Marshal(pod)
				if err != nil {
					t.Fatal(err)
				}
				result, err := tt.config.Inject(inject.Request{Pod: pod})
				if err != nil {
					t.Fatal(err)
				}
				if after, _ := json.Marshal(pod); !bytes.Equal(before, after) {
					t.Error("the Pod of the request was modified")
				}
				got, want := applied(t, before, result.Patch), &corev1.Pod{}
				if text, err := json.Marshal(result.Pod); err != nil || json.Unmarshal(text, want) != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("injected (-), patched (+):\n%s", diff)
				}
				again, err := tt.config.Inject(inject.Request{Pod: result.Pod})
				if err != nil || string(again.Patch) != "[]" {
					t.Errorf("patch of the injected Pod: %s, error %v; want []", again.Patch, err)
				}
			})
		}
	}
}

// applied is a Pod after a JSON patch.
func applied(t *testing.T, pod, patch []byte) *corev1.Pod {
	t.Helper()
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Apply(pod)
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}
