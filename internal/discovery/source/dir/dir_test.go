package dir_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	"github.com/pilothouse/pilothouse/internal/discovery/source/sourcetest"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) {
	code := m.Run()
	// goleak itself waits for less than a second, in which a busy machine may not end a goroutine.
	for end := time.Now().Add(wait.Bound); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write replaces a file atomically, as editors do, so that a delay between two writes does not
// change what a test observes.
func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	next := filepath.Join(filepath.Dir(path), ".next")
	must(t, os.WriteFile(next, []byte(text), 0o644))
	must(t, os.Rename(next, path))
}

// service returns a Service, with the port as its value.
func service(name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: n}\nspec: {ports: [{port: %d}]}\n---\n", name, port)
}

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Harness {
		top := t.TempDir()
		file := func(k object.Key) string {
			return filepath.Join(top, strings.ToLower(string(k.Kind)), k.Namespace+"_"+k.Name+".yaml")
		}
		return sourcetest.Harness{
			Source: func(t *testing.T) sourcetest.Source {
				s, err := dir.New(dir.Options{Dir: top})
				must(t, err)
				return s
			},
			Put:    func(t *testing.T, k object.Key, yaml string) { write(t, file(k), yaml) },
			Delete: func(t *testing.T, k object.Key) { must(t, os.Remove(file(k))) },
		}
	})
}

// mesh is a running source and what it has emitted.
type mesh struct {
	source   *dir.Source
	t        *testing.T
	batches  chan object.Batch
	ports    map[string]uint32 // by name of Service
	problems []object.Problem
	history  []string
}

// run starts a source, with polling disabled by default, and receives its first batch.
func run(t *testing.T, o dir.Options) *mesh {
	t.Helper()
	if o.Poll == 0 {
		o.Poll = time.Hour
	}
	s, err := dir.New(o)
	must(t, err)
	m := &mesh{t: t, source: s, batches: make(chan object.Batch, 100), ports: map[string]uint32{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func(b object.Batch) { m.batches <- b }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	if b := m.next(); !b.Synced {
		t.Fatalf("first batch %+v", b)
	}
	return m
}

func (m *mesh) next() object.Batch {
	m.t.Helper()
	select {
	case b := <-m.batches:
		for _, c := range b.Changes {
			if c.Object == nil {
				delete(m.ports, c.Key.Name)
				m.history = append(m.history, "-"+c.Key.Name)
				continue
			}
			m.ports[c.Key.Name] = c.Object.Spec.(*object.ServiceSpec).Ports[0].Port
			m.history = append(m.history, fmt.Sprintf("%s=%d", c.Key.Name, m.ports[c.Key.Name]))
		}
		if b.Problems != nil {
			m.problems = b.Problems
		}
		return b
	case <-time.After(wait.Bound):
		m.t.Fatalf("nothing is emitted; so far %v, problems %v", m.history, m.problems)
	}
	panic("unreachable")
}

// want waits until the Services are those of want ("a=1 b=2").
func (m *mesh) want(want string) {
	m.t.Helper()
	for {
		text := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(m.ports), "map["), "]")
		if text == strings.ReplaceAll(want, "=", ":") {
			return
		}
		m.next()
	}
}

