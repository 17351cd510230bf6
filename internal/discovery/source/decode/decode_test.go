package decode_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// spec decodes one document that must be good.
func spec(t *testing.T, text string) object.Object {
	t.Helper()
	r := decode.Documents("f.yaml", []byte(text))
	if len(r.Objects) != 1 || len(r.Problems) > 0 {
		t.Fatalf("objects %v, problems %v", r.Objects, r.Problems)
	}
	return r.Objects[0]
}

func ips(s ...string) (out []netip.Addr) {
	for _, x := range s {
		out = append(out, netip.MustParseAddr(x))
	}
	return out
}

func TestCoreKinds(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		key        string
		want       any
	}{
		{"namespace", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, namespace: ignored}", "Namespace shop", nil},
		{"service account", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}", "ServiceAccount default/a", nil},
		{"service", `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: n}
spec:
  clusterIPs: [10.0.0.1, "fd00::1"]
  selector: {app: a}
  ports: [{port: 80, targetPort: 8080}, {name: grpc, port: 90, targetPort: admin, appProtocol: h2c}, {port: 53, protocol: UDP, targetPort: "5353"}]`,
			"Service n/a", &object.ServiceSpec{ClusterIPs: ips("10.0.0.1", "fd00::1"), Selector: map[string]string{"app": "a"}, Ports: []object.ServicePort{
				{Port: 80, TargetPort: 8080, Protocol: "TCP"}, {Name: "grpc", Port: 90, TargetName: "admin", AppProtocol: "h2c", Protocol: "TCP"}, {Port: 53, Protocol: "UDP", TargetPort: 5353}}}},
		{"headless", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: None, type: ClusterIP, publishNotReadyAddresses: true}",
			"Service default/a", &object.ServiceSpec{Type: "ClusterIP", Headless: true, PublishNotReady: true}},
		{"slice", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-x, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: http, port: 80}, {name: any}]
endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p}, nodeName: m, zone: z}, {addresses: [10.0.0.2], conditions: {ready: false, terminating: true}}, {addresses: [10.0.0.3], conditions: {ready: false, serving: true, terminating: true}}]`,
			"EndpointSlice default/a-x", &object.EndpointSliceSpec{Service: "a", Ports: []object.SlicePort{{Name: "http", Port: 80, Protocol: "TCP"}},
				Endpoints: []object.SliceEndpoint{{Addresses: ips("10.0.0.1"), Ready: true, Serving: true, Pod: "p", NodeName: "m", Zone: "z"}, {Addresses: ips("10.0.0.2"), Terminating: true}, {Addresses: ips("10.0.0.3"), Serving: true, Terminating: true}}}},
		{"pod", `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  serviceAccountName: sa
  nodeName: m
  initContainers: [{name: once, ports: [{containerPort: 1}]}, {name: side, restartPolicy: Always, ports: [{containerPort: 2}]}]
  containers: [{name: c, ports: [{name: http, containerPort: 80}], resources: {limits: {cpu: 1, memory: 1Gi}}}]
