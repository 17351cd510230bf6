package podplan_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

func file(name, text string) podplan.File { return podplan.File{Name: name, Text: []byte(text)} }

func plan(t *testing.T, before *podplan.Plan, files ...podplan.File) *podplan.Plan {
	t.Helper()
	p, err := podplan.Make(files, podplan.Options{Before: before})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const workloads = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: x
        command: [serve]
        args: [a, b]
        env:
        - {name: A, value: b}
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: MODE, valueFrom: {configMapKeyRef: {name: settings, key: mode}}}
        ports: [{name: http-web, containerPort: 8080}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  template:
    metadata: {labels: {app: db}}
    spec:
      volumes: [{name: v}]
      containers: [{name: db, image: y}]
---
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
spec:
  selector: {app: web}
  ports:
  - {name: tcp-web, port: 80, targetPort: http-web}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: tcp, port: 5432}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: shop}
spec: {template: {metadata: {annotations: {sidecar.istio.io/inject: "false"}}, spec: {containers: [{name: c, image: z}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {mode: fast}
`

func TestPodsOfWorkloads(t *testing.T) {
	p := plan(t, nil, file("shop.yaml", workloads))
	var names []string
	byName := map[string]podplan.Pod{}
	for _, pod := range p.Pods {
		names = append(names, pod.Key())
		byName[pod.Name] = pod
	}
	if want := []string{"web-1.shop", "web-2.shop", "db-0.shop", "once-1.shop"}; !slices.Equal(names, want) {
		t.Fatalf("Pods %v, want %v", names, want)
	}
	web, db, once := byName["web-2"], byName["db-0"], byName["once-1"]
	if !web.Sidecar || web.Labels[mesh.TLSModeLabel] != "istio" || web.Workload != "web" || web.ServiceAccount != "default" {
		t.Errorf("web-2: %+v", web)
	}
	if web.Labels[mesh.WorkloadNameLabel] != "web" || mesh.WorkloadName("web-2", web.Labels) != "web" {
		t.Errorf("labels of web-2: %v: want its Deployment's name for pilot-discovery and metrics", web.Labels)
	}
	if c := web.Containers[0]; !slices.Equal(c.Env, []string{"A=b", "POD=web-2", "MODE=fast"}) || len(c.Ports) != 1 || c.Ports[0].HTTP {
		t.Errorf("the container of web-2: %+v: a Service says that its port is TCP", c)
	}
	if c := db.Containers[0]; len(c.Ports) != 1 || c.Ports[0].Number != 5432 || c.Ports[0].HTTP {
		t.Errorf("ports of db-0: %+v, want that of its Service", c.Ports)
	}
	if once.Sidecar || !once.Once {
		t.Errorf("once-1: %+v", once)
	}
	if len(p.Notes) != 1 || p.Notes[0].String() != "shop.yaml:20: StatefulSet shop/db: volumes are not mounted" {
		t.Errorf("notes: %v", p.Notes)
	}
	for _, s := range p.Services {
		if has := s.ClusterIP.IsValid(); has != (s.Name == "web") {
			t.Errorf("Service %s has the address %v", s.Name, s.ClusterIP)
		}
	}
}

// What pilot-discovery reads has each object and field on its line, and the Pods of a workload on that of the workload.
func TestLinesStay(t *testing.T) {
	p := plan(t, nil, file("shop.yaml", workloads))
	files := p.Files(nil)
	if len(files) != 1 {
		t.Fatalf("%d files: want one, since nothing was added", len(files))
	}
	text := string(files[0].Text)
	for _, want := range []string{`"clusterIP": "10.96.`, "kind: ConfigMap", "clusterIP: None"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Deployment") {
		t.Errorf("a workload is left:\n%s", text)
	}
	line := func(text, of string) int { return strings.Count(text[:strings.Index(text, of)], "\n") }
	for of, was := range map[string]string{
		"clusterIP: None": "clusterIP: None", "kind: ConfigMap": "kind: ConfigMap", `"tcp-web"`: "tcp-web", `"name":"web-1"`: "apiVersion: apps/v1\nkind: Deployment", `"name":"db-0"`: "apiVersion: apps/v1\nkind: StatefulSet",
	} {
		if line(text, of) != line(workloads, was) {
			t.Errorf("%q is on line %d, want %d, that of %q, in\n%s", of, line(text, of), line(workloads, was), was, text)
		}
	}
	not := p.Files(map[string]bool{"web-1.shop": true})[0].Text
	if strings.Contains(text, `"False"`) || bytes.Count(not, []byte(`"False"`)) != 1 {
		t.Errorf("one Pod is not ready:\n%s", not)
	}
	decoded := decode.Documents("shop.yaml", files[0].Text)
	if len(decoded.Problems) > 0 || len(decoded.Objects) != 7 {
		t.Errorf("%d objects, %v", len(decoded.Objects), decoded.Problems)
	}
}

// Pods of workloads in JSON or in a list have no line of their own.
func TestPodsWithoutAPlaceAreGenerated(t *testing.T) {
	p := plan(t, nil, file("shop.json", `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}}`))
	files := p.Files(nil)
	if len(files) != 2 || files[1].Name != podplan.GeneratedFile || !bytes.Contains(files[1].Text, []byte(`"web-1"`)) {
		t.Errorf("%q", files)
	}
}

func TestAddressesStay(t *testing.T) {
	first := plan(t, nil, file("shop.yaml", workloads))
	more := file("a.yaml", strings.ReplaceAll(workloads, "namespace: shop", "namespace: a"))
	second := plan(t, first, more, file("shop.yaml", workloads))
	alone := plan(t, nil, file("shop.yaml", workloads))
	seen := map[netip.Addr]bool{}
	for _, p := range second.Pods {
		if seen[p.IP] || !podplan.DefaultPods.Contains(p.IP) {
			t.Errorf("%s has the address %s", p.Key(), p.IP)
		}
		seen[p.IP] = true
	}
	for i, p := range first.Pods {
		if j := slices.IndexFunc(second.Pods, func(q podplan.Pod) bool { return q.Key() == p.Key() }); second.Pods[j].IP != p.IP || alone.Pods[i].IP != p.IP {
			t.Errorf("%s had %s, then %s, and %s alone", p.Key(), p.IP, second.Pods[j].IP, alone.Pods[i].IP)
		}
	}
	small := podplan.Options{Pods: netip.MustParsePrefix("10.0.0.0/30")}
	if _, err := podplan.Make([]podplan.File{file("shop.yaml", workloads)}, small); err == nil || !strings.Contains(err.Error(), "all of 10.0.0.0/30 are in use") {
		t.Errorf("too small a range: %v", err)
	}
}

func TestRoutersThatGatewaysAskFor(t *testing.T) {
	gateway := `kind: Gateway
apiVersion: networking.istio.io/v1
metadata: {name: g, namespace: shop}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80}}, {port: {number: 443}}]}
`
	p := plan(t, nil, file("g.yaml", gateway))
	if len(p.Pods) != 1 || !p.Pods[0].Router || p.Pods[0].Key() != "istio-ingressgateway-1.istio-system" || len(p.Services) != 1 || len(p.Services[0].Ports) != 2 {
		t.Errorf("%+v, %+v", p.Pods, p.Services)
	}
	own := `---
kind: Deployment
metadata: {name: mine, namespace: shop}
spec: {template: {metadata: {labels: {istio: ingressgateway}, annotations: {inject.istio.io/templates: gateway}}, spec: {containers: [{name: istio-proxy}]}}}
`
	if p := plan(t, nil, file("g.yaml", gateway+own)); len(p.Pods) != 1 || p.Pods[0].Name != "mine-1" || !p.Pods[0].Router {
		t.Errorf("with a router of the directory: %+v", p.Pods)
	}
	api := "kind: Gateway\napiVersion: gateway.networking.k8s.io/v1\nmetadata: {name: g}\nspec: {gatewayClassName: istio, listeners: [{port: 80}]}\n"
	if p := plan(t, nil, file("g.yaml", api)); len(p.Pods) != 1 || p.Pods[0].Key() != "g-istio-1.default" || p.Pods[0].Labels["gateway.networking.k8s.io/gateway-name"] != "g" {
		t.Errorf("of the Gateway API: %+v", p.Pods)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\nstatus: {podIP: x}": `f.yaml:4: Pod default/a: status.podIP: ParseAddr("x"): unable to parse IP`,
		"kind: Pod\nmetadata: {name: a}":                                                                                          "f.yaml:1: Pod default/a: spec: no containers",
		"kind: Deployment\nmetadata: {name: a}\nspec: {replicas: 1000}":                                                           "f.yaml:3: Deployment default/a: spec.replicas: 1000 Pods, want 0–50 on one machine",
		"kind: Deployment\nmetadata: {name: a}\nspec: {replicas: x}":                                                              "f.yaml:3: Deployment default/a: spec.replicas: string, want a value of type int",
		"apiVersion: v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 0, template: {spec: {containers: [{name: c}]}}}": `f.yaml:1: Deployment default/a: apiVersion: "v1" has no kind Deployment; did you mean apps/v1? A cluster refuses it`,
		"kind: Deployment\nmetadata: {name: a}\nspec: {replicas: 0, selector: {matchLabels: {app: b}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c}]}}}": "f.yaml:3: Deployment default/a: spec.selector.matchLabels: the Pods of spec.template do not have the label app: b: a cluster refuses it",
		"kind: CronJob\nmetadata: {name: a}": "f.yaml:1: CronJob default/a: it is not run: want a Job",
		"kind: [":                            "f.yaml:1: the YAML does not parse: ",
		"kind: Pod\nmetadata: {name: ../../x}\nspec: {containers: [{name: c}]}":                           `f.yaml:2: Pod default/../../x: metadata.name: invalid name "../../x": want lower-case letters`,
		"kind: Pod\nmetadata: {name: a, namespace: ../b}\nspec: {containers: [{name: c}]}":                `f.yaml:2: Pod ../b/a: metadata.namespace: invalid namespace "../b": want`,
		"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: /etc/c}]}":                            `f.yaml:1: Pod default/a: invalid name of a container "/etc/c": want`,
		"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}, {name: c}]}":                      `f.yaml:1: Pod default/a: two containers have the name "c": want different ones: it is not run`,
		"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: c}]}":                                `f.yaml:1: Pod default/a: invalid name of a container "": want`,
		"kind: Pod\nmetadata: {name: a}\nspec: {serviceAccountName: ../c, containers: [{name: c}]}":       `f.yaml:1: Pod default/a: serviceAccountName: invalid name "../c": want`,
		"kind: Deployment\nmetadata: {name: a/../b}\nspec: {template: {spec: {containers: [{name: c}]}}}": `f.yaml:2: Deployment default/a/../b: metadata.name: invalid name "a/../b-1": want`,
		"kind: Pod\nmetadata: {name: \"a\\nb\"}\nspec: {containers: [{name: c}]}":                         "f.yaml:2: Pod default/a\nb: metadata.name: invalid name \"a\\nb\": want",
		"kind: Pod\nmetadata: {name: a..b}\nspec: {containers: [{name: c}]}":                              `f.yaml:2: Pod default/a..b: metadata.name: invalid name "a..b": want`,
	} {
		if version := map[bool]string{true: "v1", false: "apps/v1"}[strings.HasPrefix(text, "kind: Pod")]; !strings.HasPrefix(text, "apiVersion") && text != "kind: [" {
			text += "\napiVersion: " + version
		}
		p := plan(t, nil, file("f.yaml", text))
		if len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0].String(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, p.Notes, want)
		}
		if len(p.Pods) > 0 {
			t.Errorf("%s: %+v is run", text, p.Pods)
		}
	}
}

