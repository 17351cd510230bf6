package node_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// plane is a control plane of two replicas in the test's namespace, which is its revision too.
type plane struct {
	*cluster
	kubeconfig string // of an operator, who may find Pods and connect to their ports
}

// startPlane starts one, and waits until both replicas are ready.
func startPlane(t *testing.T) *plane {
	t.Helper()
	c := start(t, nil)
	c.InstallCRDs(t, kubetest.Istio)
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t, c.namespace)
		}
	})
	c.apply(t, testdata(t, "replicas.yaml"))
	operator, err := c.UserConfig("the-operator")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{cluster: c, kubeconfig: kubetest.Kubeconfig(t, operator)}
	wait.NoError(t, "both replicas are ready", func() error {
		if n := len(p.replicas(t)); n != 2 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	return p
}

// replicas are the names of the replicas that are ready.
func (p *plane) replicas(t *testing.T) (names []string) {
	t.Helper()
	pods, err := p.Client.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "role=discovery"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if is(&pod, corev1.PodReady) && pod.DeletionTimestamp == nil {
			names = append(names, pod.Name)
		}
	}
	return names
}

// pilotctl runs pilotctl for the control plane, as the owner of a kubeconfig file.
func (p *plane) pilotctl(t *testing.T, kubeconfig string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	program, err := filepath.Abs("../../../bin/pilotctl")
	if err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, append(args, "-i", p.namespace)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &log, []string{"KUBECONFIG=" + kubeconfig}
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode(), out.String(), log.String()
}

// workload makes a Pod with a proxy of this control plane.
func (p *plane) workload(t *testing.T, name string) {
	t.Helper()
	address := "istiod." + p.namespace + ".svc:15012"
	p.apply(t, strings.NewReplacer("the-app", name, "the-args", "-tcp=127.0.0.1:8081", "istiod.istio-system.svc:15012", address,
		`{name: PROXY_CONFIG, value: "{}"}`, `{name: PROXY_CONFIG, value: '{"discoveryAddress":"`+address+`"}'}`).Replace(testdata(t, "injected.yaml")))
}

