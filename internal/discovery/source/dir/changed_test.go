package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// One object of a file with 4,000 is changed: reading the file again and applying it must cost a small part
// of what the first reading has cost. Allocations are counted, which do not depend on the machine.
func TestChangedDocumentCostsLittle(t *testing.T) {
	const n = 4000
	path := filepath.Join(t.TempDir(), "f.yaml")
	text := func(port int) string {
		var b strings.Builder
		for i := range n {
			own := 80
			if i == n/2 {
				own = port
			}
			fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s-%d, namespace: n}\nspec: {ports: [{port: %d}]}\n", i, own)
		}
		return b.String()
	}
	s, err := New(Options{Dir: filepath.Dir(path)})
	if err != nil {
		t.Fatal(err)
	}
	turn := 0
	read := func() (allocations uint64) {
		turn++
		if err := os.WriteFile(path, []byte(text(1000+turn)), 0o600); err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(time.Duration(turn-100) * time.Minute) // no writer is at work
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, ok := s.read(path, time.Now())
		if !ok {
			t.Fatal("the file is not read")
		}
		batch, _, _ := s.merger.apply([]reading{r}, nil)
		runtime.ReadMemStats(&after)
		if want := max(1, n*(2-turn)); len(batch.Changes) != want {
			t.Fatalf("reading %d has %d changes, want %d", turn, len(batch.Changes), want)
		}
		return after.Mallocs - before.Mallocs
	}
	if first, again := read(), read(); again*20 > first {
		t.Errorf("the change of one of %d objects makes %d allocations, the first reading %d", n, again, first)
	}
}