// What pilot-discovery does not read of a directory has the line of its field: what is missing, and what is there twice.
func TestNotesAreAtTheLinesOfTheirFields(t *testing.T) {
	const pod = "metadata:\n  name: twin\nspec:\n  containers: [{name: c}]\n"
	p := plan(t, nil, file("f.yaml", "kind: Pod\n"+pod+"---\napiVersion: v1\nkind: Pod\n"+pod+"---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: less\nspec:\n  replicas: -1\n  template: {spec: {containers: [{name: c}]}}\n"))
	var got []string
	for _, n := range p.Notes {
		got = append(got, n.String())
	}
	slices.Sort(got)
	want := []string{
		"f.yaml:19: Deployment default/less: spec.replicas: -1 Pods, want 0–50 on one machine",
		"f.yaml:1: Pod default/twin: apiVersion: missing: want v1; a cluster refuses it",
		"f.yaml:7: Pod default/twin: there is a Pod default/twin already, of line 1 of f.yaml: it is not run again",
	}
	if !slices.Equal(got, want) {
		t.Errorf("notes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// While a file cannot be read its Pods go on.
func TestPodsOfBrokenFilesStay(t *testing.T) {
	good := plan(t, nil, file("shop.yaml", workloads), file("a.yaml", strings.ReplaceAll(workloads, "namespace: shop", "namespace: a")))
	broken := plan(t, good, file("shop.yaml", "kind: ["), file("a.yaml", ""))
	if len(broken.Pods) != 4 || broken.Pods[0].Namespace != "shop" {
		t.Errorf("%+v", broken.Pods)
	}
	text := broken.Files(nil)[1].Text
	if got := decode.Documents("shop.yaml", text); len(got.Objects) != 4 {
		t.Errorf("%d objects, want the 4 Pods behind what cannot be read:\n%s", len(got.Objects), text)
	}
}

func TestTheSamplesHavePods(t *testing.T) {
	for dir, want := range map[string]int{"hello": 4, "bookshop": 10} {
		paths, err := filepath.Glob("../../../samples/" + dir + "/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var files []podplan.File
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file(filepath.Base(path), string(text)))
		}
		if p := plan(t, nil, files...); len(p.Pods) != want || slices.ContainsFunc(p.Notes, func(n podplan.Note) bool { return n.Problem }) {
			t.Errorf("%s: %d Pods, %v", dir, len(p.Pods), p.Notes)
		}
	}
}

func FuzzMake(f *testing.F) {
	f.Add(workloads)
	f.Add("kind: List\nitems: [{kind: Service, metadata: {name: a}}, {kind: Pod}]")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := podplan.Make([]podplan.File{file("f.yaml", text), file("f.json", text)}, podplan.Options{})
		if err != nil {
			return
		}
		if files := p.Files(nil); len(files) < 2 {
			t.Errorf("%d files", len(files))
		}
	})
}

