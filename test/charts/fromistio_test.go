package charts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atRuntime are commands of the page that ask a control plane that runs, for which this cluster has no Node: test/kube/node runs them.
var atRuntime = []string{"pilotctl check --revision pilothouse", "pilotctl proxies --revision pilothouse"}

// The commands for a cluster in docs/from-istio.md, run as they are written by a shell, with Kubernetes's kubectl and Helm's
// helm: their flags, short names of kinds and values exist, and do what the page says.
func TestFromIstioPage(t *testing.T) {
	c := startCluster(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	for _, build := range []struct{ module, program, source string }{{".", "kubectl", "./kubectl"}, {".", "helm", "./helmcli"}, {root, "pilotctl", "./cmd/pilotctl"}} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(bin, build.program), build.source)
		cmd.Dir = build.module
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", build.program, err, out)
		}
	}
	archives, err := packed()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pilothouse-1.2.3.tgz"), archives["pilothouse"], 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "KUBECONFIG=" + c.kubeconfig}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(line string) string {
		t.Helper()
		out, err := sh(line)
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return out
	}

	// What a cluster with Istio has: its definitions, and a namespace with a workload.
	var definitions strings.Builder
	for _, crd := range load(t, "pilothouse").CRDObjects() {
		definitions.WriteString("---\n" + string(crd.File.Data) + "\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "crds.yaml"), []byte(definitions.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	must("kubectl apply --server-side --force-conflicts -f crds.yaml && kubectl wait --for=condition=Established crd --all")
	ctx := t.Context()
	for name, labels := range map[string]map[string]string{namespace: nil, "shop": {"istio-injection": "enabled"}} {
		_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	labels := map[string]string{"app": "web"}
	_, err = c.client.AppsV1().Deployments("shop").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example/web"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, line := range []string{"helm uninstall mesh -n istio-system --ignore-not-found", "kubectl delete namespace shop --wait=false"} {
			cmd := exec.Command("sh", "-c", line)
			cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "KUBECONFIG=" + c.kubeconfig}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	})
	must(`kubectl -n shop create -f - <<'E'
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}
E`)

	ran := map[string]string{}
	for _, line := range commandsOf(t, "docs/from-istio.md") {
		out, err := sh(line)
		ran[line] = out
		if slices.Contains(atRuntime, line) {
			if strings.Contains(out, "unknown command") || strings.Contains(out, "unknown flag") {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	for _, line := range atRuntime {
		if _, ok := ran[line]; !ok {
			t.Errorf("the page does not have %q", line)
		}
	}
	export, err := os.ReadFile(filepath.Join(dir, "export.yaml"))
	if err != nil || !strings.Contains(string(export), "kind: VirtualService") {
		t.Errorf("the export lacks the VirtualService, error %v:\n%.500s", err, export)
	}
	ns, err := c.client.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{})
	if err != nil || ns.Labels["istio.io/rev"] != "pilothouse" || ns.Labels["istio-injection"] != "" {
		t.Errorf("the namespace has %v, error %v", ns.Labels, err)
	}
	d, err := c.client.AppsV1().Deployments("shop").Get(ctx, "web", metav1.GetOptions{})
	if err != nil || d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
		t.Errorf("the Deployment was not restarted: %v, error %v", d.Spec.Template.Annotations, err)
	}
	releases := must("helm list -n istio-system --no-headers")
	if strings.Contains(releases, "mesh") {
		t.Errorf("after the last command of the page there is a release:\n%s", releases)
	}
}

// commandsOf are the commands in the blocks of a page and, in its text, those that uninstall.
func commandsOf(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$|`(helm uninstall [^`]+)`").FindAllStringSubmatch(string(text), -1) {
		if m[2] != "" {
			out = append(out, m[2])
			continue
		}
		for line := range strings.Lines(m[1]) {
			out = append(out, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(out) < 8 {
		t.Fatal("only these commands were found: ", out)
	}
	return out
}
