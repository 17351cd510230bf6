package model_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// ask builds a model from YAML and answers one question through a reader.
func ask[V any](t *testing.T, yaml string, question func(*incr.Reader, *model.Model) V) V {
	t.Helper()
	g := incr.New()
	m := model.New(g, "cluster.local")
	res := decode.Documents("input.yaml", []byte(yaml))
	for _, p := range res.Problems {
		t.Fatal(p)
	}
	for _, o := range res.Objects {
		m.Apply([]object.Change{{Key: o.Key, Object: &o}})
	}
	return incr.Derive(g, model.LevelCompile, "question", func(r *incr.Reader, _ int) V { return question(r, m) }).Want(0)
}

func scope(ns string) mesh.ScopeID {
	return mesh.Scope{Role: mesh.Sidecar, Namespace: ns, Caps: mesh.IPv4}.ID()
}

func service(ns, name, extra string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]%s}\n---\n", name, ns, extra)
}

func entry(ns, name, host, extra string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: %s}\nspec: {hosts: [%s], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]%s}\n---\n", name, ns, host, extra)
}

func rule(kind, ns, name, spec string, created int) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s, creationTimestamp: \"2026-01-0%dT00:00:00Z\"}\nspec: {%s}\n---\n", kind, name, ns, created, spec)
}

func TestVisibleServices(t *testing.T) {
	yaml := service("a", "open", "") + service("b", "near", "") + entry("a", "hidden", "hidden.example.com", ", exportTo: [\".\"]") +
		entry("a", "named", "named.example.com", ", exportTo: [b]") + entry("a", "theirs", "both.example.com", "") + entry("b", "ours", "both.example.com", "") +
		entry("a", "shadow", "near.b.svc.cluster.local", "")
	for ns, want := range map[string]string{
		"a": "both.example.com=ServiceEntry/a/theirs/both.example.com hidden.example.com=ServiceEntry/a/hidden/hidden.example.com near.b.svc.cluster.local=ServiceEntry/a/shadow/near.b.svc.cluster.local open.a.svc.cluster.local=Service/a/open",
		"b": "both.example.com=ServiceEntry/b/ours/both.example.com named.example.com=ServiceEntry/a/named/named.example.com near.b.svc.cluster.local=Service/b/near open.a.svc.cluster.local=Service/a/open",
		"c": "both.example.com=ServiceEntry/a/theirs/both.example.com near.b.svc.cluster.local=Service/b/near open.a.svc.cluster.local=Service/a/open",
	} {
		got := ask(t, yaml, func(r *incr.Reader, m *model.Model) string {
			var out []string
			for _, ref := range m.Visible(r, scope(ns)) {
				out = append(out, ref.Host+"="+ref.Key)
			}
			return strings.Join(out, " ")
		})
		if got != want {
			t.Errorf("namespace %s sees\n%s\nwant\n%s", ns, got, want)
		}
	}
}

