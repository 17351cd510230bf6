package inject_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
)

func TestConfigErrors(t *testing.T) {
	for _, tt := range []struct{ name, config, values, want string }{
		{"not YAML", "a: [", "", `key "config": config: line 1`},
		{"a list", "[]", "", "want a mapping, not a list"},
		{"two documents", "policy: enabled\n---\npolicy: disabled", "", "a second document"},
		{"unknown field", "polcy: enabled", "", `line 1: unknown field "polcy": want one of policy, `},
		{"policy", "policy: on-demand", "", `policy: invalid policy "on-demand": want enabled or disabled`},
		{"type", "templates: [a]", "", "templates: want a mapping, not a list"},
		{"selector", "neverInjectSelector: [{matchExpressions: [{key: a, operator: Like}]}]", "", "neverInjectSelector[0]: "},
		{"syntax of a template", "templates: {custom: \"a\\nb: {{ if }}\"}", "", `template "custom": line 2: missing value for if`},
		{"function of a template", "templates: {custom: \"{{ exec `rm` }}\"}", "", `template "custom": line 1: function "exec" not defined`},
		{"default template", "defaultTemplates: [extra]", "", `defaultTemplates: requested template "extra" not found; have gateway, grpc-agent, grpc-simple, sidecar`},
		{"alias", "aliases: {all: [sidecar, extra]}", "", `aliases: all: template "extra" not found`},
		{"values", "", "global: {tag: {}}", `key "values": values: `},
		{"values of a wrong type", "", "a: b\nglobal: {proxy: {privileged: sometimes}}", "line 2: global.proxy.privileged: want true or false, not a string"},
		{"size of a template", "templates: {custom: '" + strings.Repeat("a", 1<<20+1) + "'}", "", `template "custom": 1048577 bytes: want at most 1048576`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := inject.New(inject.Options{Config: tt.config, Values: tt.values})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "injection configuration: key ") {
				t.Errorf("error %v, want one with %s", err, tt.want)
			}
		})
	}
	if _, err := inject.New(inject.Options{Native: "maybe"}); err == nil {
		t.Error("invalid setting of native sidecars is accepted")
	}
}

// injected is the Pod of a template that labels it.
func injected(t *testing.T, template string, p *corev1.Pod) (*inject.Result, error) {
	t.Helper()
	text := "templates:\n  custom: |\n    " + strings.ReplaceAll(template, "\n", "\n    ") + "\ndefaultTemplates: [custom]\n"
	return newConfig(t, inject.Options{Config: text, Values: `{"global": {"hub": "registry.example", "tag": "v1"}, "extra": {"list": ["a", "b"], "zero": 0}}`}).Inject(inject.Request{Pod: p, Namespace: "demo"})
}

