package xtables

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan/plantest"
)

var update = flag.Bool("update", false, "update the golden files")

// TestGoldenRestores compares what iptables-restore gets for every golden plan.
func TestGoldenRestores(t *testing.T) {
	for _, g := range plantest.Goldens(t, "../plan/testdata") {
		t.Run(g.Name, func(t *testing.T) {
			r, err := plan.Build(g.Options, g.Facts)
			if err != nil {
				return // an invalid plan; see TestGoldenPlans
			}
			got, path := RestoreBoth(r), filepath.Join("testdata", g.Name+".rules")
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
