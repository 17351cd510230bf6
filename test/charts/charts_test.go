// Package charts_test tests the Helm charts with Helm's own library: it renders them with many values, and installs them in a real API server.
//
// It is a module of its own, so that the programs do not depend on Helm's libraries. The charts are tested as a
// release has them: packed, with Istio's CustomResourceDefinitions.
package charts_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files and the tables of values in the documents")

// root is the root of the repository.
const root = "../.."

// names are the names of the charts.
var names = []string{"pilothouse", "gateway", "remote"}

// packed are the archives of the charts, which the release's own program makes.
var packed = sync.OnceValues(func() (map[string][]byte, error) {
	dist := filepath.Join(scratch, "dist")
	c := exec.Command("go", "run", "./hack/release", "-charts", "-version", "v1.2.3", "-epoch", "1700000000", "-o", dist)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pack the charts: %w\n%s", err, out)
	}
	archives := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dist, name+"-1.2.3.tgz"))
		if err != nil {
			return nil, err
		}
		archives[name] = text
	}
	return archives, nil
})

// load returns a chart as a release has it.
func load(t *testing.T, name string) *chart.Chart {
	t.Helper()
	archives, err := packed()
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.LoadArchive(bytes.NewReader(archives[name]))
	if err != nil {
		t.Fatalf("load the chart %s: %v", name, err)
	}
	return c
}

// parse returns the values in YAML.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// render returns the manifests of a chart in one text, in the order of the names of their files, and its notes.
func render(c *chart.Chart, release, namespace string, values map[string]any) (manifests, notes string, err error) {
	top, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}, common.DefaultCapabilities.Copy())
	if err != nil {
		return "", "", err
	}
	files, err := engine.Render(c, top)
	if err != nil {
		return "", "", err
	}
	var all strings.Builder
	for _, file := range slices.Sorted(maps.Keys(files)) {
		text := strings.TrimSpace(files[file])
		switch {
		case filepath.Base(file) == "NOTES.txt":
			notes = files[file]
		case text != "":
			fmt.Fprintf(&all, "---\n# %s\n%s\n", filepath.Base(file), text)
		}
	}
	return all.String(), notes, nil
}

// mustRender renders a chart in istio-system, as the release "mesh", with values in YAML.
func mustRender(t *testing.T, name, values string) []*unstructured.Unstructured {
	t.Helper()
	text, _, err := render(load(t, name), "mesh", "istio-system", parse(t, values))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

// monitoring is the group of the kind ServiceMonitor, whose types client-go does not have.
const monitoring = "monitoring.coreos.com"

// decode returns the objects of manifests. It fails the test if one has a field that its kind does not have, twice
// the same key, or a kind that client-go does not know.
func decode(t *testing.T, manifests string) []*unstructured.Unstructured {
	t.Helper()
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	var objects []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.Object == nil {
			continue
		}
		if object.GroupVersionKind().Group != monitoring {
			if _, _, err := strict.Decode(document, nil, nil); err != nil {
				t.Errorf("%v in\n%s", err, document)
			}
		}
		objects = append(objects, object)
	}
}

// find returns the object of a kind and name as a typed object.
func find[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == kind && o.GetName() == name {
			typed := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
				t.Fatal(err)
			}
			return typed
		}
	}
	t.Fatalf("no %s %s among %s", kind, name, keys(objects))
	return nil
}

// keys lists objects by kind and name.
func keys(objects []*unstructured.Unstructured) []string {
	var all []string
	for _, o := range objects {
		all = append(all, o.GetKind()+" "+o.GetName())
	}
	slices.Sort(all)
	return all
}
