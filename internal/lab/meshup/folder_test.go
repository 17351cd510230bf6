package meshup

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A folder that a mesh left which was killed is removed by the next one; those of meshes that run,
// that only begin, or that are somebody else's are not.
func TestLeftoverFoldersAreRemoved(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	running, left, remove, err := MakeFolder()
	if err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	folder := func(name string, lock bool) string {
		dir := filepath.Join(temp, name)
		err := os.MkdirAll(filepath.Join(dir, "state", "ca"), 0o700)
		if err == nil && lock {
			err = os.WriteFile(filepath.Join(dir, lockName), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	killed, begins, other := folder(folderPrefix+"1", true), folder(folderPrefix+"2", false), folder("other", true)
	link := filepath.Join(temp, folderPrefix+"3")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	next, left, removeNext, err := MakeFolder()
	if err != nil || len(left) != 1 || left[0] != "removed "+killed+", which a killed mesh had left" {
		t.Fatalf("removed %v (%v), want %s", left, err, killed)
	}
	if _, err := os.Stat(killed); err == nil {
		t.Error("what was left is still there")
	}
	for _, dir := range []string{running, begins, other, link, next} {
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("removed, too: %v", err)
		}
	}
	for _, f := range []func() error{remove, removeNext} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{running, next} {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s stays", dir)
		}
	}
}

func TestOtherFoldersRemain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can make somebody else's folder; nothing to look at")
		return
	}
	temp := t.TempDir()
	dir := filepath.Join(temp, folderPrefix+"1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if left, err := removeLeft(temp); len(left) != 0 || len(err) != 0 {
		t.Errorf("removed %v (%v)", left, err)
	}
}
