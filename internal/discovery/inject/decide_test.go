package inject_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
)

func pod(namespace string, labels, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace, Labels: labels, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}},
	}
}

func TestDecide(t *testing.T) {
	type m = map[string]string
	const key = "sidecar.istio.io/inject"
	enabled := m{"istio-injection": "enabled"}
	selectors := "{neverInjectSelector: [{matchLabels: {job: batch}}, {}], alwaysInjectSelector: [{matchExpressions: [{key: mesh, operator: Exists}]}], policy: %}"
	for _, tt := range []struct {
		name                string
		config, values      string
		revision            string
		tags                []string
		namespace           m
		ns                  string
		labels, annotations m
		hostNetwork         bool
		want                bool
		reason              inject.Reason
		message, warning    string
	}{
		{name: "policy", want: true, reason: inject.Policy, message: "policy is enabled"},
		{name: "policy disabled", config: "policy: disabled", reason: inject.Policy, message: "policy is disabled"},
		{name: "policy of values", values: `{"global": {"proxy": {"autoInject": "disabled"}}}`, reason: inject.Policy},
		{name: "host network", hostNetwork: true, labels: m{key: "true"}, reason: inject.HostNetwork, message: "host networking"},
		{name: "system namespace", ns: "kube-system", labels: m{key: "true"}, reason: inject.SystemNamespace, message: "kube-system"},
		{name: "control plane", ns: "istio-system", labels: m{"app": "istiod", key: "true"}, reason: inject.ControlPlane},
		{name: "control plane by its other label", ns: "istio-system", labels: m{"istio": "pilot"}, reason: inject.ControlPlane},
		{name: "label of the control plane elsewhere", labels: m{"app": "istiod"}, want: true, reason: inject.Policy},
		{name: "gateway in its namespace", ns: "istio-system", labels: m{"istio": "ingressgateway"}, want: true, reason: inject.Policy},
		{name: "label true", config: "policy: disabled", labels: m{key: "true"}, want: true, reason: inject.Label},
		{name: "label false", labels: m{key: "false"}, reason: inject.Label, message: "label sidecar.istio.io/inject is false"},
		{name: "annotation true", config: "policy: disabled", annotations: m{key: "true"}, want: true, reason: inject.Annotation},
		{name: "annotation false", annotations: m{key: "false"}, reason: inject.Annotation, message: "annotation sidecar.istio.io/inject is false"},
		{name: "label beats annotation", labels: m{key: "true"}, annotations: m{key: "false"}, want: true, reason: inject.Label},
		{name: "invalid label", labels: m{key: "yes"}, annotations: m{key: "false"}, want: true, reason: inject.Policy, warning: `invalid label sidecar.istio.io/inject "yes" is ignored: want true or false`},
		{name: "never", config: strings.Replace(selectors, "%", "enabled", 1), labels: m{"job": "batch", "mesh": ""}, reason: inject.NeverSelector, message: "job=batch"},
		{name: "always", config: strings.Replace(selectors, "%", "disabled", 1), labels: m{"mesh": ""}, want: true, reason: inject.AlwaysSelector},
		{name: "label beats never", config: strings.Replace(selectors, "%", "enabled", 1), labels: m{"job": "batch", key: "true"}, want: true, reason: inject.Label},
		{name: "label beats always", config: strings.Replace(selectors, "%", "enabled", 1), labels: m{"mesh": "", key: "false"}, reason: inject.Label},

		{name: "namespace enabled", namespace: enabled, want: true, reason: inject.Policy},
		{name: "namespace disabled", namespace: m{"istio-injection": "disabled"}, labels: m{key: "true"}, reason: inject.Namespace, message: "istio-injection=disabled"},
		{name: "namespace enabled is for the default revision", namespace: enabled, revision: "canary", reason: inject.Namespace, message: "revision default"},
		{name: "unless a tag names it so", namespace: enabled, revision: "canary", tags: []string{"default"}, want: true, reason: inject.Policy},
		{name: "namespace of this revision", namespace: m{"istio.io/rev": "canary"}, revision: "canary", want: true, reason: inject.Policy},
		{name: "namespace of a tag", namespace: m{"istio.io/rev": "prod"}, revision: "canary", tags: []string{"prod"}, want: true, reason: inject.Policy},
		{name: "namespace of another revision", namespace: m{"istio.io/rev": "stable"}, revision: "canary", reason: inject.Namespace, message: "stable"},
		{name: "istio-injection beats the revision", namespace: m{"istio.io/rev": "canary", "istio-injection": "enabled"}, want: true, reason: inject.Policy},
		{name: "Pod of this revision", namespace: m{}, revision: "canary", labels: m{"istio.io/rev": "canary"}, want: true, reason: inject.Policy},
		{name: "Pod of another revision", namespace: m{}, labels: m{"istio.io/rev": "canary", key: "true"}, reason: inject.Namespace, message: "canary"},
		{name: "plain namespace", namespace: m{}, reason: inject.Namespace, message: "neither the namespace nor the Pod asks"},
		{name: "plain namespace, the Pod asks", namespace: m{}, labels: m{key: "true"}, want: true, reason: inject.Label},
		{name: "plain namespace, the annotation is not seen by webhooks", namespace: m{}, annotations: m{key: "true"}, reason: inject.Namespace},
		{name: "plain namespace by default", namespace: m{}, values: `{"sidecarInjectorWebhook": {"enableNamespacesByDefault": true}}`, want: true, reason: inject.Policy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newConfig(t, inject.Options{Config: tt.config, Values: tt.values, Revision: tt.revision, Tags: tt.tags})
			p := pod(tt.ns, tt.labels, tt.annotations)
			p.Spec.HostNetwork = tt.hostNetwork
			d := c.Decide(inject.Request{Pod: p, Namespace: "demo", NamespaceLabels: tt.namespace})
			if d.Inject != tt.want || d.Reason != tt.reason || d.Warning != tt.warning || !strings.Contains(d.Message, tt.message) {
				t.Errorf("%+v\nwant %v, %s, message %q, warning %q", d, tt.want, tt.reason, tt.message, tt.warning)
			}
		})
	}
}

