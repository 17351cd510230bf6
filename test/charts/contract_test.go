package charts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// TestNamesThatOthersFind has the names by which istioctl and Pods that Istio injected find a control plane.
func TestNamesThatOthersFind(t *testing.T) {
	objects := mustRender(t, "pilothouse", "")
	for _, key := range []string{
		"ConfigMap istio", "ConfigMap istio-sidecar-injector", "Deployment istiod", "Service istiod", "ServiceAccount istiod",
		"HorizontalPodAutoscaler istiod", "PodDisruptionBudget istiod", "ClusterRole istiod-clusterrole-istio-system", "Role istiod",
		"MutatingWebhookConfiguration istio-sidecar-injector", "ValidatingWebhookConfiguration istio-validator-istio-system",
	} {
		if !slices.Contains(keys(objects), key) {
			t.Errorf("no %s among %s", key, keys(objects))
		}
	}
	service := find[corev1.Service](t, objects, "Service", "istiod")
	ports := map[string]int32{}
	for _, p := range service.Spec.Ports {
		ports[p.Name] = p.Port
		if p.Name == "https-webhook" && p.TargetPort != intstr.FromInt32(15017) {
			t.Errorf("port %s has the target %v, want 15017", p.Name, p.TargetPort)
		}
	}
	for name, port := range map[string]int32{"https-dns": 15012, "https-webhook": 443, "http-monitoring": 15014} {
		if ports[name] != port {
			t.Errorf("port %s is %d, want %d", name, ports[name], port)
		}
	}
	if ports["grpc-xds"] != 0 {
		t.Error("xDS in plaintext is served by default")
	}
	config := find[corev1.ConfigMap](t, objects, "ConfigMap", "istio")
	var mesh struct {
		RootNamespace string
		DefaultConfig struct{ DiscoveryAddress string }
	}
	if err := yaml.Unmarshal([]byte(config.Data["mesh"]), &mesh); err != nil || mesh.RootNamespace != "istio-system" || mesh.DefaultConfig.DiscoveryAddress != "istiod.istio-system.svc:15012" {
		t.Errorf("mesh %s, error %v", config.Data["mesh"], err)
	}
	if config.Data["meshNetworks"] != "networks: {}" {
		t.Errorf("meshNetworks %q", config.Data["meshNetworks"])
	}
	injector := find[corev1.ConfigMap](t, objects, "ConfigMap", "istio-sidecar-injector")
	var values struct {
		Global struct {
			Hub, Tag, IstioNamespace string
			Proxy                    struct{ Image string }
		}
	}
	if err := yaml.Unmarshal([]byte(injector.Data["values"]), &values); err != nil {
		t.Fatal(err)
	}
	if g := values.Global; g.Hub != "pilothouse" || g.Tag != "v1.2.3" || g.IstioNamespace != "istio-system" || g.Proxy.Image != "agent" {
		t.Errorf("values of the injector: %+v", g)
	}
}

// TestPodIsHardened is the restricted standard of Kubernetes' Pod security, and a read-only file system.
func TestPodIsHardened(t *testing.T) {
	for _, tt := range []struct{ chart, workload string }{{"pilothouse", "istiod"}, {"gateway", "mesh"}} {
		spec := find[appsv1.Deployment](t, mustRender(t, tt.chart, ""), "Deployment", tt.workload).Spec.Template.Spec
		pod, container := spec.SecurityContext, spec.Containers[0].SecurityContext
		if pod == nil || !*pod.RunAsNonRoot || pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *pod.RunAsUser == 0 {
			t.Errorf("%s: Pod %+v", tt.workload, pod)
		}
		if container == nil || *container.AllowPrivilegeEscalation || !*container.ReadOnlyRootFilesystem || !slices.Equal(container.Capabilities.Drop, []corev1.Capability{"ALL"}) || container.Capabilities.Add != nil {
			t.Errorf("%s: container %+v", tt.workload, container)
		}
		if spec.HostNetwork || spec.HostPID || spec.HostIPC {
			t.Errorf("%s uses a namespace of the host", tt.workload)
		}
		if r := spec.Containers[0].Resources.Requests; r.Cpu().IsZero() || r.Memory().IsZero() {
			t.Errorf("%s requests %v", tt.workload, r)
		}
	}
}

