package capture

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// TestGoldenRestores compares what iptables-restore gets for every golden plan.
func TestGoldenRestores(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d golden files: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			r, err := goldenPlanOf(file)
			if err != nil {
				return // there is nothing to restore, as TestGoldenPlans shows
			}
			got, path := r.RestoreAll(), filepath.Join("testdata", "iptables", name+".rules")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
				t.Errorf("%v; the rules differ (-want +got); -update takes them:\n%s", err, diff)
			}
		})
	}
}

// goldenPlanOf plans the options and facts of a golden file.
func goldenPlanOf(file string) (Ruleset, error) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		return Ruleset{}, err
	}
	t := &testing.T{} // for helpers that complain of a broken file
	o, f := DefaultOptions(), Facts{}
	for line := range strings.Lines(section(archive, "options")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		set(t, &o, name, value)
	}
	for line := range strings.Lines(section(archive, "addresses")) {
		f.Addrs = append(f.Addrs, netip.MustParseAddr(strings.TrimSpace(line)))
	}
	for line := range strings.Lines(section(archive, "facts")) {
		setFact(t, &f, strings.TrimSpace(line))
	}
	return Plan(o, f)
}