status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "False"}]}`,
			"Pod default/p", &object.PodSpec{IPs: ips("10.0.0.1"), ServiceAccount: "sa", NodeName: "m", Ports: []object.ContainerPort{{Name: "http", Port: 80, Protocol: "TCP"}, {Port: 2, Protocol: "TCP"}}}},
		{"pod without status", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}",
			"Pod default/p", &object.PodSpec{IPs: ips("10.0.0.1", "fd00::1"), ServiceAccount: "default", Ready: true}},
		{"pod done", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {phase: Succeeded}",
			"Pod default/p", &object.PodSpec{ServiceAccount: "default", Done: true}},
		{"secret", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ntype: kubernetes.io/tls\ndata: {a: aGk=}\nstringData: {b: text}",
			"Secret default/s", &object.SecretSpec{Type: "kubernetes.io/tls", Data: map[string][]byte{"a": []byte("hi"), "b": []byte("text")}}},
		{"config map", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    trustDomain: x\n",
			"ConfigMap istio-system/istio", &object.ConfigMapSpec{Data: map[string]string{"mesh": "trustDomain: x\n"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := spec(t, strings.TrimPrefix(tt.text, "\n"))
			if o.Key.String() != tt.key || o.Origin != (object.Origin{File: "f.yaml", Line: 1}) {
				t.Errorf("key %s at %s, want %s at f.yaml:1", o.Key, o.Origin, tt.key)
			}
			if d := cmp.Diff(tt.want, o.Spec, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestMeta(t *testing.T) {
	o := spec(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {l: v}, annotations: {a: w}, generation: 3, resourceVersion: '7', creationTimestamp: 2026-01-02T03:04:05Z}")
	if o.Meta.Labels["l"] != "v" || o.Meta.Annotations["a"] != "w" || o.Meta.Generation != 3 || o.Meta.ResourceVersion != "7" || o.Meta.Created.Unix() != 1767323045 {
		t.Errorf("meta %+v", o.Meta)
	}
}

func TestIstioKinds(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1", "v1alpha3"} {
		o := spec(t, "apiVersion: networking.istio.io/"+version+"\nkind: DestinationRule\nmetadata: {name: a, namespace: n}\nspec:\n  host: h\n  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}, outlierDetection: {interval: 1m}}\nstatus: {anything: 1}")
		got := o.Spec.(*networking.DestinationRule)
		if got.Host != "h" || got.TrafficPolicy.Tls.Mode != networking.ClientTLSSettings_ISTIO_MUTUAL || got.TrafficPolicy.OutlierDetection.Interval.Seconds != 60 {
			t.Errorf("%s: %v", version, got)
		}
	}
	for _, kind := range object.Kinds() {
		if m := decode.NewSpec(kind); m != nil {
			group := "networking.istio.io/v1"
			switch kind {
			case object.PeerAuthentication, object.RequestAuthentication, object.AuthorizationPolicy:
				group = "security.istio.io/v1beta1"
			case object.Telemetry:
				group = "telemetry.istio.io/v1alpha1"
			case object.WasmPlugin, object.TrafficExtension:
				group = "extensions.istio.io/v1alpha1"
			case object.ProxyConfig:
				group = "networking.istio.io/v1beta1"
			case object.EnvoyFilter:
				group = "networking.istio.io/v1alpha3"
			}
			o := spec(t, fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: a}", group, kind))
			if d := cmp.Diff(m, o.Spec, protocmp.Transform()); d != "" {
				t.Errorf("%s: an empty spec is not empty: %s", kind, d)
			}
		}
	}
}

func TestProblems(t *testing.T) {
	const vs = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: n}\n"
	for _, tt := range []struct{ name, text, want string }{
		{"unknown field", vs + "spec:\n  hosts: [a]\n  http:\n  - timout: 5s", `f.yaml:7: VirtualService n/a: spec.http[0].timout: unknown field; did you mean timeout?`},
		{"outside of spec", vs + "hosts: [a]", `f.yaml:4: VirtualService n/a: hosts: unknown field; want apiVersion, kind, metadata, spec or status`},
		{"syntax", "a: [", `f.yaml:1: the YAML does not parse: did not find expected node content`},
		{"no kind", "apiVersion: v1\nmetadata: {name: a}", `f.yaml:1: kind is missing: an object needs apiVersion and kind`},
		{"kind of two groups", "kind: Gateway\nmetadata: {name: a}", `f.yaml:1: apiVersion is missing: an object needs apiVersion and kind; did you mean apiVersion: gateway.networking.k8s.io/v1 or networking.istio.io/v1?`},
		{"neither", "metadata: {name: a}", `f.yaml:1: apiVersion and kind are missing: an object needs both`},
		{"kind is a list", "apiVersion: v1\nkind: [Service]\nmetadata: {name: a}", `f.yaml:2: kind: want a string, not a list`},
		{"version is a number", "kind: Service\nmetadata: {name: a}\napiVersion: 1", `f.yaml:3: apiVersion: want a string, not a number`},
		{"version of an item", "apiVersion: v1\nkind: List\nitems:\n- kind: Service", `f.yaml:4: items[0]: apiVersion is missing: an object needs apiVersion and kind; did you mean apiVersion: v1?`},
		{"version of a workload", "kind: Deployment\nmetadata: {name: a}", `f.yaml:1: apiVersion is missing: an object needs apiVersion and kind; did you mean apiVersion: apps/v1?`},
		{"no version", "kind: VirtualService\nmetadata: {name: a}", `f.yaml:1: apiVersion is missing: an object needs apiVersion and kind; did you mean apiVersion: networking.istio.io/v1?`},
		{"no object", "just text", `f.yaml:1: want an object with apiVersion, kind and metadata, not a string`},
		{"no name", "apiVersion: v1\nkind: Service\nmetadata: {namespace: n}", `f.yaml:3: metadata.name: the name of the Service is missing`},
		{"name is a number", "apiVersion: v1\nkind: Service\nmetadata: {name: 5}", `f.yaml:3: metadata.name: want a string, not a number; put it in quotes: "5"`},
		{"bad name", "apiVersion: v1\nkind: Service\nmetadata: {name: A_b}", `f.yaml:3: Service default/A_b: metadata.name: invalid name "A_b": want lower-case`},
		{"bad namespace", "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b.c}", `f.yaml:3: Service b.c/a: metadata.namespace: invalid namespace "b.c": want lower-case`},
		{"label", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    version: 1", `f.yaml:6: Pod default/a: metadata.labels.version: want a string, not a number; put it in quotes: "1"`},
		{"type", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: http", `f.yaml:6: Service default/a: spec.ports[0].port: want a whole number of 32 bits, not a string`},
		{"address", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.300}", `f.yaml:1: Service default/a: spec.clusterIP: invalid IP address "10.0.0.300": want one such as`},
		{"version", "apiVersion: networking.istio.io/v9\nkind: Sidecar\nmetadata: {name: a}", `f.yaml:1: Sidecar default/a: apiVersion: unsupported version "networking.istio.io/v9": want networking.istio.io/v1 or`},
		{"fqdn slice", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: FQDN", `f.yaml:1: EndpointSlice default/a: addressType: FQDN is not supported`},
		{"item of a list", "apiVersion: v1\nkind: List\nitems:\n- 5", `f.yaml:4: items[0]: want an object`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := decode.Documents("f.yaml", []byte(tt.text+"\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: after}\n"))
			if len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].Error(), tt.want) {
				t.Errorf("problems %v\nwant %s", r.Problems, tt.want)
			}
			if len(r.Objects) != 1 || r.Objects[0].Name != "after" {
				t.Errorf("the document after it: %v", r.Objects)
			}
			if whole := r.Problems[0].Key != (object.Key{}); r.Whole() != whole {
				t.Errorf("whole %v", r.Whole())
			}
		})
	}
}

func TestListsSkippedAndJSON(t *testing.T) {
	r := decode.Documents("f.yaml", []byte(`apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: a}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