func TestMountsAndVariables(t *testing.T) {
	pod := find[appsv1.Deployment](t, mustRender(t, "pilothouse", "revision: canary"), "Deployment", "istiod-canary").Spec.Template
	c := pod.Spec.Containers[0]
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	if v := volumes[mounts["/etc/cacerts"]]; v.Secret == nil || v.Secret.SecretName != "cacerts" || !*v.Secret.Optional {
		t.Errorf("/etc/cacerts is %+v", v)
	}
	if v := volumes[mounts["/etc/istio/config"]]; v.ConfigMap == nil || v.ConfigMap.Name != "istio-canary" {
		t.Errorf("/etc/istio/config is %+v", v)
	}
	if v := volumes[mounts["/var/run/secrets/istio-dns"]]; v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumMemory {
		t.Errorf("/var/run/secrets/istio-dns is %+v", v)
	}
	if v := volumes[mounts["/var/run/secrets/tokens"]]; v.Projected == nil || v.Projected.Sources[0].ServiceAccountToken.Audience != "istio-ca" || *v.Projected.Sources[0].ServiceAccountToken.ExpirationSeconds != 43200 {
		t.Errorf("/var/run/secrets/tokens is %+v", v)
	}
	// The program refuses a folder that others may write, as an emptyDir is, so it has one below it.
	state := flagValue(c.Args, "--stateDir")
	if v := volumes[mounts[filepath.Dir(state)]]; v.EmptyDir == nil {
		t.Errorf("the parent of --stateDir=%s is %+v", state, v)
	}
	env := map[string]corev1.EnvVar{}
	for _, e := range c.Env {
		env[e.Name] = e
	}
	for name, field := range map[string]string{"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "SERVICE_ACCOUNT": "spec.serviceAccountName"} {
		if e := env[name]; e.ValueFrom == nil || e.ValueFrom.FieldRef.FieldPath != field {
			t.Errorf("%s is %+v", name, e)
		}
	}
	for name, value := range map[string]string{"REVISION": "canary", "CLUSTER_ID": "Kubernetes"} {
		if env[name].Value != value {
			t.Errorf("%s is %q, want %q", name, env[name].Value, value)
		}
	}
	if p := c.ReadinessProbe; p == nil || p.HTTPGet.Path != "/ready" || p.HTTPGet.Port != intstr.FromInt32(8080) || p.InitialDelaySeconds != 1 || p.PeriodSeconds != 3 || p.TimeoutSeconds != 5 {
		t.Errorf("readiness probe %+v", p)
	}
}

func flagValue(args []string, name string) string {
	for _, a := range args {
		if value, ok := strings.CutPrefix(a, name+"="); ok {
			return value
		}
	}
	return ""
}

// TestFlagsAndVariablesExist fails for a flag or a variable that pilot-discovery does not have.
func TestFlagsAndVariablesExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## pilot-discovery discovery\n")
	section, _, _ = strings.Cut(section, "\n## ")
	known := regexp.MustCompile("`([-A-Za-z_0-9]+)`").FindAllString(section, -1)
	c := find[appsv1.Deployment](t, mustRender(t, "pilothouse", "plaintext: {enabled: true}\nglobal: {logAsJson: true}"), "Deployment", "istiod").Spec.Template.Spec.Containers[0]
	for _, a := range c.Args[1:] {
		name, _, _ := strings.Cut(a, "=")
		if !slices.Contains(known, "`"+name+"`") {
			t.Errorf("pilot-discovery has no flag %s", name)
		}
	}
	for _, e := range c.Env {
		if e.Name == "SERVICE_ACCOUNT" {
			continue // Istio's Pods have it too; arguments may refer to it
		}
		if !slices.Contains(known, "`"+e.Name+"`") {
			t.Errorf("pilot-discovery does not read the variable %s", e.Name)
		}
	}
}

// TestPodsAreSelectedOnce fails if the Service of one revision selects Pods of another.
func TestPodsAreSelectedOnce(t *testing.T) {
	pods := map[string]labels.Set{}
	selectors := map[string]labels.Selector{}
	for _, revision := range []string{"", "default", "canary", "other"} {
		name := "istiod"
		if revision != "" && revision != "default" {
			name += "-" + revision
		}
		objects := mustRender(t, "pilothouse", "revision: \""+revision+"\"")
		d := find[appsv1.Deployment](t, objects, "Deployment", name)
		s := find[corev1.Service](t, objects, "Service", name)
		pods[name], selectors[name] = d.Spec.Template.Labels, labels.SelectorFromSet(s.Spec.Selector)
		if own, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err != nil || !own.Matches(pods[name]) {
			t.Errorf("the Deployment %s does not select its Pods: %v", name, err)
		}
	}
	for service, selector := range selectors {
		for pod, set := range pods {
			if selector.Matches(set) != (service == pod) {
				t.Errorf("Service %s selects Pods of %s: %t", service, pod, !(service == pod))
			}
		}
	}
}

