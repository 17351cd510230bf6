package charts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// command is a command of Helm that a document has.
type command struct {
	release, chart, namespace string
	values                    map[string]any
}

// parseCommand parses a command of Helm. Ok is false for one that renders no chart.
func parseCommand(line string) (c command, ok bool, err error) {
	c = command{namespace: "default", values: map[string]any{}}
	var plain []string
	words := strings.Fields(line)[1:]
	for i := 0; i < len(words); i++ {
		next := func() string {
			if i++; i < len(words) {
				return words[i]
			}
			return ""
		}
		switch w := words[i]; {
		case w == "-n" || w == "--namespace":
			c.namespace = next()
		case w == "--set":
			if err := strvals.ParseInto(strings.ReplaceAll(next(), "=ADDRESS", "=192.0.2.1"), c.values); err != nil {
				return c, false, err
			}
		case w == "--kube-context":
			next()
		case w == "--create-namespace" || w == "--reset-then-reuse-values":
		case strings.HasPrefix(w, "-"):
			return c, false, fmt.Errorf("flag %s is not known to this test", w)
		default:
			plain = append(plain, w)
		}
	}
	if !slices.Contains([]string{"install", "upgrade"}, plain[0]) {
		return c, false, nil
	}
	if len(plain) != 3 {
		return c, false, fmt.Errorf("%q: want a release and a chart", plain)
	}
	c.release = plain[1]
	c.chart = regexp.MustCompile(`-\d.*$`).ReplaceAllString(filepath.Base(plain[2]), "")
	return c, slices.Contains(names, c.chart), nil
}

// helmCommands are the commands of Helm in the blocks of a document.
func helmCommands(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, block := range regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
			if line, _, _ = strings.Cut(line, " #"); strings.HasPrefix(line, "helm ") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

// Each command of Helm in the documents names a chart that there is, with values that it has, and is rendered.
func TestHelmCommandsOfTheDocuments(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	rendered := map[string]int{}
	for _, path := range paths {
		for _, line := range helmCommands(t, path) {
			c, ok, err := parseCommand(line)
			if err == nil && ok {
				_, _, err = render(load(t, c.chart), c.release, c.namespace, c.values)
				rendered[filepath.Base(path)]++
			}
			if err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(path), line, err)
			}
		}
	}
	for _, page := range []string{"from-istio.md", "install-kubernetes.md", "multicluster.md"} {
		if rendered[page] == 0 {
			t.Errorf("no command of %s was found", page)
		}
	}
}

// The labels that docs/from-istio.md gives a namespace are those of which the chart that it installs before injects the Pods.
func TestNamespacesMoveFromIstioAsDocumented(t *testing.T) {
	path := filepath.Join(root, "docs", "from-istio.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`(?m)^kubectl label namespace shop istio-injection- (\S+)=(\S+) --overwrite$`).FindSubmatch(text)
	commands := helmCommands(t, path)
	if given == nil || len(commands) != 1 {
		t.Fatalf("the page has the commands %q, and labels a namespace: %v", commands, given != nil)
	}
	c, _, err := parseCommand(commands[0])
	if err != nil {
		t.Fatal(err)
	}
	manifests, _, err := render(load(t, c.chart), c.release, c.namespace, c.values)
	if err != nil {
		t.Fatal(err)
	}
	injected := func(namespace map[string]string) bool {
		for _, o := range decode(t, manifests) {
			if o.GetKind() != "MutatingWebhookConfiguration" {
				continue
			}
			for _, w := range find[admissionv1.MutatingWebhookConfiguration](t, decode(t, manifests), o.GetKind(), o.GetName()).Webhooks {
				ofNamespace, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector)
				if err != nil {
					t.Fatal(err)
				}
				ofPod, err := metav1.LabelSelectorAsSelector(w.ObjectSelector)
				if err != nil {
					t.Fatal(err)
				}
				if ofNamespace.Matches(labels.Set(namespace)) && ofPod.Matches(labels.Set{"app": "web"}) {
					return true
				}
			}
		}
		return false
	}
	if !injected(map[string]string{string(given[1]): string(given[2])}) {
		t.Errorf("Pods of a namespace with the label %s=%s get no proxy", given[1], given[2])
	}
	for _, other := range []map[string]string{{"istio-injection": "enabled"}, {"istio.io/rev": "default"}, {}} {
		if injected(other) {
			t.Errorf("Pods of a namespace with the labels %v, which is still Istio's, get a proxy", other)
		}
	}
}