func TestTree(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "a.yaml"), service("a", 1))
	write(t, filepath.Join(top, "deep/er/b.yml"), service("b", 1))
	write(t, filepath.Join(top, "c.json"), `{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"},"spec":{"ports":[{"port":1}]}}`)
	write(t, filepath.Join(top, ".hidden.yaml"), service("x", 1))
	write(t, filepath.Join(top, ".git/y.yaml"), service("y", 1))
	write(t, filepath.Join(top, "notes.txt"), service("z", 1))
	must(t, os.Symlink("a.yaml", filepath.Join(top, "z-link.yaml")))
	must(t, os.Symlink("..", filepath.Join(top, "deep/loop")))
	m := run(t, dir.Options{Dir: top})
	m.want("a=1 b=1 c=1")
	if len(m.problems) > 0 {
		t.Errorf("problems %v", m.problems)
	}
	write(t, filepath.Join(top, "new/dir/d.yaml"), service("d", 4))
	m.want("a=1 b=1 c=1 d=4")
	must(t, os.RemoveAll(filepath.Join(top, "new")))
	m.want("a=1 b=1 c=1")
	write(t, filepath.Join(top, "deep/.new"), service("b", 2))
	must(t, os.Rename(filepath.Join(top, "deep/.new"), filepath.Join(top, "deep/er/b.yml")))
	m.want("a=1 b=2 c=1")
	must(t, os.Rename(filepath.Join(top, "deep"), filepath.Join(top, "moved")))
	write(t, filepath.Join(top, "a.yaml"), service("a", 5))
	m.want("a=5 b=2 c=1")
	for _, h := range m.history {
		if h == "-b" {
			t.Errorf("objects of a moved file were removed: %v", m.history)
		}
	}
}

// A control plane that is started in the directory of its configuration keeps its state there.
func TestExcludedFolder(t *testing.T) {
	top := t.TempDir()
	state := filepath.Join(top, "var/lib/state")
	write(t, filepath.Join(top, "a.yaml"), service("a", 1))
	write(t, filepath.Join(state, "registered/x.yaml"), service("x", 1))
	write(t, filepath.Join(state, "rotation.json"), "{}")
	write(t, filepath.Join(top, "var/lib/b.yaml"), service("b", 1))
	m := run(t, dir.Options{Dir: top, Exclude: state})
	m.want("a=1 b=1")
	if len(m.problems) > 0 {
		t.Errorf("problems %v", m.problems)
	}
	write(t, filepath.Join(state, "y.yaml"), service("y", 1))
	write(t, filepath.Join(top, "a.yaml"), service("a", 2))
	m.want("a=2 b=1")
	m = run(t, dir.Options{Dir: top, Exclude: filepath.Join(top, "none")}) // it is made later
	m.want("a=2 b=1 x=1 y=1")
	m = run(t, dir.Options{Dir: state, Exclude: state}) // what is read is read
	m.want("x=1 y=1")
}

// All files of a mounted ConfigMap change at once, and must be in one batch.
func TestMountedConfigMap(t *testing.T) {
	top := t.TempDir()
	for v := 1; v <= 2; v++ {
		write(t, filepath.Join(top, fmt.Sprintf("..v%d/a.yaml", v)), service("a", v))
		write(t, filepath.Join(top, fmt.Sprintf("..v%d/b.yaml", v)), service("b", v))
	}
	must(t, os.Symlink("..v1", filepath.Join(top, "..data")))
	must(t, os.Symlink("..data/a.yaml", filepath.Join(top, "a.yaml")))
	must(t, os.Symlink("..data/b.yaml", filepath.Join(top, "b.yaml")))
	m := run(t, dir.Options{Dir: top})
	m.want("a=1 b=1")
	must(t, os.Symlink("..v2", filepath.Join(top, "..tmp")))
	must(t, os.Rename(filepath.Join(top, "..tmp"), filepath.Join(top, "..data")))
	must(t, os.RemoveAll(filepath.Join(top, "..v1")))
	if b := m.next(); len(b.Changes) != 2 {
		t.Errorf("the swap came as %+v", b)
	}
	m.want("a=2 b=2")
}

