package dir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// rewrite truncates a file and writes the parts, with a pause before each. It returns false if a
// pause took so long that the file may have been used meanwhile.
func rewrite(t *testing.T, path string, pause time.Duration, parts ...string) (steady bool) {
	t.Helper()
	last := time.Now()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	steady = true
	for _, p := range parts {
		<-time.After(pause)
		before := time.Now()
		_, err := f.WriteString(p)
		must(t, err)
		steady = steady && time.Since(last) < filewatch.DefaultQuietPeriod*3/4
		last = before
	}
	must(t, f.Close())
	return steady
}

// A writer that truncates, waits and writes must not cause removals. The pauses are those of real
// writers; all are much shorter than the default of 1.5 s.
func TestTruncateThenWrite(t *testing.T) {
	three := service("a", 1) + service("b", 1) + service("c", 1)
	for _, tt := range []struct {
		name    string
		pause   time.Duration
		parts   []string
		want    string
		history []string // sorted
	}{
		{"80 ms", 80 * time.Millisecond, []string{service("a", 2) + service("b", 1)}, "a=2 b=1", []string{"-c", "a=2"}},
		{"400 ms, the same", 400 * time.Millisecond, []string{three}, "", nil},
		{"400 ms, changed", 400 * time.Millisecond, []string{service("a", 2) + service("b", 2) + service("c", 1)}, "a=2 b=2 c=1", []string{"a=2", "b=2"}},
		{"document by document", 100 * time.Millisecond, []string{service("a", 2), service("b", 2), service("c", 2)}, "a=2 b=2 c=2", []string{"a=2", "b=2", "c=2"}},
		{"line by line", 60 * time.Millisecond, slices.Collect(strings.Lines(service("a", 2) + service("b", 1) + service("c", 2))), "a=2 b=1 c=2", []string{"a=2", "c=2"}},
		{"longer than before", 100 * time.Millisecond, []string{"# now with more in it\n", service("a", 2) + service("d", 1) + service("e", 1), service("f", 1), service("b", 1), service("c", 1)},
			"a=2 b=1 c=1 d=1 e=1 f=1", []string{"a=2", "b=1", "c=1", "d=1", "e=1", "f=1"}},
		{"for good", 0, nil, "", []string{"-a", "-b", "-c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			path := filepath.Join(top, "a.yaml")
			write(t, path, three)
			m := run(t, dir.Options{Dir: top})
			m.history = nil
			if !rewrite(t, path, tt.pause, tt.parts...) {
				t.Log("a pause was too long for this test")
				return
			}
			if tt.want != "" || tt.history != nil {
				m.want(tt.want)
			}
			// Everything that the rewriting causes is emitted before this.
			write(t, filepath.Join(top, "z.yaml"), service("z", 1))
			for m.ports["z"] == 0 {
				m.next()
			}
			// How many batches it takes depends on which of the parts the source has seen by itself.
			slices.Sort(m.history)
			if want := append(tt.history, "z=1"); !slices.Equal(m.history, want) {
				t.Errorf("changes %v, want %v", m.history, want)
			}
		})
	}
}

// A Service that is truncated within its ports is still a valid Service.
func TestTruncatedWithinADocument(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "a.yaml")
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: n}\nspec:\n  ports:\n"
	ports := func(first int) string {
		return fmt.Sprintf("  - {name: one, port: %d}\n  - {name: two, port: 2}\n  - {name: three, port: 3}\n", first)
	}
	write(t, path, head+ports(1))
	m := run(t, dir.Options{Dir: top})
	m.history = nil
	steady := rewrite(t, path, 60*time.Millisecond, slices.Collect(strings.Lines(head+ports(7)))...)
	m.want("a=7")
	if steady && fmt.Sprint(m.history) != "[a=7]" {
		t.Errorf("history %v", m.history)
	}
}

// Two files are rewritten concurrently; each is used when it is complete.
func TestTwoFilesRewritten(t *testing.T) {
	top := t.TempDir()
	one, two := filepath.Join(top, "1.yaml"), filepath.Join(top, "2.yaml")
	write(t, one, service("a", 1)+service("b", 1))
	write(t, two, service("c", 1)+service("d", 1))
	m := run(t, dir.Options{Dir: top})
	m.history = nil
	other := make(chan bool, 1)
	go func() { other <- rewrite(t, two, 100*time.Millisecond, service("c", 2), service("d", 2)) }()
	steady := rewrite(t, one, 70*time.Millisecond, service("a", 2), service("b", 2))
	steady = <-other && steady
	m.want("a=2 b=2 c=2 d=2")
	for _, h := range m.history {
		if steady && strings.HasPrefix(h, "-") {
			t.Errorf("history %v", m.history)
		}
	}
}

// None of these changes waits for QuietPeriod. The order shows it: the file that must wait is used after
// all of them.
func TestOtherEditsDoNotWait(t *testing.T) {
	top := t.TempDir()
	path, slow := filepath.Join(top, "a.yaml"), filepath.Join(top, "slow.yaml")
	write(t, path, service("a", 1)+service("b", 1))
	write(t, slow, service("x", 1)+service("y", 1))
	m := run(t, dir.Options{Dir: top, QuietPeriod: time.Hour})
	inPlace := func(text string) { must(t, os.WriteFile(path, []byte(text), 0o644)) }
	must(t, os.WriteFile(slow, []byte(service("x", 1)), 0o644))
	inPlace(service("a", 2) + service("b", 1)) // of the same length
	m.want("a=2 b=1 x=1 y=1")
	inPlace(service("a", 2) + service("b", 1000)) // longer
	m.want("a=2 b=1000 x=1 y=1")
	inPlace(service("a", 2) + service("b", 3)) // shorter, with as many lines
	m.want("a=2 b=3 x=1 y=1")
	inPlace(service("a", 2) + service("b", 3) + service("c", 1)) // appended to
	m.want("a=2 b=3 c=1 x=1 y=1")
	write(t, path, service("a", 3)) // replaced by another file
	m.want("a=3 x=1 y=1")
	must(t, os.Remove(path))
	m.want("x=1 y=1")
	inPlace(service("a", 4))
	m.want("a=4 x=1 y=1")
}

// The first batch waits for a file that is being rewritten at the start.
func TestRewrittenAtStart(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "a.yaml")
	write(t, path, service("a", 1)+service("b", 1))
	<-time.After(100 * time.Millisecond) // so that the file counts as modified after its creation
	truncated := time.Now()
	must(t, os.Truncate(path, 0))
	wrote := make(chan bool, 1)
	go func() {
		const pause = 300 * time.Millisecond
		soon := time.Since(truncated) < filewatch.DefaultQuietPeriod*3/4-pause
		wrote <- rewrite(t, path, pause, service("a", 2), service("b", 2)) && soon
	}()
	m := run(t, dir.Options{Dir: top})
	steady := <-wrote
	m.want("a=2 b=2")
	if steady && fmt.Sprint(m.history) != "[a=2 b=2]" {
		t.Errorf("history %v", m.history)
	}
}

// A file that is rewritten again and again with the same content is used.
func TestAlwaysRewritten(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "a.yaml")
	write(t, path, service("a", 1)+service("b", 1))
	m := run(t, dir.Options{Dir: top, QuietPeriod: 300 * time.Millisecond})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				_ = os.WriteFile(path, []byte(service("a", 1)), 0o644)
			}
		}
	}()
	m.want("a=1")
	close(stop)
	<-stopped
}
