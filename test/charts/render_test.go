package charts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
)

func TestLint(t *testing.T) {
	for _, name := range names {
		// An icon is only for catalogs.
		const icon = "icon is recommended"
		for _, m := range lint.RunAll(filepath.Join(root, "deploy/charts", name), nil, "istio-system").Messages {
			if m.Severity != support.InfoSev || !strings.Contains(m.Err.Error(), icon) {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestRendered compares what the charts give for the values in testdata/CHART/NAME.yaml with NAME.golden.
func TestRendered(t *testing.T) {
	for _, name := range names {
		files, err := filepath.Glob(filepath.Join("testdata", name, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("values of %s: %v, %v", name, files, err)
		}
		for _, file := range files {
			t.Run(name+"/"+strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
				values, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				release, namespace := "mesh", "istio-system"
				if strings.Contains(string(values), "\n# in another namespace\n") {
					namespace = "mesh-system"
				}
				manifests, notes, err := render(load(t, name), release, namespace, parse(t, string(values)))
				if err != nil {
					t.Fatal(err)
				}
				decode(t, manifests)
				golden(t, strings.TrimSuffix(file, ".yaml")+".golden", manifests+"--- notes\n"+notes)
			})
		}
	}
}

// golden compares text with a file, which -update rewrites.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text == string(want) {
		return
	}
	have, wanted := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for i, line := range have {
		if i >= len(wanted) || line != wanted[i] {
			t.Fatalf("%s, line %d: have %q, want %q (make golden-charts rewrites it)", file, i+1, line, append(wanted, "")[min(i, len(wanted))])
		}
	}
	t.Fatalf("%s has %d lines, want %d", file, len(wanted), len(have))
}