// A file that is written step by step is read when it is complete.
func TestWrittenInPlace(t *testing.T) {
	const debounce = time.Second
	top := t.TempDir()
	m := run(t, dir.Options{Dir: top, Debounce: debounce})
	for try := 1; ; try++ {
		steady, last := true, time.Now()
		f, err := os.Create(filepath.Join(top, fmt.Sprintf("%d.yaml", try)))
		must(t, err)
		for i := range 5 {
			<-time.After(10 * time.Millisecond)
			before := time.Now()
			_, err := f.WriteString(service(fmt.Sprintf("%c%d", 'a'+i, try), 1))
			must(t, err)
			steady = steady && time.Since(last) < debounce*3/4
			last = before
		}
		must(t, f.Close())
		b := m.next()
		if !steady { // the file may have been read meanwhile
			t.Log("the machine is so busy that a pause was too long: again")
			for m.ports[fmt.Sprintf("e%d", try)] == 0 {
				m.next()
			}
			continue
		}
		if len(b.Changes) != 5 {
			t.Errorf("came as %+v", b)
		}
		return
	}
}

func TestBrokenFileAndRepair(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "a.yaml")
	write(t, path, service("a", 1)+service("b", 1))
	m := run(t, dir.Options{Dir: top})
	write(t, path, "kind: [\n---\n"+service("a", 2))
	m.want("a=2 b=1")
	if len(m.problems) != 1 || m.problems[0].Origin != (object.Origin{File: path, Line: 1}) {
		t.Errorf("problems %v", m.problems)
	}
	write(t, path, service("a", 2))
	m.want("a=2")
	if len(m.problems) != 0 {
		t.Errorf("problems %v", m.problems)
	}
}

// A misspelt kind removes no object, and the problem suggests the kind.
func TestMisspeltKindKeepsTheLastGoodValue(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "a.yaml")
	write(t, path, service("a", 1)+service("b", 1))
	m := run(t, dir.Options{Dir: top})
	for i, misspelt := range []string{"kind: Services", "kind: service", "kind: Servise"} {
		write(t, path, strings.Replace(service("a", 7), "kind: Service", misspelt, 1)+service("b", 2+i))
		m.want(fmt.Sprintf("a=1 b=%d", 2+i))
		if len(m.problems) != 1 || m.problems[0].Severity != object.Warning || !strings.Contains(m.problems[0].Error(), "did you mean Service?") {
			t.Errorf("%s: problems %v", misspelt, m.problems)
		}
	}
	write(t, path, service("a", 7)+service("b", 9))
	m.want("a=7 b=9")
	write(t, path, "apiVersion: security.istio.io/v1\nkind: RequestAuthentications\nmetadata: {name: a, namespace: n}\n---\n"+service("b", 9))
	m.want("b=9") // another kind of the same name is another object
	if len(m.problems) != 1 || m.problems[0].Severity != object.Error || !strings.Contains(m.problems[0].Text, "NOT enforced") {
		t.Errorf("problems %v", m.problems)
	}
	must(t, os.Remove(path))
	m.want("")
	if len(m.problems) != 0 {
		t.Errorf("problems %v", m.problems)
	}
}