func TestDestinationRuleInForce(t *testing.T) {
	svc := service("server", "s", "")
	host := "host: s.server.svc.cluster.local"
	for name, c := range map[string]struct{ yaml, client, want string }{
		"the client's own first":    {rule("DestinationRule", "client", "mine", host, 2) + rule("DestinationRule", "server", "theirs", host, 1), "client", "client/mine"},
		"then the service's":        {rule("DestinationRule", "server", "theirs", host, 1) + rule("DestinationRule", "istio-system", "root", host, 1), "client", "server/theirs"},
		"then the root's":           {rule("DestinationRule", "istio-system", "root", "host: \"*.local\"", 1), "client", "istio-system/root"},
		"not one kept to itself":    {rule("DestinationRule", "server", "theirs", host+", exportTo: [\".\"]", 1), "client", ""},
		"not a stranger's":          {rule("DestinationRule", "stranger", "x", host, 1), "client", ""},
		"an exact host first":       {rule("DestinationRule", "client", "wild", "host: \"*.local\"", 1) + rule("DestinationRule", "client", "exact", host, 2), "client", "client/exact"},
		"the longer wildcard":       {rule("DestinationRule", "client", "a", "host: \"*.local\"", 1) + rule("DestinationRule", "client", "b", "host: \"*.server.svc.cluster.local\"", 2), "client", "client/b"},
		"the older of equals":       {rule("DestinationRule", "client", "young", host, 3) + rule("DestinationRule", "client", "old", host, 2), "client", "client/old"},
		"not one for other clients": {rule("DestinationRule", "client", "x", host+", workloadSelector: {matchLabels: {app: other}}", 1), "client", ""},
	} {
		got := ask(t, svc+c.yaml, func(r *incr.Reader, m *model.Model) string {
			if d := m.DestinationRule(r, scope(c.client), "s.server.svc.cluster.local"); d != nil {
				return d.Key()
			}
			return ""
		})
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSubsetsOfRulesForOneHostAreMerged(t *testing.T) {
	yaml := service("a", "s", "") + rule("DestinationRule", "a", "one", "host: s, subsets: [{name: v1, labels: {v: a}}]", 1) +
		rule("DestinationRule", "a", "two", "host: s, subsets: [{name: v1, labels: {v: b}}, {name: v2, labels: {v: c}}]", 2)
	got := ask(t, yaml, func(r *incr.Reader, m *model.Model) []string {
		var out []string
		for _, s := range m.DestinationRule(r, scope("a"), "s.a.svc.cluster.local").GetSpec().GetSubsets() {
			out = append(out, s.Name+"="+s.Labels["v"])
		}
		return out
	})
	if want := []string{"v1=a", "v2=c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("subsets %v, want %v", got, want)
	}
}

func TestVirtualServiceInForce(t *testing.T) {
	route := "http: [{route: [{destination: {host: x}}]}]"
	for name, c := range map[string]struct{ yaml, want string }{
		"a short name is of the rule's namespace": {rule("VirtualService", "a", "x", "hosts: [s], "+route, 1) + rule("VirtualService", "b", "y", "hosts: [s], "+route, 1), "a/x"},
		"the oldest":             {rule("VirtualService", "a", "young", "hosts: [s.a.svc.cluster.local], "+route, 3) + rule("VirtualService", "b", "old", "hosts: [s.a.svc.cluster.local], "+route, 2), "b/old"},
		"exact before wildcard":  {rule("VirtualService", "a", "wild", "hosts: [\"*.svc.cluster.local\"], "+route, 1) + rule("VirtualService", "a", "exact", "hosts: [s], "+route, 2), "a/exact"},
		"the longer wildcard":    {rule("VirtualService", "a", "short", "hosts: [\"*.local\"], "+route, 1) + rule("VirtualService", "a", "long", "hosts: [\"*.a.svc.cluster.local\"], "+route, 2), "a/long"},
		"not a gateway's":        {rule("VirtualService", "a", "x", "hosts: [s], gateways: [gw], "+route, 1), ""},
		"mesh among gateways":    {rule("VirtualService", "a", "x", "hosts: [s], gateways: [gw, mesh], "+route, 1), "a/x"},
		"not one kept elsewhere": {rule("VirtualService", "b", "x", "hosts: [s.a.svc.cluster.local], exportTo: [\".\"], "+route, 1), ""},
	} {
		got := ask(t, service("a", "s", "")+c.yaml, func(r *incr.Reader, m *model.Model) string {
			if v := m.VirtualService(r, scope("a"), "s.a.svc.cluster.local"); v != nil {
				return v.Key()
			}
			return ""
		})
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func peer(ns, name, spec string, created int) string {
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: %s, namespace: %s, creationTimestamp: \"2026-01-0%dT00:00:00Z\"}\nspec: {%s}\n---\n", name, ns, created, spec)
}

func TestModesOfPeerAuthentication(t *testing.T) {
	const selected = "selector: {matchLabels: {app: w}}, "
	for name, c := range map[string]struct {
		yaml          string
		other, on9000 mesh.MTLSMode
	}{
		"nothing said":                {"", mesh.Permissive, mesh.Permissive},
		"the root's":                  {peer("istio-system", "d", "mtls: {mode: STRICT}", 1), mesh.Strict, mesh.Strict},
		"the namespace over the root": {peer("istio-system", "d", "mtls: {mode: STRICT}", 1) + peer("a", "d", "mtls: {mode: DISABLE}", 1), mesh.Disable, mesh.Disable},
		"UNSET inherits":              {peer("istio-system", "d", "mtls: {mode: STRICT}", 1) + peer("a", "d", "mtls: {mode: UNSET}", 1), mesh.Strict, mesh.Strict},
		"the workload over both":      {peer("a", "d", "mtls: {mode: STRICT}", 1) + peer("a", "w", selected+"mtls: {mode: DISABLE}", 1), mesh.Disable, mesh.Disable},
		"a port over the workload":    {peer("a", "w", selected+"mtls: {mode: STRICT}, portLevelMtls: {9000: {mode: DISABLE}}", 1), mesh.Strict, mesh.Disable},
		"a port inherits":             {peer("a", "d", "mtls: {mode: STRICT}", 1) + peer("a", "w", selected+"portLevelMtls: {9000: {mode: UNSET}}", 1), mesh.Strict, mesh.Strict},
		"the oldest that selects":     {peer("a", "young", selected+"mtls: {mode: STRICT}", 2) + peer("a", "old", selected+"mtls: {mode: DISABLE}", 1), mesh.Disable, mesh.Disable},
		"not one for others":          {peer("a", "x", "selector: {matchLabels: {app: other}}, mtls: {mode: STRICT}", 1), mesh.Permissive, mesh.Permissive},
		"not another namespace's":     {peer("b", "d", "mtls: {mode: STRICT}", 1), mesh.Permissive, mesh.Permissive},
		"the oldest of the namespace": {peer("a", "young", "mtls: {mode: STRICT}", 2) + peer("a", "old", "mtls: {mode: DISABLE}", 1), mesh.Disable, mesh.Disable},
	} {
		got := ask(t, c.yaml, func(r *incr.Reader, m *model.Model) [2]mesh.MTLSMode {
			modes := m.ModesFor(r, "a", map[string]string{"app": "w"})
			return [2]mesh.MTLSMode{modes.Of(80), modes.Of(9000)}
		})
		if want := [2]mesh.MTLSMode{c.other, c.on9000}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// classOf classifies a proxy of namespace a.
func classOf(t *testing.T, yaml string, labels map[string]string) mesh.Class {
	t.Helper()
	id, err := mesh.DecodeNodeID("sidecar~10.0.0.1~p.a~a.svc.cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	key := model.KeyOf(mesh.Node{NodeID: id, Metadata: mesh.Metadata{Labels: labels}}, "")
	return ask(t, yaml, func(r *incr.Reader, m *model.Model) mesh.Class { return m.Classify().Of(r, key) })
}

func TestClassOfAProxy(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a, labels: {app: w, hash: h1}}\nspec: {containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}\nstatus: {podIP: 10.0.0.1}\n---\n"
	yaml := pod + service("a", "s", ", selector: {app: w}") + service("b", "s", ", selector: {app: w}") +
		"apiVersion: v1\nkind: Service\nmetadata: {name: n, namespace: a}\nspec: {clusterIP: 10.96.0.2, selector: {app: w}, ports: [{name: http, port: 81, targetPort: web}, {name: udp, port: 53, protocol: UDP}]}\n---\n" +
		peer("a", "w", "selector: {matchLabels: {app: w}}, mtls: {mode: STRICT}", 1) + peer("a", "d", "mtls: {mode: STRICT}", 1) +
		rule("Sidecar", "a", "d", "egress: [{hosts: [\"./*\"]}]", 1) + rule("Sidecar", "a", "w", "workloadSelector: {labels: {app: w}}, egress: [{hosts: [\"./*\"]}]", 2) +
		rule("VirtualService", "b", "v", "hosts: [s], http: [{match: [{sourceLabels: {app: w}}, {sourceLabels: {app: x}}], route: [{destination: {host: s}}]}]", 1)
	c := classOf(t, yaml, nil)
	if want := "Service/a/n@81>8080 Service/a/s@80>80"; c.Workload.Services != want {
		t.Errorf("stands for %q, want %q", c.Workload.Services, want)
	}
	if c.Workload.Policies != "a/w" || c.Scope.Sidecar != "a/w" || c.Scope.Selected != "app=w" {
		t.Errorf("policies %q, sidecar %q, selected %q", c.Workload.Policies, c.Scope.Sidecar, c.Scope.Selected)
	}
	if other := classOf(t, strings.ReplaceAll(yaml, "hash: h1", "hash: h2"), nil); other != c {
		t.Error("a label that nothing selects by makes another class")
	}
	if said := classOf(t, yaml, map[string]string{"app": "x"}); said.Scope.Selected != "app=x" || said.Workload.Services != "" || said.Scope.Sidecar != "a/d" {
		t.Errorf("labels that the node sends count over the Pod's: %+v", said)
	}
}

// Of the services of its namespace, only those that select one of a proxy's labels, and those without a selector, can be the proxy's.
func TestAServiceOfOtherWorkloadsDoesNotClassifyAProxyAgain(t *testing.T) {
	g := incr.New()
	m := model.New(g, "cluster.local")
	apply := func(yaml string) {
		for _, o := range decode.Documents("input.yaml", []byte(yaml)).Objects {
			m.Apply([]object.Change{{Key: o.Key, Object: &o}})
		}
		g.Run()
	}
	apply(service("a", "s", ", selector: {app: w}"))
	key := model.ProxyKey{Role: mesh.Sidecar, Namespace: "a", Name: "x", Labels: "app=w,version=v1", IPs: "10.0.0.1"}
	m.Classify().Want(key)
	for _, c := range []struct {
		what, yaml string
		runs       uint64
		services   string
	}{
		{"another selector", service("a", "other", ", selector: {app: x}"), 0, "Service/a/s@80>80"},
		{"another namespace", service("b", "s", ", selector: {app: w}"), 0, "Service/a/s@80>80"},
		{"a label more than the proxy's", service("a", "narrow", ", selector: {app: w, zone: z}"), 1, "Service/a/s@80>80"},
		{"a second label", service("a", "second", ", selector: {version: v1}"), 1, "Service/a/s@80>80 Service/a/second@80>80"},
		{"the address", entry("a", "by-address", "e.example.com", ", endpoints: [{address: 10.0.0.1}]"), 1, "Service/a/s@80>80 Service/a/second@80>80 ServiceEntry/a/by-address/e.example.com@80>80"},
		{"no selector any more", service("a", "second", ""), 1, "Service/a/s@80>80 ServiceEntry/a/by-address/e.example.com@80>80"},
	} {
		before := g.Stats()["class"].Runs
		apply(c.yaml)
		class, _ := m.Classify().Value(key)
		if runs := g.Stats()["class"].Runs - before; runs != c.runs || class.Workload.Services != c.services {
			t.Errorf("%s: classified %d times, with services %q; want %d, %q", c.what, runs, class.Workload.Services, c.runs, c.services)
		}
	}
}

// Before a proxy joins, Claims says whether it is what it claims to be. Afterwards the source
// may name another workload with its address: then it has no services, and the policies stay.
func TestAProxyThatClaimsAnothersAddressHasNoServices(t *testing.T) {
	pods := func(account string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a, labels: {app: w}}\nspec: {hostNetwork: true, serviceAccountName: " + account + "}\nstatus: {podIP: 10.0.0.1}\n---\n" +
			service("a", "s", ", selector: {app: w}") + peer("a", "w", "selector: {matchLabels: {app: w}}, mtls: {mode: STRICT}", 1)
	}
	neighbour := "apiVersion: v1\nkind: Pod\nmetadata: {name: n, namespace: a, labels: {app: v}}\nspec: {hostNetwork: true, serviceAccountName: mine}\nstatus: {podIP: 10.0.0.1}\n---\n" + service("a", "v", ", selector: {app: v}")
	for name, c := range map[string]struct {
		yaml, account      string
		services, policies string
	}{
		"its own":                        {pods("mine"), "mine", "Service/a/s@80>80", "a/w"},
		"unauthenticated":                {pods("other"), "", "Service/a/s@80>80", "a/w"},
		"another's":                      {pods("other"), "mine", "", "a/w"},
		"one of two on a host's network": {pods("other") + neighbour, "mine", "Service/a/v@80>80", ""},
	} {
		key := model.ProxyKey{Role: mesh.Sidecar, Namespace: "a", Name: "x", Account: c.account, IPs: "10.0.0.1"}
		got := ask(t, c.yaml, func(r *incr.Reader, m *model.Model) mesh.Class { return m.Classify().Of(r, key) })
		if got.Workload.Services != c.services || got.Workload.Policies != c.policies {
			t.Errorf("%s: services %q, policies %q; want %q, %q", name, got.Workload.Services, got.Workload.Policies, c.services, c.policies)
		}
	}
}

// reporting is a WorkloadEntry of a workload that reports its health; an empty status is no condition.
func reporting(name, address, status string) string {
	text := "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: " + name + ", namespace: a, labels: {app: w}, annotations: {proxy.istio.io/health-checks-enabled: \"true\"}}\n" +
		"spec: {address: " + address + "}\n"
	if status != "" {
		text += "status: {conditions: [{type: Other, status: \"True\"}, {type: Healthy, status: \"" + status + "\"}]}\n"
	}
	return text + "---\n"
}

func TestInstancesOfAService(t *testing.T) {
	yaml := service("a", "s", ", selector: {app: w}") +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: up, namespace: a, labels: {app: w, security.istio.io/tlsMode: istio}}\nspec: {serviceAccountName: sa}\nstatus: {phase: Running, podIP: 10.0.0.1}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: down, namespace: a, labels: {app: w}}\nstatus: {phase: Running, podIP: 10.0.0.2, conditions: [{type: Ready, status: \"False\"}]}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: done, namespace: a, labels: {app: w}}\nstatus: {phase: Succeeded, podIP: 10.0.0.3}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: far, namespace: b, labels: {app: w}}\nstatus: {phase: Running, podIP: 10.0.0.4}\n---\n" +
		"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: a, labels: {app: w}}\nspec: {address: 10.0.0.5, ports: {http: 8080}, serviceAccount: vm}\n---\n" +
		"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: bare, namespace: a, labels: {app: w, security.istio.io/tlsMode: disabled}}\nspec: {address: 10.0.0.6, serviceAccount: vm}\n---\n" +
		"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: nobody, namespace: a, labels: {app: w}}\nspec: {address: 10.0.0.7}\n---\n" +
		reporting("silent", "10.0.0.8", "") + reporting("sick", "10.0.0.9", "False") + reporting("well", "10.0.0.10", "True")
	type row struct {
		Address, Identity string
		Port              uint32
		TLS               bool
	}
	got := ask(t, yaml, func(r *incr.Reader, m *model.Model) []row {
		var out []row
		for _, i := range m.Instances(r, "Service/a/s") {
			out = append(out, row{i.Address, i.Identity, i.Ports[80], i.TLS})
		}
		return out
	})
	want := []row{
		{"10.0.0.1", "spiffe://cluster.local/ns/a/sa/sa", 80, true},
		{"10.0.0.10", "", 80, false},
		{"10.0.0.5", "spiffe://cluster.local/ns/a/sa/vm", 8080, true},
		{"10.0.0.6", "spiffe://cluster.local/ns/a/sa/vm", 80, false},
		{"10.0.0.7", "", 80, false},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("instances %+v, want %+v", got, want)
	}
	accounts := ask(t, yaml, func(r *incr.Reader, m *model.Model) []string { return m.Accounts(r, "Service/a/s") })
	if want := []string{"spiffe://cluster.local/ns/a/sa/sa", "spiffe://cluster.local/ns/a/sa/vm"}; !reflect.DeepEqual(accounts, want) {
		t.Errorf("accounts %v, want %v", accounts, want)
	}
}