func TestTemplateFunctions(t *testing.T) {
	p := pod("demo", map[string]string{"app": "shop"}, map[string]string{"a": "x"})
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81}}
	for text, want := range map[string]string{
		"annotation .ObjectMeta `a` `y`":                         "x",
		"annotation .ObjectMeta `b` `y`":                         "y",
		"annotation .ObjectMeta `b` 15020":                       "15020",
		"isset .ObjectMeta.Annotations `a`":                      "true",
		"isset .ObjectMeta.Annotations `b`":                      "false",
		"valueOrDefault .Values.extra.zero 7":                    "7",
		"valueOrDefault .Values.global.tag `no`":                 "v1",
		"excludeInboundPort 15020 `22`":                          "22,15020",
		"excludeInboundPort 0 `22`":                              "22",
		"excludeInboundPort `22` `22`":                           "22",
		"includeInboundPorts `*`":                                "*",
		"applicationPorts .Spec.Containers":                      "80,81",
		"contains `/` `a/b`":                                     "true",
		"directory `/etc/certs/root.pem`":                        "/etc/certs/",
		"toLower `ABC`":                                          "abc",
		"formatDuration .ProxyConfig.DrainDuration":              "45s",
		"protoToJSON .ProxyConfig":                               "{}",
		"toJSON .Values.extra.list":                              `["a","b"]`,
		"toJsonMap `a` `b` `c` ``":                               `{"a":"b"}`,
		"index (strdict `a` `b`) `a`":                            "b",
		"(fromJSON `{\"a\": [1]}`).a | toJSON":                   "[1]",
		"appendMultusNetwork `x` `default/istio-cni`":            "x, default/istio-cni",
		"appendMultusNetwork `[{\"name\":\"x\"}]` `default/cni`": `[{"name":"x"},{"name":"cni","namespace":"default"}]`,
		"env `HOME` `none`":                                      "none",
		"omit (dict `a` 1 `b` 2) `a` | toJSON":                   `{"b":2}`,
		"omitNil (dict `a` nil `b` 2) | toJSON":                  `{"b":2}`,
		"mergeMaps (dict `a` 1) (dict `b` 2) | toJSON":           `{"a":1,"b":2}`,
		"indent 2 `a`":                                           "  a",
		"toYaml .Values.extra.list | indent 1":                   " - a\n - b",
		".DeploymentMeta.Name":                                   "web",
		".TypeMeta.Kind":                                         "Pod",
		".Revision":                                              "default",
		".MeshConfig.TrustDomain":                                "cluster.local",
		".ProxyImage":                                            "registry.example/agent:v1",
		".InboundTrafficPolicyMode":                              "PASSTHROUGH",
		".ProxyUID":                                              "1337",
		".NativeSidecars":                                        "false",
		"default `x` .Values.none":                               "x",
		"list `a` `b` | join `,`":                                "a,b",
		"append (list `a`) `b` | last":                           "b",
		"prepend (list `a`) `b` | first":                         "b",
		"hasKey .Values.extra `list`":                            "true",
		"keys .Values.extra | join `,`":                          "list,zero",
		"has `a` .Values.extra.list":                             "true",
		"ternary `y` `n` true":                                   "y",
		"`a/b` | replace `/` `-` | upper":                        "A-B",
		"`v1` | trimPrefix `v` | int | add 1":                    "2",
		"coalesce `` nil `z`":                                    "z",
		"b64enc `a` | b64dec":                                    "a",
		"quote `a\"b`":                                           `"a\"b"`,
		"squote `it's`":                                          `'it''s'`,
		"until 3 | toJson":                                       "[0,1,2]",
		"set (dict) `k` `v` | toJSON":                            `{"k":"v"}`,
		"get (dict `k` `v`) `k`":                                 "v",
		"merge (dict `a` 1) (dict `a` 2 `b` 3) | toJSON":         `{"a":1,"b":3}`,
		"kindIs `slice` .Values.extra.list":                      "true",
		"splitList `,` `a,b` | len":                              "2",
		"empty .Values.extra.zero":                               "true",
		"max 1 2 | mul 3 | sub 10":                               "4",
	} {
		result, err := injected(t, "metadata: {labels: {got: {{ toJSON (print ("+text+")) }}}}", p)
		if err != nil || result.Pod.Labels["got"] != want {
			t.Errorf("%s: %q, error %v; want %q", text, result, err, want)
		}
	}
}

func TestTemplatesAreBounded(t *testing.T) {
	for name, tt := range map[string]struct{ template, want string }{
		"a loop":              {"{{ range 1000000000 }}{{ end }}", "more than 100000 executions"},
		"nested loops":        {"{{ range until 1000 }}{{ range until 1000 }}{{ end }}{{ end }}", "more than 100000 executions"},
		"a loop else":         {"{{ range .Values.none }}{{ else }}{{ range 1000000000 }}{{ end }}{{ end }}", "more than 100000 executions"},
		"recursion":           {"{{ define \"a\" }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}", "more than 100000 executions"},
		"recursion by name":   {"{{ define \"a\" }}{{ include \"a\" . }}{{ end }}{{ include \"a\" . }}", "more than 100 templates within each other"},
		"output":              {"{{ range until 90000 }}aaaaaaaaaaaaaaaaaaaaaaaaaa{{ end }}", "the output has more than 1048576 bytes"},
		"a text that doubles": {"{{ $s := \"aa\" }}{{ range until 100 }}{{ $s = print $s $s }}{{ end }}", "the output has more than 1048576 bytes"},
		"a list that doubles": {"{{ $l := list 1 }}{{ range until 100 }}{{ $l = list $l $l }}{{ end }}{{ toJSON $l }}", "a list or mapping with more than 100000 values"},
		"a mapping in itself": {"{{ $d := dict }}{{ $x := set $d \"d\" $d }}", "a list or mapping with more than 100000 values"},
		"indentation":         {"{{ indent 1000000 \"a\" }}", "invalid number of blanks 1000000: want 0–1000"},
		"not YAML":            {"a: [", `template "custom": the output is not YAML`},
		"a list as output":    {"[1]", `template "custom": the output is not a mapping`},
		"field of data":       {"a: 1\nb: {{ .Nosuch }}", `template "custom": line 2:6: executing "custom" at <.Nosuch>`},
		"fail":                {"{{ fail \"no such luck\" }}", "no such luck"},
		"field of a Pod":      {"spec: {containerss: []}", `unknown field "spec.containerss"`},
		"type of a field":     {"spec: {containers: many}", `template "custom": merge with the Pod`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := injected(t, tt.template, pod("demo", nil, nil))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), `template "custom": `) {
				t.Errorf("error %v, want one with %s", err, tt.want)
			}
		})
	}
}