// Objects stay in force if the directory is removed.
func TestMissingDirectory(t *testing.T) {
	above := t.TempDir()
	top := filepath.Join(above, "top")
	write(t, filepath.Join(top, "a.yaml"), service("a", 1))
	write(t, filepath.Join(top, "sub/b.yaml"), service("b", 1))
	m := run(t, dir.Options{Dir: top, Poll: 20 * time.Millisecond})
	must(t, os.Rename(top, filepath.Join(above, "away")))
	for len(m.problems) == 0 {
		m.next()
	}
	m.want("a=1 b=1")
	must(t, os.Rename(filepath.Join(above, "away"), top))
	must(t, os.Remove(filepath.Join(top, "sub/b.yaml")))
	m.want("a=1")
	if len(m.problems) != 0 {
		t.Errorf("problems %v", m.problems)
	}
	if _, err := dir.New(dir.Options{Dir: filepath.Join(above, "none")}); err == nil || !strings.Contains(err.Error(), "read configuration directory "+above+"/none: no such file or directory") {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

// What cannot be read, the tree, a part of it, or a file, misses changes since everything was last read.
func TestWhatCannotBeReadIsBehind(t *testing.T) {
	above := t.TempDir()
	top, away := filepath.Join(above, "top"), filepath.Join(above, "away")
	sub, file := filepath.Join(top, "sub"), filepath.Join(top, "b.yaml")
	write(t, filepath.Join(top, "a.yaml"), service("a", 1))
	write(t, filepath.Join(sub, "c.yaml"), service("c", 1))
	write(t, file, service("b", 1))
	loop := func(path string) { // so that even root cannot read it
		must(t, os.Rename(path, away))
		must(t, os.Symlink(filepath.Base(path), path))
	}
	back := func(path string) {
		must(t, os.Remove(path))
		must(t, os.Rename(away, path))
	}
	started := time.Now()
	m := run(t, dir.Options{Dir: top, Poll: 20 * time.Millisecond})
	is := func(behind bool) (since time.Time) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("behind is %v", behind), func() (now bool) {
			since, now = m.source.Behind()
			return now == behind
		})
		return since
	}
	is(false)
	for what, fault := range map[string]struct{ begin, end func() }{
		"no tree":          {func() { must(t, os.Rename(top, away)) }, func() { must(t, os.Rename(away, top)) }},
		"a part of a tree": {func() { loop(sub) }, func() { back(sub) }},
		"a link":           {func() { loop(file) }, func() { back(file) }},
	} {
		fault.begin()
		if since := is(true); since.Before(started) || since.After(time.Now()) {
			t.Errorf("%s: since %v, started %v", what, since, started)
		}
		fault.end()
		is(false)
	}
	m.want("a=1 b=1 c=1")
	if len(m.history) != 3 {
		t.Errorf("something was removed, or changed: %v", m.history)
	}
}

// A directory that replaces another one is watched.
func TestDirectoryIsReplaced(t *testing.T) {
	top := t.TempDir()
	sub, next := filepath.Join(top, "sub"), filepath.Join(top, ".next-sub")
	write(t, filepath.Join(sub, "a.yaml"), service("a", 1))
	write(t, filepath.Join(next, "a.yaml"), service("a", 2))
	m := run(t, dir.Options{Dir: top})
	must(t, unix.Renameat2(unix.AT_FDCWD, sub, unix.AT_FDCWD, next, unix.RENAME_EXCHANGE))
	m.want("a=2")
	write(t, filepath.Join(sub, "a.yaml"), service("a", 3))
	m.want("a=3")
}

// Objects below a directory that cannot be read stay in force while other files are read.
func TestUnreadableSubdirectory(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "a.yaml"), service("a", 1))
	write(t, filepath.Join(top, "sub/b.yaml"), service("b", 1))
	m := run(t, dir.Options{Dir: top})
	must(t, os.Rename(filepath.Join(top, "sub"), filepath.Join(top, ".away")))
	must(t, os.Symlink("sub", filepath.Join(top, "sub"))) // a loop, so that even root cannot read it
	for port := 2; port <= 5; port++ {
		write(t, filepath.Join(top, "a.yaml"), service("a", port))
		m.want(fmt.Sprintf("a=%d b=1", port))
	}
	if len(m.problems) != 1 || m.problems[0].Origin.File != filepath.Join(top, "sub") {
		t.Errorf("problems %v", m.problems)
	}
	must(t, os.Remove(filepath.Join(top, "sub")))
	m.want("a=5")
}

func TestPoll(t *testing.T) {
	top, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(top, "a.yaml"), service("a", 1))
	must(t, os.Link(filepath.Join(top, "a.yaml"), filepath.Join(elsewhere, "hard")))
	m := run(t, dir.Options{Dir: top, Poll: 20 * time.Millisecond})
	must(t, os.WriteFile(filepath.Join(elsewhere, "hard"), []byte(service("a", 2)), 0o644)) // inotify reports no change of another hard link
	m.want("a=2")
}
