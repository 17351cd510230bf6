package machine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/test/wait"
)

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// What was written is undone: files that were there before are as they were, links too, and others are gone.
func TestUndo(t *testing.T) {
	m := &Machine{Root: wait.Folder(t), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if err := os.WriteFile(m.Path("old"), []byte("before"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("old", m.Path("link")); err != nil {
		t.Fatal(err)
	}
	c := m.Change()
	for _, f := range []vm.File{{Path: "old", Mode: 0o600, Text: []byte("1")}, {Path: "old", Mode: 0o600, Text: []byte("2")}, {Path: "a/new", Mode: 0o644, Proxy: true}, {Path: "link", Mode: 0o600, Text: []byte("3")}} {
		if err := c.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	if got := text(t, m.Path("old")) + text(t, m.Path("link")); got != "23" {
		t.Errorf("written is %q", got)
	}
	if err := c.Write(vm.File{Path: "a", Mode: 0o600}); err == nil {
		t.Error("a folder was replaced")
	}
	if err := c.Undo(); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(m.Path("old")); err != nil || fi.Mode().Perm() != 0o640 || text(t, m.Path("old")) != "before" {
		t.Errorf("%v, %v: %s", fi, err, text(t, m.Path("old")))
	}
	if to, err := os.Readlink(m.Path("link")); err != nil || to != "old" || m.Exists("a/new") {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

// Only what is the certificate's is removed of its folder.
func TestEmpty(t *testing.T) {
	m := &Machine{Root: wait.Folder(t)}
	for _, name := range []string{"key.pem", "..certs-1/key.pem", "own.pem"} {
		path := filepath.Join(m.Path("certs"), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Empty("certs", "key.pem"); err != nil || m.Exists("certs/key.pem") || m.Exists("certs/..certs-1") || !m.Exists("certs/own.pem") {
		t.Errorf("%v", err)
	}
	if err := m.Empty("certs"); err != nil || m.Exists("certs") {
		t.Errorf("%v", err)
	}
	if err := os.Symlink("/", m.Path("root")); err != nil {
		t.Fatal(err)
	}
	if err := m.Empty("root"); err == nil {
		t.Error("a link was followed")
	}
}

// A process is known by more than its id, which may be another's later.
func TestPID(t *testing.T) {
	m := &Machine{Root: wait.Folder(t)}
	if m.PID() != 0 {
		t.Error("a process without a file")
	}
	if err := m.NotePID(); err != nil || m.PID() != os.Getpid() {
		t.Errorf("%d, %v", m.PID(), err)
	}
	own := text(t, m.Path(vm.PIDFile))
	for _, other := range []string{"1 2 3", "x", own[:len(own)-3], ""} {
		if err := os.WriteFile(m.Path(vm.PIDFile), []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid := m.PID(); pid != 0 {
			t.Errorf("%q is process %d", other, pid)
		}
	}
	if err := m.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
}

func TestLock(t *testing.T) {
	m := &Machine{Root: wait.Folder(t)}
	held, err := m.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Lock(); err == nil {
		t.Error("it was locked twice")
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := m.Lock(); err != nil || again.Close() != nil {
		t.Error(err)
	}
}