func TestNativeSidecars(t *testing.T) {
	for _, tt := range []struct {
		name       string
		native     inject.Native
		annotation string
		kubelets   []string
		want       bool
	}{
		{name: "no version is known", want: false},
		{name: "all nodes have it", kubelets: []string{"v1.33.0", "v1.34.1-gke.100", "1.40"}, want: true},
		{name: "one node is older", kubelets: []string{"v1.33.0", "v1.32.9"}},
		{name: "one version cannot be read", kubelets: []string{"v1.33.0", "latest"}},
		{name: "on", native: inject.NativeOn, want: true},
		{name: "off", native: inject.NativeOff, kubelets: []string{"v1.33.0"}},
		{name: "the annotation beats on", native: inject.NativeOn, annotation: "false"},
		{name: "the annotation beats off", native: inject.NativeOff, annotation: "true", want: true},
		{name: "the annotation is anything but false", annotation: "please", want: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newConfig(t, inject.Options{Native: tt.native})
			p := pod("demo", nil, nil)
			if tt.annotation != "" {
				p.Annotations = map[string]string{"sidecar.istio.io/nativeSidecar": tt.annotation}
			}
			result, err := c.Inject(inject.Request{Pod: p, Kubelets: tt.kubelets})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(result.Pod.Spec.InitContainers) == 2; got != tt.want {
				t.Errorf("native is %v, want %v", got, tt.want)
			}
		})
	}
}

func TestParsePath(t *testing.T) {
	for path, want := range map[string]string{
		"/inject": "", "/inject/": "",
		"/inject/cluster/c1/net/n1":            "ISTIO_META_CLUSTER_ID=c1 ISTIO_META_NETWORK=n1",
		"/inject/cluster/a--slash--b/x_y/1/":   "ISTIO_META_CLUSTER_ID=a/b X_Y=1",
		"/inject/:ENV:cluster=c1:ENV:FOO=a=b":  "FOO=a=b ISTIO_META_CLUSTER_ID=c1",
		"/inject:ENV:net=n1":                   "ISTIO_META_NETWORK=n1",
		"/inject/cluster":                      `invalid path "/inject/cluster": "cluster" has no value`,
		"/inject/a b/c":                        `invalid path "/inject/a b/c": invalid name "a b" of a variable`,
		"/inject/:ENV:cluster":                 `invalid path "/inject/:ENV:cluster": "cluster" has no value`,
		"/injection":                           `invalid path "/injection": want /inject, or /inject/NAME/VALUE`,
		"/validate":                            `invalid path "/validate": want /inject, or /inject/NAME/VALUE`,
		"/inject/" + strings.Repeat("a", 9000): "path of 9008 bytes: want at most 8192",
	} {
		env, err := inject.ParsePath(path)
		var parts []string
		for _, k := range []string{"FOO", "ISTIO_META_CLUSTER_ID", "ISTIO_META_NETWORK", "X_Y"} {
			if v, ok := env[k]; ok {
				parts = append(parts, k+"="+v)
			}
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
