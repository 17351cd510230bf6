package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What is cleared up is what an agent writes, and nothing that only looks like it.
func TestClearUp(t *testing.T) {
	t.Chdir(t.TempDir())
	const used = "envoy-rev-0123456789abcdef-7.json"
	o := options(t, map[string]string{"PROXY_CONFIG": "{binaryPath: /bin/sh, customConfigFile: etc/istio/proxy/" + used + "}"})
	a := &Agent{o: o, log: o.Log}
	dir := o.Node.Config.GetConfigPath()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stay := []string{
		used, "envoy-rev.json", "envoy-rev-mine.json", "envoy-rev-0123456789abcdef-1.yaml", "envoy-rev-0123456789abcdef-1.json.bak",
		"envoy-rev-0123456789ABCDEF-1.json", "envoy-rev-0123456789abcde-1.json", "envoy-rev-0123456789abcdef-.json", "envoy-rev-0123456789abcdef.json",
		"my-envoy-rev-0123456789abcdef-1.json", "XDS",
	}
	for _, name := range append(slices.Clone(stay), "envoy-rev-0123456789abcdef-1.json", "envoy-rev-fedcba9876543210-12.json") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	folder, link := "envoy-rev-0123456789abcdef-2.json", "envoy-rev-0123456789abcdef-3.json"
	if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(used, filepath.Join(dir, link)); err != nil {
		t.Fatal(err)
	}
	stay = append(stay, folder, link)
	if err := a.clearUp(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	slices.Sort(stay)
	if !slices.Equal(left, stay) {
		t.Errorf("left are %q, want %q", left, stay)
	}
}
