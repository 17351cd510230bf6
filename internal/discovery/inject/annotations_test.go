package inject_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"istio.io/api/annotation"
	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
)

// elsewhere are the annotations of Pods in Istio's API that injection has no part in.
var elsewhere = map[string]string{
	"ambient.istio.io/bypass-inbound-capture":            "there is no ambient mode",
	"ambient.istio.io/dns-capture":                       "there is no ambient mode",
	"ambient.istio.io/redirection":                       "there is no ambient mode",
	"prometheus.istio.io/secure-port":                    "written by the template",
	"istio.io/rev":                                       "written by the template",
	"proxy.istio.io/overrides":                           "written by injection",
	"sidecar.istio.io/status":                            "written by injection",
	"sidecar.istio.io/statsHistogramBins":                "a warning",
	"sidecar.istio.io/statsCompression":                  "a warning",
	"readiness.status.sidecar.istio.io/applicationPorts": "a warning",
}

// TestEveryAnnotationWorksOrIsTold goes through the annotations of Pods in Istio's API: each is in the table of
// docs/injection.md, and each without effect gives a warning.
func TestEveryAnnotationWorksOrIsTold(t *testing.T) {
	page, err := os.ReadFile("../../../docs/injection.md")
	if err != nil {
		t.Fatal(err)
	}
	c := newConfig(t, inject.Options{})
	for _, a := range annotation.AllResourceAnnotations() {
		if !slices.Contains(a.Resources, annotation.Pod) || strings.HasPrefix(elsewhere[a.Name], "there is no ambient") {
			continue
		}
		if !strings.Contains(string(page), "`"+a.Name+"`") {
			t.Errorf("docs/injection.md does not have %s", a.Name)
		}
		p := pod("demo", nil, map[string]string{a.Name: "\x00"})
		result, err := c.Inject(inject.Request{Pod: p})
		told := err != nil || slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, a.Name+" has no effect") })
		if want := elsewhere[a.Name] == "a warning"; want && !told {
			t.Errorf("%s has no effect, and no warning says so", a.Name)
		}
		if err == nil && slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, a.Name+" is unknown") }) {
			t.Errorf("%s is unknown", a.Name)
		}
	}
}

// injectWith injects a Pod with annotations and the values of Istio's chart.
func injectWith(t *testing.T, change func(p *corev1.Pod), annotations ...string) (*inject.Result, error) {
	t.Helper()
	c := newConfig(t, inject.Options{Values: string(read(t, "testdata/values.yaml")), Mesh: meshConfig(t, string(read(t, "testdata/mesh.yaml")))})
	p := pod("demo", nil, map[string]string{})
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	if change != nil {
		change(p)
	}
	return c.Inject(inject.Request{Pod: p})
}

// TestInvalidAnnotations has what cannot be in a Pod that works: each value is refused by name.
func TestInvalidAnnotations(t *testing.T) {
	for _, tt := range [][3]string{
		{"traffic.sidecar.istio.io/includeInboundPorts", "http", `invalid port "http": want 0–65535`},
		{"traffic.sidecar.istio.io/excludeOutboundPorts", "1-2", `invalid port "1-2": want 0–65535`},
		{"traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.0/40", `invalid range "10.0.0.0/40": want a CIDR such as 10.0.0.0/8`},
		{"traffic.sidecar.istio.io/excludeInboundPorts", "*", `invalid port "*"`},
		{"traffic.sidecar.istio.io/excludeOutboundIPRanges", "*", `invalid range "*"`},
		{"traffic.sidecar.istio.io/excludeInterfaces", "an-interface-with-a-long-name", "want names of at most 15 bytes"},
		{"istio.io/reroute-virtual-interfaces", "a/b", `invalid interface "a/b"`},
		{"readiness.status.sidecar.istio.io/periodSeconds", "-1", "want a whole number that is not negative"},
		{"sidecar.istio.io/proxyMemoryLimit", "1 GB", "want a quantity such as 100m or 128Mi"},
		{"sidecar.istio.io/bootstrapOverride", "A b", "want the name of a ConfigMap"},
		{"sidecar.istio.io/proxyImage", "a b", "want no blanks"},
		{"sidecar.istio.io/userVolume", "{", "unexpected end of JSON input"},
		{"sidecar.istio.io/userVolumeMount", `[{"mountPath": 1}]`, "cannot unmarshal number"},
		{"proxy.istio.io/config", "concurrency: many", "concurrency: "},
		{"proxy.istio.io/config", "[]", "want a mapping, not a list"},
		{"proxy.istio.io/overrides", "[", "unexpected end of JSON input"},
		{"sidecar.istio.io/status", "injected", "invalid character"},
		{"prometheus.istio.io/merge-metrics", "perhaps", "want true or false"},
		{"prometheus.istio.io/scrape-targets", "15090:/x", "port 15090 is reserved for Envoy's metrics"},
		{"prometheus.istio.io/scrape-targets", "a", `invalid port "a": want 1–65535`},
		{"prometheus.istio.io/scrape-targets", "80:x", `invalid path "x"`},
	} {
		_, err := injectWith(t, nil, tt[0], tt[1])
		if err == nil || !strings.HasPrefix(err.Error(), "invalid value '"+tt[1]+"' for annotation '"+tt[0]+"': ") || !strings.Contains(err.Error(), tt[2]) {
			t.Errorf("%s=%s: error %v, want one with %s", tt[0], tt[1], err, tt[2])
		}
	}
	_, err := injectWith(t, nil, "sidecar.istio.io/proxyCPU", "x", "sidecar.istio.io/interceptionMode", "y")
	if err == nil || strings.Count(err.Error(), "invalid value") != 2 {
		t.Errorf("%v, want both mistakes", err)
	}
}