// What pilot-discovery reads as it is written is its own to report.
func TestUnknownFieldsOfDroppedObjectsAreNoted(t *testing.T) {
	p := plan(t, nil, file("a.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replics: 2\n  template: {spec: {containers: [{name: c, image: x}]}}\n---\n"+
		"apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec:\n  containres: []\n  containers: [{name: c, image: x}]\n---\n"+
		"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, lables: {}}\n"))
	var got []string
	for _, n := range p.Notes {
		got = append(got, n.String())
	}
	for _, want := range []string{
		"a.yaml:5: Deployment default/a: spec.replics: unknown field: it has no effect; did you mean replicas?",
		"a.yaml:12: Pod default/b: spec.containres: unknown field: it has no effect; did you mean containers?",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("notes %q, want %q", got, want)
		}
	}
	if strings.Contains(strings.Join(got, "\n"), "lables") {
		t.Errorf("notes %q: want only those of objects that pilot-discovery does not read", got)
	}
}

func TestSchemesOfRoutersPorts(t *testing.T) {
	p := plan(t, nil, file("g.yaml", `kind: Gateway
apiVersion: networking.istio.io/v1
metadata: {name: g, namespace: shop}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, protocol: HTTP}}, {port: {number: 443, protocol: HTTPS}}, {port: {number: 8443, protocol: TLS}}, {port: {number: 5432, protocol: TCP}}]}
---
kind: Gateway
apiVersion: gateway.networking.k8s.io/v1
metadata: {name: api, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{port: 443, protocol: HTTP}, {port: 80, protocol: HTTPS}]}
---
kind: ListenerSet
apiVersion: gateway.networking.k8s.io/v1
metadata: {name: more, namespace: team}
spec: {parentRef: {name: api, namespace: shop}, listeners: [{port: 443, protocol: TCP}, {port: 9443, protocol: HTTPS}]}
`))
	byName := map[string]podplan.Pod{}
	for _, pod := range p.Pods {
		byName[pod.Workload] = pod
	}
	for name, want := range map[string]map[uint16]string{
		"istio-ingressgateway": {80: "http", 443: "https", 8443: "https", 5432: "", 9090: "http"},
		"api-istio":            {80: "https", 443: "http", 9443: "https"},
	} {
		for port, scheme := range want {
			if name == "api-istio" && !slices.ContainsFunc(p.Services, func(s podplan.Service) bool {
				return s.Name == name && slices.ContainsFunc(s.Ports, func(one podplan.ServicePort) bool { return one.Number == port })
			}) {
				t.Errorf("the Service of %s has no port %d", name, port)
			}
			if got := p.Scheme(byName[name], port); got != scheme {
				t.Errorf("port %d of %s: scheme %q, want %q", port, name, got, scheme)
			}
		}
	}
}

// What only the injector of a cluster applies is told.
func TestTheInjectorsSettingsAreTold(t *testing.T) {
	p := plan(t, nil, file("web.yaml", `apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    sidecar.istio.io/inject: "true"
    traffic.sidecar.istio.io/excludeInboundPorts: "8081"
    proxy.istio.io/config: "concurrency: 1"
    example.com/owner: me
spec: {containers: [{name: web, image: example/web}]}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: one}
spec: {concurrency: 1}
`))
	var got []string
	for _, n := range p.Notes {
		got = append(got, n.String())
	}
	want := []string{
		"web.yaml:1: Pod default/web: the injector's annotations are not applied: proxy.istio.io/config, traffic.sidecar.istio.io/excludeInboundPorts",
		"web.yaml:12: ProxyConfig default/one: not applied: it is for the injector of a cluster",
	}
	if !slices.Equal(got, want) {
		t.Errorf("notes %q, want %q", got, want)
	}
}
