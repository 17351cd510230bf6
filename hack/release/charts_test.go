package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChartVersionsAreSemantic(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabc-dirty": "1.2.3-4-gabc-dirty",
		"0123456": "0.0.0-dev.g0123456", "abc-dirty": "0.0.0-dev.gabc-dirty", "unknown": "0.0.0-dev.gunknown", "v1.2": "0.0.0-dev.gv1.2",
	} {
		if got := chartVersion(version); got != want {
			t.Errorf("chartVersion(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestChartsArePacked(t *testing.T) {
	t.Chdir("../..")
	r := &release{version: "v1.2.3", time: when, log: io.Discard, onlyCharts: true, out: filepath.Join(t.TempDir(), "dist")}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, filepath.Join(r.out, "pilothouse-1.2.3.tgz"))
	if text := files["pilothouse/Chart.yaml"]; !strings.Contains(text, "\nversion: 1.2.3\nappVersion: \"v1.2.3\"\n") {
		t.Errorf("Chart.yaml has not the versions of the release:\n%s", text)
	}
	for _, name := range []string{"virtualservices.networking.istio.io", "peerauthentications.security.istio.io", "telemetries.telemetry.istio.io"} {
		if text := files["pilothouse/crds/"+name+".yaml"]; strings.Count(text, "\nkind: CustomResourceDefinition\n") != 1 {
			t.Errorf("crds/%s.yaml has not one CustomResourceDefinition", name)
		}
	}
	if files := unpack(t, filepath.Join(r.out, "gateway-1.2.3.tgz")); files["gateway/values.schema.json"] == "" {
		t.Error("the chart gateway has no values.schema.json")
	}
	sums, err := os.ReadFile(filepath.Join(r.out, sumsFile))
	if err != nil || strings.Count(string(sums), "\n") != len(charts) {
		t.Errorf("%s: %v, %s", sumsFile, err, sums)
	}
}

// unpack returns the files of an archive by name.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}

func TestChartsOfAnotherFormAreErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Chart.yaml")
	if err := os.WriteFile(file, []byte("version: 1.0.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := setVersions(file, "1.2.3", "v1.2.3"); err == nil || !strings.Contains(err.Error(), "no lines") {
		t.Errorf("error %v", err)
	}
	for _, document := range []string{"kind: Service\n", "kind: CustomResourceDefinition\nmetadata: {name: ../x}\n", "kind: [\n"} {
		if name, err := crdName(document); err == nil {
			t.Errorf("crdName(%q) = %q", document, name)
		}
	}
}