- {apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: k}}
- {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: b}}]}
`))
	if len(r.Objects) != 2 || r.Objects[1].Name != "b" || r.Objects[0].Origin.Line != 4 || len(r.Skipped) != 2 || len(r.Problems) != 1 || !r.Whole() {
		t.Errorf("%+v", r)
	}
	if p := r.Problems[0]; p.Severity != object.Info || p.Error() != "f.yaml: 2 objects of kinds that the mesh does not use are ignored: Deployment, Service" {
		t.Errorf("problem %v", p)
	}
	if s := r.Skipped[1]; s.Name != "k" || s.Origin.String() != "f.yaml:6" || s.Kind != "Service" {
		t.Errorf("skipped %+v", s)
	}
	r = decode.Documents("f.json", []byte("{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\n\t\"metadata\":{\"name\":\"a\"}}\n{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{\"name\":\"b\"}}"))
	if len(r.Objects) != 2 || r.Objects[1].Origin.Line != 3 || len(r.Problems) != 0 {
		t.Errorf("JSON: %+v", r)
	}
}

func TestTypedEqualsText(t *testing.T) {
	o, problems := decode.Typed(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}})
	want := spec(t, "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: n}\nspec: {clusterIP: 10.0.0.1}")
	want.Origin = object.Origin{}
	if d := cmp.Diff(want, o, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || len(problems) > 0 {
		t.Error(d, problems)
	}
	if _, problems := decode.Typed(&corev1.PersistentVolume{}); len(problems) != 1 {
		t.Errorf("a kind that is not read: %v", problems)
	}
}

func TestSample(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		r := decode.Documents(f, text)
		if len(r.Problems) > 0 || len(r.Skipped) > 0 || len(r.Objects) == 0 {
			t.Errorf("%s: %d objects, problems %v, skipped %v", f, len(r.Objects), r.Problems, r.Skipped)
		}
	}
}

func FuzzDocuments(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add("a.yaml", text)
	}
	f.Add("a.json", []byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}]}`))
	f.Add("a.yaml", []byte("a: &a [*a]\n---\nb: &b {<<: *b}\n---\n? [x]\n: y\n---\n\"\\ud83d\"\n"))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		r := decode.Documents(name, text)
		for _, o := range r.Objects {
			if o.Name == "" || o.Origin.Line < 1 || (o.Namespace == "") != (o.Kind == object.Namespace || o.Kind == object.Node) {
				t.Errorf("object %+v", o)
			}
		}
		for _, p := range r.Problems {
			if p.Text == "" || p.Origin.File != name {
				t.Errorf("problem %+v", p)
			}
		}
	})
}