// With a kubeconfig, commands ask all replicas through the API server and join their answers. The operator may list Pods and
// connect to their ports, nothing else.
func TestPilotctlAsksAllReplicas(t *testing.T) {
	p := startPlane(t)
	p.workload(t, "web")
	p.workload(t, "shopper")
	p.running(t, "web")
	p.running(t, "shopper")

	ok := func(args ...string) string {
		t.Helper()
		code, out, log := p.pilotctl(t, p.kubeconfig, args...)
		if code != 0 || log != "" && args[0] != "wait" {
			t.Errorf("pilotctl %s: exit code %d, output\n%s\nerrors\n%s", strings.Join(args, " "), code, out, log)
		}
		return out
	}
	var list []struct{ Proxy, Replica string }
	if err := json.Unmarshal([]byte(ok("proxies", "-o", "json")), &list); err != nil || len(list) != 2 {
		t.Fatalf("%d proxies, %v: want both", len(list), err)
	}
	for _, e := range list {
		if !slices.Contains(p.replicas(t), e.Replica) {
			t.Errorf("%s is connected to %q, want one of %q", e.Proxy, e.Replica, p.replicas(t))
		}
	}
	if out := ok("proxies"); !strings.Contains(out, "REPLICA") || !strings.Contains(out, "web."+p.namespace) || !strings.Contains(out, "shopper."+p.namespace) {
		t.Errorf("proxies:\n%s", out)
	}
	for _, name := range []string{"web", "shopper"} { // whichever replica they are connected to
		if out := ok("config", name, "clusters", "-n", p.namespace); !strings.Contains(out, "web."+p.namespace+".svc.cluster.local") {
			t.Errorf("config of %s:\n%s", name, out)
		}
	}
	p.apply(t, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec: {hosts: [web], http: [{timeout: 3s, route: [{destination: {host: web}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: broken}
spec: {hosts: ["re views"], http: [{route: [{destination: {host: web}}]}]}
`)
	wait.NoError(t, "all replicas have read the VirtualService", func() error {
		if _, out, log := p.pilotctl(t, p.kubeconfig, "wait", "vs", p.namespace+"/web"); !strings.Contains(out, "2 of 2 proxies have it") {
			return fmt.Errorf("pilotctl wait: %s%s", out, log)
		}
		return nil
	})
	wait.NoError(t, "the broken one is listed once", func() error {
		if out := ok("objects"); strings.Count(out, "re views") != 1 || strings.Contains(out, "only at") {
			return fmt.Errorf("objects:\n%s", out)
		}
		return nil
	})
	if out := ok("objects", "--all"); !strings.Contains(out, "VirtualService") || !strings.Contains(out, "2/2") {
		t.Errorf("objects --all:\n%s", out)
	}
	if out := ok("ca", "status"); !strings.Contains(out, "signs") || strings.Contains(out, "differs") {
		t.Errorf("ca status:\n%s", out)
	}
	if out := ok("ca", "rotate"); !strings.Contains(out, "next") {
		t.Errorf("ca rotate:\n%s", out)
	}

	// A replica that runs and does not answer.
	p.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: silent, labels: {app: istiod}}
spec: {containers: [{name: discovery, image: shell, args: [sleep 10000]}]}
`)
	p.running(t, "silent")
	code, out, log := p.pilotctl(t, p.kubeconfig, "proxies")
	if code != 1 || !strings.Contains(out, "web."+p.namespace) || !strings.Contains(out, "shopper."+p.namespace) || strings.Count(log, "\n") != 1 || !strings.HasPrefix(log, "pilotctl: the answer is partial, without that of silent: ") {
		t.Errorf("with one that does not answer: exit code %d, output\n%s\nerrors\n%s", code, out, log)
	}
	if code, out, log = p.pilotctl(t, p.kubeconfig, "wait", "vs", p.namespace+"/web", "--timeout", "2s"); code != 1 || !strings.Contains(log, "silent") {
		t.Errorf("wait with one that does not answer: exit code %d, output\n%s\nerrors\n%s", code, out, log)
	}
	if code, out, log = p.pilotctl(t, p.kubeconfig, "proxies", "--revision", p.namespace); code != 0 {
		t.Errorf("those of the revision: exit code %d, output\n%s\nerrors\n%s", code, out, log)
	}

	// A replica that has gone is not asked, and its proxies are those of others.
	now := int64(0)
	for _, name := range []string{"silent", p.replicas(t)[0]} {
		if err := p.Client.CoreV1().Pods(p.namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	wait.NoError(t, "both proxies are listed without those that have gone", func() error {
		code, out, log := p.pilotctl(t, p.kubeconfig, "proxies")
		if code != 0 || strings.Count(out, p.namespace+"  ") < 2 {
			return fmt.Errorf("exit code %d, output\n%s\nerrors\n%s", code, out, log)
		}
		return nil
	})
}

// row is one of pilotctl check.
type row struct{ Name, Result, Found, Remedy string }

// check runs pilotctl check and returns its rows by their names.
func (p *plane) check(t *testing.T, kubeconfig string, args ...string) (code int, rows map[string]row, text string) {
	t.Helper()
	code, out, log := p.pilotctl(t, kubeconfig, append([]string{"check", "--revision", p.namespace, "-o", "json"}, args...)...)
	var list []row
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("pilotctl check: exit code %d, output\n%s\nerrors\n%s", code, out, log)
	}
	rows = map[string]row{}
	for _, r := range list {
		rows[r.Name] = r
		text += fmt.Sprintf("%s: %s: %s\n", r.Result, r.Name, r.Found)
	}
	return code, rows, text
}

// Webhooks are called, certificates are those of the running control plane, and what is broken is found.
func TestPilotctlCheck(t *testing.T) {
	p := startPlane(t)
	admin := kubetest.Kubeconfig(t, p.Config)
	code, rows, text := p.check(t, admin)
	if r := rows["injection"]; code != 1 || r.Result != "failed" || !strings.Contains(r.Found, "would be created without one") || rows["webhook configurations"].Result != "failed" {
		t.Errorf("without webhooks: exit code %d\n%s", code, text)
	}

	// A Service without endpoints: the API server cannot call webhooks. It has no connection to them yet, which it would
	// go on using.
	selects := func(app string) {
		t.Helper()
		patch := `{"spec":{"selector":{"app":"` + app + `"}}}`
		if _, err := p.Client.CoreV1().Services(p.namespace).Patch(t.Context(), "istiod", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	selects("nobody")
	p.apply(t, testdata(t, "webhooks.yaml"))
	wait.NoError(t, "webhooks that cannot be reached are found", func() error {
		code, rows, text := p.check(t, admin)
		if code != 1 || !strings.Contains(rows["Service"].Found, "has no ready endpoint") || !strings.Contains(rows["injection"].Found, "cannot be called") || rows["validation"].Result != "failed" || rows["replicas"].Result != "ok" {
			return fmt.Errorf("exit code %d\n%s", code, text)
		}
		return nil
	})
	selects("istiod")
	wait.NoError(t, "all checks are successes", func() error {
		code, _, text := p.check(t, admin)
		if code != 0 || strings.Contains(text, "failed: ") || strings.Contains(text, "warning: webhook configurations") {
			return fmt.Errorf("exit code %d\n%s", code, text)
		}
		return nil
	})
	if code, rows, text = p.check(t, admin, "--pre"); code != 0 || rows["permissions to install"].Result != "ok" {
		t.Errorf("before an upgrade: exit code %d\n%s", code, text)
	}

	// An operator who may ask the replicas, and nothing else.
	if code, rows, text = p.check(t, p.kubeconfig); code != 1 || rows["replicas"].Result != "ok" || rows["Deployment"].Result != "unknown" || !strings.Contains(rows["Deployment"].Found, "forbidden") {
		t.Errorf("without permissions: exit code %d\n%s", code, text)
	}
	if code, rows, text = p.check(t, p.kubeconfig, "--pre"); code != 1 || rows["permissions to install"].Result != "failed" || !strings.Contains(rows["permissions to install"].Found, "clusterroles.rbac.authorization.k8s.io") {
		t.Errorf("before the installation, without permissions: exit code %d\n%s", code, text)
	}

	// A webhook that nobody gives the mesh's root.
	other := strings.NewReplacer("the-namespace-injector", "the-namespace-other", ", labels: {istio.io/rev: the-namespace}", "", `sidecar.istio.io/inject: "true"`, "app: nobody",
		"path: /inject, port: 443}", "path: /inject, port: 443}, caBundle: "+base64.StdEncoding.EncodeToString(p.CA())).Replace(testdata(t, "webhooks.yaml"))
	p.apply(t, other[:strings.Index(other, "---")])
	if code, rows, text = p.check(t, admin); code != 1 || !strings.Contains(rows["webhook configurations"].Found, "-other/rev.object.sidecar-injector.istio.io: caBundle does not verify the certificate of istiod-") {
		t.Errorf("with a wrong caBundle: exit code %d\n%s", code, text)
	}
}