// TestTemplatesDoNotChangeTheConfig executes a template that changes values twice.
func TestTemplatesDoNotChangeTheConfig(t *testing.T) {
	c := newConfig(t, inject.Options{
		Config: "defaultTemplates: [custom]\ntemplates: {custom: \"{{ $n := add .Values.extra.n 1 }}{{ $x := set .Values.extra `n` $n }}metadata: {labels: {count: '{{ $n }}'}}\"}",
		Values: "extra: {n: 1}",
	})
	for range 2 {
		result, err := c.Inject(inject.Request{Pod: pod("demo", nil, nil)})
		if err != nil || result.Pod.Labels["count"] != "2" {
			t.Fatalf("%v, error %v", result, err)
		}
	}
}

func TestTemplateTexts(t *testing.T) {
	const own = "metadata: {labels: {mine: 'yes'}}"
	got := newConfig(t, inject.Options{Config: "templates: {custom: \"" + own + "\", gateway: \"" + own + "\"}"}).TemplateTexts()
	if len(got) != 5 || got["custom"] != own || got["gateway"] != own || !strings.Contains(got["sidecar"], "istio-proxy") {
		t.Errorf("%d templates, %q, %q and %.200q", len(got), got["custom"], got["gateway"], got["sidecar"])
	}
}

// TestAnOverlayAddsToTheSidecar is how Istio documents templates: the annotation names several.
func TestAnOverlayAddsToTheSidecar(t *testing.T) {
	c := newConfig(t, inject.Options{Config: `
injectedAnnotations: {example.com/by: injector}
aliases: {both: [sidecar, custom]}
templates:
  custom: |
    metadata: {labels: {custom: "yes"}}
    spec:
      initContainers:
      containers:
      - name: istio-proxy
        env: [{name: GREETING, value: hello}]
        resources: {requests: {cpu: 5m}}
      volumes:
      - {name: workload-socket, csi: {driver: csi.spiffe.io}}
`})
	for _, templates := range []string{"sidecar,custom", " both "} {
		p := pod("demo", nil, map[string]string{"inject.istio.io/templates": templates})
		p.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: "setup:1"}}
		result, err := c.Inject(inject.Request{Pod: p})
		if err != nil {
			t.Fatal(err)
		}
		got := result.Pod
		proxy := got.Spec.Containers[1]
		if len(got.Spec.Containers) != 2 || proxy.Env[0].Name != "GREETING" && proxy.Env[len(proxy.Env)-1].Name != "GREETING" || proxy.Resources.Requests.Cpu().String() != "5m" || proxy.Resources.Requests.Memory().String() != "128Mi" {
			t.Errorf("%+v", proxy)
		}
		if len(got.Spec.InitContainers) != 2 || got.Spec.InitContainers[0].Name != "setup" || got.Labels["custom"] != "yes" || got.Annotations["example.com/by"] != "injector" || got.Spec.Volumes[0].CSI == nil {
			t.Errorf("%+v", got)
		}
	}
}

func TestProxyConfigObjects(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	spec := func(workers int32, image string, env map[string]string, selector map[string]string) *networkingv1beta1.ProxyConfig {
		p := &networkingv1beta1.ProxyConfig{EnvironmentVariables: env}
		if workers > 0 {
			p.Concurrency = wrapperspb.Int32(workers)
		}
		if image != "" {
			p.Image = &networkingv1beta1.ProxyImage{ImageType: image}
		}
		if selector != nil {
			p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
		}
		return p
	}
	objects := []inject.ProxyConfig{
		{Namespace: "istio-system", Name: "mesh", Created: day(1), Spec: spec(1, "debug", map[string]string{"A": "mesh", "B": "mesh"}, nil)},
		{Namespace: "demo", Name: "younger", Created: day(3), Spec: spec(9, "", nil, nil)},
		{Namespace: "demo", Name: "older", Created: day(2), Spec: spec(2, "", map[string]string{"B": "demo"}, nil)},
		{Namespace: "demo", Name: "web", Created: day(1), Spec: spec(3, "distroless", nil, map[string]string{"app": "web"})},
		{Namespace: "other", Name: "other", Created: day(1), Spec: spec(8, "other", nil, nil)},
	}
	c := newConfig(t, inject.Options{Values: "global: {tag: v1}"})
	for _, tt := range []struct {
		labels      map[string]string
		annotation  string
		config, tag string
	}{
		{nil, "", `{"concurrency":2,"proxyMetadata":{"A":"mesh","B":"demo"},"image":{"imageType":"debug"}}`, "v1-debug"},
		{map[string]string{"app": "web"}, "", `{"concurrency":3,"proxyMetadata":{"A":"mesh","B":"demo"},"image":{"imageType":"distroless"}}`, "v1-distroless"},
		{nil, "{concurrency: 4, proxyMetadata: {A: pod}}", `{"concurrency":4,"proxyMetadata":{"A":"pod","B":"demo"},"image":{"imageType":"debug"}}`, "v1-debug"},
		{map[string]string{"app": "web"}, "{concurrency: 4, proxyMetadata: {A: pod}, drainDuration: 9s}", `{"drainDuration":"9s","concurrency":3,"proxyMetadata":{"A":"pod","B":"demo"},"image":{"imageType":"distroless"}}`, "v1-distroless"},
	} {
		p := pod("demo", tt.labels, nil)
		if tt.annotation != "" {
			p.Annotations = map[string]string{"proxy.istio.io/config": tt.annotation}
		}
		result, err := c.Inject(inject.Request{Pod: p, ProxyConfigs: inject.NewProxyConfigs(objects)})
		if err != nil {
			t.Fatal(err)
		}
		proxy := result.Pod.Spec.Containers[1]
		for _, e := range proxy.Env {
			if e.Name == "PROXY_CONFIG" && strings.TrimSpace(e.Value) != tt.config {
				t.Errorf("%s\nwant %s", e.Value, tt.config)
			}
		}
		if !strings.HasSuffix(proxy.Image, ":"+tt.tag) {
			t.Errorf("image %s, want tag %s", proxy.Image, tt.tag)
		}
	}
}

