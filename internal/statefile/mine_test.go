package statefile

import (
	"os"
	"path/filepath"
	"testing"
)

// Any folder will do, and a file that somebody else could read or replace by a link will not.
func TestReadMine(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // as a volume of a Pod is
		t.Fatal(err)
	}
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := Replace(path, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if text, err := ReadMine(path, 4); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := ReadMine(path, 3); err == nil {
		t.Error("a file that is too large is read")
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMine(link, 4); err == nil {
		t.Error("a link is followed")
	}
	if _, err := ReadMine(dir, 4); err == nil {
		t.Error("a folder is read")
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMine(path, 4); err == nil {
		t.Error("a file that others can read is read")
	}
}