func TestWarnings(t *testing.T) {
	uid := int64(1337)
	for name, tt := range map[string]struct {
		change      func(p *corev1.Pod)
		annotations []string
		want        string
	}{
		"unknown annotation":  {nil, []string{"sidecar.istio.io/proxyCpu", "1"}, "annotation sidecar.istio.io/proxyCpu is unknown, and has no effect"},
		"unknown field":       {nil, []string{"proxy.istio.io/config", "concurency: 1"}, "concurency"},
		"DNS":                 {func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }, nil, "dnsPolicy is Default"},
		"user of the Pod":     {func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid} }, nil, "the Pod runs as user 1337"},
		"user of a container": {func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &uid} }, nil, "container web runs as user 1337"},
		"status port":         {nil, []string{"proxy.istio.io/config", "statusPort: 15030"}, "status port 15030 of the proxy configuration is not excluded from capture"},
		"probe of a named port": {func(p *corev1.Pod) {
			_ = json.Unmarshal([]byte(`{"tcpSocket":{"port":"none"}}`), &p.Spec.Containers[0].ReadinessProbe)
		}, nil, `names port "none", which the container does not have`},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := injectWith(t, tt.change, tt.annotations...)
			if err != nil || len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], tt.want) {
				t.Errorf("%v, error %v; want %q", result, err, tt.want)
			}
		})
	}
}

// TestRefusedPods are Pods that no API server would take after injection.
func TestRefusedPods(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *corev1.Pod)
		want   string
	}{
		"one name": {func(p *corev1.Pod) { p.Spec.InitContainers = p.Spec.Containers }, `two containers of the Pod have the name "web"`},
		"a volume of the proxy": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "istio-envoy", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		}, `volume "istio-envoy" of the Pod has the name of one that is injected`},
		"size":            {func(p *corev1.Pod) { p.Annotations["a"] = strings.Repeat("a", inject.MaxPodBytes) }, "want at most 3145728"},
		"port of metrics": {func(p *corev1.Pod) { p.Annotations["prometheus.io/port"] = "15021" }, "the port is reserved for health"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := injectWith(t, tt.change); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %s", err, tt.want)
			}
		})
	}
}

// TestPrometheusUnset: unless the mesh says otherwise, metrics are merged, and the agent gets those of the application.
func TestPrometheusUnset(t *testing.T) {
	c := newConfig(t, inject.Options{})
	for port, want := range map[string]string{"": "", "9102": `{"scrape":"","path":"","port":"9102"}`} {
		p := pod("demo", nil, map[string]string{})
		if port != "" {
			p.Annotations["prometheus.io/port"] = port
		}
		for range 2 {
			result, err := c.Inject(inject.Request{Pod: p})
			if err != nil || result.Pod.Annotations["prometheus.io/port"] != "15020" {
				t.Fatalf("%v, error %v; want port 15020", result, err)
			}
			p = result.Pod
			got := ""
			for _, e := range p.Spec.Containers[1].Env {
				if e.Name == "ISTIO_PROMETHEUS_ANNOTATIONS" {
					got = e.Value
				}
			}
			if got != want {
				t.Errorf("the agent gets %s, want %s", got, want)
			}
		}
	}
}

// TestOverridesOutliveAnotherInjection: what a user wrote of the proxy wins again in a second injection.
func TestOverridesOutliveAnotherInjection(t *testing.T) {
	p := pod("demo", nil, nil)
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy", Image: "auto", Env: []corev1.EnvVar{{Name: "CA_ADDR", Value: "extra:1"}}})
	c := newConfig(t, inject.Options{})
	for range 3 {
		result, err := c.Inject(inject.Request{Pod: p})
		if err != nil {
			t.Fatal(err)
		}
		p = result.Pod
		proxy := p.Spec.Containers[1]
		if i := slices.IndexFunc(proxy.Env, func(e corev1.EnvVar) bool { return e.Name == "CA_ADDR" }); proxy.Env[i].Value != "extra:1" || proxy.Image != "pilothouse/agent" {
			t.Errorf("%+v", proxy)
		}
	}
}

// TestPathVariables: what the webhook's path says has priority over values, and the Pod's label over both.
func TestPathVariables(t *testing.T) {
	env, err := inject.ParsePath("/inject/cluster/c2/net/n2/istio_meta_zone/z1")
	if err != nil {
		t.Fatal(err)
	}
	c := newConfig(t, inject.Options{Values: "global: {network: n1, multiCluster: {clusterName: c1}}"})
	for label, network := range map[string]string{"": "n2", "n3": "n3"} {
		p := pod("demo", map[string]string{}, nil)
		if label != "" {
			p.Labels["topology.istio.io/network"] = label
		}
		result, err := c.Inject(inject.Request{Pod: p, Env: env})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, e := range result.Pod.Spec.Containers[1].Env {
			if _, twice := got[e.Name]; twice {
				t.Errorf("%s is given twice", e.Name)
			}
			got[e.Name] = e.Value
		}
		if got["ISTIO_META_CLUSTER_ID"] != "c2" || got["ISTIO_META_NETWORK"] != network || got["ISTIO_META_ZONE"] != "z1" || result.Pod.Labels["topology.istio.io/network"] != network {
			t.Errorf("%v, labels %v", got, result.Pod.Labels)
		}
	}
}