// Of two objects for the same Pods the older one applies, and a warning names the other; an object of the root namespace
// that selects Pods is for those of that namespace. An object that is added later is younger than all others, but keeps
// its place if there is one of its name.
func TestProxyConfigObjectsForTheSamePods(t *testing.T) {
	object := func(namespace, name string, day int, value string, selector map[string]string) inject.ProxyConfig {
		p := &networkingv1beta1.ProxyConfig{EnvironmentVariables: map[string]string{"V": value}}
		if selector != nil {
			p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
		}
		o := inject.ProxyConfig{Namespace: namespace, Name: name, Spec: p}
		if day > 0 {
			o.Created = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		}
		return o
	}
	web := map[string]string{"app": "web"}
	for name, tt := range map[string]struct {
		namespace   string
		list, added []inject.ProxyConfig
		want        string
		warning     string
	}{
		"two of a namespace":            {"demo", []inject.ProxyConfig{object("demo", "a", 2, "a", nil), object("demo", "b", 1, "b", nil)}, nil, "b", "ProxyConfig demo/a has no effect: demo/b is older and is for the same Pods"},
		"two that select":               {"demo", []inject.ProxyConfig{object("demo", "a", 1, "a", web), object("demo", "b", 2, "b", web)}, nil, "a", "ProxyConfig demo/b has no effect: demo/a is older and is for the same Pods"},
		"of one age":                    {"demo", []inject.ProxyConfig{object("demo", "b", 1, "b", nil), object("demo", "a", 1, "a", nil)}, nil, "a", "ProxyConfig demo/b has no effect: demo/a is older and is for the same Pods"},
		"root selects elsewhere":        {"demo", []inject.ProxyConfig{object("istio-system", "a", 1, "a", web), object("istio-system", "b", 2, "b", nil)}, nil, "b", ""},
		"root selects in its namespace": {"istio-system", []inject.ProxyConfig{object("istio-system", "a", 2, "a", web), object("istio-system", "b", 1, "b", nil)}, nil, "a", ""},
		"another namespace":             {"demo", []inject.ProxyConfig{object("other", "a", 1, "a", nil), object("other", "b", 1, "b", web)}, nil, "", ""},
		"an empty selector":             {"demo", []inject.ProxyConfig{object("demo", "a", 1, "a", map[string]string{})}, nil, "a", ""},
		"added":                         {"demo", []inject.ProxyConfig{object("demo", "a", 1, "a", nil)}, []inject.ProxyConfig{object("demo", "new", 0, "new", nil)}, "a", "ProxyConfig demo/new has no effect: demo/a is older and is for the same Pods"},
		"updated":                       {"demo", []inject.ProxyConfig{object("demo", "a", 1, "a", nil), object("demo", "b", 2, "b", nil)}, []inject.ProxyConfig{object("demo", "a", 0, "new", nil)}, "new", "ProxyConfig demo/b has no effect: demo/a is older and is for the same Pods"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := newConfig(t, inject.Options{}).Inject(inject.Request{Pod: pod(tt.namespace, web, nil), ProxyConfigs: inject.NewProxyConfigs(tt.list).With(tt.added)})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, e := range result.Pod.Spec.Containers[1].Env {
				if e.Name == "V" {
					got = e.Value
				}
			}
			if warnings := strings.Join(result.Warnings, "; "); got != tt.want || warnings != tt.warning {
				t.Errorf("got %q, warnings %q; want %q, %q", got, warnings, tt.want, tt.warning)
			}
		})
	}
}