// TestWhichPodsAreInjected asks the webhooks' selectors which of them the API server calls.
func TestWhichPodsAreInjected(t *testing.T) {
	inDefault := func(extra string) []admissionv1.MutatingWebhook {
		objects := mustRender(t, "pilothouse", extra)
		return find[admissionv1.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration", "istio-sidecar-injector").Webhooks
	}
	all := map[string][]admissionv1.MutatingWebhook{
		"default": inDefault(""),
		"auto":    inDefault("sidecarInjectorWebhook: {enableNamespacesByDefault: true}"),
		"canary": find[admissionv1.MutatingWebhookConfiguration](t, mustRender(t, "pilothouse", "revision: canary"),
			"MutatingWebhookConfiguration", "istio-sidecar-injector-canary").Webhooks,
		"tag prod": find[admissionv1.MutatingWebhookConfiguration](t, mustRender(t, "pilothouse", "revision: canary\nrevisionTags: [prod]"),
			"MutatingWebhookConfiguration", "istio-revision-tag-prod").Webhooks,
		"tag default": find[admissionv1.MutatingWebhookConfiguration](t, mustRender(t, "pilothouse", "revision: canary\nrevisionTags: [default]"),
			"MutatingWebhookConfiguration", "istio-revision-tag-default").Webhooks,
	}
	none := labels.Set{}
	for _, tt := range []struct {
		namespace, pod labels.Set
		want           []string // of all
	}{
		{none, none, []string{"auto"}},
		{labels.Set{"kubernetes.io/metadata.name": "kube-system"}, none, nil},
		{labels.Set{"istio-injection": "enabled"}, none, []string{"auto", "default", "tag default"}},
		{labels.Set{"istio-injection": "disabled"}, none, nil},
		{labels.Set{"istio-injection": "disabled"}, labels.Set{"sidecar.istio.io/inject": "true"}, nil},
		{labels.Set{"istio-injection": "enabled"}, labels.Set{"sidecar.istio.io/inject": "false"}, nil},
		{labels.Set{"istio-injection": "enabled", "istio.io/rev": "canary"}, none, []string{"auto", "default", "tag default"}},
		{labels.Set{"istio.io/rev": "default"}, none, []string{"auto", "default", "tag default"}},
		{labels.Set{"istio.io/rev": "canary"}, none, []string{"canary"}},
		{labels.Set{"istio.io/rev": "canary"}, labels.Set{"sidecar.istio.io/inject": "false"}, nil},
		{labels.Set{"istio.io/rev": "prod"}, none, []string{"tag prod"}},
		{none, labels.Set{"sidecar.istio.io/inject": "true"}, []string{"auto", "default", "tag default"}},
		{none, labels.Set{"istio.io/rev": "canary"}, []string{"canary"}},
		{none, labels.Set{"istio.io/rev": "canary", "sidecar.istio.io/inject": "true"}, []string{"canary"}},
		{none, labels.Set{"istio.io/rev": "prod"}, []string{"tag prod"}},
		{none, labels.Set{"istio.io/rev": "default"}, []string{"auto", "default", "tag default"}},
	} {
		var got []string
		for name, hooks := range all {
			n := 0
			for _, h := range hooks {
				if selects(t, h.NamespaceSelector, tt.namespace) && selects(t, h.ObjectSelector, tt.pod) {
					n++
				}
				if *h.FailurePolicy != admissionv1.Fail || *h.SideEffects != admissionv1.SideEffectClassNone || *h.ClientConfig.Service.Path != "/inject" {
					t.Errorf("%s: webhook %s: %+v", name, h.Name, h)
				}
			}
			if n > 1 {
				t.Errorf("%d webhooks of %s are called for a Pod %v in a namespace %v", n, name, tt.pod, tt.namespace)
			}
			if n > 0 {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("a Pod %v in a namespace %v is injected by %v, want %v", tt.pod, tt.namespace, got, tt.want)
		}
	}
}

func selects(t *testing.T, s *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(set)
}

// A Pod of the control plane must not wait for the webhook that it is to serve.
func TestControlPlaneIsNotInjected(t *testing.T) {
	values := "sidecarInjectorWebhook: {enableNamespacesByDefault: true}"
	objects := mustRender(t, "pilothouse", values)
	pod := labels.Set(find[appsv1.Deployment](t, objects, "Deployment", "istiod").Spec.Template.Labels)
	for _, h := range find[admissionv1.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration", "istio-sidecar-injector").Webhooks {
		for _, namespace := range []labels.Set{{}, {"istio-injection": "enabled"}, {"istio.io/rev": "default"}} {
			if selects(t, h.NamespaceSelector, namespace) && selects(t, h.ObjectSelector, pod) {
				t.Errorf("webhook %s is called for the Pods of pilot-discovery in a namespace %v", h.Name, namespace)
			}
		}
	}
}

// TestGatewaysAreInjected: Pods of gateways ask for their injection, in any namespace, by the revision that is given.
func TestGatewaysAreInjected(t *testing.T) {
	for values, configuration := range map[string]string{"": "istio-sidecar-injector", "revision: canary": "istio-sidecar-injector-canary"} {
		pod := find[appsv1.Deployment](t, mustRender(t, "gateway", values), "Deployment", "mesh").Spec.Template
		if pod.Annotations["inject.istio.io/templates"] != "gateway" || pod.Spec.Containers[0].Image != "auto" || pod.Spec.Containers[0].Name != "istio-proxy" {
			t.Errorf("%q: template %q, container %+v", values, pod.Annotations["inject.istio.io/templates"], pod.Spec.Containers[0])
		}
		called := 0
		for _, h := range find[admissionv1.MutatingWebhookConfiguration](t, mustRender(t, "pilothouse", values), "MutatingWebhookConfiguration", configuration).Webhooks {
			if selects(t, h.NamespaceSelector, labels.Set{}) && selects(t, h.ObjectSelector, pod.Labels) {
				called++
			}
		}
		if called != 1 {
			t.Errorf("%q: %d webhooks of %s are called", values, called, configuration)
		}
	}
}
