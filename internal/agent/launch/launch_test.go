package launch

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

// TestOpenRemovesOldBootstraps checks that files with similar names stay.
func TestOpenRemovesOldBootstraps(t *testing.T) {
	t.Chdir(t.TempDir())
	const used = "envoy-rev-0123456789abcdef-7.json"
	dir := "etc/istio/proxy"
	s := &spec.Spec{Paths: spec.Paths{ConfigDir: dir}, Envoy: spec.Envoy{CustomBootstrap: filepath.Join(dir, used)}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stay := []string{
		used, "envoy-rev.json", "envoy-rev-custom.json", "envoy-rev-0123456789abcdef-1.yaml", "envoy-rev-0123456789abcdef-1.json.bak",
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
	if _, err := Open(s, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, slices.Sorted(slices.Values(stay))) {
		t.Errorf("remaining files %q, want %q", got, stay)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
