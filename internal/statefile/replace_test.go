package statefile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/statefile"
)

func TestReplace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	path := filepath.Join(dir, "f")
	if _, err := statefile.ReadOwn(path, 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read before the first write: %v", err)
	}
	for _, text := range []string{"first, longer", "second"} {
		if err := statefile.Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := statefile.ReadOwn(path, 100); err != nil || string(got) != text {
			t.Errorf("read %q, %v, want %q", got, err, text)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if got := names(t, dir); got != "f" {
		t.Errorf("the folder holds %s", got)
	}
}

// The target is a folder that is not empty, which rename does not replace, even for root.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "f", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := statefile.Replace(filepath.Join(dir, "f"), []byte("text")); err == nil {
		t.Error("no error")
	}
	if got := names(t, dir); got != "f" {
		t.Errorf("the folder holds %s", got)
	}
}

func TestReplaceRemovesStaleTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{".f-old": 2 * time.Hour, ".f-live": 0, ".other-old": 2 * time.Hour} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := statefile.Replace(filepath.Join(dir, "f"), nil); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != ".f-live .other-old f" {
		t.Errorf("the folder holds %s", got)
	}
}

func TestReadOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := statefile.ReadOwn(path, 4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("a file that is too long: %v", err)
	}
	if err := os.Chmod(path, 0o620); err != nil {
		t.Fatal(err)
	}
	if _, err := statefile.ReadOwn(path, 10); err == nil || !strings.Contains(err.Error(), "0620 lets others write it") {
		t.Errorf("a file that others may write: %v", err)
	}
	if _, err := statefile.ReadOwn(filepath.Dir(path), 10); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	aside, err := statefile.SetAside(path)
	if _, gone := os.Stat(path); err != nil || !errors.Is(gone, fs.ErrNotExist) {
		t.Errorf("set aside: %v, %v", err, gone)
	}
	if text, err := os.ReadFile(aside); err != nil || string(text) != "12345" {
		t.Errorf("%s holds %q, %v", aside, text, err)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}
